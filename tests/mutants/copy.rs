//! The copy of the source in which each mutant can be switched on.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::list::{Change, Mutant, is_script};

/// The environment variable that names the mutant of a run.
pub(crate) const VARIABLE: &str = "LEASEHOLD_MUTANT";

/// The copied files: everything that the library, the program and their tests need.
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

/// The folders of the packages, and the file with the switch in each.
const PACKAGES: [(&str, &str); 2] = [("src/", "src/lib.rs"), ("cli/src/", "cli/src/main.rs")];

/// The function through which each script passes on its way to a server.
const SCRIPTS: (&str, &str) = ("src/store/scripts.rs", "fn code(script: &str) -> String {\n");

/// Files by their paths below the root.
#[derive(Debug)]
pub(crate) struct Source(BTreeMap<String, Vec<u8>>);

impl Source {
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        for name in COPIED {
            read_below(root, Path::new(name), &mut files)?;
        }
        Ok(Self(files))
    }

    /// Returns the position of each mutant's changes.
    pub(crate) fn find(&self, mutants: &[Mutant]) -> Result<Vec<Vec<Place>>, String> {
        let mut places = Vec::new();
        let mut errors = Vec::new();
        for mutant in mutants {
            match mutant.changes.iter().map(|change| self.place(change)).collect() {
                Ok(of_mutant) => places.push(of_mutant),
                Err(why) => errors.push(format!("{}: {why}", mutant.name)),
            }
        }
        if errors.is_empty() { Ok(places) } else { Err(errors.join("\n")) }
    }

    /// Returns the only place of a change's old text.
    fn place(&self, change: &Change) -> Result<Place, String> {
        let mut places = Vec::new();
        let mut has_function = change.function.is_empty();
        for path in self.0.keys().filter(|path| Path::new(path).starts_with(&change.within)) {
            if is_script(path) != is_script(&change.within) {
                continue;
            }
            let text = self.text(path)?;
            for (from, to) in functions(text, &change.function)? {
                has_function = true;
                for (begin, end) in occurrences(&text[from..to], &change.old)? {
                    places.push(Place { file: path.clone(), begin: from + begin, end: from + end });
                }
            }
        }
        match places.len() {
            1 => Ok(places.remove(0)),
            _ if !has_function => Err(format!("no function is called {}", change.function)),
            count => Err(format!("{:?} is there {count} times", change.old)),
        }
    }

    /// Returns this source with all mutants in it, each switched off.
    pub(crate) fn plant(
        mut self,
        mutants: &[Mutant],
        places: &[Vec<Place>],
    ) -> Result<Self, String> {
        let mut planted = Vec::new();
        for (mutant, places) in mutants.iter().zip(places) {
            let changes = mutant.changes.iter().zip(places);
            planted.extend(changes.map(|(change, place)| (&mutant.name, change, place)));
        }
        planted.sort_by_key(|(.., place)| (&place.file, place.begin));
        for pair in planted.windows(2) {
            let [(one, _, before), (other, _, after)] = pair else { continue };
            if before.file == after.file && before.end > after.begin {
                return Err(format!("{one} and {other} overlap"));
            }
        }
        let mut scripts = String::new();
        // From the end, so that the remaining positions stay right.
        for (name, change, Place { file, begin, end }) in planted.into_iter().rev() {
            let mut text = self.text(file)?.to_owned();
            let (old, new) = (text[*begin..*end].to_owned(), change.new.join("\n"));
            if is_script(file) {
                // Servers do not know the switch, so the client sends another script.
                text.replace_range(*begin..*end, &new);
                let mutated = self.text(file)?;
                writeln!(
                    scripts,
                    "    if crate::is_mutant({name:?}) \
                     {{ return script.replace({mutated:?}, {text:?}) }}"
                )
                .map_err(|error| error.to_string())?;
                continue;
            }
            let branch = format!("if crate::is_mutant({name:?}) {{ {new} }} else {{ {old} }}");
            let is_statement = old.ends_with([';', '}']);
            let branch = if is_statement { branch } else { format!("({branch})") };
            text.replace_range(*begin..*end, &branch);
            self.0.insert(file.clone(), text.into_bytes());
        }
        self.switch(&scripts)?;
        Ok(self)
    }

    /// Adds the function that tells which mutant is switched on.
    fn switch(&mut self, scripts: &str) -> Result<(), String> {
        for (_, root) in PACKAGES {
            let text = self.text(root)?;
            // A switch adds brackets that an expression does not need.
            let text = format!(
                "#![allow(warnings)]\n{text}\n\
                 pub(crate) fn is_mutant(name: &str) -> bool {{\n\
                 static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();\n\
                 let planted = NAME.get_or_init(|| std::env::var({VARIABLE:?}).ok());\n\
                 planted.as_deref() == Some(name)\n}}\n"
            );
            self.0.insert(root.to_owned(), text.into_bytes());
        }
        let (file, function) = SCRIPTS;
        let text = self.text(file)?;
        if text.matches(function).count() != 1 {
            return Err(format!("{file} has no function {function:?}"));
        }
        let begin = format!("{function}    let script = &mutated(script);\n");
        let text = text.replace(function, &begin);
        let text = format!(
            "{text}\nfn mutated(script: &str) -> String {{\n{scripts}    script.to_owned()\n}}\n"
        );
        self.0.insert(file.to_owned(), text.into_bytes());
        Ok(())
    }

    fn text(&self, file: &str) -> Result<&str, String> {
        let bytes = self.0.get(file).ok_or_else(|| format!("there is no {file}"))?;
        str::from_utf8(bytes).map_err(|error| format!("{file}: {error}"))
    }

    /// Writes only the files that have changed, so that only these are built again.
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
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Result<(), String> {
    let full: PathBuf = root.join(path);
    let failed = |error| format!("{}: {error}", full.display());
    if full.is_dir() {
        for entry in fs::read_dir(&full).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if name != "target" {
                read_below(root, &path.join(name), files)?;
            }
        }
    } else {
        let path = path.to_str().ok_or("a path is not UTF-8")?;
        files.insert(path.to_owned(), fs::read(&full).map_err(failed)?);
    }
    Ok(())
}

/// The position of a change's old text.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) file: String,
    begin: usize,
    end: usize,
}

/// Returns the ranges of the functions with this name. Without a name, the range is the whole file.
fn functions(file: &str, name: &str) -> Result<Vec<(usize, usize)>, String> {
    if name.is_empty() {
        return Ok(vec![(0, file.len())]);
    }
    let mut functions = Vec::new();
    for after in ['(', '<'] {
        for (begin, _) in file.match_indices(&format!("fn {name}{after}")) {
            let line = file[..begin].rfind('\n').map_or(0, |at| at + 1);
            let first = file[line..].lines().next().unwrap_or_default();
            let indent = first.len() - first.trim_start().len();
            // A function of a trait may have no body, or one on the same line.
            if first.ends_with([';', '}']) {
                functions.push((begin, line + first.len()));
                continue;
            }
            let last = format!("\n{}}}\n", " ".repeat(indent));
            let end = file[begin..].find(&last).ok_or("the function has no end")?;
            functions.push((begin, begin + end));
        }
    }
    Ok(functions)
}

/// Returns the ranges of these lines, whatever their indentation.
fn occurrences(text: &str, lines: &[String]) -> Result<Vec<(usize, usize)>, String> {
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
