//! Every link of a page leads somewhere. Readers follow links where the pages are files: in a
//! checkout, at the host of the repository, or on the page of the registry, which shows README and
//! completes its relative links with the address of the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::guides::{definitions, files_in, read, root};

/// The documentation of a published crate. There is none yet, and pages are also read without it.
const PUBLISHED: [&str; 2] = ["https://docs.rs/leasehold", "https://docs.rs/crate/leasehold"];

/// The pages that are read as files. `links.md` is only for the crate's documentation.
fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "cli", "tests", "benches", "examples"]
        .map(|folder| files_in(&root().join(folder)));
    let top = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let is_page = |path: &PathBuf| {
        let path = path.strip_prefix(root()).expect("it is below the root");
        let built = path.components().any(|part| part.as_os_str() == "target");
        path.extension().is_some_and(|end| end == "md") && !path.ends_with("links.md") && !built
    };
    top.chain(folders.concat()).filter(is_page).collect()
}

/// Returns a text without its blocks of code, and without the brackets in other code. Every
/// character stays on its line.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        lines.push(if fence || fenced { "" } else { line });
        fenced ^= fence;
    }
    // Code between backticks ends within its paragraph, and an odd backtick has no partner in
    // another.
    let paragraphs = lines.join("\n");
    let paragraphs = paragraphs.split("\n\n").map(|paragraph| {
        let mask = |code: &str| code.replace(['[', ']'], " ");
        let parts: Vec<_> = paragraph.split('`').collect();
        let (odd, last) = (parts.len() % 2 == 0, parts.len() - 1);
        let parts = parts.iter().enumerate().map(|(i, part)| match i % 2 {
            1 if !(odd && i == last) => mask(part),
            _ => (*part).to_owned(),
        });
        parts.collect::<Vec<_>>().join("`")
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

/// A link or an image of a page, or the definition of a label: its place, and its target, or its
/// label if that is not defined.
struct Link {
    line: usize,
    target: Result<String, String>,
}

/// Returns a label in the form in which labels are compared: without regard to case, line ends and
/// repeated spaces.
fn normal(label: &str) -> String {
    label.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Returns the links and images of a page: `[text](target)`, `[text][label]` and `[label]`. A label
/// has its target where it is defined.
fn links(text: &str) -> Vec<Link> {
    let text = without_code(text);
    let labels: BTreeSet<_> = definitions(&text).map(|(label, _target)| normal(label)).collect();
    let (mut found, mut open, mut end) = (Vec::new(), Vec::new(), 0);
    for (at, bracket) in text.match_indices(['[', ']']) {
        if at < end {
            // In a label.
            continue;
        }
        if bracket == "[" {
            open.push(at);
            continue;
        }
        let Some(start) = open.pop() else { continue };
        let (inner, rest) = (&text[start + 1..at], &text[at + 1..]);
        let word = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
        let until = |close: char| rest[1..].split_once(close).map_or("", |(inside, _rest)| inside);
        let defines = start == 0 || text[..start].ends_with('\n');
        let target = match rest.chars().next() {
            Some('(') => Ok(word(until(')'))),
            Some(':') if defines => Ok(word(&rest[1..])),
            after => {
                let label = if after == Some('[') { until(']') } else { "" };
                end = if after == Some('[') { at + label.len() + 3 } else { at };
                Err(if label.is_empty() { inner } else { label }.to_owned())
            }
        };
        if !target.as_ref().is_err_and(|label| labels.contains(&normal(label))) {
            found.push(Link { line: text[..start].matches('\n').count() + 1, target });
        }
    }
    found
}

/// Returns the anchors of a page, by GitHub's rules: the words of the headings in lower case,
/// without punctuation, with hyphens for spaces, and numbered if repeated.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<_, usize>::new();
    let mut anchors = BTreeSet::new();
    for line in without_code(text).lines().filter(|line| line.starts_with('#')) {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |char: &char| char.is_alphanumeric() || "-_ ".contains(*char);
        let anchor = words.chars().filter(kept).collect::<String>().replace(' ', "-");
        let count = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Returns why a link of a page in that folder is broken, if it is.
fn fault(folder: &Path, page: &str, target: &str) -> Option<&'static str> {
    if PUBLISHED.iter().any(|site| target.starts_with(site)) {
        return Some("is read in the repository, where this crate may not be published");
    }
    if target.contains("://") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let mut file = folder.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => file.push(name),
            Component::ParentDir if file != root() => {
                file.pop();
            }
            _ => return Some("leads out of the repository"),
        }
    }
    if !file.exists() {
        return Some("leads to no file");
    }
    let other = if path.is_empty() {
        page.to_owned()
    } else {
        fs::read_to_string(&file).unwrap_or_default()
    };
    let is_page = path.is_empty() || file.extension().is_some_and(|end| end == "md");
    let found = anchor.is_empty() || is_page && anchors(&other).contains(anchor);
    (!found).then_some("leads to no heading")
}

/// Returns the broken links of a page in that folder, with their lines.
fn faults(folder: &Path, page: &str) -> Vec<String> {
    let of = |Link { line, target }| match target {
        Ok(target) => fault(folder, page, &target).map(|why| format!("{line}: {target} {why}")),
        Err(label) => Some(format!("{line}: [{label}] is not defined")),
    };
    links(page).into_iter().filter_map(of).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let (mut count, mut broken) = (0, Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root()).expect("it is below the root").display().to_string();
        let folder = page.parent().expect("a file is in a folder");
        broken.extend(faults(folder, &text).iter().map(|fault| format!("{name}:{fault}")));
        count += links(&text).len();
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    assert!(count > 100, "{count} links");
}

#[test]
fn a_broken_link_is_found() {
    let page = "\
# A page, `with_code`: twice
[file](README.md) and [anchor](README.md#how-fast), [both
lines](#a-page-with_code-twice), [again](#a-page-with_code-twice-1), `[no](link)`
[no file](docs/none.md) [no heading](README.md#none) [outside](../x.md)
[published](https://docs.rs/leasehold/latest/leasehold) [elsewhere](https://example.org)
[Label], [by label][none], [text][label]; [not a page](Cargo.toml#package)

# A page, `with_code`: twice

```toml
[package]
```
[label]: LICENSE-MIT
[unused]: docs/gone.md
";
    let wanted = [
        "4: docs/none.md leads to no file",
        "4: README.md#none leads to no heading",
        "4: ../x.md leads out of the repository",
        "5: https://docs.rs/leasehold/latest/leasehold is read in the repository, where this \
         crate may not be published",
        "6: [none] is not defined",
        "6: Cargo.toml#package leads to no heading",
        "14: docs/gone.md leads to no file",
    ];
    assert_eq!(faults(root(), page), wanted);
}

/// The labels with which the crate's documentation replaces those of the pages.
#[test]
fn every_link_label_of_the_crate_docs_is_used() {
    let pages = pages().into_iter().map(|page| fs::read_to_string(page).unwrap());
    let pages: String = pages.collect();
    let used: BTreeSet<_> = definitions(&pages).map(|(label, _target)| label).collect();
    let links = read("docs/guide/links.md");
    for (label, _target) in definitions(&links) {
        assert!(used.contains(label), "docs/guide/links.md: no page defines [{label}]");
    }
}
