//! Presents results as Markdown tables and as the bars of a plot.

use crate::results::{Measure, Series};
use crate::scenario::{Distance, Scenario};
use crate::support::plot::Bar;
use crate::support::table;

impl Scenario {
    pub(crate) fn print(&self, results: &[Series]) {
        let figure = match self.measure() {
            Measure::Rate if self.is_contended() => "handoffs/s",
            Measure::Rate => "cycles/s",
            Measure::Time => "p50 of a cycle",
        };
        let title = self.title();
        let ratio = "÷ raw (quartiles of the rounds)";
        let mut head = vec![&*title, figure, ratio, "CPU of a cycle: client + server"];
        if self.is_contended() {
            head.extend(["longest wait", "least ÷ most served"]);
        }
        head.push("goal");
        table::head(&head);
        for series in results {
            table::row(&self.row(series, &results[0]));
        }
    }

    fn row(&self, series: &Series, raw: &Series) -> Vec<String> {
        let is_raw = series.name == raw.name;
        let figure = series.by(self.measure());
        let figure = match self.measure() {
            Measure::Rate => format!("{:.1} k", figure / 1e3),
            Measure::Time => format!("{:.0} µs", figure * 1e6),
        };
        let ratios = series.ratios_to(raw, self.measure());
        let [client, server] = series.cpu_per_cycle().map(|time| time.as_micros());
        let cpu = format!("{client} + {server} µs");
        let mut row = vec![series.name.into(), figure, table::quartiles(ratios), cpu];
        if self.is_contended() && is_raw {
            row.extend([String::new(), String::new()]);
        } else if self.is_contended() {
            row.push(format!("{} ms", series.longest_wait().as_millis()));
            row.push(format!("{:.2}", series.least_to_most()));
        }
        let verdict = |goal| self.measure().verdict(goal, ratios[1]);
        row.push(self.goal_of(series).map_or(String::new(), verdict));
        row
    }

    /// Returns the bars of this scenario: the ratio of each peer, other than raw, to raw.
    pub(crate) fn bars<'a>(&'a self, results: &'a [Series]) -> impl Iterator<Item = Bar> + 'a {
        let (raw, others) = results.split_first().expect("raw comes first");
        others.iter().map(|series| {
            let [_, value, _] = series.ratios_to(raw, self.measure());
            Bar {
                group: self.caption(),
                label: series.name.into(),
                value,
                goal: self.goal_of(series),
            }
        })
    }

    fn caption(&self) -> String {
        let measure = match self.measure() {
            Measure::Rate => "throughput ÷ raw, more is better",
            Measure::Time => "time ÷ raw, less is better",
        };
        format!("{}: {measure}", self.title())
    }

    fn title(&self) -> String {
        let Self { workers, names, distance, .. } = self;
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let away = if *distance == Distance::Here { "" } else { ", 1 ms away" };
        format!("{workers} thread{}, {names} name{}{away}", plural(*workers), plural(*names))
    }

    fn is_contended(&self) -> bool {
        self.workers > self.names
    }

    fn goal_of(&self, series: &Series) -> Option<f64> {
        self.goal.filter(|_| series.name == "leasehold")
    }
}

impl Measure {
    fn verdict(self, goal: f64, ratio: f64) -> String {
        match self {
            Self::Rate => table::verdict("≥", goal, ratio >= goal),
            Self::Time => table::verdict("≤", goal, ratio <= goal),
        }
    }
}
