//! The lists of mutants. An entry begins with a comment that describes the mistake, and ends with
//! an empty line:
//!
//! ```text
//! # An unlock reports success whatever the server has answered.
//! unlock-is-always-ok
//! in src/local/release.rs unlock
//! - result
//! + result.or(Ok(()))
//! lib local::tests::an_unlock
//! it calls::release
//! ```
//!
//! `in` names a file, or a folder if the file may move, and the function that has the old text
//! exactly once; a script has no function. Old text that ends with `;` or `}` consists of
//! statements; any other is an expression. Its indentation does not matter. A mistake that takes
//! several changes has several `in`, each with old and new text. `lib`, `it` and `cli` list tests
//! of that program by parts of their names. One of them must fail. With `seeds`, one of this many
//! worlds of the simulation must fail as well; with `connections`, one of this many worlds of
//! connections; and with `scene`, this small world. If a mutant survives for a reason, that follows
//! `survives`.

use std::fs;
use std::path::Path;

#[derive(Debug)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) changes: Vec<Change>,
    pub(crate) tests: Vec<Tests>,
    pub(crate) survives: Option<String>,
}

/// A change of the source.
#[derive(Debug)]
pub(crate) struct Change {
    /// A file or a folder.
    pub(crate) within: String,
    pub(crate) function: String,
    pub(crate) old: Vec<String>,
    pub(crate) new: Vec<String>,
}

/// Tests that should notice a mutant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tests {
    Lib(String),
    It(String),
    Cli(String),
    Connections(String),
    Seeds(String),
    Scene(String),
}

pub(crate) fn read_all(folder: &Path) -> Result<Vec<Mutant>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut lists: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    lists.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    lists.sort();
    let mut all: Vec<Mutant> = Vec::new();
    for path in lists {
        let place = |why: String| format!("{}: {why}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| place(error.to_string()))?;
        for entry in text.split("\n\n").filter(|entry| !entry.trim().is_empty()) {
            let mutant = parse(entry).map_err(|why| place(format!("{why} in\n{entry}")))?;
            if all.iter().any(|other| other.name == mutant.name) {
                return Err(place(format!("{} is there twice", mutant.name)));
            }
            all.push(mutant);
        }
    }
    Ok(all)
}

fn parse(entry: &str) -> Result<Mutant, String> {
    let mut mutant = Mutant {
        name: String::new(),
        about: String::new(),
        changes: Vec::new(),
        tests: Vec::new(),
        survives: None,
    };
    for line in entry.lines().filter(|line| !line.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = rest.to_owned();
        match word {
            "#" if mutant.about.is_empty() => mutant.about = text,
            "#" => mutant.about = format!("{} {text}", mutant.about),
            "in" => {
                let (within, function) = rest.split_once(' ').unwrap_or((rest, ""));
                if function.is_empty() != is_script(within) {
                    return Err(format!("{line:?} needs a function, unless it names a script"));
                }
                let (within, function) = (within.to_owned(), function.to_owned());
                let (old, new) = (Vec::new(), Vec::new());
                mutant.changes.push(Change { within, function, old, new });
            }
            "-" | "+" => {
                let change = mutant.changes.last_mut().ok_or("text without a place")?;
                let lines = if word == "-" { &mut change.old } else { &mut change.new };
                lines.push(text.trim().to_owned());
            }
            "lib" => mutant.tests.push(Tests::Lib(text)),
            "it" => mutant.tests.push(Tests::It(text)),
            "cli" => mutant.tests.push(Tests::Cli(text)),
            "connections" => mutant.tests.push(Tests::Connections(text)),
            "seeds" => mutant.tests.push(Tests::Seeds(text)),
            "scene" => mutant.tests.push(Tests::Scene(text)),
            "survives" => mutant.survives = Some(text),
            _ if mutant.name.is_empty() && rest.is_empty() => word.clone_into(&mut mutant.name),
            _ => return Err(format!("{line:?} is not understood")),
        }
    }
    if mutant.name.is_empty() || mutant.about.is_empty() || mutant.changes.is_empty() {
        return Err("a name, a comment or a place is missing".into());
    }
    for Change { old, new, .. } in &mutant.changes {
        if old.is_empty() {
            return Err("old text is missing".into());
        }
        if !is_balanced(old) || !is_balanced(new) {
            return Err("brackets have no counterparts".into());
        }
    }
    if mutant.tests.is_empty() && mutant.survives.is_none() {
        return Err("no tests are named".into());
    }
    Ok(mutant)
}

/// Returns `true` if one text can replace the other, so that a branch with it compiles.
fn is_balanced(lines: &[String]) -> bool {
    let text = lines.concat();
    let brackets = [('(', ')'), ('[', ']'), ('{', '}')];
    brackets.iter().all(|(open, close)| text.matches(*open).count() == text.matches(*close).count())
}

/// Returns `true` if a file is a script, whose mutants need no function.
pub(crate) fn is_script(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|extension| extension == "lua")
}
