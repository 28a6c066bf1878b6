//! Whether a client does its work: by the record of what it has asked the servers for, and by what
//! they have.

use crate::base::clock;
use crate::error::Error;
use crate::simulation::calls::{CallState, Patience};
use crate::simulation::record::{Asked, Said, Wish};
use crate::simulation::world::World;

/// Checks that a call which has found the lock held has waited for as long as it may.
pub(super) fn check_wait(call: &CallState) -> Result<(), String> {
    let took = clock::elapsed(call.begun);
    match call.patience {
        Patience::For(time) if took < time => {
            Err(format!("it has waited for {took:?} instead of {time:?}"))
        }
        Patience::Endless => Err("it waits without end, and has ended".into()),
        Patience::For(_) | Patience::None => Ok(()),
    }
}

impl World {
    /// Checks that a call which reports an outage had no answer for as long as it may try.
    pub(super) fn check_outage(&self, call: &CallState, error: &Error) -> Result<(), String> {
        if !matches!(error, Error::Unavailable { .. } | Error::NoQuorum { .. }) {
            return Ok(());
        }
        let now = clock::now();
        let took = now - call.begun;
        if let Patience::For(time) = call.patience {
            return if took < time {
                Err(format!("it has tried for {took:?} instead of {time:?}"))
            } else {
                Ok(())
            };
        }
        let names = (0..self.names.len()).filter(|at| call.is_about(*at));
        let asked = names.flat_map(|at| self.record.latest(at));
        let asked: Vec<_> = asked.filter(|it| it.client == call.client).collect();
        if call.patience == Patience::Endless {
            // The first failure after an answer begins the time for which it tries again.
            let since = now.checked_sub(self.retry_window).unwrap_or(call.begun);
            let is_meant =
                |it: &&&Asked| matches!(it.subject.wish, Wish::Acquire(_)) && it.sent > since;
            let answers = asked.iter().filter(is_meant).filter_map(|it| it.answered());
            if let Some(at) = answers.max() {
                return Err(format!("a server has answered {:?} ago", now - at));
            }
        }
        // It may share the failure of a request that another call of its client has sent.
        let since = call.begun.checked_sub(self.io_timeout * 2).unwrap_or(call.begun);
        let has_failed = |it: &&Asked| match it.outcome {
            Some((at, said)) => said == Said::Nothing && at >= since,
            None => true,
        };
        if asked.iter().any(|it| has_failed(it)) {
            Ok(())
        } else {
            Err("no request has failed".into())
        }
    }
}
