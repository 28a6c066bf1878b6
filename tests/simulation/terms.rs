//! The terms of calls: the options of a hold, and how a call may end.

use std::time::Duration;

use crate::base::canceller::Canceller;
use crate::base::clock;
use crate::base::sync::executor::{self, Process};
use crate::guards::handle::LockHandle;
use crate::simulation::world::{World, say, with};

/// The terms of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) lease: Duration,
    pub(super) renew: bool,
    pub(super) max_hold: Option<Duration>,
    /// How long a lock stays taken after an early release.
    pub(super) at_least: Option<Duration>,
    pub(super) note: Option<&'static str>,
    /// Whether a call for a lock goes through an `Election`.
    pub(super) is_candidacy: bool,
    /// Whether the handle sets the wait, and not the call.
    pub(super) has_own_wait: bool,
    /// When another thread cancels the call.
    pub(super) cancel_after: Option<Duration>,
}

impl World {
    /// Returns the terms of an ordinary call.
    pub(super) fn usual_terms(&self) -> Terms {
        Terms {
            lease: self.lease,
            renew: self.renews,
            max_hold: None,
            at_least: None,
            note: None,
            is_candidacy: false,
            has_own_wait: false,
            cancel_after: None,
        }
    }

    /// Returns the terms of the next call, which may be one for a mutex.
    pub(super) fn any_terms(&mut self, is_mutex: bool) -> Terms {
        let mut terms = self.usual_terms();
        let random = &mut self.random;
        if !random.permille(self.own_terms) {
            return terms;
        }
        if random.permille(400) {
            terms.lease = random.pick(&[self.shortest_lease, terms.lease * 2 / 3]);
        }
        terms.renew &= self.is_calm || random.permille(850);
        if random.permille(250) {
            terms.max_hold = self.max_hold;
        }
        // The quorum servers of the simulation know no notes.
        if random.permille(300) && self.network.servers.len() == 1 {
            terms.note = Some(random.pick(&["for tests", "for people"]));
        }
        terms.has_own_wait = random.permille(500);
        terms.is_candidacy = random.permille(200);
        if random.permille(200) {
            let longest = random.pick(&[0, 1, 20, 500]);
            terms.cancel_after = Some(random.time(Duration::from_millis(longest)));
        }
        if is_mutex && !terms.is_candidacy && self.later.permille(250) {
            let time = self.later.pick(&[terms.lease / 20, terms.lease / 2, terms.lease * 2]);
            terms.at_least = Some(terms.max_hold.map_or(time, |most| time.min(most)));
        }
        terms
    }
}

impl Terms {
    /// Returns a handle with these terms.
    pub(super) fn of<K>(&self, handle: LockHandle<K>, usual: &Self) -> LockHandle<K> {
        let mut handle = handle;
        if self.lease != usual.lease {
            handle = handle.lease(self.lease);
        }
        if self.renew != usual.renew {
            handle = handle.renew(self.renew);
        }
        if let Some(max_hold) = self.max_hold {
            handle = handle.max_hold(max_hold);
        }
        if let Some(note) = self.note {
            handle = handle.note(note);
        }
        handle
    }
}

/// Makes another thread cancel a call after a while.
pub(super) fn cancel_later(process: Process, number: u64, after: Duration) -> Canceller {
    let canceller = Canceller::new();
    let copy = canceller.clone();
    executor::spawn(Some(process), move || {
        executor::sleep(after);
        let is_there = with(|world| {
            let call = world.calls.get_mut(&number);
            call.map(|call| call.cancelled = Some(clock::now())).is_some()
        });
        if is_there {
            say(process, || format!("call {number}: is cancelled"));
        }
        copy.cancel();
    });
    canceller
}
