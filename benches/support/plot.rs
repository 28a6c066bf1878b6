//! A bar chart of ratios to raw, as an SVG that can be read on light and dark backgrounds.

use std::ops::RangeInclusive;
use std::path::Path;
use std::{fs, io};

/// One bar. Bars of a group stand together in the given order; bars with the same label have the
/// same colour.
pub(crate) struct Bar {
    pub(crate) group: String,
    pub(crate) label: String,
    /// More than 0.
    pub(crate) value: f64,
}

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 16.0;
/// Where the axis begins, to the right of labels of about twenty letters.
const LEFT: f64 = MARGIN + 120.0;
/// The space to the right of the axis, for the value of the longest bar.
const TEXT_RIGHT: f64 = 60.0;
const HEAD: f64 = 24.0;
const ROW: f64 = 16.0;
const THICKNESS: f64 = 12.0;
/// A palette that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
/// The colour of texts and lines where a style is not applied: grey is visible on any background.
const GREY: &str = "#808080";
const STYLE: &str = "text { font: 12px sans-serif; fill: #1f2328; } \
    .head { font-weight: bold; } .setting { font-size: 11px; } \
    .label { text-anchor: end; } .tick { text-anchor: middle; } \
    path { stroke: #d0d0d0; } .raw { stroke: #1f2328; } \
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } path { stroke: #444c56; } \
    .raw { stroke: #e6edf3; } }";

/// Draws the bars into `file`, below a title and a line about the setting. They begin at 1, the
/// value of raw, on a logarithmic axis: those to the left are worse, those to the right better.
pub(crate) fn write(file: &Path, title: &str, setting: &str, bars: &[Bar]) -> io::Result<()> {
    let mut plot = Plot::for_bars(bars);
    plot.text("head", MARGIN, 20.0, title);
    plot.text("setting", MARGIN, 36.0, setting);
    for decade in plot.decades() {
        let value = 10_f64.powi(decade);
        plot.text("tick", plot.x(value), 56.0, &format!("{value}×"));
    }
    plot.bottom = 56.0;
    for group in bars.chunk_by(|bar, next| bar.group == next.group) {
        plot.draw_group(group);
    }
    fs::write(file, plot.finish())
}

/// The drawing, which grows downwards.
struct Plot<'a> {
    shapes: Vec<String>,
    /// Drawn last, so that no line crosses them.
    texts: Vec<String>,
    bottom: f64,
    /// The powers of ten at the two ends of the axis.
    decades: [i32; 2],
    /// The labels, in the order of their colours.
    labels: Vec<&'a str>,
}

impl<'a> Plot<'a> {
    fn for_bars(bars: &'a [Bar]) -> Self {
        let mut labels = Vec::new();
        for bar in bars {
            if !labels.contains(&bar.label.as_str()) {
                labels.push(&bar.label);
            }
        }
        let is_within = |decade: i32, bar: &Bar| bar.value <= 10_f64.powi(decade);
        let highest = (1..6).find(|decade| bars.iter().all(|bar| is_within(*decade, bar)));
        let lowest = (-6..0).rfind(|decade| !bars.iter().any(|bar| is_within(*decade, bar)));
        let decades = [lowest.unwrap_or(-6), highest.unwrap_or(6)];
        Self { shapes: Vec::new(), texts: Vec::new(), bottom: 0.0, decades, labels }
    }

    fn decades(&self) -> RangeInclusive<i32> {
        self.decades[0]..=self.decades[1]
    }

    fn draw_group(&mut self, bars: &[Bar]) {
        let top = self.bottom + HEAD;
        self.text("head", MARGIN, self.bottom + 16.0, &bars[0].group);
        self.bottom = bars.iter().fold(top, |bottom, _| bottom + ROW);
        for decade in self.decades() {
            let class = if decade == 0 { "raw" } else { "tick" };
            self.line(class, 10_f64.powi(decade), top, self.bottom);
        }
        let mut row = top;
        for bar in bars {
            self.draw_bar(bar, row);
            row += ROW;
        }
        self.bottom += 4.0;
    }

    fn draw_bar(&mut self, bar: &Bar, top: f64) {
        let baseline = top + ROW / 2.0 + 4.0;
        self.text("label", LEFT - 8.0, baseline, &bar.label);
        let [raw, end] = [1.0, bar.value].map(|value| self.x(value));
        let known = self.labels.iter().position(|label| *label == bar.label).unwrap_or(0);
        self.shapes.push(format!(
            r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{THICKNESS}" fill="{}"/>"#,
            raw.min(end),
            top + (ROW - THICKNESS) / 2.0,
            (end - raw).abs(),
            COLOURS[known % COLOURS.len()],
        ));
        let digits = if bar.value < 10.0 { 2 } else { 0 };
        self.text("value", raw.max(end) + 6.0, baseline, &format!("{:.digits$}×", bar.value));
    }

    fn x(&self, value: f64) -> f64 {
        let [lowest, highest] = self.decades.map(f64::from);
        LEFT + (value.log10() - lowest) / (highest - lowest) * (WIDTH - TEXT_RIGHT - LEFT)
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.texts.push(format!(
            r#"<text class="{class}" fill="{GREY}" x="{x:.1}" y="{y:.1}">{text}</text>"#
        ));
    }

    fn line(&mut self, class: &str, value: f64, top: f64, bottom: f64) {
        let x = self.x(value);
        self.shapes.push(format!(
            r#"<path class="{class}" stroke="{GREY}" d="M{x:.1} {top:.1}V{bottom:.1}"/>"#
        ));
    }

    fn finish(self) -> String {
        let height = self.bottom + 8.0;
        let (shapes, texts) = (self.shapes.join("\n"), self.texts.join("\n"));
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"
 width="{WIDTH}" height="{height}" role="img">
<style>{STYLE}</style>
{shapes}
{texts}
</svg>
"#
        )
    }
}
