//! Builds the copy, runs the tests of each mutant, and says which survive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::copy::VARIABLE;
use crate::list::{Mutant, Tests};

/// A mutant whose tests take longer hangs them: that is noticed, too.
const LONGEST: Duration = Duration::from_secs(180);

/// How many of twenty must be killed.
const KILLED_OF_20: usize = 19;

/// Runs the tests of each mutant.
///
/// # Errors
///
/// If the copy cannot be built, if a test fails without a mutant, or if too many survive.
pub(crate) fn run(root: &Path, mutants: &[&Mutant]) -> Result<(), String> {
    let copy = root.join("target/mutants");
    let mut needed: Vec<_> = mutants.iter().flat_map(|mutant| mutant.tests.clone()).collect();
    needed.sort();
    needed.dedup();
    let programs = Programs::build(&copy, &needed)?;
    for tests in &needed {
        if programs.notice(tests, None)? {
            return Err(format!("{tests:?} fails without a mutant"));
        }
    }
    let mut survivors = Vec::new();
    let mut expected = 0;
    for mutant in mutants {
        let begin = Instant::now();
        let mut killer = None;
        for tests in &mutant.tests {
            if programs.notice(tests, Some(&mutant.name))? {
                killer = Some(tests);
                break;
            }
        }
        let took = begin.elapsed().as_secs_f64();
        match (killer, &mutant.survives) {
            (Some(tests), _) => println!("{:40} killed by {tests:?} in {took:.1} s", mutant.name),
            (None, Some(reason)) => {
                println!("{:40} survives: {reason}", mutant.name);
                expected += 1;
            }
            (None, None) => {
                println!("{:40} SURVIVES: {}", mutant.name, mutant.about);
                survivors.push(mutant.name.as_str());
            }
        }
    }
    let killed = mutants.len() - survivors.len() - expected;
    println!("{killed} of {} killed, {expected} survive for a reason", mutants.len());
    let is_enough = killed * 20 >= mutants.len() * KILLED_OF_20;
    if survivors.is_empty() && (is_enough || mutants.len() < 20) {
        return Ok(());
    }
    Err(format!("these survive: {survivors:?}, and {expected} for a reason"))
}

/// The programs of tests, by their kind, and the folders they run in.
struct Programs(BTreeMap<&'static str, (PathBuf, PathBuf)>);

impl Programs {
    fn build(copy: &Path, needed: &[Tests]) -> Result<Self, String> {
        let mut programs = BTreeMap::new();
        let mut kinds: Vec<_> = needed.iter().map(Tests::program).collect();
        kinds.dedup();
        for kind in kinds {
            let source = copy.join("source");
            let mut cargo = Command::new(env!("CARGO"));
            cargo.current_dir(&source).args(["test", "--release", "--all-features", "--no-run"]);
            cargo
                .arg("--message-format=json-render-diagnostics")
                .arg("--target-dir")
                .arg(copy.join("build"));
            match kind {
                "lib" => cargo.arg("--lib"),
                other => cargo.args(["--test", other]),
            };
            // A switch has brackets that an expression does not need.
            cargo.env("RUSTFLAGS", "--cap-lints allow").stderr(Stdio::inherit());
            let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
            if !output.status.success() {
                return Err("the copy cannot be built: see above".into());
            }
            let name = if kind == "lib" { "leasehold" } else { kind };
            let program = executable(&output.stdout, name)
                .ok_or_else(|| format!("cargo has built no program {name}"))?;
            let folder = if kind == "cli" { source.join("cli") } else { source };
            programs.insert(kind, (program, folder));
        }
        Ok(Self(programs))
    }

    /// Runs tests, and returns `true` if one fails or does not end.
    fn notice(&self, tests: &Tests, mutant: Option<&str>) -> Result<bool, String> {
        let (program, folder) = &self.0[tests.program()];
        let mut command = Command::new(program);
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        match tests {
            Tests::Lib(filter) | Tests::It(filter) | Tests::Cli(filter) => {
                command.args(filter.split(' ')).args(["--test-threads", "4"]);
            }
            Tests::Seeds(count) => {
                command.arg("simulation::promises_hold_in_simulated").env("LEASEHOLD_SEEDS", count);
            }
            Tests::Scene(scene) => {
                command.arg("simulation::explorer::promises").env("LEASEHOLD_SCENE", scene);
            }
        }
        if let Some(mutant) = mutant {
            command.env(VARIABLE, mutant);
        }
        let log = folder.join("last-run.log");
        let output = fs::File::create(&log).map_err(|error| error.to_string())?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let mut child =
            command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let end = Instant::now() + LONGEST;
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                let text = fs::read(&log).unwrap_or_default();
                if String::from_utf8_lossy(&text).contains("running 0 tests") {
                    return Err(format!("{tests:?} names no test"));
                }
                return Ok(!status.success());
            }
            if Instant::now() > end {
                child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Tests {
    fn program(&self) -> &'static str {
        match self {
            Self::Cli(_) => "cli",
            Self::It(_) => "it",
            Self::Lib(_) | Self::Scene(_) | Self::Seeds(_) => "lib",
        }
    }
}

/// Returns the program of that name from what cargo has printed.
fn executable(messages: &[u8], name: &str) -> Option<PathBuf> {
    for line in String::from_utf8_lossy(messages).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if message["target"]["name"] == name
            && let Some(path) = message["executable"].as_str()
        {
            return Some(path.into());
        }
    }
    None
}
