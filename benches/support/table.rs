//! Results as the rows of a Markdown table, which can be pasted into RESULTS.md.

use std::fmt::Display;
use std::time::Duration;

use super::turns::Series;

/// The columns of `cycle`, with the first one named.
pub(crate) fn head_of_cycles(first: &str) {
    head(&[first, "wall", "÷ raw (quartiles)", "CPU: client + server", "÷ raw", "goal"]);
}

pub(crate) fn head(columns: &[&str]) {
    println!("\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
}

pub(crate) fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

/// Prints a row with a description, the figure, and what it should be.
pub(crate) fn fact(what: &str, figure: impl Display, goal: &str) {
    println!("| {what} | {figure} | {goal} |");
}

/// Prints the time and the work of a cycle, compared with those of `base`. The goal is a maximum of
/// the ratio in time.
pub(crate) fn cycle(series: &Series, base: &Series, goal: Option<f64>) {
    let ratios = series.ratios_to(base);
    row(&[
        series.name.into(),
        micros(series.wall()),
        quartiles(ratios),
        format!("{} + {}", micros(series.cpu()), micros(series.server_cpu())),
        format!("{:.2}", series.work().div_duration_f64(base.work())),
        goal.map_or(String::new(), |goal| verdict("≤", goal, ratios[1] <= goal)),
    ]);
}

pub(crate) fn micros(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1e6)
}

pub(crate) fn quartiles([low, median, high]: [f64; 3]) -> String {
    let digits = digits(median);
    format!("{median:.digits$} ({low:.digits$} – {high:.digits$})")
}

pub(crate) fn verdict(relation: &str, goal: f64, met: bool) -> String {
    let miss = if met { "" } else { "**missed**: " };
    let digits = digits(goal);
    format!("{miss}{relation} {goal:.digits$}")
}

/// Returns how many decimals distinguish ratios of this size.
fn digits(ratio: f64) -> usize {
    if ratio < 0.1 { 4 } else { 2 }
}
