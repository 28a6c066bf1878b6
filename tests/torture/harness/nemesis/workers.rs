//! Faults of the processes that take locks.

use std::thread;
use std::time::Duration;

use super::Fault;
use crate::harness::Result;
use crate::harness::random::Random;
use crate::harness::workers::Workers;

pub(super) fn disturb(
    lease: Duration,
    workers: &mut Workers,
    fault: Fault,
    random: &mut Random,
) -> Result<()> {
    let (size, first) = (workers.size(), random.below(workers.size()));
    if fault == Fault::KillWorker {
        return workers.replace(first);
    }
    let paused = || (first..=first + size / 3).map(|worker| worker % size);
    paused().try_for_each(|worker| workers.stop(worker))?;
    thread::sleep(random.tenths(lease, (11, 25)));
    paused().try_for_each(|worker| workers.cont(worker))
}
