//! Faults of the processes that take locks.

use std::thread;
use std::time::Duration;

use super::Fault;
use crate::Result;
use crate::crew::Crew;
use crate::random::Random;

pub(super) fn disturb(
    lease: Duration,
    crew: &mut Crew,
    fault: Fault,
    random: &mut Random,
) -> Result<()> {
    let (size, first) = (crew.size(), random.below(crew.size()));
    if fault == Fault::KillWorker {
        return crew.replace(first);
    }
    let paused = || (first..=first + size / 3).map(|worker| worker % size);
    paused().try_for_each(|worker| crew.stop(worker))?;
    thread::sleep(random.tenths(lease, (11, 25)));
    paused().try_for_each(|worker| crew.cont(worker))
}
