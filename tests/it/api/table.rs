//! All tests that `tests/FAULTS.md` and the tables in `docs/guarantees.md` and README name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const FAULTS: &str = include_str!("../../FAULTS.md");
const GUARANTEES: &str = include_str!("../../../docs/guarantees.md");
const README: &str = include_str!("../../../README.md");

/// Returns the rows of the tables whose first line begins with `head`, as cells.
fn rows<'text>(text: &'text str, head: &str) -> Vec<Vec<&'text str>> {
    let tables = text.split("\n\n").filter(|part| part.starts_with(head));
    let rows = tables.flat_map(|table| table.lines().skip(2));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns the names in backticks.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns `true` if `source` has a test with this name: a `#[test]`, or one in a `stores!` list.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let Some(at) = lines.iter().position(|line| line.starts_with(&format!("fn {name}("))) else {
        return false;
    };
    let before = lines[..at].iter().rev();
    let attributes: Vec<_> = before.take_while(|line| line.starts_with("#[")).collect();
    let listed = |line: &&str| {
        let line = line.strip_prefix("#[cfg(unix)] ").unwrap_or(line);
        let line = line.strip_prefix("#[cfg(target_os = \"linux\")] ").unwrap_or(line);
        line.strip_suffix([',', ';']) == Some(name)
    };
    attributes.contains(&&"#[test]") || lines.iter().any(listed)
}

/// The folders of `tests/it`, which are omitted in the names of tests.
fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir() && !path.ends_with("support")).collect()
}

/// Returns the file with a test in that module: `renewals`, `quorum::fences`,
/// `protocol::hold::tests`, `net::schedules`, `cli::loss` or `simulation::explorer`.
fn file_of(modules: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = |dir: &Path, modules: &[&str]| dir.join(modules.join("/") + ".rs");
    let (src, tests) = (root.join("src"), root.join("tests"));
    let mut candidates: Vec<_> = folders().iter().map(|dir| file(dir, modules)).collect();
    candidates.push(file(&src, modules));
    candidates.push(file(&tests, modules));
    candidates.push(file(&tests, &[modules, &["mod"]].concat()));
    let program = root.join("cli/tests");
    candidates.extend(modules.strip_prefix(&["cli"]).map(|of| file(&program, of)));
    candidates.extend(modules.strip_suffix(&["tests"]).map(|inline| file(&src, inline)));
    let schedules = tests.join("schedules");
    candidates.extend(modules.strip_suffix(&["schedules"]).map(|of| file(&schedules, of)));
    candidates.into_iter().find(|file| file.is_file()).unwrap_or_default()
}

/// Returns the Rust files of a directory and of those in it.
fn sources_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let sources = files.into_iter().map(|file| fs::read_to_string(file).unwrap());
    sources.chain(dirs.iter().flat_map(|dir| sources_in(dir))).collect()
}

#[test]
fn the_table_of_faults_names_tests_that_exist() {
    let rows = rows(FAULTS, "| id |");
    assert!(rows.len() > 100, "{} rows", rows.len());
    let mut ids = BTreeSet::new();
    for row in rows {
        let [id, what, outcome, tests] = row[..] else { panic!("not four cells: {row:?}") };
        assert!(ids.insert(id), "{id} is there twice");
        let reasons = ["*excluded by*", "*not shown*"];
        let excused = reasons.iter().any(|reason| outcome.contains(reason));
        let count = names(tests).count();
        assert!(!what.is_empty() && (count == 1 || excused && count == 0), "{id}: {count} tests");
        for test in names(tests) {
            let path: Vec<_> = test.split("::").collect();
            let Some((name, modules)) = path.split_last() else { unreachable!("split has one") };
            let source = fs::read_to_string(file_of(modules)).unwrap_or_default();
            assert!(has_test(&source, name), "{id}: there is no test {test}");
        }
    }
}

/// Asserts that `tests/it` has the tests of a row.
#[track_caller]
fn assert_shown<'text>(row: &str, tests: impl Iterator<Item = &'text str>) {
    let sources: Vec<_> = folders().iter().flat_map(|dir| sources_in(dir)).collect();
    let mut tests = tests.peekable();
    assert!(tests.peek().is_some(), "{row} is not shown");
    for test in tests {
        let found = sources.iter().any(|source| has_test(source, test));
        assert!(found, "{row}: there is no test {test}");
    }
}

#[test]
fn the_table_of_guarantees_names_tests_that_exist() {
    let rows = rows(GUARANTEES, "| fault |");
    assert!(rows.len() >= 10, "{} rows", rows.len());
    for row in rows {
        assert_shown(row[0], names(row.last().expect("a row has cells")));
    }
}

#[test]
fn the_readme_names_tests_that_exist() {
    let rows = rows(README, "| | elsewhere |");
    assert!(rows.len() >= 5, "{} rows", rows.len());
    for row in rows {
        // The test comes last, after other text in backticks.
        assert_shown(row[0], names(row.last().expect("a row has cells")).last().into_iter());
    }
}
