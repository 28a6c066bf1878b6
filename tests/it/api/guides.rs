//! Everything that README and the guides in `docs/` refer to exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use yaml_rust2::YamlLoader;

/// Returns the Markdown files of a directory.
fn guides_in(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Returns the text after each `start`, up to `end`.
fn between<'text>(text: &'text str, start: &str, end: &str) -> Vec<&'text str> {
    text.split(start).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0)).collect()
}

/// Returns the definitions of links in a page: `[label]: target`.
pub(super) fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    lines.filter(|(label, _target)| !label.contains(']'))
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(super) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the files in a directory and in those below it.
pub(super) fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(dirs.iter().flat_map(|dir| files_in(dir))).collect()
}

#[test]
fn the_files_that_the_architecture_names_exist() {
    let page = read("ARCHITECTURE.md");
    let files = ["src", "cli", "tests"].map(|folder| files_in(&root().join(folder))).concat();
    let names = page.split('`').skip(1).step_by(2);
    let extension = |name: &str| Path::new(name).extension()?.to_str().map(str::to_owned);
    let is_source = |name: &&str| extension(name).is_some_and(|end| ["rs", "lua"].contains(&&*end));
    let names: BTreeSet<_> = names.filter(is_source).filter(|name| !name.contains('*')).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        assert!(files.iter().any(|file| file.ends_with(name)), "there is no {name}");
    }
    let is_word = |text: &&str| text.contains(char::is_alphanumeric);
    let words = page.split_whitespace().filter(is_word).count();
    assert!(words <= 1500, "it is no longer one page: {words} words");
}

#[test]
fn the_architecture_has_the_state_diagram_of_the_machine() {
    let source = read("src/protocol/name.rs");
    let (_, picture) = source.split_once("//! ```text\n").expect("a picture");
    let (picture, _) = picture.split_once("//! ```\n").expect("its end");
    let lines = picture.lines().map(|line| line.strip_prefix("//! ").unwrap_or_default());
    let picture = lines.collect::<Vec<_>>().join("\n");
    assert!(picture.contains("Asking"), "{picture}");
    assert!(read("ARCHITECTURE.md").contains(&picture), "it lacks\n{picture}");
}

#[test]
fn readme_fits_on_four_screens() {
    let page = read("README.md");
    let lines = page.trim_end().lines().filter(|line| !line.starts_with('['));
    // A plot is as high as thirty lines of text.
    let height = lines.map(|line| if line.starts_with("![") { 30 } else { 1 }).sum::<usize>();
    assert!(height <= 4 * 42, "it has {height} lines");
}

/// The place where docs.rs shows the files of the package.
const SOURCE: &str = "https://docs.rs/crate/leasehold/latest/source/";

/// Returns the target of a link in the crate's documentation, given the file that it leads to in a
/// checkout.
fn in_the_docs(target: &str) -> String {
    if let Some(file) = target.strip_prefix("../") {
        return format!("{SOURCE}{file}");
    }
    if target.starts_with("monitoring/") {
        return format!("{SOURCE}docs/{target}");
    }
    let (page, anchor) = target.split_once('#').unwrap_or((target, ""));
    let module = page.trim_end_matches(".md").replace('-', "_");
    let hash = if anchor.is_empty() { "" } else { "#" };
    format!("crate::guide::{module}{hash}{anchor}")
}

/// A page is read as a file and as a module of the crate's documentation, where its links have
/// other targets: see `src/guide.rs`.
#[test]
fn links_of_the_pages_work_in_the_crate_docs_too() {
    let (links, package) = (read("docs/guide/links.md"), read("Cargo.toml"));
    for page in guides_in(&root().join("docs")) {
        let (text, page) = (fs::read_to_string(&page).unwrap(), page.display());
        for link in between(&text, "](", ")") {
            let both = link.starts_with('#') || link.contains("://");
            assert!(both, "{page}: [{link}] must be a definition at the end of the page");
        }
        for (label, target) in definitions(&text) {
            let wanted = in_the_docs(target);
            // The crate's documentation may describe the item itself instead of linking to its
            // source.
            let is_item = |link: &str| target.starts_with("../src/") && link.starts_with("crate::");
            let leads = |link: &str| link == wanted || is_item(link);
            let found = definitions(&links).any(|(other, link)| other == label && leads(link));
            assert!(found, "{page}: docs/guide/links.md must have\n[{label}]: {wanted}");
            if let Some(file) = wanted.strip_prefix(SOURCE) {
                let top = format!("\"/{}\"", file.split(['/', '#']).next().expect("split has one"));
                assert!(package.contains(&top), "{page}: {file} is not in the package");
            }
        }
    }
}

#[test]
fn the_crate_docs_have_every_page() {
    let (guide, docs) = (read("src/guide.rs"), read("src/lib.rs"));
    for page in guides_in(&root().join("docs")) {
        let file = page.file_name().unwrap().to_str().unwrap();
        let name = file.trim_end_matches(".md").replace('-', "_");
        assert!(guide.contains(&format!("    {name} = \"{file}\";\n")), "{file} is not a module");
        assert!(docs.contains("[`guide`]"), "src/lib.rs does not lead to the guide");
    }
}

#[test]
fn the_yaml_in_the_guides_is_yaml() {
    let pages = guides_in(&root().join("docs")).into_iter().map(fs::read_to_string);
    let mut count = 0;
    for page in pages {
        for block in between(&page.unwrap(), "```yaml\n", "```") {
            assert!(YamlLoader::load_from_str(block).is_ok(), "{block}");
            count += 1;
        }
    }
    assert!(count >= 3, "{count} blocks");
}
