//! What README and the guides in `docs/` refer to exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use yaml_rust2::YamlLoader;

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

/// The definitions of links in a page: `[label]: target`.
fn definitions(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    lines.filter(|(label, _target)| !label.contains(']')).collect()
}

/// Where a page links to, inline and by definitions.
fn targets(text: &str) -> Vec<&str> {
    let defined = definitions(text).into_iter().map(|(_label, target)| target);
    between(text, "](", ")").into_iter().chain(defined).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn assert_anchor(page: &Path, anchor: &str) {
    let text = fs::read_to_string(page).unwrap();
    let has_anchor = anchors(&text).iter().any(|other| other == anchor);
    assert!(anchor.is_empty() || has_anchor, "{} has no #{anchor}", page.display());
}

#[test]
fn links_between_the_guides_lead_somewhere() {
    let guides = [guides_in(root()), guides_in(&root().join("docs"))].concat();
    let mut count = 0;
    for guide in guides {
        let text = fs::read_to_string(&guide).unwrap();
        for link in targets(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let dir = guide.parent().expect("a file is in a directory");
            let target = if file.is_empty() { guide.clone() } else { dir.join(file) };
            assert!(target.exists(), "{}: {link}", guide.display());
            if target.is_file() {
                assert_anchor(&target, anchor);
            }
            count += 1;
        }
    }
    assert!(count > 50, "{count} links");
}

/// The files in a directory and in those below.
fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(dirs.iter().flat_map(|dir| files_in(dir))).collect()
}

#[test]
fn the_files_that_the_architecture_names_exist() {
    let page = read("ARCHITECTURE.md");
    let files = files_in(&root().join("src"));
    let names = page.split('`').skip(1).step_by(2);
    let extension = |name: &str| Path::new(name).extension()?.to_str().map(str::to_owned);
    let is_source = |name: &&str| extension(name).is_some_and(|end| ["rs", "lua"].contains(&&*end));
    let names: BTreeSet<_> = names.filter(is_source).filter(|name| !name.contains('*')).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        assert!(files.iter().any(|file| file.ends_with(name)), "there is no {name}");
    }
    assert!(page.split_whitespace().count() <= 1500, "it is no longer one page");
}

/// Where docs.rs shows the files of the package.
const SOURCE: &str = "https://docs.rs/crate/leasehold/latest/source/";

/// Where docs.rs shows the pages of the guide.
const GUIDE: &str = "https://docs.rs/leasehold/latest/leasehold/guide/";

/// Where the crate's documentation leads instead of a link between files.
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

/// A page is read as a file and as a module of the crate's documentation, where its links lead
/// elsewhere: see `src/guide.rs`.
#[test]
fn links_of_the_pages_work_in_the_crate_docs_too() {
    let links = read("docs/guide/links.md");
    let links = definitions(&links);
    for page in guides_in(&root().join("docs")) {
        let (text, page) = (fs::read_to_string(&page).unwrap(), page.display());
        for link in between(&text, "](", ")") {
            let both = link.starts_with('#') || link.contains("://");
            assert!(both, "{page}: [{link}] must be a definition at the end of the page");
        }
        for (label, target) in definitions(&text) {
            let wanted = in_the_docs(target);
            let found = links.contains(&(label, &wanted));
            assert!(found, "{page}: docs/guide/links.md must have\n[{label}]: {wanted}");
        }
    }
}

#[test]
fn the_crate_docs_have_every_page() {
    let (guide, docs) = (read("src/guide.rs"), read("src/lib.rs"));
    for page in guides_in(&root().join("docs")) {
        let file = page.file_name().unwrap().to_str().unwrap();
        let name = file.trim_end_matches(".md").replace('-', "_");
        assert!(guide.contains(&format!("    {name} = \"{file}\";\n")), "{file} is no module");
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

/// The page of the registry has no files beside it.
#[test]
fn links_of_the_readme_work_without_the_repository() {
    let readme = read("README.md");
    let package = read("Cargo.toml");
    let mut pages = 0;
    for link in targets(&readme) {
        assert!(link.starts_with("https://"), "{link}");
        if let Some(page) = link.strip_prefix(GUIDE) {
            let (path, anchor) = page.split_once('#').unwrap_or((page, ""));
            let name = path.strip_suffix("index.html").expect("the page of a module");
            let file = format!("docs/{}.md", name.trim_end_matches('/').replace('_', "-"));
            if !name.is_empty() {
                assert_anchor(&root().join(file), anchor);
            }
            pages += 1;
        }
        if let Some(file) = link.strip_prefix(SOURCE) {
            assert!(root().join(file).exists(), "{file}");
            let top = format!("\"/{}\"", file.split('/').next().expect("split has one"));
            assert!(package.contains(&top), "{file} is not in the package");
        }
    }
    assert!(pages > 10, "{pages} links to pages");
    // A label without a definition is shown as it stands.
    let defined: BTreeSet<_> = definitions(&readme).into_iter().map(|(label, _)| label).collect();
    for label in between(&readme, "][", "]") {
        assert!(defined.contains(label), "[{label}] is not defined");
    }
}
