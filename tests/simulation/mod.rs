//! The shipped client under simulated time, network, processes and faults: its seed alone
//! determines a run. See `tests/README.md`.

mod calls;
mod coping;
mod coverage;
mod deadlocks;
mod explorer;
mod faults;
mod flaws;
mod judge;
mod ledger;
mod losses;
mod network;
mod questions;
mod quorum;
mod reasons;
mod record;
mod scenes;
mod seeds;
mod server;
mod shape;
mod silence;
mod taken;
mod terms;
mod tickets;
mod uses;
mod wire;
mod world;

use std::cell::{Cell, RefCell};
use std::env;
use std::num::NonZero;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, mpsc};
use std::thread;
use std::time::Instant;

use crate::simulation::flaws::{ALL, Flaw, plant};
use crate::simulation::reasons::Reasons;
use crate::simulation::shape::Shape;
use crate::simulation::world::Tally;

/// How many seeds are tried if the environment does not say.
const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 2000 };

/// This many words identify a broken promise.
const WORDS: usize = 4;

/// A run of this many seeds lists its excuses.
const LONG: u64 = 10_000;

/// It is rarely found, because counters rarely differ in the right way.
const FOUND_BY_A_COURSE: [Flaw; 1] = [Flaw::RaiseIsUnchecked];

/// The run stops after this many failed seeds.
const FAILURES_MAX: usize = 10;

/// The panic that ends a world with a broken promise.
const JUDGE: &str = "simulation/world.rs";

/// Ends the world, because a promise is broken.
struct Broken {
    why: String,
    history: String,
}

impl Broken {
    /// Identifies the promise by its first words, which are the same in all worlds.
    fn promise(&self) -> Vec<&str> {
        let is_word = |word: &&str| word.chars().all(char::is_alphabetic);
        self.why.split_whitespace().filter(is_word).take(WORDS).collect()
    }
}

thread_local! {
    /// Whether code has panicked on this thread, even if the client caught it.
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread runs a world, and where its first panic came from.
    static IS_WORLD: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes every panic. A panic in a world is shown with the promise that it broke, without a
/// backtrace.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            HAS_PANICKED.set(true);
            if IS_WORLD.get() {
                // The line at which the judge reports a broken promise is of no interest.
                let is_verdict = info.location().is_some_and(|at| at.file().ends_with(JUDGE));
                let verdict = info.payload().downcast_ref::<String>().filter(|_| is_verdict);
                PANIC.with_borrow_mut(|panic| {
                    panic.get_or_insert_with(|| verdict.cloned().unwrap_or(info.to_string()));
                });
            } else {
                report(info);
            }
        }));
    });
    HAS_PANICKED.set(false);
}

/// Runs the world of a seed on this thread.
fn run_here(seed: u64, flaw: Option<Flaw>) -> Result<Tally, Broken> {
    guarded(flaw, || seeds::run(seed, Shape::WHOLE, false))
}

/// Runs a world with a flaw, and stops it if it panics.
fn guarded(
    flaw: Option<Flaw>,
    run: impl FnOnce() -> Result<Tally, String>,
) -> Result<Tally, Broken> {
    note_panics();
    plant(flaw);
    IS_WORLD.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    IS_WORLD.set(false);
    plant(None);
    let panic = PANIC.take().unwrap_or_default();
    let why = match result {
        Ok(Ok(tally)) => return Ok(tally),
        Ok(Err(why)) if panic.is_empty() => why,
        Ok(Err(why)) => format!("{why}: {panic}"),
        Err(_) => panic,
    };
    let (why, history) = world::abandon(&why);
    Err(Broken { why, history })
}

/// Runs the world of a seed, of this shape. A thread that has panicked cannot run another world, so
/// a failed one runs again on its own thread.
fn run(seed: u64, shape: Shape, flaw: Option<Flaw>, tells: bool) -> Result<Tally, Broken> {
    let (sender, result) = mpsc::channel();
    thread::spawn(move || {
        let outcome = guarded(flaw, || seeds::run(seed, shape, tells));
        sender.send(outcome).expect("the test waits");
        if thread::panicking() {
            thread::park();
        }
    });
    result.recv().expect("an outcome")
}

/// The totals of some worlds, and the first failure.
struct Worlds {
    tally: Tally,
    reasons: Reasons,
    broken: Option<(u64, Broken)>,
}

/// Runs the worlds of seeds until one fails.
fn run_worlds(seeds: impl Iterator<Item = u64> + Send + 'static, flaw: Option<Flaw>) -> Worlds {
    let (sender, result) = mpsc::channel();
    thread::spawn(move || {
        let tally = Tally::default();
        let mut worlds = Worlds { tally, reasons: Reasons::default(), broken: None };
        for seed in seeds {
            match run_here(seed, flaw) {
                Ok(one) => worlds.tally.add(&one),
                Err(broken) => {
                    worlds.broken = Some((seed, broken));
                    break;
                }
            }
        }
        worlds.reasons = reasons::take();
        sender.send(worlds).expect("the test waits");
        // Its coroutines, and perhaps a panic, are left behind.
        loop {
            thread::park();
        }
    });
    result.recv().expect("an outcome")
}

/// Runs one part on each core. Passes the number of the part, and how many there are.
fn on_all_cores<T: Send>(part: impl Fn(usize, usize) -> T + Sync) -> Vec<T> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let part = &part;
        let cores = (0..cores).map(|core| scope.spawn(move || part(core, cores)));
        let cores: Vec<_> = cores.collect();
        cores.into_iter().map(|core| core.join().expect("it does not panic")).collect()
    })
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

/// Shows the history of a world that broke a promise, shrunk as far as it still breaks the same
/// one, and fails.
fn fail(seed: u64, flaw: Option<Flaw>, broken: &Broken) -> ! {
    let shape = shape_to_run().unwrap_or_else(|| {
        Shape::shrink(|shape| {
            let other = run(seed, *shape, flaw, false).err();
            other.is_some_and(|other| other.promise() == broken.promise())
        })
    });
    let Err(broken) = run(seed, shape, flaw, true) else {
        panic!("seed {seed} has failed, but does not when it is run again")
    };
    let what = format!("seed {seed}");
    let variables = format!("LEASEHOLD_SEED={seed} LEASEHOLD_WORLD={shape}");
    show(&what, &broken, &variables, flaw, "promises_hold_in_simulated_worlds");
}

/// Shows how a world broke a promise, and fails.
fn show(
    what: &str,
    Broken { why, history }: &Broken,
    variables: &str,
    flaw: Option<Flaw>,
    test: &str,
) -> ! {
    let lines: Vec<_> = history.lines().collect();
    let first = lines.len().saturating_sub(20_000);
    let flaw = flaw.map(|flaw| format!("LEASEHOLD_FLAW={flaw:?} ")).unwrap_or_default();
    println!("{}\n", lines[first..].join("\n"));
    for hold in holds_in(why) {
        println!("{}\n", lines_about(hold, &lines));
    }
    println!(
        "{what}: {why}\nTimes: since the world began, and since the last fault. Replay:\n\
         {variables} {flaw}cargo test --release --all-features --lib {test}"
    );
    // A panic would print its own line, which is here and of no use.
    panic::resume_unwind(Box::new("a promise is broken"));
}

/// Returns the holds that a verdict mentions, in the form of `world::text_of`.
fn holds_in(why: &str) -> impl Iterator<Item = &str> {
    let words = why.split(|letter: char| !letter.is_alphanumeric() && !"-/".contains(letter));
    words.filter(|word| word.starts_with("client-") && word.contains('/'))
}

/// Returns the last lines about a hold, which may be far apart in the history.
fn lines_about(hold: &str, lines: &[&str]) -> String {
    let is_next = |rest: &str| !rest.starts_with(|letter: char| letter.is_ascii_digit());
    let is_about = |line: &str| line.split(hold).skip(1).any(is_next);
    let about: Vec<&str> = lines.iter().copied().filter(|line| is_about(line)).collect();
    let first = about.len().saturating_sub(30);
    format!("The lines about {hold}:\n{}", about[first..].join("\n"))
}

/// Returns the shape of the world that the environment names.
fn shape_to_run() -> Option<Shape> {
    let shape = env::var("LEASEHOLD_WORLD").ok()?;
    Some(Shape::parse(&shape).expect("what a failure has printed"))
}

/// Returns the flaw that the environment names.
fn flaw_to_plant() -> Option<Flaw> {
    let name = env::var("LEASEHOLD_FLAW").ok()?;
    ALL.iter().copied().find(|flaw| format!("{flaw:?}") == name)
}

#[test]
fn promises_hold_in_simulated_worlds() {
    let flaw = flaw_to_plant();
    if let Some(seed) = number("LEASEHOLD_SEED") {
        let shape = shape_to_run().unwrap_or(Shape::WHOLE);
        match run(seed, shape, flaw, false) {
            Ok(_) => return println!("seed {seed} breaks no promise"),
            Err(broken) => fail(seed, flaw, &broken),
        }
    }
    let (first, seeds) = (number("LEASEHOLD_FIRST_SEED").unwrap_or(0), number("LEASEHOLD_SEEDS"));
    let begin = Instant::now();
    let end = first + seeds.unwrap_or(SEEDS);
    let failures = AtomicUsize::new(0);
    let each = on_all_cores(|core, cores| {
        let mut tally = Tally::default();
        let mut reasons = Reasons::default();
        let mut failed = None;
        let mut next = first + core as u64;
        while failures.load(Ordering::Relaxed) < FAILURES_MAX {
            let worlds = run_worlds((next..end).step_by(cores), flaw);
            tally.add(&worlds.tally);
            reasons.add(&worlds.reasons);
            let Some((seed, broken)) = worlds.broken else { break };
            // The first failure is enough for `tests/mutants`.
            println!("seed {seed}: {}", broken.why);
            failures.fetch_add(1, Ordering::Relaxed);
            failed = failed.or(Some((seed, broken)));
            next = seed + cores as u64;
        }
        (tally, reasons, failed)
    });
    let took = begin.elapsed();
    let mut tally = Tally::default();
    let mut reasons = Reasons::default();
    let mut failed = Vec::new();
    let cores = each.len();
    for (one, excused, of_core) in each {
        tally.add(&one);
        reasons.add(&excused);
        failed.extend(of_core);
    }
    if let Some((seed, broken)) = failed.into_iter().min_by_key(|(seed, _)| *seed) {
        fail(seed, flaw, &broken);
    }
    println!(
        "{tally:?} in {took:?} on {cores} cores, {} calls a second",
        u128::from(tally.calls) * 1000 / took.as_millis().max(1)
    );
    if end - first >= LONG {
        println!("{reasons}");
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization")]
fn each_planted_flaw_is_found() {
    let only = flaw_to_plant();
    let is_meant = |flaw: &&Flaw| only.is_none_or(|only| only == **flaw);
    let are_left = |flaw: &&Flaw| !FOUND_BY_A_COURSE.contains(*flaw);
    let flaws: Vec<_> = ALL.iter().copied().filter(|it| is_meant(&it) && are_left(&it)).collect();
    let next = AtomicUsize::new(0);
    let missed = on_all_cores(|_, _| {
        let mut missed = Vec::new();
        while let Some(&flaw) = flaws.get(next.fetch_add(1, Ordering::Relaxed)) {
            match run_worlds(0..10_000, Some(flaw)).broken {
                Some((seed, Broken { why, .. })) => println!("{flaw:?}: seed {seed}: {why}"),
                None => missed.push(flaw),
            }
        }
        missed
    });
    let missed = missed.concat();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
