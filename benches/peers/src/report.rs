//! Presents results as Markdown tables and as the bars of a plot.

use crate::results::Measure;
use crate::results::Series;
use crate::scenario::Scenario;
use crate::support::plot::Bar;

impl Scenario {
    pub(crate) fn print(&self, results: &[Series]) {
        let figure = match self.measure {
            Measure::Rate if self.is_contended() => "handoffs/s",
            Measure::Rate => "cycles/s",
            Measure::Time => "p50 of a cycle",
        };
        let mut head =
            vec![self.title, figure, "÷ raw (quartiles of the rounds)", "CPU of a cycle"];
        if self.is_contended() {
            head.extend(["longest wait", "least ÷ most served"]);
        }
        head.push("goal");
        println!("\n| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
        for series in results {
            println!("| {} |", self.row(series, &results[0]).join(" | "));
        }
    }

    fn row(&self, series: &Series, raw: &Series) -> Vec<String> {
        let is_raw = series.name == raw.name;
        let figure = series.by(self.measure);
        let figure = match self.measure {
            Measure::Rate => format!("{:.1} k", figure / 1e3),
            Measure::Time => format!("{:.0} µs", figure * 1e6),
        };
        let [low, ratio, high] = series.ratios_to(raw, self.measure);
        let ratio =
            if is_raw { "1.00".into() } else { format!("{ratio:.2} ({low:.2} – {high:.2})") };
        let cpu = format!("{} µs", series.cpu_per_cycle().as_micros());
        let mut row = vec![series.name.into(), figure, ratio, cpu];
        if self.is_contended() && is_raw {
            row.extend([String::new(), String::new()]);
        } else if self.is_contended() {
            row.push(format!("{} ms", series.longest_wait().as_millis()));
            row.push(format!("{:.2}", series.least_to_most()));
        }
        row.push(self.goal_of(series).map_or(String::new(), |goal| self.measure.goal(goal)));
        row
    }

    /// Returns the bars of this scenario: the ratio of each peer, other than raw, to raw.
    pub(crate) fn bars<'a>(&'a self, results: &'a [Series]) -> impl Iterator<Item = Bar> + 'a {
        let (raw, others) = results.split_first().expect("raw comes first");
        others.iter().map(|series| {
            let [_, value, _] = series.ratios_to(raw, self.measure);
            Bar {
                group: self.caption(),
                label: series.name.into(),
                value,
                goal: self.goal_of(series),
            }
        })
    }

    fn caption(&self) -> String {
        let measure = match self.measure {
            Measure::Rate => "throughput ÷ raw, more is better",
            Measure::Time => "time ÷ raw, less is better",
        };
        format!("{}: {measure}", self.title)
    }

    fn is_contended(&self) -> bool {
        self.workers > self.names
    }

    fn goal_of(&self, series: &Series) -> Option<f64> {
        series.name.starts_with("leasehold").then_some(self.goal)
    }
}

impl Measure {
    fn goal(self, goal: f64) -> String {
        match self {
            Self::Rate => format!("≥ {goal:.2}"),
            Self::Time => format!("≤ {goal:.2}"),
        }
    }
}
