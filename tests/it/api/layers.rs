//! The storeys of ARCHITECTURE.md: no file of `src` imports from a higher one, and no files import
//! one another in a circle. Read from the paths in the code, without comments and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, iter};

use super::guides::{files_in, root};

/// The storeys, the lowest first, each with its folders and files.
const STOREYS: [&[&str]; 8] = [
    &["base", "error", "event", "stats"],
    &["config"],
    &["net"],
    &["store"],
    &["protocol"],
    &["local"],
    &["guards", "ticket"],
    &["client"],
];

/// The files outside the storeys: the list of modules and the guide.
const OUTSIDE: [&str; 2] = ["lib", "guide"];

/// The modules of `src`, such as `net/resp`, and those that each imports from.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn imports() -> Imports {
    let sources: BTreeMap<_, _> = files_in(&root().join("src"))
        .iter()
        .filter_map(|path| Some((module_of(path)?, fs::read_to_string(path).unwrap())))
        .collect();
    let imports = sources.iter().map(|(module, source)| {
        let code = code(source);
        assert!(!code.contains("super::"), "{} has a `super::`: write `crate::`", file(module));
        let mut found = BTreeSet::new();
        for path in paths(&code).into_iter().chain(paths_to_children(module, &code)) {
            let mut parts = iter::successors(Some(&*path), |part| Some(part.rsplit_once('/')?.0));
            let target = parts.find(|part| sources.contains_key(*part)).unwrap_or_else(|| {
                let path = path.replace('/', "::");
                panic!("{}: crate::{path} is not where an item is defined", file(module))
            });
            found.extend((target != module).then(|| target.to_owned()));
        }
        (module.clone(), found)
    });
    imports.collect()
}

/// The module of a file; `None` for tests, for other files, and for what is outside the storeys.
fn module_of(file: &Path) -> Option<String> {
    let path = file.strip_prefix(root().join("src")).unwrap().to_str().unwrap().replace('\\', "/");
    let module = path.strip_suffix(".rs")?;
    let module = module.strip_suffix("/mod").unwrap_or(module);
    let is_outside = OUTSIDE.contains(&module.split('/').next()?);
    let is_test = module.split('/').any(|part| part == "tests");
    (!is_outside && !is_test).then(|| module.to_owned())
}

/// A source without comments, and without the items that only tests have.
fn code(source: &str) -> String {
    let mut code = String::new();
    let mut lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        let item = line.trim_start();
        if item.starts_with("#[cfg(test)]") || item.starts_with("#[cfg(all(test") {
            // In formatted code, the item ends at the first line with its indentation that ends
            // like this.
            let indentation = &line[..line.len() - item.len()];
            let is_end = |line: &str| {
                let rest = line.strip_prefix(indentation);
                rest.is_some_and(|rest| {
                    !rest.starts_with([' ', '#']) && rest.ends_with(['}', ';', ','])
                })
            };
            lines.find(|line| is_end(line));
        } else {
            code += line;
            code += "\n";
        }
    }
    code
}

/// The paths in the code that begin with `crate::`, such as `net/resp/RespStream`.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (start, name) in code.match_indices("crate::") {
        add_paths(&mut &code[start + name.len()..], "", &mut found);
    }
    found
}

/// Adds the paths of a `use` tree, which is taken off `rest`.
fn add_paths(rest: &mut &str, prefix: &str, found: &mut Vec<String>) {
    if let Some(list) = rest.strip_prefix('{') {
        *rest = list.trim_start();
        while !rest.starts_with('}') {
            add_paths(rest, prefix, found);
            // The rest of this part is an alias.
            *rest = &rest[rest.find([',', '}']).expect("a list has an end")..];
            *rest = rest.trim_start_matches(',').trim_start();
        }
        *rest = &rest[1..];
        return;
    }
    let end = rest.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(rest.len());
    let (name, tail) = rest.split_at(end);
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
    *rest = tail;
    match tail.strip_prefix("::") {
        Some(tail) => {
            *rest = tail;
            add_paths(rest, &path, found);
        }
        None => found.push(path),
    }
}

/// The files that a `mod.rs` declares and names in a path, for which it needs no import.
fn paths_to_children(module: &str, code: &str) -> Vec<String> {
    let declared = code.lines().filter_map(|line| line.strip_suffix(';')?.split_once("mod "));
    let is_named = |child: &str| {
        code.match_indices(&format!("{child}::")).any(|(start, _)| {
            let before = code[..start].chars().next_back();
            before.is_none_or(|char| !char.is_alphanumeric() && !['_', ':'].contains(&char))
        })
    };
    let children = declared.map(|(_, child)| child).filter(|child| is_named(child));
    children.map(|child| format!("{module}/{child}")).collect()
}

/// The file of a module, as an error shows it.
fn file(module: &str) -> String {
    let folder = root().join("src").join(module).join("mod.rs");
    if folder.is_file() { format!("src/{module}/mod.rs") } else { format!("src/{module}.rs") }
}

fn storey(module: &str) -> usize {
    let top = module.split('/').next().unwrap();
    let storey = STOREYS.iter().position(|storey| storey.contains(&top));
    storey.unwrap_or_else(|| panic!("{} is in no storey: add it to STOREYS", file(module)))
}

#[test]
fn no_file_imports_from_a_higher_storey() {
    let imports = imports();
    let storeys: BTreeMap<_, _> = imports.keys().map(|module| (module, storey(module))).collect();
    let arrows = imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    let (up, down): (Vec<_>, Vec<_>) = arrows.partition(|(from, to)| storeys[to] > storeys[from]);
    assert!(down.len() > 400, "only {} imports were found", down.len());
    let up = up.iter().map(|(from, to)| format!("\n{} imports from {}", file(from), file(to)));
    let up: String = up.collect();
    assert!(up.is_empty(), "imports from a higher storey:{up}");
}

#[test]
fn no_files_import_one_another_in_a_circle() {
    let mut imports = imports();
    // A module that imports from none of the others is in no circle. Nor is one that imports only
    // from such modules.
    while let Some(leaf) = imports.iter().find(|(_, to)| to.is_empty()) {
        let leaf = leaf.0.clone();
        imports.remove(&leaf);
        for to in imports.values_mut() {
            to.remove(&leaf);
        }
    }
    let Some(mut next) = imports.keys().next() else { return };
    let mut walk = Vec::new();
    while !walk.contains(&next) {
        walk.push(next);
        next = imports[next].first().expect("modules without imports were removed");
    }
    let start = walk.iter().position(|module| *module == next).unwrap();
    let circle: Vec<_> = walk[start..].iter().chain([&next]).map(|module| file(module)).collect();
    panic!("files import one another in a circle: {}", circle.join(" -> "));
}

/// Time and randomness are inputs of the machine, so that it does the same for the same inputs.
#[test]
fn the_protocol_reads_no_clock_and_has_no_randomness_of_its_own() {
    let files = files_in(&root().join("src/protocol"));
    let own: Vec<_> = files.iter().filter(|path| module_of(path).is_some()).collect();
    assert!(own.len() > 5, "{own:?}");
    for path in own {
        let code = code(&fs::read_to_string(path).unwrap());
        for source in
            ["::now()", "end_of(", ".elapsed()", ".left()", "base::random", "getrandom", "sleep("]
        {
            assert!(!code.contains(source), "{} has {source}", path.display());
        }
    }
}
