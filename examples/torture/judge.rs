//! Reads what has happened, and tells whether it was allowed to.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::Path;

use leasehold::Durability;

use super::Result;
use super::check::{Checker, Verdict};
use super::history::{self, Call, Place, nanos};
use super::nemesis::Deed;
use super::options::Options;
use super::summary::Tally;

/// How many violations of a model are shown.
const SHOWN: usize = 5;

/// What is left of a run.
pub(crate) struct Run<'run> {
    /// Where the histories are.
    pub(crate) dir: &'run Path,
    /// How many workers there were.
    pub(crate) workers: u64,
    pub(crate) deeds: Vec<Deed>,
    /// The last values of the registers.
    pub(crate) finals: Vec<u64>,
}

/// Checks all models, prints what came out, and fails if a promise was broken.
pub(crate) fn judge(options: &Options, run: &Run<'_>) -> Result<()> {
    let Run { dir, deeds, finals, .. } = run;
    let losses = deeds.iter().filter_map(|deed| deed.loss);
    let mut checker = Checker::new(nanos(options.lease), losses.collect());
    let mut tally = Tally::default();
    read(run, |call| {
        checker.note(call);
        tally.note(call);
    })?;
    tally.print(deeds);
    // For whoever looks for the cause.
    fs::write(dir.join("nemesis"), deeds.iter().map(Deed::to_string).collect::<String>())?;
    let verdicts = checker.verdicts(finals);
    for verdict in &verdicts {
        show(verdict, dir)?;
    }
    let [rules @ .., register] = &verdicts;
    if rules.iter().any(Verdict::is_broken) {
        return Err("a promise was broken".into());
    }
    match (options.fenced, register.is_broken()) {
        (true, true) => Err("an update was lost in spite of its fence".into()),
        (false, true) => {
            println!("updates were lost, as they must be without fences");
            Ok(())
        }
        // Those who look, or wait for replicas, may be lucky.
        (false, false) if !options.careful && options.durability == Durability::Memory => {
            Err("no update was lost, although nothing checked the fences".into())
        }
        (_, false) => Ok(()),
    }
}

fn read(run: &Run<'_>, mut note: impl FnMut(&Call)) -> io::Result<()> {
    for worker in 1..=run.workers {
        match File::open(history::path(run.dir, worker)) {
            Ok(file) => history::read(BufReader::new(file), worker, &mut note)?,
            // It was killed before it could begin.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn show(verdict: &Verdict, dir: &Path) -> io::Result<()> {
    let Verdict { model, checked, violations } = verdict;
    let says = match violations.len() {
        0 => "kept".into(),
        times => format!("BROKEN {times} times"),
    };
    println!("{model:<10}{says}: {checked}");
    for violation in violations.iter().take(SHOWN) {
        println!("  {}", violation.what);
        for place in &violation.places {
            println!("    worker-{}:{}  {}", place.worker, place.line, line(dir, *place)?);
        }
    }
    Ok(())
}

fn line(dir: &Path, place: Place) -> io::Result<String> {
    let file = BufReader::new(File::open(history::path(dir, place.worker))?);
    file.lines().nth(place.line - 1).expect("the line was read before")
}
