//! Builds the copy, runs the tests of each mutant, and reports the survivors.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::copy::VARIABLE;
use crate::list::{Mutant, Tests};

/// A mutant whose tests take longer than this has made them hang, which counts as noticed.
const LONGEST: Duration = Duration::from_secs(120);

/// How long a simulation may take. It ends by itself.
const LONGEST_SIMULATION: Duration = Duration::from_secs(1200);

/// How many of twenty mutants must be killed.
const KILLED_OF_20: usize = 19;

/// No further tests are tried after this many failures that do not count.
const DOUBTFUL_MAX: usize = 3;

/// Runs the tests of each mutant.
///
/// # Errors
///
/// Panics if the copy cannot be built, or if too many mutants survive.
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
                println!("{name:40} killed in {took:.1} s, although it has a reason, by {killer}");
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

/// Compiles the copy without running anything.
///
/// # Errors
///
/// Panics if the text of a mutant no longer compiles.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root.join("target/mutants/source")).args(["check", "--quiet"]);
    cargo.args(["--all-features", "--package", "leasehold", "--package", "leasehold-cli"]);
    // Its dependencies are those of the source.
    cargo.arg("--target-dir").arg(root.join("target"));
    let status = cargo.status().map_err(|error| format!("cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("the copy cannot be built: see above".into()) }
}

/// The programs of tests.
struct Programs {
    by_kind: BTreeMap<&'static str, Program>,
    /// Whether tests pass without a mutant, as far as known.
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
        // The simulation is slow without optimization, but with full optimization the build takes
        // longer than the tests.
        cargo.args(["--config", "profile.dev.package.leasehold.opt-level=1"]);
        cargo.args(["--config", "profile.dev.debug=0"]);
        cargo.arg("--message-format=json-render-diagnostics");
        // In a directory of its own, so that the tests of the source are not built again later.
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
            println!("{kind}: {}", path.display());
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
                    Tests::Connections(_) | Tests::Seeds(_) | Tests::Scene(_) => continue,
                };
                let is_missing = |part: &&str| !all.iter().any(|name| name.contains(part));
                missing.extend(parts.filter(is_missing).map(|part| format!("{kind} {part}")));
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(format!("no such tests: {missing:?}")) }
    }

    /// Runs the tests of a mutant. Returns what has noticed it: one of the tests, and every
    /// simulation in the list, so that none of these silently stops noticing.
    fn kill(&mut self, mutant: &Mutant) -> Result<Option<String>, String> {
        let (simulated, tests): (Vec<_>, Vec<_>) =
            mutant.tests.iter().partition(|tests| tests.is_simulation());
        let mut killers = Vec::new();
        if !tests.is_empty() {
            let Some(killer) = self.fail_one(mutant, &tests)? else { return Ok(None) };
            killers.push(killer);
        }
        for tests in simulated {
            let Some(killer) = self.simulate(mutant, tests)? else { return Ok(None) };
            killers.push(killer);
        }
        Ok(Some(killers.join(" and ")))
    }

    /// Runs tests until one of them has noticed a mutant. Returns which one.
    fn fail_one(&mut self, mutant: &Mutant, all: &[&Tests]) -> Result<Option<String>, String> {
        for &tests in all {
            let mut doubtful = Vec::new();
            while doubtful.len() < DOUBTFUL_MAX {
                let program = &self.by_kind[tests.program()];
                let outcome = program.run(tests, &doubtful, Some(&mutant.name))?;
                let (what, test) = match outcome {
                    Outcome::Passed => break,
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

    /// Runs the simulation to find a mutant. Returns the world that failed.
    fn simulate(&self, mutant: &Mutant, tests: &Tests) -> Result<Option<String>, String> {
        let program = &self.by_kind[tests.program()];
        let Some(world) = program.simulate(tests, Some(&mutant.name))? else { return Ok(None) };
        // The same world must pass without the mutant.
        let is_sound = match tests {
            Tests::Connections(_) | Tests::Seeds(_) => {
                let mut command = program.command(None);
                command.arg(tests.worlds());
                command.env("LEASEHOLD_SEED", world.trim_start_matches("seed "));
                !run_tests(command)?.has_failed()
            }
            _ => program.simulate(tests, None)?.is_none(),
        };
        if !is_sound {
            println!("{:40} {world} fails without it, too", mutant.name);
        }
        Ok(is_sound.then_some(world))
    }

    /// Returns `true` if these tests, or the named one of them, pass without a mutant.
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
    /// This test failed.
    Failed(String),
    /// The program did not end normally.
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
        let (Tests::Lib(filter) | Tests::It(filter) | Tests::Cli(filter)) = tests else {
            return Err("the simulation has no test names".into());
        };
        command.args(filter.split(' '));
        command.args(skipped.iter().flat_map(|name| ["--skip", name]));
        run_tests(command)
    }

    /// Runs the worlds of seeds, or a small world with all its deviations, until one fails.
    /// Returns which one.
    fn simulate(&self, tests: &Tests, mutant: Option<&str>) -> Result<Option<String>, String> {
        let mut command = self.command(mutant);
        command.arg("--nocapture");
        let mut is_of = String::new();
        match tests {
            Tests::Connections(count) | Tests::Seeds(count) => {
                command.arg(tests.worlds()).env("LEASEHOLD_SEEDS", count);
                is_of.push_str("seed ");
            }
            Tests::Scene(scene) => {
                command.arg("simulation::explorer::promises").env("LEASEHOLD_SCENE", scene);
                is_of.push_str(scene);
                is_of.push_str(", with ");
            }
            Tests::Cli(_) | Tests::It(_) | Tests::Lib(_) => {
                return Err(format!("{tests:?} is not a simulation"));
            }
        }
        let end = run_until(command, LONGEST_SIMULATION, |line| {
            let (world, _) = line.split_once(": ")?;
            world.starts_with(&is_of).then(|| world.to_owned())
        })?;
        Ok(match end {
            End::Found(world) => Some(world),
            End::Exited(status) if status.success() => None,
            End::Exited(status) => {
                println!("{tests:?} ends with {status}, and names no world");
                None
            }
            End::TimedOut => {
                println!("{tests:?} has not ended after {} s", LONGEST_SIMULATION.as_secs());
                None
            }
        })
    }

    /// Runs one test alone.
    fn run_one(&self, test: &str, mutant: Option<&str>) -> Result<Outcome, String> {
        let mut command = self.command(mutant);
        command.args(["--exact", test]);
        run_tests(command)
    }
}

/// Runs a program of tests until one fails.
fn run_tests(command: Command) -> Result<Outcome, String> {
    let end = run_until(command, LONGEST, |line| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    })?;
    Ok(match end {
        End::Exited(status) if status.success() => Outcome::Passed,
        End::Exited(status) => Outcome::Broken(status.to_string()),
        End::Found(name) => Outcome::Failed(name),
        End::TimedOut => Outcome::Broken(format!("no end after {} s", LONGEST.as_secs())),
    })
}

/// How a program ended.
enum End {
    Exited(ExitStatus),
    /// It was stopped after it had printed the wanted line.
    Found(String),
    TimedOut,
}

/// Runs a program until it prints a line in which `find` finds something.
fn run_until(
    mut command: Command,
    longest: Duration,
    find: impl Fn(&str) -> Option<String>,
) -> Result<End, String> {
    let end = Instant::now() + longest;
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
                return Ok(End::TimedOut);
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if let Some(found) = find(&line) {
            stop(&mut child)?;
            return Ok(End::Found(found));
        }
    }
    child.wait().map(End::Exited).map_err(|error| error.to_string())
}

/// Stops a program. Its servers and children end with it.
fn stop(child: &mut Child) -> Result<(), String> {
    child.kill().and_then(|()| child.wait()).map(drop).map_err(|error| error.to_string())
}

impl Tests {
    fn program(&self) -> &'static str {
        match self {
            Self::Cli(_) => "cli",
            Self::It(_) => "it",
            Self::Connections(_) | Self::Lib(_) | Self::Scene(_) | Self::Seeds(_) => "lib",
        }
    }

    pub(crate) fn is_simulation(&self) -> bool {
        matches!(self, Self::Connections(_) | Self::Scene(_) | Self::Seeds(_))
    }

    /// Returns the test that runs the worlds of seeds.
    fn worlds(&self) -> &'static str {
        if let Self::Connections(_) = self {
            "simulation::wire::connections_keep_their_promises"
        } else {
            "simulation::promises_hold_in_simulated"
        }
    }
}

/// Returns the program of that name from the output of cargo.
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
