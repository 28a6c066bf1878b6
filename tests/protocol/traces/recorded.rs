//! Records of the torture: a trace of each server, and the fences of its guards.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::traces::call::Call;
use crate::traces::votes::Votes;

/// Checks the traces of the servers of a quorum in a run of the torture.
#[test]
#[ignore = "`tests/traces` records them"]
fn recorded_traces_are_those_of_the_models() {
    let dir = env::var("LEASEHOLD_HISTORIES").expect("the directory");
    let read = |file: PathBuf| Call::read(&fs::read_to_string(file).expect("the trace"));
    let traces = files(Path::new(&dir), "trace-").into_iter().map(read);
    let servers: Vec<Vec<Call>> = traces.collect::<Result<_, _>>().expect("their lines");
    assert!(servers.len() > 1, "no traces of a quorum in {dir}");
    check_votes(&servers, &fences(Path::new(&dir)));
}

/// Checks the answers of the servers of a quorum together. Each guard has a token that a majority
/// has given, which is not true of the tokens before those.
fn check_votes(servers: &[Vec<Call>], fences: &[u64]) {
    let votes = Votes::count(servers).unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut given = votes.tokens();
    given.sort_unstable();
    let is_given = |fence: u64| {
        let before = &given[..given.partition_point(|block| block.first <= fence)];
        // A block has at most a thousand tokens.
        let mut near = before.iter().rev().take_while(|block| fence < block.first + 1000);
        near.any(|block| fence <= block.last)
    };
    let unknown: Vec<_> = fences.iter().filter(|fence| !is_given(**fence)).collect();
    assert!(unknown.is_empty(), "no majority has given {unknown:?}");
    let refused = fences.iter().filter(|fence| !is_given(**fence - 60_000_000)).count();
    assert_eq!(refused, fences.len(), "a wrong token was planted");
    println!("majorities have given {} blocks, and the tokens of {refused} guards", given.len());
}

/// Returns the fences of all guards of a run.
fn fences(dir: &Path) -> Vec<u64> {
    let granted = |line: &str| {
        let (_, granted) = line.split_once("< granted ")?;
        granted.split(' ').next()?.parse().ok()
    };
    let texts = files(dir, "worker-").into_iter().map(fs::read_to_string);
    let fences = texts.flat_map(|text| {
        let text = text.expect("a history");
        // The last line of a killed worker may be incomplete.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().filter_map(granted).collect::<Vec<_>>()
    });
    fences.collect()
}

/// Returns the files of a directory with this prefix, ordered by name.
fn files(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).expect("a directory").map(|file| file.expect("a file").path());
    let is_it = |file: &PathBuf| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    let mut files: Vec<_> = files.filter(is_it).collect();
    files.sort_unstable();
    files
}
