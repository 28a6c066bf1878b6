//! A bar chart of ratios to raw, as an SVG.

use std::path::Path;
use std::{fs, io};

/// One bar. Bars of a group stand together in the given order; bars with the same label have the
/// same colour.
pub(crate) struct Bar {
    pub(crate) group: String,
    pub(crate) label: String,
    pub(crate) value: f64,
    /// The value that it should have, drawn as a line across the bar.
    pub(crate) goal: Option<f64>,
}

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 16.0;
/// Where bars begin, to the right of labels of about twenty letters.
const LEFT: f64 = MARGIN + 152.0;
const HEAD: f64 = 30.0;
const ROW: f64 = 26.0;
const THICKNESS: f64 = 18.0;
/// The space to the right of the longest bar, for its value and its goal.
const TEXT_RIGHT: f64 = 130.0;
const VALUE_WIDTH: f64 = 36.0;
/// A palette that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
const STYLE: &str = "text { font: 13px sans-serif; fill: #1a1a1a; } \
    .head { font-weight: bold; } .setting { font-size: 11px; fill: #555555; } \
    .label { text-anchor: end; } .tick { text-anchor: middle; } \
    line { stroke: #d5d5d5; } .raw { stroke: #1a1a1a; } \
    .goal { stroke: #1a1a1a; stroke-width: 2; stroke-dasharray: 4 2; } \
    .under { stroke: #ffffff; stroke-width: 4; } \
    .value { paint-order: stroke; stroke: #ffffff; stroke-width: 4; }";

/// Draws the bars, of which there must be at least one, and a line at the value of raw, into
/// `file`, below a line about the setting.
pub(crate) fn write(file: &Path, setting: &str, bars: &[Bar]) -> io::Result<()> {
    let mut plot = Plot::for_bars(bars);
    plot.text("setting", MARGIN, plot.bottom + 8.0, setting);
    plot.bottom += 16.0;
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
    ticks: Vec<f64>,
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
        let values = bars.iter().flat_map(|bar| [Some(bar.value), bar.goal]).flatten();
        let ticks = ticks(values.fold(1.0, f64::max));
        Self { shapes: Vec::new(), texts: Vec::new(), bottom: MARGIN, ticks, labels }
    }

    fn draw_group(&mut self, bars: &[Bar]) {
        let top = self.bottom + HEAD;
        self.text("head", MARGIN, self.bottom + 18.0, &bars[0].group);
        self.bottom = bars.iter().fold(top, |bottom, _| bottom + ROW);
        for tick in self.ticks.clone() {
            self.line("tick", tick, top, self.bottom);
            self.text("tick", self.x(tick), self.bottom + 16.0, &tick.to_string());
        }
        let mut row = top;
        for bar in bars {
            self.draw_bar(bar, row);
            row += ROW;
        }
        self.line("raw", 1.0, top, self.bottom);
        self.bottom += 30.0;
    }

    fn draw_bar(&mut self, bar: &Bar, top: f64) {
        let baseline = top + ROW / 2.0 + 4.5;
        self.text("label", LEFT - 8.0, baseline, &bar.label);
        let end = self.x(bar.value);
        let known = self.labels.iter().position(|label| *label == bar.label).unwrap_or(0);
        self.shapes.push(format!(
            r#"<rect x="{LEFT}" y="{:.1}" width="{:.1}" height="{THICKNESS}" fill="{}"/>"#,
            top + (ROW - THICKNESS) / 2.0,
            end - LEFT,
            COLOURS[known % COLOURS.len()],
        ));
        let mut value_at = end + 6.0;
        if let Some(goal) = bar.goal {
            self.line("under", goal, top, top + ROW);
            self.line("goal", goal, top, top + ROW);
            let goal_at = self.x(goal);
            if (end..value_at + VALUE_WIDTH).contains(&goal_at) {
                value_at = goal_at + 6.0;
            }
            let after = (value_at + VALUE_WIDTH).max(goal_at + 6.0);
            self.text("value", after, baseline, &format!("goal {goal:.2}"));
        }
        self.text("value", value_at, baseline, &format!("{:.2}", bar.value));
    }

    fn x(&self, value: f64) -> f64 {
        let longest = self.ticks.last().copied().unwrap_or(1.0);
        LEFT + value / longest * (WIDTH - TEXT_RIGHT - LEFT)
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.texts.push(format!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#));
    }

    fn line(&mut self, class: &str, value: f64, top: f64, bottom: f64) {
        let x = self.x(value);
        self.shapes.push(format!(
            r#"<line class="{class}" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#
        ));
    }

    fn finish(self) -> String {
        let (height, shapes, texts) = (self.bottom, self.shapes.join("\n"), self.texts.join("\n"));
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"
 width="{WIDTH}" height="{height}" role="img">
<style>{STYLE}</style>
<rect width="100%" height="100%" fill="#ffffff"/>
{shapes}
{texts}
</svg>
"##
        )
    }
}

/// Returns the marks of an axis from 0 to `highest` or a little more, in at most eight round steps.
fn ticks(highest: f64) -> Vec<f64> {
    let steps = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0];
    let step = steps.into_iter().find(|step| highest / step <= 8.0).unwrap_or(100.0);
    let ticks = (0..).map(|number| (f64::from(number) * step * 10.0).round() / 10.0);
    ticks.take_while(|tick| *tick < highest + step).collect()
}
