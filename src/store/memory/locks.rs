//! The locks of a memory server, by the same rules as the scripts in Redis.
//!
//! Decides the effect of a request on a name, and the fencing token of a hold. `name_state.rs`
//! decides which client goes first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::store::background::Wake;
use crate::store::commands::micros;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::Keys;
use crate::store::memory::inbox::Inboxes;
use crate::store::memory::name_state::{LiveHold, NameState};
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, Look, NextLease, Registration, ReportReply,
    TENURE_FENCES, Telling, Unused,
};

/// The locks of all clients.
#[derive(Default)]
pub(super) struct Locks {
    by_key: HashMap<String, NameState>,
    /// The last fencing token of any name. Names are forgotten, but no token is repeated.
    fence: u64,
    /// When a block of tokens was last given out.
    block_at: Option<Moment>,
    pub(super) inboxes: Inboxes,
    /// Why no change becomes durable, if a test wants that.
    pub(super) shortfall: Option<Failure>,
    /// With this many names, those without holds and waiting clients are removed.
    purge_at: usize,
}

impl Locks {
    /// Returns the state of a name, without holds that have expired.
    fn name(&mut self, key: &str) -> Option<&mut NameState> {
        let now = Moment::now();
        let name = self.by_key.get_mut(key)?;
        // Redis removes expired keys by itself. Here this happens before each access.
        name.holds.retain(|held| held.ends > now);
        Some(name)
    }

    /// Fails for an executed request that `must` become durable, if no change does.
    pub(super) fn confirm(&self, must: bool) -> Result<(), Failure> {
        match &self.shortfall {
            Some(shortfall) if must => Err(shortfall.clone()),
            _ => Ok(()),
        }
    }

    pub(super) fn acquire(
        &mut self,
        keys: &Keys,
        request: Acquire<'_>,
    ) -> Result<AcquireReply, Failure> {
        let Acquire { holds, lease, registration, echo, .. } = request;
        let (hold, others) = match holds {
            [hold, others @ ..] if others.is_empty() || !hold.kind.is_lock() => (hold, others),
            _ => return Ok(self.acquire_all(keys, request)),
        };
        let key = &*keys.lock(&hold.name);
        let leaves = hold.kind.is_lock() && registration.may_be_queued();
        // A request for more tokens always gives a whole lease, while a mere repeat may be late.
        let is_whole = matches!(registration, Registration::Kept | Registration::Recall);
        let whole = if is_whole { lease } else { Duration::MAX };
        let again = NextLease { duration: lease, whole };
        // A request that is repeated because its reply was lost finds the hold of the first one.
        let (fence, room) = if let Some(fence) = self.repeat(key, hold, again) {
            if leaves && let Some(name) = self.name(key) {
                name.withdraw(hold);
            }
            (fence, 0)
        } else {
            // Names are created only by acquires, so this is where unused ones are removed.
            self.purge();
            let Self { by_key, inboxes, .. } = self;
            let name = by_key.entry(key.into()).or_default();
            name.check_type(hold.kind)?;
            if !name.take_turn(key, hold, registration, inboxes) {
                let recalled = name.recall(key, registration, inboxes);
                if recalled {
                    name.join(hold, !registration.joins());
                }
                name.limit_taken();
                let remaining = name.remaining(hold.kind);
                let echoed = if echo { name.echo(key, hold, inboxes) } else { None };
                return Ok(AcquireReply::Held {
                    index: 0,
                    remaining,
                    in_doubt: false,
                    recalled,
                    echoed,
                });
            }
            let fence = self.begin(key, hold, lease, request.note);
            (fence, self.name(key).map_or(0, |name| name.room(hold.kind)))
        };
        if request.tokens() > 1 {
            return Ok(self.block(key, hold));
        }
        let others = self.acquire_others(key, others, again, request.note, room);
        Ok(AcquireReply::Acquired { fence, others, room: 0, wanted: false })
    }

    /// Begins as many of the further holds of a request as there is `room` for, in order, and
    /// returns their tokens. The holds of a repeat already exist.
    fn acquire_others(
        &mut self,
        key: &str,
        others: &[HoldId],
        lease: NextLease,
        note: Option<&str>,
        mut room: usize,
    ) -> Vec<u64> {
        let fences = others.iter().map_while(|hold| {
            self.repeat(key, hold, lease).or_else(|| {
                room = room.checked_sub(1)?;
                Some(self.begin(key, hold, lease.duration, note))
            })
        });
        fences.collect()
    }

    fn acquire_all(&mut self, keys: &Keys, request: Acquire<'_>) -> AcquireReply {
        let Acquire { holds, lease, note, .. } = request;
        for (index, hold) in holds.iter().enumerate() {
            // The client's own hold is here if the reply to an earlier request was lost.
            let is_free = self
                .name(&keys.lock(&hold.name))
                .is_none_or(|name| name.holds.iter().all(|held| held.is(hold) && held.depth > 0));
            if !is_free {
                return AcquireReply::Held {
                    index,
                    remaining: None,
                    in_doubt: false,
                    recalled: false,
                    echoed: None,
                };
            }
        }
        self.purge();
        let again = NextLease { duration: lease, whole: Duration::MAX };
        let mut fences = holds.iter().map(|hold| {
            let key = &*keys.lock(&hold.name);
            self.repeat(key, hold, again).unwrap_or_else(|| self.begin(key, hold, lease, note))
        });
        let fence = fences.next().unwrap_or_default();
        AcquireReply::Acquired { fence, others: fences.collect(), room: 0, wanted: false }
    }

    /// Renews a hold that exists already, and returns its token.
    fn repeat(&mut self, key: &str, hold: &HoldId, lease: NextLease) -> Option<u64> {
        let held = self.name(key)?.find(hold).filter(|held| held.depth > 0)?;
        held.renew(lease);
        Some(held.fence)
    }

    fn begin(&mut self, key: &str, hold: &HoldId, lease: Duration, note: Option<&str>) -> u64 {
        let name = self.by_key.entry(key.into()).or_default();
        let fence = match hold.kind {
            HoldKind::Permit { .. } => 0,
            HoldKind::Read if name.fence > 0 => name.fence,
            HoldKind::Lock | HoldKind::Read | HoldKind::Write => micros().max(self.fence + 1),
        };
        name.fence = name.fence.max(fence);
        self.fence = self.fence.max(fence);
        name.holds.push(LiveHold {
            id: hold.clone(),
            fence,
            depth: 1,
            watched: false,
            ends: Moment::now().after(lease),
            note: note.map(Arc::from),
        });
        fence
    }

    /// Gives a hold a block of new tokens, at least one.
    fn block(&mut self, key: &str, hold: &HoldId) -> AcquireReply {
        let clock = micros();
        let now = Moment::now();
        let before = self.block_at.replace(now);
        let mut most = clock + TENURE_FENCES;
        if self.fence > most {
            // The clock was set back. The counter advances like a clock.
            let passed = before.map_or(Duration::ZERO, |before| now.since(before));
            most = self.fence + u64::try_from(passed.as_micros()).unwrap_or(TENURE_FENCES);
        }
        let fence = clock.max(self.fence + 1);
        let last = (fence + TENURE_FENCES - 1).min(most).max(fence);
        self.fence = self.fence.max(last);
        let wanted = self.name(key).is_some_and(|name| {
            name.fence = name.fence.max(last);
            if let Some(held) = name.find(hold) {
                held.fence = fence;
            }
            hold.kind.is_lock() && name.is_wanted(hold)
        });
        let room = u32::try_from(last.saturating_sub(fence)).unwrap_or_default();
        AcquireReply::Acquired { fence, others: Vec::new(), room, wanted }
    }

    /// Removes the names without holds and waiters, once there are many.
    fn purge(&mut self) {
        if self.by_key.len() >= self.purge_at {
            let now = Moment::now();
            let inboxes = &self.inboxes;
            self.by_key.retain(|_, name| {
                name.queue.retain(|next| inboxes.exists(&next.client));
                name.holds.retain(|held| held.ends > now);
                !(name.queue.is_empty() && name.holds.is_empty())
            });
            self.purge_at = self.by_key.len().max(32) * 2;
        }
    }

    pub(super) fn change(&mut self, keys: &Keys, hold: &HoldId, change: Change) -> HoldReply {
        let key = &*keys.lock(&hold.name);
        if let Some(unused) = change.unused() {
            self.take_back(key, hold, unused);
        }
        match change {
            Change::Release { taken_until, .. } => return self.release(key, hold, taken_until),
            Change::Downgrade { lease, .. } => return self.downgrade(key, hold, lease),
            Change::Unregister => return self.unregister(key, hold),
            Change::Check
            | Change::Renew { .. }
            | Change::SetDepth { .. }
            | Change::Watch { .. } => {}
        }
        let watches = matches!(change, Change::Watch { .. });
        let Some(name) = self.name(key) else { return HoldReply::Gone };
        let is_wanted = watches && name.is_wanted(hold);
        let held = name.find(hold).filter(|held| held.depth > 0);
        let Some(held) = held else { return HoldReply::Gone };
        held.watched |= watches;
        if let Change::SetDepth { depth, .. } = change {
            held.depth = depth;
        }
        if let Some(lease) = change.lease() {
            held.renew(lease);
        }
        if is_wanted { HoldReply::Wanted } else { HoldReply::Done }
    }

    /// Sets the token of the readers that follow a writer to the last one that the writer used.
    fn take_back(&mut self, key: &str, hold: &HoldId, Unused { before, last }: Unused) {
        let writer = HoldId { kind: HoldKind::Write, ..hold.clone() };
        if let Some(name) = self.name(key)
            && name.fence == last
            && name.find(&writer).is_some()
        {
            name.fence = before;
        }
    }

    fn release(&mut self, key: &str, hold: &HoldId, taken_until: Moment) -> HoldReply {
        if taken_until <= Moment::now() {
            return self.end(key, hold.kind, |held| held.is(hold));
        }
        let held = self.name(key).and_then(|name| name.find(hold));
        let Some(held) = held.filter(|held| held.depth > 0) else { return HoldReply::Gone };
        held.depth = 0;
        held.ends = taken_until;
        held.note = None;
        if let Some(name) = self.by_key.get_mut(key) {
            name.remove_other_forms(key, hold.kind, &self.inboxes);
            // The first two are notified, because the first may have stopped.
            for first in name.queue.iter().filter(|next| next.kind.is_lock()).take(2) {
                self.inboxes.send(&first.client, Wake::Lock(key.into()));
            }
        }
        HoldReply::Done
    }

    fn downgrade(&mut self, key: &str, hold: &HoldId, lease: NextLease) -> HoldReply {
        let writer = HoldId { kind: HoldKind::Write, ..hold.clone() };
        let Some(name) = self.name(key) else { return HoldReply::Gone };
        let mut holds = name.holds.iter_mut();
        let Some(held) = holds.find(|held| held.is(&writer) || held.is(hold)) else {
            return HoldReply::Gone;
        };
        // Readers have the last token of the writer before them.
        held.id.kind = HoldKind::Read;
        held.fence = name.fence;
        held.renew(lease);
        self.serve(key, hold.kind, 0);
        HoldReply::Done
    }

    fn unregister(&mut self, key: &str, hold: &HoldId) -> HoldReply {
        let Some(name) = self.name(key) else { return HoldReply::Gone };
        let held = name.holds.len();
        let Some(left) = name.unregister(&hold.client) else { return HoldReply::Gone };
        // The number of permits is not known here. The number of permits taken, this one included,
        // is safe.
        if name.check_type(left).is_ok() {
            self.serve(key, left, held.max(1));
        }
        HoldReply::Done
    }

    /// Notifies the client that holds a lock that another one wants it. Returns `true` if the lock
    /// may only be kept, in which case it is about to be released.
    pub(super) fn recall(&mut self, key: &str) -> bool {
        let Self { by_key, inboxes, .. } = self;
        by_key.get(key).is_some_and(|name| name.recall(key, Registration::Recall, inboxes))
    }

    /// Sends a message to clients, or to the one that holds a lock.
    pub(super) fn tell(&mut self, key: &str, Telling { clients, message }: &Telling) {
        for client in clients {
            self.inboxes.send(client, Wake::Probe { nonce: 0, message: message.clone() });
        }
        let held = self.name(key).and_then(|name| name.holds.first());
        if clients.is_empty()
            && let Some(HoldId { client, nonce, .. }) = held
                .filter(|held| held.id.kind.is_lock() && held.depth > 0)
                .map(|held| held.id.clone())
        {
            self.inboxes.send(&client, Wake::Probe { nonce, message: message.clone() });
        }
    }

    /// Ends the hold of an owner, and notifies its client.
    pub(super) fn force_release(&mut self, kind: HoldKind, key: &str, owner: &[u8]) -> HoldReply {
        let name = self.by_key.get(key);
        if let Some(held) =
            name.and_then(|name| name.holds.iter().find(|held| held.belongs_to(kind, owner)))
        {
            // The owner may be alive, and must learn that it has lost the lock.
            let ended = Wake::Ended { name: key.into(), nonce: held.id.nonce };
            self.inboxes.send(&held.id.client, ended);
        }
        self.end(key, kind, |held| held.belongs_to(kind, owner))
    }

    /// Ends holds, and lets the next clients take their turn.
    fn end(&mut self, key: &str, kind: HoldKind, ends: impl Fn(&LiveHold) -> bool) -> HoldReply {
        let Some(name) = self.name(key) else { return HoldReply::Gone };
        let held = name.holds.len();
        name.holds.retain(|held| !ends(held));
        if name.holds.len() == held {
            return HoldReply::Gone;
        }
        // Waiting clients may assume more permits. The number of permits taken, this one included,
        // is safe.
        self.serve(key, kind, held.max(kind.permits() as usize));
        HoldReply::Done
    }

    /// Offers what is free to the waiting clients.
    fn serve(&mut self, key: &str, served: HoldKind, permits: usize) {
        if let Some(name) = self.by_key.get_mut(key) {
            name.serve(key, None, served, permits, &self.inboxes);
        }
    }

    pub(super) fn report(&mut self, key: &str, look: Look) -> Result<ReportReply, Failure> {
        let Some(name) = self.name(key) else { return Ok(ReportReply::default()) };
        match look {
            Look::All => {}
            Look::Owner | Look::Holder | Look::Token => name.check_type(HoldKind::Lock)?,
            Look::Permits => name.check_type(HoldKind::Permit { of: 0 })?,
        }
        let holds = name.holds.iter().filter(|held| !held.is_offer());
        Ok(ReportReply {
            holds: holds.map(|held| (held.id.kind.row().held_as, held.reply(name.fence))).collect(),
            fence: name.fence,
            waiting: name.queue.iter().map(|next| next.client.to_string()).collect(),
            permits: u32::try_from(name.holds.len()).unwrap_or(u32::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::name_state::Waiting;

    #[cfg_attr(windows, allow(dead_code, reason = "the simulation, which needs Unix, uses most"))]
    impl Locks {
        pub(in crate::store::memory) fn end_at(
            &mut self,
            key: &str,
            end: Moment,
            is_meant: impl Fn(&HoldId) -> bool,
        ) {
            let holds = self.name(key).map_or(&mut [][..], |name| &mut name.holds);
            holds.iter_mut().filter(|held| is_meant(&held.id)).for_each(|held| held.ends = end);
        }

        pub(in crate::store::memory) fn copy(&self) -> Self {
            let Self { by_key, fence, shortfall, purge_at, .. } = self;
            let (by_key, shortfall) = (by_key.clone(), shortfall.clone());
            let inboxes = Inboxes::default();
            let (fence, block_at, purge_at) = (*fence, self.block_at, *purge_at);
            Self { by_key, fence, block_at, inboxes, shortfall, purge_at }
        }

        pub(in crate::store::memory) fn set_last_token(&mut self, token: u64) {
            self.fence = token;
        }

        /// Ends a hold without waking a client.
        pub(in crate::store::memory) fn withdraw(&mut self, key: &str, hold: &HoldId) -> HoldReply {
            let Some(name) = self.name(key) else { return HoldReply::Gone };
            let count = name.holds.len();
            name.holds.retain(|held| !held.is(hold) || held.depth == 0);
            if name.holds.len() < count { HoldReply::Done } else { HoldReply::Gone }
        }

        pub(in crate::store::memory) fn last_token(&self) -> u64 {
            self.fence
        }

        pub(in crate::store::memory) fn holds(&mut self, key: &str) -> Vec<(HoldId, u32, Moment)> {
            let holds = self.name(key).map_or(&[][..], |name| &name.holds);
            holds.iter().map(|held| (held.id.clone(), held.depth, held.ends)).collect()
        }

        pub(in crate::store::memory) fn look(&self, mut see: impl FnMut(&str, &str, bool)) {
            let now = Moment::now();
            for (key, name) in &self.by_key {
                let holds = name.holds.iter().filter(|held| held.ends > now);
                holds.for_each(|held| see(key, &held.id.client, true));
                name.queue.iter().for_each(|waiting| see(key, &waiting.client, false));
            }
        }

        pub(in crate::store::memory) fn waiting(&mut self, key: &str) -> Vec<String> {
            let entry = |it: &Waiting| format!("{}{}", it.kind.row().prefix, it.client);
            self.name(key).map(|name| name.queue.iter().map(entry).collect()).unwrap_or_default()
        }
    }

    #[test]
    fn a_block_is_of_a_thousand_tokens_that_are_at_most_a_millisecond_ahead() {
        let (mut locks, keys, kind) = (Locks::default(), Keys::new("lock:"), HoldKind::Lock);
        let (name, client) = ("name".into(), "client".into());
        let hold = [HoldId { kind, name, client, nonce: 1 }.that_may_be_kept()];
        let mut last = 0;
        for _ in 0..5 {
            let (lease, deadline) = (Duration::from_secs(60), std::time::Instant::now());
            let registration = Registration::None;
            let request =
                Acquire { holds: &hold, lease, note: None, registration, echo: false, deadline };
            let reply = locks.acquire(&keys, request).expect("a reply");
            let AcquireReply::Acquired { fence, room, .. } = reply else { panic!("{reply:?}") };
            assert!(fence > last && (last > 0 || room == 999), "{last}: {reply:?}");
            last = fence + u64::from(room);
            // On a fast machine the clock may not advance between two requests.
            assert!(room == 0 || last <= micros() + TENURE_FENCES, "{reply:?}");
        }
        // The clock has not reached that token yet.
        for name in ["other", "third"] {
            let next = HoldId { name: name.into(), ..hold[0].clone() };
            let fence = locks.begin(name, &next, Duration::from_secs(60), None);
            assert!(fence > last, "{fence}, {last}");
            last = fence;
        }
    }

    #[test]
    fn names_without_holds_and_waiters_are_removed() {
        let (mut locks, keys, kind) = (Locks::default(), Keys::new("lock:"), HoldKind::Lock);
        let hold = |name: &str, client: &str, nonce| HoldId {
            kind,
            name: name.into(),
            client: client.into(),
            nonce,
        };
        let mut acquire = |hold: HoldId, registration, lease| {
            let request = Acquire {
                holds: std::slice::from_ref(&hold),
                lease,
                note: None,
                registration,
                echo: false,
                deadline: std::time::Instant::now(),
            };
            locks.acquire(&keys, request).expect("a reply");
            locks.by_key.len()
        };
        // The short leases should have ended by the time names are removed.
        let (lease, moment) = (Duration::from_secs(60), Duration::from_micros(20));
        acquire(hold("held", "c", 1), Registration::None, lease);
        acquire(hold("held", "gone", 2), Registration::IfHeld, lease);
        for nonce in 10..10_000 {
            let left = acquire(hold(&nonce.to_string(), "c", nonce), Registration::None, moment);
            assert!(left <= 200, "{left}");
        }
        assert!(locks.by_key["lock:held"].queue.is_empty(), "its client is gone");
    }
}
