//! Checks that each excuse of the simulation's judge has a mutant that it might hide and that seeds
//! find, according to the table in `tests/README.md`.

use std::fs;
use std::path::Path;

use crate::list::{Mutant, Tests};

/// # Errors
///
/// Panics if a reason has no row in the table, or a row has no reason or no such mutant.
pub(crate) fn check(root: &Path, mutants: &[Mutant]) -> Result<(), String> {
    let read = |file: &str| {
        fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
    };
    let source = read("tests/simulation/reasons.rs")?;
    let readme = read("tests/README.md")?;
    let reasons = reasons(&source);
    let rows: Vec<_> = readme.lines().filter_map(row).collect();
    let mut errors = Vec::new();
    if reasons.is_empty() {
        errors.push("no reasons are found".to_owned());
    }
    for reason in &reasons {
        if !rows.iter().any(|row| row.reason == *reason) {
            errors.push(format!("{reason} has no mutant in tests/README.md"));
        }
    }
    for Row { reason, mutant } in rows {
        let is_known = reasons.contains(&reason);
        let listed = mutants.iter().find(|it| it.name == mutant);
        let is_sought =
            listed.is_some_and(|it| it.tests.iter().any(|it| matches!(it, Tests::Seeds(_))));
        if !is_known || !is_sought {
            errors.push(format!("{mutant} of {reason} in tests/README.md is not sought by seeds"));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// Returns the names between the brackets of `reasons! { .. }`.
fn reasons(source: &str) -> Vec<&str> {
    let list = source.split_once("\nreasons! {").map_or("", |(_, rest)| rest);
    let lines = list.lines().take_while(|line| *line != "}").map(str::trim);
    lines.filter_map(|line| line.strip_suffix(',').filter(|name| !name.contains(' '))).collect()
}

/// A row of the table: a reason, and the mutant that it might hide.
struct Row<'a> {
    reason: &'a str,
    mutant: &'a str,
}

/// Parses a line such as "| `OwnHold` | `own-debts-make-busy` |".
fn row(line: &str) -> Option<Row<'_>> {
    let (reason, rest) = line.strip_prefix("| `")?.split_once("` | `")?;
    let mutant = rest.strip_suffix("` |")?;
    Some(Row { reason, mutant })
}
