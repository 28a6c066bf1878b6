//! Reads the histories and decides whether they keep the promises.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::Path;

use leasehold::Durability;

use crate::harness::Result;
use crate::harness::check::{Checker, Verdict};
use crate::harness::guard::PERMITS;
use crate::harness::history::{self, Call, Place, nanos};
use crate::harness::kept_use::KeptUse;
use crate::harness::nemesis::Incident;
use crate::harness::options::Options;
use crate::harness::summary::Tally;

/// The number of violations shown for each model.
const SHOWN: usize = 5;

/// The results of a run.
pub(crate) struct Run<'run> {
    /// The directory of the histories.
    pub(crate) dir: &'run Path,
    /// The number of workers in the run.
    pub(crate) workers: u64,
    pub(crate) incidents: Vec<Incident>,
    /// The last values of the registers.
    pub(crate) finals: Vec<u64>,
}

/// Checks all models, prints the verdicts, and fails if a promise was broken.
pub(crate) fn judge(options: &Options, run: &Run<'_>) -> Result<()> {
    let Run { dir, incidents, finals, .. } = run;
    let losses = incidents.iter().filter_map(|incident| incident.loss);
    let (lease, losses) = (nanos(options.lease), losses.collect::<Vec<_>>());
    let faults = incidents.iter().map(|incident| incident.span).collect();
    let mut checker = Checker::new(lease, PERMITS, &losses, faults, history::zero());
    let mut tally = Tally::default();
    read(run, |call| {
        checker.note(call);
        tally.note(call);
    })?;
    let handoffs = tally.handoffs();
    tally.print(incidents);
    let kept = KeptUse::read(dir, run.workers)?;
    println!("kept      {kept}");
    // Helps to find the cause of a violation.
    fs::write(dir.join("nemesis"), incidents.iter().map(Incident::to_string).collect::<String>())?;
    let verdicts = checker.verdicts(finals);
    for verdict in &verdicts {
        show(verdict, dir)?;
    }
    let [rules @ .., register] = &verdicts;
    if rules.iter().any(Verdict::is_broken) {
        return Err("a promise was broken".into());
    }
    if handoffs == 0 && options.hands_off() {
        return Err("no lock was handed off, although threads share them".into());
    }
    if options.keeps() {
        kept.check(options.processes)?;
    }
    match (options.fenced, register.is_broken()) {
        (true, true) => Err("an update was lost in spite of its fence".into()),
        (false, true) => {
            println!("updates were lost, as they must be without fences");
            Ok(())
        }
        // Workers that check first, or wait for replicas, may lose no update.
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
            // The worker was killed before it could begin.
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
