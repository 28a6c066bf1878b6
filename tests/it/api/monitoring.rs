//! The metrics that `docs/monitoring.md`, its alerts and its dashboard refer to exist, under one
//! name in the example and in the feature `metrics`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use yaml_rust2::YamlLoader;

const ALERTS: &str = include_str!("../../../docs/monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../../docs/monitoring/dashboard.json");
const EXAMPLE: &str = include_str!("../../../examples/metrics.rs");
const FEATURE: &str = include_str!("../../../src/base/metrics.rs");
const PAGE: &str = include_str!("../../../docs/monitoring.md");

/// Returns the text after `leasehold_` behind each `start`, up to a quotation mark.
fn names(source: &str, starts: &[&str]) -> BTreeSet<String> {
    let names = starts.iter().flat_map(|start| source.split(start).skip(1));
    names.map(|rest| format!("leasehold_{}", rest.split('"').next().unwrap())).collect()
}

fn of_example() -> BTreeSet<String> {
    names(EXAMPLE, &["head(\"", "counter(\"", "histogram(\""])
}

/// Fails if an expression or a text names a metric that does not exist.
#[track_caller]
fn assert_metrics_exist(text: &str) {
    let exported = of_example();
    for rest in text.split("leasehold_").skip(1) {
        let is_part = |char: char| char.is_ascii_lowercase() || char == '_';
        let name = rest.split(|char| !is_part(char)).next().unwrap();
        let name = format!("leasehold_{}", name.trim_end_matches("_bucket"));
        assert!(exported.contains(&name), "{name} in {text}");
    }
}

#[test]
fn the_metrics_of_the_feature_are_those_of_the_example() {
    assert_eq!(names(FEATURE, &["Series(\"", "full(\""]), of_example());
}

#[test]
fn the_metrics_in_the_guide_are_those_of_the_example() {
    let table = PAGE.split("\n\n").find(|part| part.starts_with("| metric |")).unwrap();
    let cells = table.lines().skip(2).map(|row| row.split('|').nth(1).unwrap());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let of_table: BTreeSet<_> = names
        .map(|name| name.split('{').next().unwrap().trim_start_matches("leasehold"))
        .map(|name| format!("leasehold{name}"))
        .collect();
    assert_eq!(of_table, of_example());
    assert_metrics_exist(PAGE);
}

#[test]
fn the_alerts_are_those_of_the_guide_and_use_metrics_that_exist() {
    let documents = YamlLoader::load_from_str(ALERTS).unwrap();
    let rules = documents[0]["groups"][0]["rules"].as_vec().unwrap();
    for rule in rules {
        let text = |key: &str| rule[key].as_str().unwrap_or_else(|| panic!("no {key}: {rule:?}"));
        let (alert, expression) = (text("alert"), text("expr"));
        assert!(rule["annotations"]["summary"].as_str().is_some(), "{alert}");
        assert!(rule["labels"]["severity"].as_str().is_some(), "{alert}");
        assert!(PAGE.contains(&format!("\\\n  `{expression}`\n")), "{alert}: {expression}");
        assert_metrics_exist(expression);
    }
    let of_page =
        PAGE.split("\n\n").find(|part| part.starts_with("- **A lock was lost**")).unwrap();
    let of_page = of_page.lines().filter(|line| line.starts_with("- **"));
    assert_eq!(rules.len(), of_page.count(), "alerts here and in the page");
}

#[test]
fn the_dashboard_shows_every_metric() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut shown = String::new();
    for panel in panels {
        assert!(panel["title"].is_string() && panel["gridPos"].is_object(), "{panel}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            assert_metrics_exist(expression);
            shown += expression;
        }
    }
    for metric in of_example() {
        assert!(shown.contains(&metric), "{metric} is not shown");
    }
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
}

/// Where Prometheus is installed, its own checker is run as well.
#[test]
fn prometheus_accepts_the_alerts() {
    let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring/alerts.yml");
    assert!(fs::exists(&alerts).unwrap());
    let Ok(output) = Command::new("promtool").args(["check", "rules"]).arg(alerts).output() else {
        eprintln!("no promtool here: the alerts were only parsed");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
