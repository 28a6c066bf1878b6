//! Results as the tables of a Markdown page. `benches/run` collects the rows that have a goal.

use std::fmt::Display;
use std::time::Duration;

use super::turns::Series;

/// The columns of `cycle`, with the first one named.
pub(crate) fn head_of_cycles(first: &str) {
    head(&[first, "wall", "÷ raw (quartiles)", "CPU: client + server", "CPU ÷ raw", "goal"]);
}

/// The columns of `fact`, with the first one named.
pub(crate) fn head_of_facts(first: &str) {
    head(&[first, "measured", "goal"]);
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
        goal.map_or(String::new(), |goal| at_most(ratios[1], goal)),
    ]);
}

pub(crate) fn micros(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1e6)
}

pub(crate) fn quartiles([low, median, high]: [f64; 3]) -> String {
    let digits = match median {
        ..0.1 => 4,
        0.1..100.0 => 2,
        _ => 0,
    };
    format!("{median:.digits$} ({low:.digits$} – {high:.digits$})")
}

/// Returns how many there are per second, in thousands if there are many.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second < 1e3 { format!("{per_second:.0}") } else { format!("{:.1} k", per_second / 1e3) }
}

/// Returns a goal that is a maximum, marked if the figure misses it.
pub(crate) fn at_most(figure: f64, goal: f64) -> String {
    verdict(figure <= goal, "≤", goal)
}

/// Returns a goal that is a minimum, marked if the figure misses it.
pub(crate) fn at_least(figure: f64, goal: f64) -> String {
    verdict(figure >= goal, "≥", goal)
}

/// Returns the goal that there are none, marked if there are some.
pub(crate) fn none(count: u64) -> String {
    if count == 0 { "0".into() } else { "**missed**: 0".into() }
}

fn verdict(met: bool, relation: &str, goal: f64) -> String {
    let miss = if met { "" } else { "**missed**: " };
    format!("{miss}{relation} {goal}")
}
