//! The copy of the source in which each mutant can be switched on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::list::Mutant;

/// The variable of the environment that names the mutant of a run.
pub(crate) const VARIABLE: &str = "LEASEHOLD_MUTANT";

/// What is copied: all that building the library, the program and their tests needs.
const COPIED: [&str; 11] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "README.md",
    "benches",
    "cli",
    "docs",
    "examples",
    "src",
    "tests",
];

/// Where the switch is defined, and how the files of that package name it.
const SWITCHES: [(&str, &str, &str); 2] = [
    ("src/", "src/base/mod.rs", "crate::base::is_mutant"),
    ("cli/src/", "cli/src/main.rs", "crate::is_mutant"),
];

/// Files by their paths below the root.
#[derive(Debug)]
pub(crate) struct Source(BTreeMap<PathBuf, Vec<u8>>);

impl Source {
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        for name in COPIED {
            read_below(root, Path::new(name), &mut files)?;
        }
        Ok(Self(files))
    }

    /// Returns this source with all mutants in it, none of which is switched on.
    pub(crate) fn plant(mut self, mutants: &[Mutant]) -> Result<Self, String> {
        let mut edits: BTreeMap<&str, Vec<Edit>> = BTreeMap::new();
        for mutant in mutants {
            let text = self.text(&mutant.file)?;
            let edit = Edit::new(mutant, text).map_err(|why| format!("{}: {why}", mutant.name))?;
            edits.entry(&mutant.file).or_default().push(edit);
        }
        for (file, mut edits) in edits {
            let mut text = self.text(file)?.to_owned();
            // From the end, so that the places of the others stay right.
            edits.sort_by_key(|edit| edit.begin);
            for pair in edits.windows(2) {
                if pair[0].end > pair[1].begin {
                    return Err(format!("{} and {} overlap", pair[0].name, pair[1].name));
                }
            }
            for edit in edits.iter().rev() {
                text.replace_range(edit.begin..edit.end, &edit.text);
            }
            self.0.insert(file.into(), text.into_bytes());
        }
        for (_, file, path) in SWITCHES {
            let name = path.rsplit(':').next().unwrap_or_default();
            let text = self.text(file)?;
            let switch = format!(
                "{text}\n/// Returns `true` if this run has the mutant.\n\
                 pub(crate) fn {name}(name: &str) -> bool {{\n\
                 static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();\n\
                 let planted = NAME.get_or_init(|| std::env::var({VARIABLE:?}).ok());\n\
                 planted.as_deref() == Some(name)\n}}\n"
            );
            self.0.insert(file.into(), switch.into_bytes());
        }
        Ok(self)
    }

    fn text(&self, file: &str) -> Result<&str, String> {
        let bytes = self.0.get(Path::new(file)).ok_or_else(|| format!("there is no {file}"))?;
        str::from_utf8(bytes).map_err(|error| format!("{file}: {error}"))
    }

    /// Writes what has changed since the last time, so that only that is built again.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), String> {
        for (path, bytes) in &self.0 {
            let path = folder.join(path);
            if fs::read(&path).is_ok_and(|old| old == *bytes) {
                continue;
            }
            let failed = |error| format!("{}: {error}", path.display());
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed)?;
            }
            fs::write(&path, bytes).map_err(failed)?;
        }
        let mut old = BTreeMap::new();
        read_below(folder, Path::new(""), &mut old)?;
        for path in old.keys().filter(|path| !self.0.contains_key(*path)) {
            fs::remove_file(folder.join(path)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn read_below(
    root: &Path,
    path: &Path,
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
) -> Result<(), String> {
    let full = root.join(path);
    let failed = |error| format!("{}: {error}", full.display());
    if full.is_dir() {
        for entry in fs::read_dir(&full).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if name != "target" {
                read_below(root, &path.join(name), files)?;
            }
        }
    } else {
        files.insert(path.to_owned(), fs::read(&full).map_err(failed)?);
    }
    Ok(())
}

/// A piece of a file, and the text that takes its place.
struct Edit {
    name: String,
    begin: usize,
    end: usize,
    text: String,
}

impl Edit {
    fn new(mutant: &Mutant, file: &str) -> Result<Self, String> {
        let mut places = Vec::new();
        for (from, to) in functions(file, &mutant.function)? {
            let found = find(&file[from..to], &mutant.old)?;
            places.extend(found.into_iter().map(|(begin, end)| (from + begin, from + end)));
        }
        let [(begin, end)] = places[..] else {
            return Err(format!("its old text is there {} times", places.len()));
        };
        let old = &file[begin..end];
        let new = mutant.new.join("\n");
        let switch = SWITCHES.iter().rev().find(|(folder, ..)| mutant.file.starts_with(folder));
        let (.., switch) = switch.ok_or("its file is not in the source")?;
        let branch = format!("if {switch}({:?}) {{ {new} }} else {{ {old} }}", mutant.name);
        let is_statement = old.ends_with([';', '}']);
        let text = if is_statement { branch } else { format!("({branch})") };
        Ok(Self { name: mutant.name.clone(), begin, end, text })
    }
}

/// Returns where the functions with this name begin and end.
fn functions(file: &str, name: &str) -> Result<Vec<(usize, usize)>, String> {
    let mut functions = Vec::new();
    for after in ['(', '<'] {
        for (begin, _) in file.match_indices(&format!("fn {name}{after}")) {
            let line = file[..begin].rfind('\n').map_or(0, |at| at + 1);
            let indent = file[line..].len() - file[line..].trim_start().len();
            let last = format!("\n{}}}\n", " ".repeat(indent));
            let end = file[begin..].find(&last).ok_or("the function has no end")?;
            functions.push((begin, begin + end));
        }
    }
    if functions.is_empty() {
        return Err(format!("no function is called {name}"));
    }
    Ok(functions)
}

/// Returns where these lines stand, whatever their indentation.
fn find(text: &str, lines: &[String]) -> Result<Vec<(usize, usize)>, String> {
    let (first, rest) = lines.split_first().ok_or("no old text")?;
    let mut found = Vec::new();
    for (begin, _) in text.match_indices(first.as_str()) {
        let mut end = Some(begin + first.len());
        for line in rest {
            end = end.and_then(|end| {
                let next = text[end..].trim_start().strip_prefix(line.as_str())?;
                Some(text.len() - next.len())
            });
        }
        found.extend(end.map(|end| (begin, end)));
    }
    Ok(found)
}
