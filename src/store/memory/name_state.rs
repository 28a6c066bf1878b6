//! The state of one name in a memory server: its holders, and the waiting clients.
//!
//! Decides which client goes first.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::store::background::Wake;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::memory::inbox::Inboxes;
use crate::store::request::OFFER;
use crate::store::request::{HolderReply, NextLease, Registration};

/// The state of one name.
#[derive(Clone, Default)]
pub(super) struct NameState {
    /// The holds, all of kinds that can coexist. An offer to a waiting client is a hold with the
    /// number [`OFFERED`].
    pub(super) holds: Vec<LiveHold>,
    /// The waiting clients, the one that has waited longest first.
    pub(super) queue: Vec<Waiting>,
    /// The last fencing token, which readers share.
    pub(super) fence: u64,
}

/// A client in the queue of a name.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) kind: HoldKind,
    pub(super) client: Arc<str>,
    /// Whether it waits only for a moment, behind all others.
    tries: bool,
}

#[derive(Clone)]
pub(super) struct LiveHold {
    pub(super) id: HoldId,
    pub(super) fence: u64,
    /// 0 for an offer, and for a hold that has ended but keeps the lock taken.
    pub(super) depth: u32,
    /// Whether its client is notified when another client waits.
    pub(super) watched: bool,
    pub(super) ends: Moment,
    pub(super) note: Option<Arc<str>>,
}

/// The number that no hold has.
const OFFERED: u64 = 0;

/// The longest time that an offer lasts.
const OFFER_MAX: Duration = Duration::from_secs(1);

impl LiveHold {
    /// Returns `true` if this is that hold. A writer that has become a reader is another hold.
    pub(super) fn is(&self, hold: &HoldId) -> bool {
        self.id == *hold && self.id.kind.waits_with(hold.kind)
    }

    /// Renews the hold. Does not shorten a time that another request has given it, but cuts it to a
    /// whole lease.
    pub(super) fn renew(&mut self, lease: NextLease) {
        let now = Moment::now();
        self.ends = now.after(lease.duration).max(self.ends.min(now.after(lease.whole)));
    }

    pub(super) fn is_offer(&self) -> bool {
        self.id.nonce == OFFERED
    }

    pub(super) fn is_offer_to(&self, hold: &HoldId) -> bool {
        self.is_offer() && self.id.client == hold.client && self.id.kind.waits_with(hold.kind)
    }

    pub(super) fn belongs_to(&self, kind: HoldKind, owner: &[u8]) -> bool {
        self.id.kind.waits_with(kind) && self.id.owner().as_bytes() == owner
    }

    /// Returns the maximum duration of an offer, or of the time that a lock stays taken after its
    /// hold. If more is left, the clock was set back.
    fn longest(&self) -> Option<Duration> {
        if self.depth > 0 {
            return None;
        }
        if self.is_offer() { Some(OFFER_MAX) } else { self.id.longest_taken() }
    }

    pub(super) fn reply(&self, fence: u64) -> HolderReply {
        let left = self.ends.since(Moment::now());
        let remaining = left.min(self.longest().unwrap_or(left));
        let note = self.note.as_deref().map(str::to_owned);
        let owner = self.id.owner().into_bytes();
        HolderReply { owner, depth: self.depth, remaining, fence, note }
    }
}

impl NameState {
    /// Fails if there is a hold or an offer of a kind that Redis cannot have in the same key.
    pub(super) fn check_type(&self, kind: HoldKind) -> Result<(), Failure> {
        let mut forms = self.holds.iter().map(|held| held.id.kind.row().form);
        let other = forms.find(|found| *found != kind.row().form);
        other.map_or(Ok(()), |found| Err(Failure::wrong_type(found)))
    }

    /// Returns the hold, even if it only keeps the lock taken.
    pub(super) fn find(&mut self, hold: &HoldId) -> Option<&mut LiveHold> {
        self.holds.iter_mut().find(|held| held.is(hold))
    }

    /// Ends offers and taken locks that last only because the clock was set back.
    pub(super) fn limit_taken(&mut self) {
        let now = Moment::now();
        for held in &mut self.holds {
            let longest = held.longest();
            held.ends = held.ends.min(longest.map_or(Moment::NEVER, |time| now.after(time)));
        }
    }

    pub(super) fn has_offer_to(&self, hold: &HoldId) -> bool {
        self.holds.iter().any(|held| held.is_offer_to(hold))
    }

    pub(super) fn remove_offer_to(&mut self, hold: &HoldId) {
        self.holds.retain(|held| !held.is_offer_to(hold));
    }

    /// Returns `true` if a hold may begin alongside the other holds and the offers. A semaphore has
    /// `permits` in all.
    pub(super) fn admits(&self, kind: HoldKind, permits: usize) -> bool {
        // An offer counts as a hold until its client takes it or it expires.
        let mut taken = self.holds.iter();
        match kind {
            HoldKind::Lock | HoldKind::Write => taken.next().is_none(),
            HoldKind::Permit { .. } => taken.count() < permits,
            HoldKind::Read => taken.all(|held| held.id.kind == HoldKind::Read),
        }
    }

    pub(super) fn place(&self, hold: &HoldId) -> Option<usize> {
        self.queue
            .iter()
            .position(|next| next.client == hold.client && next.kind.waits_with(hold.kind))
    }

    /// Adds the client to the queue, unless it is there. One that `tries` stays behind all others
    /// until it joins for longer.
    pub(super) fn join(&mut self, hold: &HoldId, tries: bool) {
        if let Some(place) = self.place(hold) {
            if tries || !self.queue[place].tries {
                return;
            }
            self.queue.remove(place);
        }
        let end =
            self.queue.iter().position(|next| next.tries && !tries).unwrap_or(self.queue.len());
        self.queue.insert(end, Waiting { kind: hold.kind, client: hold.client.clone(), tries });
    }

    /// Returns `true` if a client other than the holder's waits, and not only for a moment.
    pub(super) fn is_wanted(&self, hold: &HoldId) -> bool {
        self.queue.iter().any(|next| !next.tries && next.client != hold.client)
    }

    pub(super) fn withdraw(&mut self, hold: &HoldId) {
        self.place(hold).map(|place| self.queue.remove(place));
    }

    /// Removes a client's places in the queue and the offers to it: those for a lock, or if there
    /// are none, those for other kinds. Returns what the client waited for.
    pub(super) fn unregister(&mut self, client: &Arc<str>) -> Option<HoldKind> {
        let offers = self.holds.iter().filter(|held| held.is_offer());
        let offers = offers.map(|held| (held.id.kind, &held.id.client));
        let places = self.queue.iter().map(|next| (next.kind, &next.client)).chain(offers);
        let kinds = places.filter(|(_, of)| *of == client).map(|(kind, _)| kind);
        let left = kinds.max_by_key(|kind| (kind.is_lock(), kind.permits()))?;
        let is_lock = left.is_lock();
        // An offer to this client is free for the next one.
        self.holds.retain(|held| {
            let leaves = held.id.client == *client && held.id.kind.is_lock() == is_lock;
            !held.is_offer() || !leaves
        });
        self.queue.retain(|next| next.client != *client || next.kind.is_lock() != is_lock);
        Some(left)
    }

    /// Returns `true` if a hold may begin now: because its client has an offer, which this takes,
    /// or because the lock is free and no waiting client goes first. Otherwise the client joins the
    /// queue if it waits.
    ///
    /// If a client that assumes more permits has caused the offer, this client declines it. Another
    /// waiting client gets the offer, and this one registers when it next asks. Otherwise, two
    /// clients that must decline would offer the place to each other again and again.
    pub(super) fn take_turn(
        &mut self,
        key: &str,
        hold: &HoldId,
        registration: Registration,
        inboxes: &Inboxes,
    ) -> bool {
        let is_lock = hold.kind.is_lock();
        let waits = registration.joins();
        // An offer of a side or a permit is for the client's waiting thread, not for a `try_` call.
        let mut is_offered = (is_lock || waits) && self.has_offer_to(hold);
        let yields = matches!(registration, Registration::Returning | Registration::Yielding);
        let goes_last = !is_lock || yields;
        let is_waited_for = goes_last && !self.queue.is_empty();
        let mut permits = hold.kind.permits() as usize;
        let declines = is_offered && permits > 0 && self.holds.len() > permits;
        let joins = waits && !(declines && is_waited_for);
        // The offer was made for more permits than this caller allows.
        if declines {
            is_offered = false;
            permits = self.holds.len();
            self.remove_offer_to(hold);
        }
        if !is_offered && is_waited_for {
            if is_lock && waits {
                // In front of those that wait only for a moment.
                self.join(hold, false);
            }
            let me = if waits { Some(hold) } else { None };
            self.serve(key, me, hold.kind, permits, inboxes);
            is_offered = waits && self.has_offer_to(hold);
        }
        let is_first = is_lock || self.queue.is_empty();
        let is_free = !declines && self.admits(hold.kind, permits) && is_first;
        let begins = !matches!(registration, Registration::Kept | Registration::Recall);
        // With `Kept`, the client already has the lock or has lost it. With `Recall`, it wants
        // another kind.
        if !(begins && (is_offered || is_free)) {
            if joins {
                self.join(hold, false);
            }
            return false;
        }
        if registration.may_be_queued() {
            self.withdraw(hold);
        }
        if is_offered {
            self.remove_offer_to(hold);
        }
        true
    }

    /// Offers what is free to the clients at the head of the queue, and notifies them. A client
    /// with an offer leaves the queue. The next client is notified too, and asks how long the offer
    /// lasts, in case the first one has stopped. `me`, the client that is asking, is not notified.
    /// A client that waits for a different data type than `served` leaves the queue, and is
    /// notified but offered nothing.
    pub(super) fn serve(
        &mut self,
        key: &str,
        me: Option<&HoldId>,
        served: HoldKind,
        permits: usize,
        inboxes: &Inboxes,
    ) {
        if served.is_lock() && !self.holds.is_empty() {
            // It is held again, still taken, or offered to another client.
            return;
        }
        self.remove_other_forms(key, served, inboxes);
        let mut has_told = false;
        while let Some(first) = self.queue.first()
            && first.kind.has_form_of(served)
            && self.admits(first.kind, permits)
        {
            let Waiting { kind, client, .. } = self.queue.remove(0);
            if !is_of(me, kind, &client) {
                has_told = true;
                inboxes.send(&client, Wake::Lock(key.into()));
            }
            let id = HoldId { kind, name: key.into(), client, nonce: OFFERED };
            let ends = Moment::now().after(OFFER);
            self.holds.push(LiveHold { id, fence: 0, depth: 0, watched: false, ends, note: None });
            if !served.is_lock() {
                // The next client at the head may be waiting for another data type.
                self.remove_other_forms(key, served, inboxes);
            }
        }
        // The next client asks too, in case the one with the offer has stopped.
        if let Some(next) = self.queue.iter().find(|next| next.kind.has_form_of(served))
            && has_told
            && !is_of(me, next.kind, &next.client)
        {
            inboxes.send(&next.client, Wake::Lock(key.into()));
        }
    }

    /// Removes the clients at the head of the queue that wait for a different data type, which the
    /// name had before, and notifies them. Removes clients that are gone from the whole queue.
    pub(super) fn remove_other_forms(&mut self, key: &str, served: HoldKind, inboxes: &Inboxes) {
        self.queue.retain(|next| inboxes.exists(&next.client));
        let others = self.queue.iter().take_while(|next| !next.kind.has_form_of(served)).count();
        for other in self.queue.drain(..others) {
            inboxes.send(&other.client, Wake::Lock(key.into()));
        }
    }

    /// Notifies the client that holds the lock that another one asks for it, if the holder may keep
    /// it, or watches it. Returns `true` if the holder may keep it.
    pub(super) fn recall(&self, key: &str, asks: Registration, inboxes: &Inboxes) -> bool {
        let waits = asks.joins();
        let tries = matches!(asks, Registration::IfMayBeKept | Registration::Recall);
        if !waits && !tries {
            return false;
        }
        let Some(held) = self.holds.iter().find(|held| held.depth > 0) else { return false };
        let may_be_kept = held.id.may_be_kept();
        if may_be_kept || waits && held.watched {
            let recall = Wake::Recall { name: key.into(), nonce: held.id.nonce, waits };
            inboxes.send(&held.id.client, recall);
        }
        may_be_kept
    }

    /// Sends a waiting call its echo, if the client will be notified when the obstacle ends. The
    /// end of a hold is announced, but a client in front may be gone. Returns the owner of a lock.
    pub(super) fn echo(&self, key: &str, hold: &HoldId, inboxes: &Inboxes) -> Option<String> {
        let permits = hold.kind.permits() as usize;
        let held = self.holds.first()?;
        if self.admits(hold.kind, permits) {
            return None;
        }
        let is_asked = held.depth > 0 && (held.id.may_be_kept() || held.watched);
        if self.place(hold).is_none()
            || is_asked && !inboxes.exists(&held.id.client)
            || !inboxes.exists(&hold.client)
        {
            return None;
        }
        inboxes.send(&hold.client, Wake::Echo(key.into()));
        Some(if hold.kind.is_lock() { held.id.owner() } else { String::new() })
    }

    /// Returns how long the holds and offers that prevent a hold will last, if there are any.
    pub(super) fn remaining(&self, kind: HoldKind) -> Option<Duration> {
        let ends = self.holds.iter().map(|held| held.ends);
        let end = match kind {
            HoldKind::Lock | HoldKind::Write => ends.max(),
            HoldKind::Permit { .. } | HoldKind::Read => ends.min(),
        };
        end.map(|end| end.since(Moment::now()))
    }

    /// Returns how many further holds the client gets with one that has just begun.
    pub(super) fn room(&self, kind: HoldKind) -> usize {
        match kind {
            HoldKind::Permit { of } if self.queue.is_empty() => {
                (of as usize).saturating_sub(self.holds.len())
            }
            _ => 0,
        }
    }
}

/// Returns `true` if the client in the queue is the one that asks, and waits for the same kind.
fn is_of(me: Option<&HoldId>, kind: HoldKind, client: &Arc<str>) -> bool {
    me.is_some_and(|me| me.client == *client && me.kind.waits_with(kind))
}
