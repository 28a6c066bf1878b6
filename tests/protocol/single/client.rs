//! A client: what `src/hold` does with one name. Its threads stand in line, so that at most one of
//! them asks for the lock or has it; what others have left behind is cleaned up meanwhile.

use std::collections::BTreeSet;

use crate::hold::HoldId;
use crate::single::flaw::Flaw;
use crate::single::store::{Answer, Command, Request};
use crate::single::{DRIFT, LEASE};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    id: usize,
    /// How many holds it has begun or tried to.
    pub(crate) nonces: u8,
    pub(crate) phase: Phase,
    pub(crate) orphans: BTreeSet<Orphan>,
    /// Holds that ended and that, for all the client knows, nothing can bring back.
    pub(crate) over: BTreeSet<HoldId>,
}

/// What the thread at the head of the line does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Wants the lock. `asked` is what the request is worth whose reply it waits for.
    Asking {
        hold: HoldId,
        asked: Option<u8>,
        unsettled: bool,
    },
    /// Has a guard.
    Holding(Lease),
    /// Has dropped its guard, and waits for the reply to the release.
    Releasing {
        hold: HoldId,
        unsettled: bool,
    },
    /// Has dropped its guard, and waits for the reply to a transfer that is worth `asked`.
    Passing {
        from: HoldId,
        unsettled: bool,
        to: HoldId,
        asked: u8,
        repeated: bool,
    },
}

/// A guard, and what is known of its hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    pub(crate) hold: HoldId,
    /// For so many ticks the client relies on it.
    pub(crate) left: u8,
    pub(crate) depth: u8,
    /// Whether the thread waits for the reply to a change of the depth.
    pub(crate) nesting: bool,
    /// Whether a request that began this hold may yet be executed once more.
    unsettled: bool,
}

/// What may stand in the store, or may come to, though nobody wants it any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Orphan {
    pub(crate) hold: HoldId,
    /// Whether the first answer settles it.
    settles: bool,
}

impl Client {
    pub(crate) fn new(id: usize) -> Self {
        let (orphans, over) = (BTreeSet::new(), BTreeSet::new());
        Self { id, nonces: 0, phase: Phase::Idle, orphans, over }
    }

    /// The guard, if the client relies on it.
    pub(crate) fn guard(&self) -> Option<&Lease> {
        match &self.phase {
            Phase::Holding(lease) if lease.left > 0 => Some(lease),
            _ => None,
        }
    }

    /// The guard's hold, if the client does not rely on it any more.
    pub(crate) fn lost(&self) -> Option<HoldId> {
        match &self.phase {
            Phase::Holding(lease) if lease.left == 0 => Some(lease.hold),
            _ => None,
        }
    }

    /// Names a new hold.
    fn next_hold(&mut self) -> HoldId {
        self.nonces += 1;
        HoldId { client: self.id, nonce: self.nonces }
    }

    /// Asks for the lock.
    pub(crate) fn ask(&mut self) -> Request {
        let hold = self.next_hold();
        self.phase = Phase::Asking { hold, asked: Some(LEASE - DRIFT), unsettled: false };
        Request::new(hold, Command::Acquire)
    }

    /// Renews the lease.
    pub(crate) fn renew(&self) -> Option<Request> {
        let lease = self.guard()?;
        Some(Request::new(lease.hold, Command::Renew))
    }

    /// Goes one level deeper, or back.
    pub(crate) fn change_depth(&mut self, depth: u8) -> Option<Request> {
        let Phase::Holding(lease) = &mut self.phase else { return None };
        (lease.depth, lease.nesting) = (depth, true);
        Some(Request::new(lease.hold, Command::Nest { depth }))
    }

    /// Ends the hold. From here on the client does not rely on it.
    pub(crate) fn release(&mut self) -> Option<Request> {
        let Phase::Holding(Lease { hold, unsettled, .. }) = self.phase else { return None };
        self.phase = Phase::Releasing { hold, unsettled };
        Some(Request::release(hold))
    }

    /// Ends the hold in favour of the next thread in line.
    pub(crate) fn hand_on(&mut self) -> Option<Request> {
        let Phase::Holding(Lease { hold: from, unsettled, .. }) = self.phase else { return None };
        let to = self.next_hold();
        self.phase = Phase::Passing { from, unsettled, to, asked: LEASE - DRIFT, repeated: false };
        Some(Request::new(from, Command::Transfer { to }))
    }

    /// Sends the request once more that the thread waits for, with the same number.
    pub(crate) fn repeat(&mut self) -> Option<Request> {
        let (hold, command) = match &mut self.phase {
            Phase::Asking { hold, asked, unsettled } => {
                *unsettled |= asked.is_some();
                *asked = Some(LEASE - DRIFT);
                (*hold, Command::Acquire)
            }
            Phase::Holding(lease) if lease.nesting => {
                (lease.hold, Command::Nest { depth: lease.depth })
            }
            Phase::Releasing { hold, .. } => return Some(Request::release(*hold)),
            Phase::Passing { from, to, asked, repeated, .. } => {
                (*asked, *repeated) = (LEASE - DRIFT, true);
                (*from, Command::Transfer { to: *to })
            }
            Phase::Idle | Phase::Holding(_) => return None,
        };
        Some(Request::new(hold, command))
    }

    /// Stops to wait for a reply. What the request may have begun is cleaned up.
    pub(crate) fn give_up(&mut self) {
        match self.phase.clone() {
            Phase::Asking { hold, asked, unsettled } => {
                self.end(hold, unsettled || asked.is_some());
            }
            Phase::Holding(lease) => {
                self.phase = Phase::Holding(Lease { depth: 1, nesting: false, ..lease });
                return;
            }
            Phase::Releasing { hold, unsettled } => self.clean(hold, !unsettled),
            Phase::Passing { from, unsettled, to, .. } => {
                self.clean(from, !unsettled);
                self.clean(to, false);
            }
            Phase::Idle => {}
        }
        self.phase = Phase::Idle;
    }

    /// Finds that the lease is over.
    pub(crate) fn notice_loss(&mut self) {
        if let Phase::Holding(Lease { hold, unsettled, .. }) = self.phase {
            self.clean(hold, !unsettled);
            self.phase = Phase::Idle;
        }
    }

    fn clean(&mut self, hold: HoldId, settles: bool) {
        self.orphans.insert(Orphan { hold, settles });
    }

    /// Notes that a hold has ended, for all the store knows.
    fn end(&mut self, hold: HoldId, unsettled: bool) {
        if unsettled {
            self.clean(hold, false);
        } else {
            self.over.insert(hold);
        }
    }

    /// Lets a tick pass.
    pub(crate) fn grow_older(&mut self) {
        match &mut self.phase {
            Phase::Asking { asked: Some(worth), .. } | Phase::Passing { asked: worth, .. } => {
                *worth = worth.saturating_sub(1);
            }
            Phase::Holding(lease) => lease.left = lease.left.saturating_sub(1),
            Phase::Idle | Phase::Asking { .. } | Phase::Releasing { .. } => {}
        }
    }

    /// Whether anybody waits for the reply to a request.
    pub(crate) fn awaits(&self, request: &Request) -> bool {
        let Request { hold: about, command, worth } = *request;
        match (&self.phase, command) {
            (Phase::Asking { hold, asked, .. }, Command::Acquire) => {
                *hold == about && *asked == Some(worth)
            }
            (Phase::Holding(lease), Command::Renew) => lease.hold == about,
            (Phase::Holding(lease), Command::Nest { depth }) => {
                lease.hold == about && lease.nesting && lease.depth == depth
            }
            (Phase::Passing { to, asked, .. }, Command::Transfer { to: other }) => {
                *to == other && *asked == worth
            }
            (Phase::Releasing { hold, .. }, Command::Release) if *hold == about => true,
            (_, Command::Release) => self.orphans.iter().any(|orphan| orphan.hold == about),
            _ => false,
        }
    }

    /// Takes in the reply to a request. Tells the fence if it brings a guard.
    pub(crate) fn hear(
        &mut self,
        request: Request,
        answer: Answer,
        flaw: Option<Flaw>,
    ) -> Option<u8> {
        let Request { hold, command, worth } = request;
        let left = match flaw {
            Some(Flaw::DeadlineFromReply) => LEASE - DRIFT,
            Some(Flaw::DeadlineWithoutDrift) if worth > 0 => worth + DRIFT,
            _ => worth,
        };
        match (self.phase.clone(), command) {
            (Phase::Asking { unsettled, .. }, Command::Acquire) => {
                // A reply after the lease counts as none.
                let unsettled = unsettled || (left == 0 && answer != Answer::Busy);
                self.phase = Phase::Asking { hold, asked: None, unsettled };
                return self.won(hold, answer, left, unsettled);
            }
            (Phase::Passing { unsettled, to, repeated, .. }, Command::Transfer { .. }) => {
                self.end(hold, unsettled);
                self.phase = Phase::Idle;
                match answer {
                    Answer::Won { .. } if left == 0 => self.clean(to, !repeated),
                    Answer::Won { .. } => return self.won(to, answer, left, repeated),
                    // While the old hold may come back, so may a transfer that was late.
                    _ => self.end(to, repeated && flaw != Some(Flaw::TransferIsForgotten)),
                }
            }
            (Phase::Holding(lease), Command::Renew | Command::Nest { .. }) => {
                self.confirmed(lease, command, answer, left, flaw);
            }
            (Phase::Releasing { hold: ours, unsettled }, Command::Release) if ours == hold => {
                self.end(hold, unsettled);
                self.phase = Phase::Idle;
            }
            _ => self.cleaned(hold, flaw),
        }
        None
    }

    /// Makes a guard of an answer to a request for one, if there is time left.
    fn won(&mut self, hold: HoldId, answer: Answer, left: u8, unsettled: bool) -> Option<u8> {
        let Answer::Won { fence } = answer else { return None };
        if left == 0 {
            return None;
        }
        self.phase = Phase::Holding(Lease { hold, left, depth: 1, nesting: false, unsettled });
        Some(fence)
    }

    /// Takes in the reply to a renewal or to a change of the depth.
    fn confirmed(
        &mut self,
        mut lease: Lease,
        command: Command,
        answer: Answer,
        left: u8,
        flaw: Option<Flaw>,
    ) {
        if answer == Answer::Gone {
            self.end(lease.hold, lease.unsettled);
            self.phase = Phase::Idle;
            return;
        }
        if lease.left > 0 || flaw == Some(Flaw::LostIsRenewed) {
            lease.left = lease.left.max(left);
        }
        lease.nesting &= command == Command::Renew;
        self.phase = Phase::Holding(lease);
    }

    /// Takes in the reply to a clean-up.
    fn cleaned(&mut self, hold: HoldId, flaw: Option<Flaw>) {
        let early = flaw == Some(Flaw::CleanUpStopsEarly);
        let before = self.orphans.len();
        self.orphans.retain(|orphan| orphan.hold != hold || !(orphan.settles || early));
        if self.orphans.len() < before {
            self.over.insert(hold);
        }
    }
}
