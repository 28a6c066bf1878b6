//! Checks that a client does its work, from the record of its requests and from the servers' holds.

use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sync::executor::Process;
use crate::error::Error;
use crate::simulation::calls::{CallState, Held, Patience};
use crate::simulation::judge::{SLACK, WAKE_UP};
use crate::simulation::reasons::{Reason, excused};
use crate::simulation::record::{Asked, Said, Wish};
use crate::simulation::world::{NAMES, World, text_of};
use crate::store::hold_id::HoldId;

/// Checks that a call that found the lock held used all of its time.
pub(super) fn check_wait(call: &CallState) -> Result<(), String> {
    let took = clock::elapsed(call.begun);
    match call.patience {
        Patience::For(time) if took < time => {
            Err(format!("it has waited for {took:?} instead of {time:?}"))
        }
        Patience::Endless => Err("it has no deadline, and has timed out".into()),
        Patience::For(_) | Patience::None => Ok(()),
    }
}

impl World {
    /// Checks that a call that reports an outage tried for its whole time without an answer.
    pub(super) fn check_outage(&self, call: &CallState, error: &Error) -> Result<(), String> {
        if !matches!(error, Error::Unavailable { .. } | Error::NoQuorum { .. }) {
            return Ok(());
        }
        let now = clock::now();
        let took = now - call.begun;
        if let Patience::For(time) = call.patience {
            if took < time {
                return Err(format!("it has tried for {took:?} instead of {time:?}"));
            }
            return Ok(());
        }
        let names = (0..self.names.len()).filter(|at| call.is_about(*at));
        let asked = names.flat_map(|at| self.record.latest(at));
        let asked: Vec<_> = asked.filter(|it| it.client == call.client).collect();
        // Its replies are read when it resumes.
        let is_stopped = (Reason::ClientStopped, self.was_stopped(call.client, call.begun));
        if call.patience == Patience::Endless {
            // The retry window starts with the first failure after an answer.
            let since = now.checked_sub(self.retry_window).unwrap_or(call.begun);
            let is_try = |it: &&&Asked| matches!(it.subject.wish, Wish::Acquire(_));
            // Requests of other threads may be answered while this one fails.
            let mut failed = asked.iter().filter(is_try).filter(|it| !it.said().is_answer());
            let failed = failed.next();
            let is_own = |it: &&&Asked| {
                it.sent > since && failed.is_none_or(|failed| failed.thread == it.thread)
            };
            let tries: Vec<_> = asked.iter().filter(is_try).filter(is_own).collect();
            let failed = failed.map_or(now, |it| it.sent);
            // The servers of a quorum are asked at the same time.
            let mut tries = tries.chunk_by(|one, it| one.sent == it.sent);
            let answers = |it: &[&&Asked]| {
                it.iter().filter(|it| it.answered().is_some_and(|at| at <= failed)).count()
            };
            let answered = tries.find(|it| answers(it) >= self.required());
            if answered.is_some() && !excused(&[is_stopped]) {
                return Err(format!("the servers have answered within {:?}", self.retry_window));
            }
        }
        // In a quorum, requests for other names use the same connections.
        if self.network.is_quorum() {
            return Ok(());
        }
        // It may share the failure of another call's request.
        let since = call.begun.checked_sub(self.io_timeout * 2).unwrap_or(call.begun);
        let has_failed = asked.iter().any(|it| it.has_failed_since(since));
        // The call in front may have made several requests, each of which was answered in time.
        let is_far = self.network.latency * 12 > self.io_timeout;
        let is_behind = is_far && call.patience == Patience::None && took >= self.io_timeout;
        let is_behind = (Reason::FarAway, is_behind);
        if has_failed || excused(&[is_stopped, is_behind]) {
            return Ok(());
        }
        Err("no request has failed".into())
    }
}

/// An `unlock` that begins.
#[derive(Debug)]
pub(super) struct Unlock {
    client: Process,
    begun: Instant,
    was_held: bool,
    /// When it was found to be over.
    over_since: Option<Instant>,
    /// Each name, and the token of its hold.
    holds: Vec<(usize, u64)>,
}

impl Unlock {
    pub(super) fn begin(held: &Held) -> Self {
        let names = (0..NAMES.len()).filter(|at| held.is_of(*at));
        let holds = names.filter_map(|at| Some((at, held.guard.fence(at)?)));
        Self {
            client: held.client,
            begun: clock::now(),
            was_held: held.is_held(),
            over_since: held.over_since,
            holds: holds.collect(),
        }
    }
}

/// A `verify` that is about to start.
#[derive(Debug)]
pub(super) struct Verify {
    client: Process,
    begun: Instant,
    hold: Option<(usize, HoldId)>,
    existed: bool,
    changes: u64,
}

/// A shutdown that is about to start.
#[derive(Debug)]
pub(super) struct Shutdown {
    client: Process,
    begun: Instant,
    stopped: Duration,
}

impl World {
    /// Returns how many servers must agree.
    pub(super) fn required(&self) -> usize {
        self.network.servers.len() / 2 + 1
    }

    /// Returns how late threads may be with a task that is due.
    pub(super) fn slack(&self) -> Duration {
        SLACK + self.network.latency * 2
    }

    /// Returns `true` if enough servers have a hold that is not released.
    pub(super) fn has_hold(&self, name: usize, hold: &HoldId) -> bool {
        let holds = self.network.holds(&self.names[name].key);
        let holds = holds.iter().filter(|(it, depth, _)| it == hold && *depth > 0);
        holds.count() >= self.required()
    }

    /// Returns the hold with this token of a client, if there is exactly one.
    pub(super) fn hold_of(&self, client: Process, name: usize, fence: u64) -> Option<HoldId> {
        let mut holds = self.holds_of(client, name, fence);
        holds.pop().filter(|_| holds.is_empty())
    }

    /// Checks the outcome of `unlock`.
    pub(super) fn check_unlock(
        &self,
        unlock: &Unlock,
        result: &Result<(), Error>,
    ) -> Result<(), String> {
        let Unlock { client, begun, was_held, over_since, holds } = unlock;
        let shut_down = self.clients[client - 1].shut_down;
        // A shutdown ends every hold that is not lost by then.
        let is_ended = shut_down.is_some_and(|at| over_since.is_none_or(|over| at <= over));
        if result.is_ok() && !was_held && !excused(&[(Reason::ClientClosed, is_ended)]) {
            return Err("it was lost, but the result does not say so".into());
        }
        let mut are_answered = !holds.is_empty();
        for (name, fence) in holds {
            let Some(hold) = self.hold_of(*client, *name, *fence) else { return Ok(()) };
            let asked = self.record.of(*name, &hold);
            let asked = asked.filter(|it| it.client == *client && it.sent >= *begun);
            let releases: Vec<_> = asked.filter(|it| it.subject.wish == Wish::Release).collect();
            if result.is_ok() {
                self.check_releases(*name, &hold, &releases, shut_down.is_some())?;
            }
            // Ending an inner level releases nothing.
            let is_sent = !releases.is_empty();
            are_answered &= is_sent && releases.iter().all(|it| it.said().is_answer());
        }
        match result {
            Err(error @ Error::Unavailable { .. }) if are_answered => {
                Err(format!("the servers have answered each request: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks, from the requests about a hold, that it was right to report it as released.
    fn check_releases(
        &self,
        name: usize,
        hold: &HoldId,
        releases: &[&Asked],
        is_shut_down: bool,
    ) -> Result<(), String> {
        // One of two guards may have ended it.
        if let [release] = releases
            && release.said() == Said::No
        {
            return Err("it was gone, but the result does not say so".into());
        }
        let reasons = [
            // The shutdown that ended the hold releases it.
            (Reason::ClientClosed, is_shut_down),
            (Reason::HoldIsBack, self.is_back(name, hold)),
            (Reason::LateRequest, self.was_late(name, hold)),
        ];
        // Without a release, the tenure continues.
        if !releases.is_empty() && self.has_hold(name, hold) && !excused(&reasons) {
            return Err("it succeeds, but the servers still have the hold".into());
        }
        Ok(())
    }

    /// Records whether the hold that is being verified exists.
    pub(super) fn begin_verify(&self, held: &Held) -> Verify {
        let fence = held.guard.fence(held.name).filter(|_| !held.side.is_set());
        let hold = fence.and_then(|fence| self.hold_of(held.client, held.name, fence));
        let hold = hold.map(|hold| (held.name, hold));
        Verify {
            client: held.client,
            begun: clock::now(),
            existed: hold.as_ref().is_none_or(|(name, hold)| self.has_hold(*name, hold)),
            hold,
            changes: self.changes,
        }
    }

    /// Checks the outcome of `verify`.
    pub(super) fn check_verify(
        &self,
        verify: &Verify,
        result: &Result<(), Error>,
    ) -> Result<(), String> {
        let Some((name, hold)) = &verify.hold else { return Ok(()) };
        let exists = self.has_hold(*name, hold);
        if result.is_ok() && !verify.existed && !exists && verify.changes == self.changes {
            return Err("it is reported to exist".into());
        }
        if let Err(error @ Error::Unavailable { .. }) = result {
            let asked = self.record.of(*name, hold);
            let asked = asked.filter(|it| it.client == verify.client && it.sent >= verify.begun);
            let mut asked = asked.filter(|it| it.subject.wish == Wish::Check);
            if asked.any(|it| it.answered().is_some()) {
                return Err(format!("a server has answered: {error}"));
            }
        }
        Ok(())
    }

    pub(super) fn begin_shutdown(&self, client: Process) -> Shutdown {
        let stopped = self.clients[client - 1].stopped;
        Shutdown { client, begun: clock::now(), stopped }
    }

    /// Checks the outcome of a shutdown with this timeout.
    pub(super) fn check_shutdown(
        &self,
        shutdown: &Shutdown,
        time: Duration,
        result: &Result<(), Error>,
    ) -> Result<(), String> {
        let Shutdown { client, begun, stopped } = *shutdown;
        let now = clock::now();
        let state = &self.clients[client - 1];
        let took = (now - begun).saturating_sub(state.stopped.saturating_sub(stopped));
        if took > time + SLACK * 2 {
            return Err(format!("it takes {took:?} instead of {time:?}"));
        }
        if let Err(error) = result {
            // An earlier release or call may still be under way. If an earlier shutdown could not
            // confirm a release before the hold was over, the next one reports it.
            let first = state.closed.map_or(begun, |closed| closed.min(begun));
            let since = first.checked_sub(self.lease).unwrap_or(first);
            let names = 0..self.names.len();
            let asked =
                names.flat_map(|at| self.record.latest(at).take_while(|it| it.sent >= since));
            let mut asked = asked.filter(|it| it.client == client);
            // A later reply is read too late.
            let last = begun + time.saturating_sub(self.network.latency * 4 + WAKE_UP);
            let reasons = [
                (Reason::NoAnswer, asked.any(|it| it.answered().is_none_or(|at| at > last))),
                (Reason::ClientStopped, self.was_stopped(client, since)),
            ];
            return if excused(&reasons) { Ok(()) } else { Err(format!("it fails: {error}")) };
        }
        for (at, name) in self.names.iter().enumerate() {
            let holds = self.network.holds(&name.key).into_iter().map(|(hold, ..)| hold);
            let mut own = holds.filter(|hold| *hold.client == *state.id && hold.nonce > 0);
            let left = own.find(|hold| {
                let reasons = [
                    (Reason::HoldIsBack, self.is_back(at, hold)),
                    (Reason::LateRequest, self.was_late(at, hold)),
                    (Reason::LeftToAdopt, self.may_be_adopted(hold)),
                ];
                self.has_hold(at, hold) && !excused(&reasons)
            });
            if let Some(hold) = left {
                return Err(format!("it leaves a hold of {:?}: {}", name.name, text_of(&hold)));
            }
        }
        Ok(())
    }

    /// Checks that clients release holds that they no longer need as soon as the server answers.
    pub(super) fn check_leftovers(&mut self) -> Result<(), String> {
        let now = clock::now();
        let most = self.slack() + self.network.latency * 20 + self.acks;
        let mut leftovers = Vec::new();
        for at in 0..self.names.len() {
            let mut holds = self.network.holds(&self.names[at].key);
            holds.dedup_by(|one, it| one.0 == it.0);
            for (hold, ..) in holds {
                let Some(client) = self.leaver(at, &hold) else { continue };
                let known = self.leftovers.iter().find(|(_, it, _)| *it == hold);
                let since = known.map_or(now, |(.., since)| *since);
                if since + most < now && !self.may_be_left_over(at, &hold, client, since) {
                    return Err(format!(
                        "client {client} has not released its hold of {:?}, {}, for {:?}",
                        self.names[at].name,
                        text_of(&hold),
                        now - since
                    ));
                }
                leftovers.push((at, hold, since));
            }
        }
        self.leftovers = leftovers;
        Ok(())
    }

    /// Returns a client that has a hold on enough servers, and no use for it.
    fn leaver(&self, at: usize, hold: &HoldId) -> Option<Process> {
        let client = self.clients.iter().position(|it| it.id == *hold.client)? + 1;
        let state = &self.clients[client - 1];
        let keeps = self.names[at].keep.is_some() && state.closed.is_none();
        let has_guard = self.guards.iter().flatten().any(|it| it.is_of(at) && it.owner == client);
        let has_call = self.calls.values().any(|it| it.is_about(at) && it.client == client);
        let is_used = keeps || has_guard || has_call || self.releasing.contains(&(client, at));
        let is_hold = hold.nonce > 0 && !is_used && !state.is_dead;
        (is_hold && self.has_hold(at, hold)).then_some(client)
    }

    /// Returns `true` if something keeps a client from releasing a hold, or from learning of it.
    fn may_be_left_over(&self, at: usize, hold: &HoldId, client: Process, since: Instant) -> bool {
        // A failed request is repeated after a 20th of the lease.
        let before = self.io_timeout + self.lease / 20 + self.slack();
        let since = since.checked_sub(before).unwrap_or(since);
        let mut asked = self.record.of(at, hold);
        let has_failed = asked.any(|it| it.has_failed_since(since));
        excused(&[
            (Reason::ClientStopped, self.was_stopped(client, since)),
            (Reason::HoldIsBack, self.is_back(at, hold)),
            (Reason::LateRequest, self.was_late(at, hold)),
            (Reason::LeftToAdopt, self.may_be_adopted(hold)),
            (Reason::NoAnswer, has_failed),
        ])
    }
}
