//! Faults of workers and servers during their work.

mod failover;
mod fault;
mod servers;
mod workers;

use std::fmt;
use std::thread;
use std::time::Instant;

pub(crate) use self::fault::Fault;
use crate::harness::Result;
use crate::harness::check::Loss;
use crate::harness::history::{Span, now};
use crate::harness::locks::Locks;
use crate::harness::options::Options;
use crate::harness::random::Random;
use crate::harness::workers::Workers;

/// A fault that has occurred.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incident {
    pub(crate) fault: Fault,
    pub(crate) span: Span,
    pub(crate) loss: Option<Loss>,
}

/// A line as in a history, with the times of its start and end.
impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { start, end } = self.span;
        write!(f, "{start} {end} {}", self.fault)?;
        if let Some(Loss { span: Span { start, end }, everything }) = self.loss {
            let what = if everything { "everything" } else { "something" };
            write!(f, ", {what} lost {start} {end}")?;
        }
        writeln!(f)
    }
}

/// Disturbs workers and servers during the whole run: one fault after another at the workers, and
/// at the same time one after another at the servers.
pub(crate) fn disturb(
    options: &Options,
    workers: &mut Workers,
    locks: &Locks,
) -> Result<Vec<Incident>> {
    let end = Instant::now() + options.time;
    let (at_workers, at_servers): (Vec<_>, Vec<_>) =
        options.faults.iter().partition(|fault| fault.hits_workers());
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            repeat(options, 1, &at_servers, end, |fault, random| {
                let loss = servers::disturb(options.lease, locks, fault, random);
                locks.settle();
                Ok(loss)
            })
        });
        let mut incidents = repeat(options, 2, &at_workers, end, |fault, random| {
            workers::disturb(options.lease, workers, fault, random).map(|()| None)
        })?;
        incidents.extend(other.join().expect("the servers can be disturbed")?);
        Ok(incidents)
    })
}

/// Causes one fault after another, in random order, but all of them before one is repeated. `act`
/// returns the possible loss.
fn repeat(
    options: &Options,
    stream: u64,
    faults: &[Fault],
    end: Instant,
    mut act: impl FnMut(Fault, &mut Random) -> Result<Option<Loss>>,
) -> Result<Vec<Incident>> {
    let mut random = Random::new(options.seed, stream);
    let (mut left, mut incidents) = (Vec::new(), Vec::new());
    loop {
        let time = end.saturating_duration_since(Instant::now());
        let quiet = random.tenths(options.lease, (1, 10));
        thread::sleep(quiet.min(time));
        if quiet >= time {
            return Ok(incidents);
        }
        if left.is_empty() {
            left = random.shuffled(faults);
        }
        if let Some(fault) = left.pop() {
            let start = now();
            let loss = act(fault, &mut random)?;
            incidents.push(Incident { fault, span: Span { start, end: now() }, loss });
        }
    }
}
