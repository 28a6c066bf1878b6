//! Builds the copy, runs the tests of each mutant, and says which survive.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::copy::VARIABLE;
use crate::list::{Mutant, Tests};

/// A mutant whose tests take longer hangs them: that is noticed, too.
const LONGEST: Duration = Duration::from_secs(120);

/// How many of twenty must be killed.
const KILLED_OF_20: usize = 19;

/// After so many failures that do not count no more tests are tried.
const DOUBTFUL_MAX: usize = 3;

/// Runs the tests of each mutant.
///
/// # Errors
///
/// If the copy cannot be built, or if too many survive.
pub(crate) fn run(root: &Path, mutants: &[&Mutant]) -> Result<(), String> {
    let mut needed: Vec<_> = mutants.iter().flat_map(|mutant| mutant.tests.clone()).collect();
    needed.sort();
    needed.dedup();
    let mut programs = Programs::build(root, &needed)?;
    programs.check_names(&needed)?;
    let mut survivors = Vec::new();
    let mut expected = 0;
    let all_begin = Instant::now();
    for mutant in mutants {
        let begin = Instant::now();
        let killer = programs.kill(mutant)?;
        let took = begin.elapsed().as_secs_f64();
        let name = &mutant.name;
        match (killer, &mutant.survives) {
            (Some(killer), None) => println!("{name:40} killed in {took:.1} s by {killer}"),
            (Some(killer), Some(_)) => {
                println!("{name:40} killed in {took:.1} s, though it has a reason, by {killer}");
            }
            (None, Some(reason)) => {
                println!("{name:40} survives in {took:.1} s: {reason}");
                expected += 1;
            }
            (None, None) => {
                println!("{name:40} SURVIVES in {took:.1} s: {}", mutant.about);
                survivors.push(name.as_str());
            }
        }
    }
    let killed = mutants.len() - survivors.len() - expected;
    println!(
        "{killed} of {} killed, {expected} survive for a reason, in {:?}",
        mutants.len(),
        all_begin.elapsed()
    );
    let is_enough = killed * 20 >= mutants.len() * KILLED_OF_20;
    if survivors.is_empty() && (is_enough || mutants.len() < 20) {
        return Ok(());
    }
    Err(format!("these survive: {survivors:?}, and {expected} for a reason"))
}

/// The programs of tests.
struct Programs {
    by_kind: BTreeMap<&'static str, Program>,
    /// Whether tests pass without a mutant, as far as that is known.
    is_sound: BTreeMap<(Tests, Option<String>), bool>,
}

struct Program {
    path: PathBuf,
    folder: PathBuf,
}

impl Programs {
    fn build(root: &Path, needed: &[Tests]) -> Result<Self, String> {
        let source = root.join("target/mutants/source");
        let mut kinds: Vec<_> = needed.iter().map(Tests::program).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(&source).args(["test", "--all-features", "--no-run"]);
        // The simulation is slow without optimization, and with all of it the copy is built for
        // longer than its tests run.
        cargo.args(["--config", "profile.dev.package.leasehold.opt-level=1"]);
        cargo.args(["--config", "profile.dev.debug=0"]);
        cargo.arg("--message-format=json-render-diagnostics");
        // The tests of the source itself are not built again after this.
        cargo.arg("--target-dir").arg(root.join("target/mutants/build"));
        for kind in &kinds {
            match *kind {
                "lib" => cargo.arg("--lib"),
                other => cargo.args(["--test", other]),
            };
        }
        cargo.stderr(Stdio::inherit());
        let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
        if !output.status.success() {
            return Err("the copy cannot be built: see above".into());
        }
        let mut by_kind = BTreeMap::new();
        for kind in kinds {
            let name = if kind == "lib" { "leasehold" } else { kind };
            let path = executable(&output.stdout, name)
                .ok_or_else(|| format!("cargo has built no program {name}"))?;
            let folder = if kind == "cli" { source.join("cli") } else { source.clone() };
            by_kind.insert(kind, Program { path, folder });
        }
        Ok(Self { by_kind, is_sound: BTreeMap::new() })
    }

    /// Fails if there are no tests with the names in the lists.
    fn check_names(&self, needed: &[Tests]) -> Result<(), String> {
        let mut missing = Vec::new();
        for (kind, program) in &self.by_kind {
            let all = program.names()?;
            for tests in needed.iter().filter(|tests| tests.program() == *kind) {
                let parts = match tests {
                    Tests::Lib(parts) | Tests::It(parts) | Tests::Cli(parts) => parts.split(' '),
                    Tests::Seeds(_) | Tests::Scene(_) => continue,
                };
                let is_missing = |part: &&str| !all.iter().any(|name| name.contains(part));
                missing.extend(parts.filter(is_missing).map(|part| format!("{kind} {part}")));
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(format!("no such tests: {missing:?}")) }
    }

    /// Runs the tests of a mutant. Returns which one has noticed it.
    fn kill(&mut self, mutant: &Mutant) -> Result<Option<String>, String> {
        for tests in &mutant.tests {
            let mut doubtful = Vec::new();
            while doubtful.len() < DOUBTFUL_MAX {
                let program = &self.by_kind[tests.program()];
                let outcome = program.run(tests, &doubtful, Some(&mutant.name))?;
                let (what, test) = match outcome {
                    Outcome::Passed => break,
                    Outcome::Failed(test) if tests.is_simulation() => (test, None),
                    Outcome::Failed(test) => (test.clone(), Some(test)),
                    Outcome::Broken(why) => (why, None),
                };
                let is_repeated = test.as_ref().map_or(Ok(true), |test| {
                    program.run_one(test, Some(&mutant.name)).map(|again| again.has_failed())
                })?;
                if is_repeated && self.is_sound(tests, test.as_deref())? {
                    return Ok(Some(format!("{}: {what}", tests.program())));
                }
                let when = if is_repeated { "without it, too" } else { "among the others only" };
                println!("{:40} {what} fails {when}", mutant.name);
                let Some(test) = test else { break };
                doubtful.push(test);
            }
        }
        Ok(None)
    }

    /// Returns `true` if these tests, or that one of them, pass without a mutant.
    fn is_sound(&mut self, tests: &Tests, test: Option<&str>) -> Result<bool, String> {
        let key = (tests.clone(), test.map(str::to_owned));
        if let Some(known) = self.is_sound.get(&key) {
            return Ok(*known);
        }
        let program = &self.by_kind[tests.program()];
        let outcome = match test {
            None => program.run(tests, &[], None)?,
            Some(test) => program.run_one(test, None)?,
        };
        self.is_sound.insert(key, !outcome.has_failed());
        Ok(!outcome.has_failed())
    }
}

enum Outcome {
    Passed,
    /// This test has failed.
    Failed(String),
    /// The program has not ended as it should.
    Broken(String),
}

impl Outcome {
    fn has_failed(&self) -> bool {
        !matches!(self, Self::Passed)
    }
}

impl Program {
    fn command(&self, mutant: Option<&str>) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.args(["--test-threads", "4"]);
        // Worlds that fail are not shrunk, as nobody reads their histories.
        command.env("LEASEHOLD_WORLD", "weather=true");
        if let Some(mutant) = mutant {
            command.env(VARIABLE, mutant);
        }
        command
    }

    fn names(&self) -> Result<Vec<String>, String> {
        let output = self.command(None).arg("--list").output();
        let output = output.map_err(|error| format!("{}: {error}", self.path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// Runs tests until one fails.
    fn run(
        &self,
        tests: &Tests,
        skipped: &[String],
        mutant: Option<&str>,
    ) -> Result<Outcome, String> {
        let mut command = self.command(mutant);
        match tests {
            Tests::Lib(filter) | Tests::It(filter) | Tests::Cli(filter) => {
                command.args(filter.split(' '));
                command.args(skipped.iter().flat_map(|name| ["--skip", name]));
            }
            Tests::Seeds(count) => {
                command.arg("simulation::promises_hold_in_simulated").env("LEASEHOLD_SEEDS", count);
            }
            Tests::Scene(scene) => {
                command.arg("simulation::explorer::promises").env("LEASEHOLD_SCENE", scene);
            }
        }
        run_tests(command)
    }

    /// Runs one test alone.
    fn run_one(&self, test: &str, mutant: Option<&str>) -> Result<Outcome, String> {
        let mut command = self.command(mutant);
        command.args(["--exact", test]);
        run_tests(command)
    }
}

/// Runs a program of tests until one fails.
fn run_tests(mut command: Command) -> Result<Outcome, String> {
    let end = Instant::now() + LONGEST;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let stdout = child.stdout.take().ok_or("no output")?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    loop {
        let line = match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                stop(&mut child)?;
                return Ok(Outcome::Broken(format!("no end after {} s", LONGEST.as_secs())));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let name = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
        if let Some(name) = name {
            stop(&mut child)?;
            return Ok(Outcome::Failed(name.to_owned()));
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok(if status.success() { Outcome::Passed } else { Outcome::Broken(status.to_string()) })
}

/// Stops a program whose servers and children end with it.
fn stop(child: &mut Child) -> Result<(), String> {
    child.kill().and_then(|()| child.wait()).map(drop).map_err(|error| error.to_string())
}

impl Tests {
    fn program(&self) -> &'static str {
        match self {
            Self::Cli(_) => "cli",
            Self::It(_) => "it",
            Self::Lib(_) | Self::Scene(_) | Self::Seeds(_) => "lib",
        }
    }

    fn is_simulation(&self) -> bool {
        matches!(self, Self::Scene(_) | Self::Seeds(_))
    }
}

/// Returns the program of that name from what cargo has printed.
fn executable(messages: &[u8], name: &str) -> Option<PathBuf> {
    for line in String::from_utf8_lossy(messages).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if message["target"]["name"] == name
            && message["profile"]["test"] == true
            && let Some(path) = message["executable"].as_str()
        {
            return Some(path.into());
        }
    }
    None
}
