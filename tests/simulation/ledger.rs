//! The reports of a client: whatever happens, each hold begins and ends once, and the counters
//! agree with its events and with the results of its calls.

use crate::error::Error;
use crate::event::Event;
use crate::simulation::calls::Patience;
use crate::stats::Stats;

/// The reports of one client.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The holds whose beginning was reported, and whose end was not yet: names and tokens.
    open: Vec<(String, u64)>,
    /// The counters according to its events and to the results of its calls.
    told: Stats,
    returned: Stats,
}

impl Ledger {
    /// Records an event, which must not report the end of a hold twice.
    pub(super) fn note(&mut self, event: &Event) -> Result<(), String> {
        let told = &mut self.told;
        match event {
            Event::Acquired { name, fence, .. } => {
                told.acquired += 1;
                self.open.push((name.clone(), *fence));
            }
            Event::Released { name, fence, .. } => {
                told.released += 1;
                self.close(name, *fence, event)?;
            }
            Event::ReleaseFailed { name, fence, .. } => {
                told.failed_releases += 1;
                self.close(name, *fence, event)?;
            }
            Event::Lost { name, fence, .. } => {
                told.lost += 1;
                self.close(name, *fence, event)?;
            }
            Event::Contended { .. } => told.contended += 1,
            Event::Deadlock { .. } => told.deadlocks += 1,
            Event::Failed { .. } => told.failed += 1,
            Event::HeldLong { .. } => told.long_holds += 1,
            Event::RenewalFailing { .. } => told.failed_renewals += 1,
            Event::Renewed { count } => told.renewals += *count as u64,
            Event::TimedOut { .. } => told.timed_out += 1,
        }
        Ok(())
    }

    fn close(&mut self, name: &str, fence: u64, event: &Event) -> Result<(), String> {
        let open = self.open.iter().position(|open| (&*open.0, open.1) == (name, fence));
        let Some(at) = open else {
            return Err(format!("{event:?} is the end of a hold that has ended, or never began"));
        };
        self.open.swap_remove(at);
        Ok(())
    }

    /// Records that a call found the lock held.
    pub(super) fn note_busy(&mut self, patience: Patience) {
        if patience == Patience::None {
            self.returned.busy += 1;
        } else {
            self.returned.timed_out += 1;
        }
    }

    /// Records the error of a call.
    pub(super) fn note_error(&mut self, error: &Error) {
        self.returned.failed += u64::from(error.is_failure());
    }

    /// Checks the counters of a client at its end.
    pub(super) fn check(&self, stats: &Stats) -> Result<(), String> {
        if !self.open.is_empty() {
            return Err(format!("the ends of {:?} were not reported", self.open));
        }
        let Self { told, returned, .. } = self;
        let numbers = [
            ("acquired", stats.acquired, told.acquired),
            ("released", stats.released, told.released),
            ("lost", stats.lost, told.lost),
            ("failed_releases", stats.failed_releases, told.failed_releases),
            ("contended", stats.contended, told.contended),
            ("deadlocks", stats.deadlocks, told.deadlocks),
            ("failed", stats.failed, told.failed),
            ("long_holds", stats.long_holds, told.long_holds),
            ("failed_renewals", stats.failed_renewals, told.failed_renewals),
            ("renewals", stats.renewals, told.renewals),
            ("timed_out", stats.timed_out, told.timed_out),
            ("busy, by the results of calls,", stats.busy, returned.busy),
            ("timed_out, by the results of calls,", stats.timed_out, returned.timed_out),
            ("failed, by the results of calls,", stats.failed, returned.failed),
        ];
        for (what, counted, noted) in numbers {
            if counted != noted {
                return Err(format!("{what} is {noted}, and {counted} in its counters"));
            }
        }
        Ok(())
    }
}
