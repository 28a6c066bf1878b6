//! What README and the guides in `docs/` refer to exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const MONITORING: &str = include_str!("../../../docs/monitoring.md");
const METRICS: &str = include_str!("../../../examples/metrics.rs");

/// The Markdown files of a directory.
fn guides_in(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "md")).collect()
}

/// What follows each `start`, up to `end`.
fn between<'text>(text: &'text str, start: &str, end: &str) -> Vec<&'text str> {
    text.split(start).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0)).collect()
}

/// The anchors of the headings, as they are made where the files are shown.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |char: &char| char.is_alphanumeric() || "-_ ".contains(*char);
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        words.chars().filter(kept).collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_between_the_guides_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guides = [guides_in(root), guides_in(&root.join("docs"))].concat();
    let mut count = 0;
    for guide in guides {
        let text = fs::read_to_string(&guide).unwrap();
        for link in between(&text, "](", ")") {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let dir = guide.parent().expect("a file is in a directory");
            let target = if file.is_empty() { guide.clone() } else { dir.join(file) };
            assert!(target.exists(), "{}: {link}", guide.display());
            let has_anchor =
                || anchors(&fs::read_to_string(&target).unwrap()).contains(&anchor.into());
            assert!(anchor.is_empty() || has_anchor(), "{}: {link}", guide.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count} links");
}

/// Where docs.rs shows the files of the package.
const SOURCE: &str = "https://docs.rs/crate/leasehold/latest/source/";

#[test]
fn the_crate_docs_lead_to_every_guide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let linked: BTreeSet<_> =
        between(&docs, SOURCE, "\n").into_iter().map(|path| root.join(path)).collect();
    assert_eq!(linked, BTreeSet::from_iter(guides_in(&root.join("docs"))));
}

#[test]
fn the_metrics_in_the_guide_are_those_of_the_example() {
    let of_example: BTreeSet<_> = ["head(\"", "counter(\"", "histogram(\""]
        .iter()
        .flat_map(|call| between(METRICS, call, "\""))
        .map(|name| format!("leasehold_{name}"))
        .collect();
    let table = MONITORING.split("\n\n").find(|part| part.starts_with("| metric |")).unwrap();
    let cells = table.lines().skip(2).map(|row| row.split('|').nth(1).unwrap());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let of_table: BTreeSet<_> = names
        .map(|name| name.split('{').next().unwrap().trim_start_matches("leasehold"))
        .map(|name| format!("leasehold{name}"))
        .collect();
    assert_eq!(of_table, of_example);
    let is_part = |char: char| char.is_ascii_lowercase() || char == '_';
    for rest in MONITORING.split("leasehold_").skip(1) {
        let name = rest.split(|char| !is_part(char)).next().unwrap();
        let name = format!("leasehold_{}", name.trim_end_matches("_bucket"));
        assert!(of_example.contains(&name), "{name}");
    }
}
