//! Whether a client does its work: that it gives up, or takes a hold for lost, only if no server
//! that counts has answered in time, that what it has ended is gone, and that its events and
//! counters tell what has happened.

use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sync::executor::Process;
use crate::error::{Error, LossCause};
use crate::event::Event;
use crate::simulation::calls::{CallState, Patience};
use crate::simulation::judge::SLACK;
use crate::simulation::record::{Asked, Said, Wish};
use crate::simulation::world::{ClientState, World};
use crate::stats::Stats;
use crate::store::hold_id::HoldId;

/// How long a client looks which other one has a lock that it has lost, at most.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// How long threads may take to do what is due.
fn most(world: &World) -> Duration {
    SLACK + world.network.latency * 2
}

impl World {
    /// Returns how many servers must agree.
    pub(super) fn required(&self) -> usize {
        self.network.servers.len() / 2 + 1
    }

    /// Returns `true` if enough servers have a hold.
    pub(super) fn has_hold(&self, name: usize, hold: &HoldId) -> bool {
        let holds = self.network.holds(&self.names[name].key);
        let found = holds.iter().filter(|(it, ..)| it == hold).count();
        found >= self.required()
    }

    /// Returns the holds of a client that have this token, the last one first: those of readers
    /// share it. None for a permit.
    fn holds_of(&self, client: Process, name: usize, fence: u64) -> Vec<HoldId> {
        if fence == 0 {
            return Vec::new();
        }
        let mut holds = self.record.holds_with(name, &self.clients[client - 1].id, fence);
        let left = self.left.iter().filter(|left| left.name == name && left.fence == fence);
        holds.extend(left.filter(|left| left.owner != client).map(|left| left.id.clone()));
        holds
    }

    /// Returns the hold of a client that has this token, if there is only one.
    fn hold_of(&self, client: Process, name: usize, fence: u64) -> Option<HoldId> {
        let mut holds = self.holds_of(client, name, fence);
        holds.pop().filter(|_| holds.is_empty())
    }

    /// Returns `true` if a client was stopped for some of the time since then.
    pub(super) fn was_stopped(&self, client: Process, since: Instant) -> bool {
        self.clients[client - 1].stopped_until.is_some_and(|until| until >= since)
    }

    /// Checks that a hold that its client reports as lost is, and for that cause.
    pub(super) fn check_loss(
        &self,
        client: Process,
        name: usize,
        fence: u64,
        cause: &LossCause,
    ) -> Result<(), String> {
        let text = &self.names[name].name;
        let false_loss = |why: String| {
            Err(format!("client {client} loses {text:?} ({fence}), {cause:?}: {why}"))
        };
        if let LossCause::MaxHold = cause {
            return false_loss("there is no age limit".into());
        }
        if let LossCause::Taken { by } = cause
            && !self.names[name].had_hold.keys().any(|it| it == by)
        {
            return false_loss("that client had no hold".into());
        }
        let holds = self.holds_of(client, name, fence);
        let each = holds.iter().map(|hold| self.check_loss_of(client, name, hold, cause));
        let why = each.collect::<Result<Vec<()>, String>>().err();
        let all = holds.iter().all(|hold| self.check_loss_of(client, name, hold, cause).is_err());
        if let Some(why) = why.filter(|_| all) {
            return false_loss(why);
        }
        Ok(())
    }

    /// Checks that this hold may be the one that is lost.
    fn check_loss_of(
        &self,
        client: Process,
        name: usize,
        hold: &HoldId,
        cause: &LossCause,
    ) -> Result<(), String> {
        // Each of two users of a ticket may end the other's hold, and renews only its own.
        if self.left.iter().any(|left| left.id == *hold && left.is_shared) {
            return Ok(());
        }
        if *cause == LossCause::Expired {
            return self.check_expiry(client, name, hold);
        }
        if self.has_hold(name, hold) && !self.is_unasked(hold) && !self.was_late(hold) {
            return Err("the server has it".into());
        }
        let own = |it: &&Asked| it.client == client && it.subject.wish == Wish::Release;
        let mut releases = self.record.of(name, hold).filter(own);
        if releases.any(|it| matches!(it.end, Some((_, Said::Yes)))) && !self.network.is_quorum() {
            return Err("it has released it".into());
        }
        Ok(())
    }

    /// Checks that the lease of a hold is over, and that its client has tried to renew it for as
    /// long as it lasted.
    fn check_expiry(&self, client: Process, name: usize, hold: &HoldId) -> Result<(), String> {
        let now = clock::now();
        let promised = self.record.promised(name, hold, client, self.required(), SLACK);
        let Some((until, sent)) = promised else { return Ok(()) };
        if self.was_stopped(client, sent) {
            return Ok(());
        }
        if now + Duration::from_millis(1) < until {
            return Err(format!("its lease lasts for {:?} more", until - now));
        }
        if !self.renews || self.clients[client - 1].closed.is_some() {
            return Ok(());
        }
        let is_try = |it: &&Asked| {
            it.client == client && it.sent > sent && matches!(it.subject.wish, Wish::Renew(_))
        };
        let mut tries: Vec<_> = self.record.of(name, hold).filter(is_try).collect();
        tries.reverse();
        let mut due = sent + self.lease / 3 + most(self);
        for it in tries {
            if it.sent > due {
                break;
            }
            let ended = it.end.map_or(now, |(at, _)| at);
            due = due.max(ended + self.lease / 20 + most(self));
        }
        if now > due {
            return Err(format!("it was not renewed when that was due, {:?} ago", now - due));
        }
        Ok(())
    }

    /// Checks that a call that is told of an outage had no answer for as long as it may try.
    pub(super) fn check_outage(&self, call: &CallState, error: &Error) -> Result<(), String> {
        if !matches!(error, Error::Unavailable { .. } | Error::NoQuorum { .. }) {
            return Ok(());
        }
        let now = clock::now();
        // Calls at a quorum share failures with those for other names.
        if self.network.is_quorum() {
            return Ok(());
        }
        let took = now - call.begun;
        match call.patience {
            Patience::For(time) if took < time => {
                return Err(format!("it gives up after {took:?} of {time:?}"));
            }
            Patience::For(_) => return Ok(()),
            Patience::None | Patience::Endless => {}
        }
        let names = (0..self.names.len()).filter(|at| call.is_about(*at));
        let asked = names.flat_map(|at| self.record.latest(at));
        let asked: Vec<_> = asked.filter(|it| it.client == call.client).collect();
        if call.patience == Patience::Endless {
            let since = now.checked_sub(self.retry_window).unwrap_or(call.begun);
            let is_answer =
                |it: &&&Asked| matches!(it.subject.wish, Wish::Acquire(_)) && it.sent > since;
            let answered = asked.iter().filter(is_answer).filter_map(|it| it.answered());
            if let Some(at) = answered.max() {
                return Err(format!("a server has answered {:?} ago", now - at));
            }
        }
        let since = call.begun.checked_sub(self.io_timeout * 2).unwrap_or(call.begun);
        // One without an outcome so far is waited for by the call in front.
        let has_failed =
            |it: &&Asked| it.end.is_none() || it.failed().is_some_and(|at| at >= since);
        let has_failed = asked.iter().any(has_failed);
        // It may share the failure of a request that another call has sent, and give up because the
        // thread in front of it was stopped with a reply.
        if !has_failed && !error.to_string().contains("the call in front") {
            return Err("no request has failed".into());
        }
        Ok(())
    }

    /// Checks that a call that is told that a lock is held has waited for as long as it may.
    pub(super) fn check_wait(call: &CallState) -> Result<(), String> {
        let took = clock::elapsed(call.begun);
        match call.patience {
            Patience::For(time) if took < time => {
                Err(format!("it waits for {took:?} instead of {time:?}"))
            }
            Patience::Endless => Err("it waits without end, and has ended".into()),
            _ => Ok(()),
        }
    }

    /// Checks the outcome of `unlock`, which began then, of a hold that was valid or not.
    pub(super) fn check_unlock(
        &self,
        client: Process,
        name: usize,
        fence: u64,
        (begun, was_held): (Instant, bool),
        result: &Result<(), Error>,
    ) -> Result<(), String> {
        let is_closed = self.clients[client - 1].closed.is_some();
        if result.is_ok() && !was_held && !is_closed {
            return Err("a lost hold is unlocked".into());
        }
        let Some(hold) = self.hold_of(client, name, fence) else { return Ok(()) };
        let sent = |it: &&Asked| it.client == client && it.sent >= begun;
        let sent = self.record.of(name, &hold).filter(sent);
        let releases: Vec<_> = sent.filter(|it| it.subject.wish == Wish::Release).collect();
        let said =
            |said: Said| releases.iter().filter_map(|it| it.end).filter(move |it| it.1 == said);
        match result {
            // Without a reply to another one, that may have ended the hold.
            Ok(()) if said(Said::No).count() == 1 && releases.len() == 1 => {
                Err("an unlock succeeds, and the hold was gone".into())
            }
            Ok(())
                if !is_closed
                    && !releases.is_empty()
                    && self.has_hold(name, &hold)
                    && !self.is_unasked(&hold)
                    && !self.was_late(&hold) =>
            {
                Err("an unlock succeeds, and the server still has the hold".into())
            }
            _ => Ok(()),
        }
    }

    /// Returns `true` if enough servers have the hold with this token, as far as that is known.
    pub(super) fn exists(&self, client: Process, name: usize, fence: u64) -> bool {
        self.hold_of(client, name, fence).is_none_or(|hold| self.has_hold(name, &hold))
    }

    /// Checks the outcome of `verify`, before which the hold existed or not.
    pub(super) fn check_verify(
        &self,
        (client, name, fence): (Process, usize, u64),
        begun: Instant,
        (existed, changes): (bool, u64),
        result: &Result<(), Error>,
    ) -> Result<(), String> {
        let Some(hold) = self.hold_of(client, name, fence) else { return Ok(()) };
        let exists = self.has_hold(name, &hold);
        let asked = self.record.of(name, &hold);
        let asked = asked.filter(|it| it.subject.wish == Wish::Other);
        let asked = asked.filter(|it| it.client == client && it.sent >= begun);
        let answers = asked.filter(|it| it.answered().is_some()).count();
        match result {
            Ok(()) if !existed && !exists && changes == self.changes => {
                Err("it is said to exist".into())
            }
            Err(Error::Unavailable { .. } | Error::NoQuorum { .. })
                if answers >= self.required() && !self.network.is_quorum() =>
            {
                Err("it fails, and the server has answered".into())
            }
            _ => Ok(()),
        }
    }

    /// Checks the outcome of a shutdown that began then and could last so long.
    pub(super) fn check_shutdown(
        &self,
        client: Process,
        (begun, stopped): (Instant, Duration),
        time: Duration,
        result: &Result<(), Error>,
    ) -> Result<(), String> {
        let now = clock::now();
        let state = &self.clients[client - 1];
        let took = (now - begun).saturating_sub(state.stopped.saturating_sub(stopped));
        if took > time + SLACK * 2 {
            return Err(format!("it takes {took:?} instead of {time:?}"));
        }
        if let Err(error) = result {
            let since = begun.checked_sub(self.lease).unwrap_or(begun);
            let names = 0..self.names.len();
            let asked =
                names.flat_map(|at| self.record.latest(at).take_while(|it| it.sent >= since));
            let mut asked = asked.filter(|it| it.client == client);
            let has_failed = asked.any(|it| it.answered().is_none());
            let is_brief = time < self.io_timeout * 2 + most(self) + self.acks;
            let is_met = has_failed || is_brief || self.was_stopped(client, since);
            return if is_met { Ok(()) } else { Err(format!("it fails: {error}")) };
        }
        for (at, name) in self.names.iter().enumerate() {
            let is_own = |hold: &HoldId| *hold.client == *state.id && hold.nonce > 0;
            let is_other =
                |hold: &HoldId| self.was_left(hold) || self.is_unasked(hold) || self.was_late(hold);
            let holds = self.network.holds(&name.key).into_iter().map(|(hold, ..)| hold);
            let mut holds = holds.filter(|hold| is_own(hold) && !is_other(hold));
            if let Some(hold) = holds.find(|hold| self.has_hold(at, hold)) {
                return Err(format!("it leaves a hold of {:?}: {}", name.name, hold.owner()));
            }
        }
        Ok(())
    }

    /// Checks that those who watch a hold know when it is over, and not before.
    pub(super) fn check_watches(&mut self) -> Result<(), String> {
        let now = clock::now();
        let bound = LOOK_TIME.max(self.io_timeout) + most(self) * 2;
        for held in self.guards.iter().flatten() {
            let Some(lost) = &held.lost else { continue };
            let (client, is_told) = (held.client, is_disconnected(lost));
            let is_ended = self.clients[client - 1].closed.is_some();
            if is_told && !held.as_its_client(|| lost.is_lost()) && !is_ended {
                return Err(format!("a watch of client {client} ends while the hold lasts"));
            }
            let late = held.over_since.is_some_and(|at| at + bound < now);
            if late && !is_told && !self.was_stopped(client, now.checked_sub(bound).unwrap_or(now))
            {
                return Err(format!("a watch of client {client} is not told of the loss"));
            }
        }
        Ok(())
    }
}

/// Not by waiting, even for no time: that would be the time of this process.
pub(super) fn is_disconnected(lost: &crate::guards::watches::Lost) -> bool {
    use crossbeam_channel::TryRecvError;
    lost.receiver().try_recv() == Err(TryRecvError::Disconnected)
}

impl ClientState {
    /// Counts an event as the client should.
    pub(super) fn count(&mut self, event: &Event) {
        let Stats {
            acquired,
            released,
            lost,
            failed_releases,
            contended,
            timed_out,
            failed,
            failed_renewals,
            deadlocks,
            renewals,
            ..
        } = &mut self.heard;
        match event {
            Event::Acquired { .. } => *acquired += 1,
            Event::Released { .. } => *released += 1,
            Event::Lost { .. } => *lost += 1,
            Event::ReleaseFailed { .. } => *failed_releases += 1,
            Event::Contended { .. } => *contended += 1,
            Event::TimedOut { .. } => *timed_out += 1,
            Event::Failed { .. } => *failed += 1,
            Event::RenewalFailing { .. } => *failed_renewals += 1,
            Event::Deadlock { .. } => *deadlocks += 1,
            Event::Renewed { count } => *renewals += *count as u64,
        }
    }

    /// Counts a call that has found the lock held.
    pub(super) fn count_busy(&mut self, patience: Patience) {
        let Stats { busy, timed_out, .. } = &mut self.called;
        *(if patience == Patience::None { busy } else { timed_out }) += 1;
    }

    /// Counts a call that has failed.
    pub(super) fn count_failure(&mut self, error: &Error) {
        self.called.failed += u64::from(error.is_failure());
    }

    /// Checks that the client has counted what it has told, and what its calls have returned.
    pub(super) fn check_stats(&self, stats: &Stats) -> Result<(), String> {
        let Self { heard, called, .. } = self;
        let told = [
            ("acquired", stats.acquired, heard.acquired),
            ("released", stats.released, heard.released),
            ("lost", stats.lost, heard.lost),
            ("failed releases", stats.failed_releases, heard.failed_releases),
            ("contended", stats.contended, heard.contended),
            ("timed out", stats.timed_out, heard.timed_out),
            ("failed", stats.failed, heard.failed),
            ("failed renewals", stats.failed_renewals, heard.failed_renewals),
            ("deadlocks", stats.deadlocks, heard.deadlocks),
            ("renewals", stats.renewals, heard.renewals),
            ("busy calls", stats.busy, called.busy),
            ("calls that timed out", stats.timed_out, called.timed_out),
            ("calls that failed", stats.failed, called.failed),
        ];
        match told.into_iter().find(|(_, counted, told)| counted != told) {
            Some((what, counted, told)) => Err(format!("{what}: {told}, and counted {counted}")),
            None => Ok(()),
        }
    }
}
