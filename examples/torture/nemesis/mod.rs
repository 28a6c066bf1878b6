//! What happens to workers and servers while they work.

mod failover;
mod fault;
mod servers;
mod workers;

use std::fmt;
use std::thread;
use std::time::Instant;

pub(crate) use self::fault::Fault;
use super::Result;
use super::check::Loss;
use super::crew::Crew;
use super::history::{Span, now};
use super::locks::Locks;
use super::options::Options;
use super::random::Random;

/// A fault that has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deed {
    pub(crate) fault: Fault,
    span: Span,
    pub(crate) loss: Option<Loss>,
}

/// A line as in a history, with the times of begin and end.
impl fmt::Display for Deed {
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

/// Disturbs workers and servers for as long as the run takes: one fault after another at the
/// workers, and at the same time one after another at the servers.
pub(crate) fn disturb(options: &Options, crew: &mut Crew, locks: &Locks) -> Result<Vec<Deed>> {
    let end = Instant::now() + options.time;
    let (at_workers, at_servers): (Vec<_>, Vec<_>) =
        options.faults.iter().partition(|fault| fault.meets_workers());
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            repeat(options, 1, &at_servers, end, |fault, random| {
                let loss = servers::disturb(options.lease, locks, fault, random);
                locks.settle();
                Ok(loss)
            })
        });
        let mut deeds = repeat(options, 2, &at_workers, end, |fault, random| {
            workers::disturb(options.lease, crew, fault, random).map(|()| None)
        })?;
        deeds.extend(other.join().expect("the servers can be disturbed")?);
        Ok(deeds)
    })
}

/// Lets one fault happen after another, in random order, but all before any comes again. `act`
/// tells what may have been lost.
fn repeat(
    options: &Options,
    stream: u64,
    faults: &[Fault],
    end: Instant,
    mut act: impl FnMut(Fault, &mut Random) -> Result<Option<Loss>>,
) -> Result<Vec<Deed>> {
    let mut random = Random::new(options.seed, stream);
    let (mut left, mut deeds) = (Vec::new(), Vec::new());
    loop {
        let time = end.saturating_duration_since(Instant::now());
        let quiet = random.tenths(options.lease, (1, 10));
        thread::sleep(quiet.min(time));
        if quiet >= time {
            return Ok(deeds);
        }
        if left.is_empty() {
            left = random.shuffled(faults);
        }
        if let Some(fault) = left.pop() {
            let start = now();
            let loss = act(fault, &mut random)?;
            deeds.push(Deed { fault, span: Span { start, end: now() }, loss });
        }
    }
}
