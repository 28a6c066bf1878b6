//! Mutants: mistakes that are planted one at a time, to see whether the tests notice them.
//!
//! `cargo test --release --test mutants` builds a copy of the source once, in which an environment
//! variable switches on the branch of a mutant of the lists beside this file. It runs the tests of
//! each mutant, and names those that survive. The source itself has no such switch. Arguments are
//! the beginnings of names; `--changed COMMIT` takes the mutants of the files that have changed
//! since, and those of the simulation if that has; `--check` only checks that the lists fit the
//! source and the excuses of the simulation, and that the copy compiles; `--list` prints them.

mod copy;
mod excuses;
mod list;
mod runner;

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::copy::Place;
use crate::list::{Mutant, Tests};

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("mutants: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = list::read_all(&root.join("tests/mutants"))?;
    let source = copy::Source::read(root)?;
    // This also finds mutants that no longer fit, whichever are chosen.
    let places = source.find(&all)?;
    let planted = source.plant(&all, &places)?;
    let chosen = choose(root, &all, &places, arguments)?;
    if arguments.iter().any(|argument| argument == "--list") {
        for (mutant, places) in &chosen {
            println!("{:40} {}: {}", mutant.name, places[0].file, mutant.about);
        }
        return Ok(());
    }
    if arguments.iter().any(|argument| argument == "--check") {
        excuses::check(root, &all)?;
        planted.write(&root.join("target/mutants/source"))?;
        runner::check(root)?;
        println!("{} mutants fit the source", all.len());
        return Ok(());
    }
    if chosen.is_empty() {
        println!("no mutant is in a file that has changed");
        return Ok(());
    }
    planted.write(&root.join("target/mutants/source"))?;
    let chosen: Vec<_> = chosen.into_iter().map(|(mutant, _)| mutant).collect();
    runner::run(root, &chosen)
}

/// Returns the mutants that the arguments name, or all of them.
fn choose<'a>(
    root: &Path,
    all: &'a [Mutant],
    places: &'a [Vec<Place>],
    arguments: &[String],
) -> Result<Vec<(&'a Mutant, &'a [Place])>, String> {
    let mut names = Vec::new();
    let mut changed = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--changed" => {
                let commit = rest.next().ok_or("--changed needs a commit")?;
                changed = Some(changed_since(root, commit)?);
            }
            "--check" | "--list" => {}
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            name => names.push(name),
        }
    }
    let mut chosen = Vec::new();
    for (mutant, places) in all.iter().zip(places) {
        let is_named = names.is_empty() || names.iter().any(|name| mutant.name.starts_with(name));
        let is_touched = changed.as_ref().is_none_or(|files| {
            let has_changed = places.iter().any(|place| files.contains(&place.file));
            // A change of the simulation may make it miss mistakes.
            let is_simulated = mutant.tests.iter().any(Tests::is_simulation);
            let judge_has = files.iter().any(|file| file.starts_with("tests/simulation/"));
            has_changed || is_simulated && judge_has
        });
        if is_named && is_touched {
            chosen.push((mutant, &**places));
        }
    }
    if chosen.is_empty() && changed.is_none() {
        return Err(format!("no mutant has the name {names:?}"));
    }
    Ok(chosen)
}

fn changed_since(root: &Path, commit: &str) -> Result<Vec<String>, String> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["diff", "--name-only", commit]);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}
