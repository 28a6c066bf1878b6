//! Checks that every hold reported as lost is lost for the reported cause, and that watches are
//! notified of the end of their hold.

use std::time::{Duration, Instant};

use crossbeam_channel::TryRecvError;

use crate::base::clock;
use crate::base::sync::executor::Process;
use crate::error::LossCause;
use crate::event::Event;
use crate::guards::watches::Lost;
use crate::protocol::hold::reliable;
use crate::simulation::calls::Held;
use crate::simulation::judge::SLACK;
use crate::simulation::reasons::{Reason, excused};
use crate::simulation::record::{Asked, Promise, Said, Wish};
use crate::simulation::world::World;
use crate::store::hold_id::HoldId;

/// The longest time that a client takes to find the new holder of a lock that it has lost.
const LOOK_TIME: Duration = Duration::from_secs(1);

impl World {
    /// Checks that a hold reported as lost is lost, for the reported cause.
    pub(super) fn check_loss(&self, client: Process, event: &Event) -> Result<(), String> {
        let Event::Lost { name: text, fence, cause, .. } = event else { return Ok(()) };
        let name = self.names.iter().position(|name| name.name == *text);
        let Some(name) = name else { return Err(format!("{event:?} about an unknown name")) };
        // Permits have no tokens that would tell their holds apart.
        let holds = if *fence == 0 { Vec::new() } else { self.holds_of(client, name, *fence) };
        let checks = holds.iter().map(|hold| self.check_cause(client, name, hold, cause));
        // Readers that follow one another may have the same token.
        let whys: Vec<_> = checks.filter_map(Result::err).collect();
        match whys.first() {
            Some(why) if whys.len() == holds.len() => Err(format!("{event:?}: {why}")),
            _ => Ok(()),
        }
    }

    /// Returns the holds of a client that may have this token.
    pub(super) fn holds_of(&self, client: Process, name: usize, fence: u64) -> Vec<HoldId> {
        let mut holds = self.record.holds_with(name, &self.clients[client - 1].id, fence);
        // Another client began those that it has adopted.
        let left = self.left.iter().filter(|left| left.name == name && left.fence == fence);
        holds.extend(left.filter(|left| left.owner != client).map(|left| left.id.clone()));
        holds
    }

    /// Checks that the hold may be lost for this cause.
    fn check_cause(
        &self,
        client: Process,
        name: usize,
        hold: &HoldId,
        cause: &LossCause,
    ) -> Result<(), String> {
        let state = &self.names[name];
        match cause {
            LossCause::Expired => self.check_expiry(client, name, hold),
            LossCause::Forced if !state.was_forced => Err("no operator has ended it".into()),
            LossCause::Forced => self.check_gone(name, hold),
            LossCause::MaxHold if self.is_of_age(name, hold) => Ok(()),
            LossCause::MaxHold => Err("it has not reached its age limit".into()),
            LossCause::Taken { by } if !state.had_hold.contains_key(by) => {
                Err("that client had no hold".into())
            }
            LossCause::Gone | LossCause::Taken { .. } => {
                self.check_gone(name, hold)?;
                self.check_told_gone(client, name, hold)
            }
        }
    }

    /// Checks that too few servers have a hold.
    fn check_gone(&self, name: usize, hold: &HoldId) -> Result<(), String> {
        if !self.has_hold(name, hold) {
            return Ok(());
        }
        let reasons = [
            (Reason::HoldIsBack, self.is_back(name, hold)),
            (Reason::LateRequest, self.was_late(name, hold)),
        ];
        if excused(&reasons) { Ok(()) } else { Err("the servers have it".into()) }
    }

    /// Checks that a server has replied that a hold is gone.
    fn check_told_gone(&self, client: Process, name: usize, hold: &HoldId) -> Result<(), String> {
        let own: Vec<_> = self.record.latest(name).filter(|it| it.client == client).collect();
        let is_told = own.iter().any(|it| match it.subject.wish {
            // Another hold that this client began or adopted is in its place.
            Wish::Acquire(_) | Wish::Renew(_) if !it.is_about(hold) => it.said().is_yes(),
            Wish::Acquire(_) => false,
            // It may be gone because an earlier release had no answer.
            Wish::Release => {
                it.is_about(hold) && it.said() == Said::No && {
                    let is_earlier = |other: &&&Asked| {
                        other.is_about(hold)
                            && other.subject.wish == Wish::Release
                            && other.sent < it.sent
                            && other.said() == Said::Nothing
                    };
                    self.network.is_quorum() || own.iter().find(is_earlier).is_none()
                }
            }
            _ => it.is_about(hold) && it.said() == Said::No,
        });
        // Several guards of the client may have adopted it, and one loses it when another releases
        // it.
        let is_shared = (Reason::LeftToAdopt, self.has_shared_ticket(hold));
        if is_told || excused(&[is_shared]) {
            return Ok(());
        }
        Err("no server has said so".into())
    }

    /// Checks that the lease of a hold is over, and that its client tried to renew it until then.
    fn check_expiry(&self, client: Process, name: usize, hold: &HoldId) -> Result<(), String> {
        let now = clock::now();
        let promise = self.record.promised(name, hold, client, self.required(), SLACK);
        let Some(promise) = promise else { return Ok(()) };
        // The thread may not have got the processor before the request.
        if now + Duration::from_millis(5) < promise.until {
            return Err(format!("its lease lasts for {:?} more", promise.until - now));
        }
        self.check_tries(client, name, hold, promise)
    }

    /// Checks that the leases of a guard were renewed until now.
    pub(super) fn check_renewed(&self, held: &Held) -> Result<(), String> {
        // Nothing is renewed shortly before an age limit, or after a loss.
        if held.terms.max_hold.is_some() || !held.is_held() {
            return Ok(());
        }
        for name in (0..self.names.len()).filter(|at| held.is_of(*at)) {
            let fence = held.guard.fence(name);
            let hold = fence.and_then(|fence| self.hold_of(held.client, name, fence));
            let Some(hold) = hold else { continue };
            let promise = self.record.last_grant(name, &hold, held.client, self.required());
            if let Some(promise) = promise {
                self.check_tries(held.client, name, &hold, promise)?;
            }
        }
        Ok(())
    }

    /// Checks that a client has tried to renew a hold whenever that was due since it was last
    /// confirmed.
    fn check_tries(
        &self,
        client: Process,
        name: usize,
        hold: &HoldId,
        promise: Promise,
    ) -> Result<(), String> {
        let now = clock::now();
        let is_try = |it: &&Asked| {
            let renews = matches!(it.subject.wish, Wish::Renew(_));
            it.client == client && renews && it.sent > promise.sent
        };
        let mut tries: Vec<_> = self.record.of(name, hold).filter(is_try).collect();
        tries.reverse();
        let first = promise.sent + promise.lease / 3 + self.slack();
        let mut due = first;
        // When the renewal was due for a client that may have been stopped.
        let mut due_later = self.due_after_stops(client, first);
        for it in tries {
            let ended = it.outcome.map_or(now, |(at, _)| at);
            let next = ended + promise.lease / 20 + self.slack();
            if it.sent <= due {
                due = due.max(next);
            }
            if it.sent <= due_later {
                due_later = due_later.max(self.due_after_stops(client, next));
            }
        }
        if now <= due {
            return Ok(());
        }
        let shut_down = self.clients[client - 1].shut_down;
        let reasons = [
            (Reason::ClientClosed, shut_down.is_some_and(|at| at <= due_later)),
            (Reason::ClientStopped, now <= due_later),
            (Reason::NotRenewed, !self.is_renewed(client, hold)),
        ];
        if excused(&reasons) {
            return Ok(());
        }
        Err(format!("it was not renewed when that was due, {:?} ago", now - due))
    }

    /// Returns `true` if a hold may have reached an age limit.
    fn is_of_age(&self, name: usize, hold: &HoldId) -> bool {
        let Some(most) = self.max_hold else { return false };
        let first = self.record.first_asked(name, hold);
        first.is_some_and(|first| clock::elapsed(first) >= reliable(most))
    }

    /// Returns `true` if a client was stopped for some of the time since then.
    pub(super) fn was_stopped(&self, client: Process, since: Instant) -> bool {
        self.clients[client - 1].stops.iter().any(|stop| stop.end >= since)
    }

    /// Returns when a task that was due at this time has to be done, if its client may have been
    /// stopped.
    pub(super) fn due_after_stops(&self, client: Process, due: Instant) -> Instant {
        let mut due = due;
        for stop in &self.clients[client - 1].stops {
            // A task that falls due while the client is stopped, or a moment before, is done when
            // the client resumes.
            if stop.start <= due && due <= stop.end + self.slack() * 2 {
                due = stop.end + self.slack() * 2;
            }
        }
        due
    }

    /// Checks that watches learn when a hold is lost, and not before.
    pub(super) fn check_watches(&self) -> Result<(), String> {
        let now = clock::now();
        let most = LOOK_TIME.max(self.io_timeout) + self.slack() * 2;
        for held in self.guards.iter().flatten() {
            let Some(lost) = &held.lost else { continue };
            let client = held.client;
            if is_told(lost) && !lost.is_lost() {
                return Err(format!("a watch of client {client} ends while the hold lasts"));
            }
            let is_late = held.over_since.is_some_and(|at| at + most < now) && !is_told(lost);
            let since = now.checked_sub(most).unwrap_or(now);
            let is_stopped = is_late && self.was_stopped(client, since);
            if is_late && !excused(&[(Reason::ClientStopped, is_stopped)]) {
                return Err(format!("a watch of client {client} does not learn of the loss"));
            }
        }
        Ok(())
    }

    /// Stops watching the guards of a client that is closed, because the end of its holds by a
    /// shutdown is not a loss.
    pub(super) fn forget_watches(&mut self, client: Process) {
        for held in self.guards.iter_mut().flatten().filter(|held| held.client == client) {
            held.lost = None;
        }
    }
}

/// Returns `true` if a watch reports that the hold is over. Does not wait, because that would take
/// up time of this process.
fn is_told(lost: &Lost) -> bool {
    lost.receiver().try_recv() == Err(TryRecvError::Disconnected)
}
