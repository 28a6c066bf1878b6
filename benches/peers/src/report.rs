//! Presents results as Markdown tables and as the bars of a plot.

use crate::results::Series;
use crate::scenario::{Distance, Scenario};
use crate::support::plot::Bar;
use crate::support::table;

impl Scenario {
    pub(crate) fn print(&self, results: &[Series]) {
        let title = self.title();
        let cpu = "CPU of a cycle: client + server";
        let mut head = vec![&*title, "cycles/s", "÷ raw (quartiles)", cpu];
        if self.is_contended() {
            head.extend(["longest wait", "least ÷ most served"]);
        }
        table::head(&head);
        for series in results {
            table::row(&self.row(series, &results[0]));
        }
    }

    fn row(&self, series: &Series, raw: &Series) -> Vec<String> {
        let [client, server] = series.cpu_per_cycle().map(table::micros);
        let mut row = vec![
            series.name.into(),
            table::rate(series.cycles_per_second()),
            table::quartiles(series.ratios_to(raw)),
            format!("{client} + {server}"),
        ];
        if self.is_contended() && series.name == raw.name {
            row.extend([String::new(), String::new()]);
        } else if self.is_contended() {
            row.push(format!("{} ms", series.longest_wait().as_millis()));
            row.push(format!("{:.2}", series.least_to_most()));
        }
        row
    }

    /// Returns the bars of this scenario: the ratio of each peer, other than raw, to raw.
    pub(crate) fn bars<'a>(&'a self, results: &'a [Series]) -> impl Iterator<Item = Bar> + 'a {
        let (raw, others) = results.split_first().expect("raw comes first");
        others.iter().map(|series| {
            let [_, value, _] = series.ratios_to(raw);
            Bar { group: self.title(), label: series.name.into(), value }
        })
    }

    fn title(&self) -> String {
        let Self { workers, names, distance } = self;
        let away = if *distance == Distance::Here { "" } else { ", 1 ms away" };
        match (workers, names) {
            (1, _) => format!("1 thread{away}"),
            (_, 1) => format!("{workers} threads on one name{away}"),
            _ => format!("{workers} threads on as many names{away}"),
        }
    }

    fn is_contended(&self) -> bool {
        self.workers > self.names
    }
}
