//! Checks that worlds use the whole interface: no seed judges a method that no world calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The files with methods that concern locks.
const SOURCES: [&str; 11] = [
    "src/client/builder.rs",
    "src/client/mod.rs",
    "src/guards/election.rs",
    "src/guards/guard.rs",
    "src/guards/handle.rs",
    "src/guards/multi_mutex.rs",
    "src/guards/mutex.rs",
    "src/guards/rw_lock.rs",
    "src/guards/semaphore.rs",
    "src/guards/watches.rs",
    "src/client/survey.rs",
];

/// Methods that no world uses, and why.
const UNUSED: [(&str, &[&str]); 6] = [
    (
        "a world opens its clients itself, with the settings that these methods set",
        &[
            "build",
            "builder",
            "from_env",
            "from_url",
            "from_url_and_env",
            "in_memory",
            "on_event",
            "open_cluster",
            "open_memory",
            "open_redlock",
            "open_sentinel",
            "without",
        ],
    ),
    (
        "connections are below the store that worlds simulate",
        &[
            "address_map",
            "connect_timeout",
            "credentials",
            "idle_timeout",
            "lazy",
            "master_login",
            "max_lifetime",
            "metrics",
            "pool_size",
            "spin",
            "tls",
        ],
    ),
    ("worlds have no other libraries, and only names of locks", &["pollers", "prefix", "redisson"]),
    (
        "worlds make the same call under another name",
        &[
            "lock_all",
            "try_lock_all",
            "try_lock_all_for",
            "try_lock_until",
            "try_with",
            "try_with_lock",
            "with_lock",
        ],
    ),
    ("the store of a world has no keys to scan", &["end_holds_of", "too_few"]),
    ("the store in memory never forgets a counter", &["fence_life"]),
];

#[test]
fn worlds_use_each_method() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| fs::read_to_string(path).expect("a file of the source");
    let mut worlds = String::new();
    for entry in fs::read_dir(root.join("tests/simulation")).expect("this folder") {
        let path = entry.expect("a file").path();
        // Worlds of connections call no method of a client.
        if path.is_file() && !path.ends_with("coverage.rs") {
            worlds.push_str(&read(&path));
        }
    }
    // A call, an argument of a macro or a field of the settings counts as a use.
    let is_used = |name: &str| {
        worlds.match_indices(name).any(|(at, _)| {
            let before = worlds[..at].chars().next_back();
            let after = &worlds[at + name.len()..];
            let is_field = after.starts_with(':') || after.starts_with(" =");
            let is_method = after.starts_with(['(', ',', ')']);
            matches!(before, Some('.' | ' ')) && (is_method || is_field)
        })
    };
    let unused: BTreeSet<&str> = UNUSED.iter().flat_map(|(_, names)| *names).copied().collect();
    let (mut missing, mut superfluous) = (Vec::new(), unused.clone());
    for source in SOURCES {
        let text = read(&root.join(source));
        for rest in text.split("\n    pub fn ").skip(1) {
            let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let name = &rest[..end.unwrap_or(rest.len())];
            match (is_used(name), unused.contains(name)) {
                (false, false) => missing.push(format!("{name} in {source}")),
                (false, true) => drop(superfluous.remove(name)),
                (true, _) => {}
            }
        }
    }
    assert!(missing.is_empty(), "no world uses {missing:?}");
    assert!(superfluous.is_empty(), "worlds do use {superfluous:?}, or these do not exist");
}
