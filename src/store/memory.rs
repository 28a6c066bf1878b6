//! Locks that exist in this process only, by the rules of the scripts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::store::Store;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::job::{Job, JobOutcome, JobRunner};
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HoldRequest, HolderReply, Registration, TENURE_FENCES,
};
use crate::store::wake::Wakeups;

/// A set of locks in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    locks: Arc<Mutex<Locks>>,
}

#[derive(Debug, Default)]
struct Locks {
    /// The holds of each name, all of kinds that can exist together.
    by_name: HashMap<Arc<str>, Vec<LiveHold>>,
    /// The last fencing token. One counter serves all names.
    fence: u64,
    /// The last token of each name, which readers share until the next writer.
    last_fences: HashMap<Arc<str>, u64>,
    /// The names of read-write locks and semaphores for which a thread waits: newcomers that do not
    /// wait must not overtake it.
    waited_for: HashSet<Arc<str>>,
    /// When there are this many names, those whose leases are over are removed.
    purge_at: usize,
}

#[derive(Debug)]
struct LiveHold {
    id: HoldId,
    fence: u64,
    /// 0 if the hold has ended, and keeps the lock taken.
    depth: u32,
    ends: Moment,
}

/// What a name is that is waited for, and not as a lock.
const MEMBERS: &str = "a read-write lock or a semaphore";

impl LiveHold {
    /// The failure of a request for a kind of lock that cannot exist beside this hold.
    fn wrong_type(&self) -> Failure {
        Failure::wrong_type(match self.id.kind {
            HoldKind::Lock => "a lock",
            HoldKind::Permit { .. } => "a semaphore",
            HoldKind::Read | HoldKind::Write => "a read-write lock",
        })
    }
}

impl Locks {
    /// The holds of this name whose lease is not over.
    fn held(&mut self, name: &str) -> &mut [LiveHold] {
        let now = Moment::now();
        self.by_name.get_mut(name).map_or(&mut [], |holds| {
            holds.retain(|held| held.ends > now);
            holds
        })
    }

    /// The entry of this hold, if it still exists.
    fn held_by(&mut self, hold: &HoldId) -> Option<&mut LiveHold> {
        self.entry(hold).filter(|held| held.depth > 0)
    }

    /// The entry of this hold, also if it only keeps the lock taken.
    fn entry(&mut self, hold: &HoldId) -> Option<&mut LiveHold> {
        self.held(&hold.name).iter_mut().find(|held| held.id.nonce == hold.nonce)
    }

    fn acquire(&mut self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let Acquire { holds: [hold, others @ ..], lease, registration, .. } = request else {
            return Ok(self.acquire_all(request));
        };
        if hold.kind == HoldKind::Lock && !others.is_empty() {
            return Ok(self.acquire_all(request));
        }
        let now = Moment::now();
        let waits = registration != Registration::None;
        let waited_for = self.waited_for.contains(&hold.name);
        if let Some(fence) = self.repeat(hold, lease) {
            return Ok(self.acquire_others(fence, others, lease, 0));
        }
        if hold.kind == HoldKind::Lock && waited_for {
            return Err(Failure::wrong_type(MEMBERS));
        }
        let holds = self.held(&hold.name);
        if let Some(other) = holds.iter().find(|held| !are_of_one_type(held.id.kind, hold.kind)) {
            return Err(other.wrong_type());
        }
        let overtakes = !waits
            && waited_for
            && match hold.kind {
                // One permit is left to the thread that waits.
                HoldKind::Permit { of } => holds.len() + 1 >= of as usize,
                HoldKind::Lock | HoldKind::Read | HoldKind::Write => true,
            };
        let mut ends = holds.iter().map(|held| held.ends);
        let end = match hold.kind {
            HoldKind::Lock | HoldKind::Write => ends.max(),
            HoldKind::Read => {
                holds.iter().find(|held| held.id.kind == HoldKind::Write).map(|held| held.ends)
            }
            HoldKind::Permit { of } if holds.len() < of as usize => None,
            HoldKind::Permit { .. } => ends.by_ref().min(),
        };
        let room = match hold.kind {
            HoldKind::Permit { of } => (of as usize).saturating_sub(holds.len() + 1),
            HoldKind::Read => others.len(),
            HoldKind::Lock | HoldKind::Write => 0,
        };
        if waits && hold.kind != HoldKind::Lock {
            match end {
                Some(_) => self.waited_for.insert(hold.name.clone()),
                None => self.waited_for.remove(&hold.name),
            };
        }
        Ok(match end {
            Some(end) => AcquireReply::held(Some(end.since(now))),
            None if overtakes => AcquireReply::held(None),
            None => {
                let fence = self.begin(hold, lease);
                if hold.kind == HoldKind::Lock && registration == Registration::Followed {
                    return Ok(AcquireReply::acquired(fence, self.reserve(hold, fence)));
                }
                self.acquire_others(fence, others, lease, room)
            }
        })
    }

    /// Begins the holds that are asked for along with one that has this token, as far as there is
    /// `room`. Those of a repeat exist already.
    fn acquire_others(
        &mut self,
        fence: u64,
        others: &[HoldId],
        lease: Duration,
        mut room: usize,
    ) -> AcquireReply {
        let mut acquire = |hold: &HoldId| {
            self.repeat(hold, lease).or_else(|| {
                room = room.checked_sub(1)?;
                Some(self.begin(hold, lease))
            })
        };
        AcquireReply::Acquired {
            fence,
            others: others.iter().map_while(&mut acquire).collect(),
            room: 0,
        }
    }

    fn acquire_all(&mut self, request: Acquire<'_>) -> AcquireReply {
        let Acquire { holds, lease, .. } = request;
        let mut is_free = |hold: &HoldId| {
            !self.waited_for.contains(&hold.name)
                && self
                    .held(&hold.name)
                    .iter()
                    .all(|held| held.id.nonce == hold.nonce && held.depth > 0)
        };
        if let Some(index) = holds.iter().position(|hold| !is_free(hold)) {
            return AcquireReply::Held { index, remaining: None, in_doubt: false };
        }
        let mut fences = holds
            .iter()
            .map(|hold| self.repeat(hold, lease).unwrap_or_else(|| self.begin(hold, lease)));
        let fence = fences.next().unwrap_or_default();
        AcquireReply::Acquired { fence, others: fences.collect(), room: 0 }
    }

    /// Renews a hold that exists already, and returns its token.
    fn repeat(&mut self, hold: &HoldId, lease: Duration) -> Option<u64> {
        let held = self.held_by(hold)?;
        held.ends = Moment::now().after(lease);
        Some(held.fence)
    }

    /// Reserves tokens that follow one, and returns how many.
    fn reserve(&mut self, hold: &HoldId, fence: u64) -> u32 {
        let last = (fence + TENURE_FENCES - 1).min(micros() + TENURE_FENCES).max(fence);
        self.give(&hold.name, last);
        u32::try_from(last.saturating_sub(fence)).unwrap_or_default()
    }

    fn begin(&mut self, hold: &HoldId, lease: Duration) -> u64 {
        let now = Moment::now();
        if self.by_name.len() >= self.purge_at {
            self.by_name.retain(|_, holds| holds.iter().any(|held| held.ends > now));
            let names = &self.by_name;
            self.last_fences.retain(|name, _| names.contains_key(name));
            self.purge_at = self.by_name.len().max(32) * 2;
        }
        let fence = self.next_fence(hold);
        let entry = LiveHold { id: hold.clone(), fence, depth: 1, ends: now.after(lease) };
        self.by_name.entry(hold.name.clone()).or_default().push(entry);
        fence
    }

    fn next_fence(&mut self, hold: &HoldId) -> u64 {
        let shared = match hold.kind {
            HoldKind::Permit { .. } => return 0,
            HoldKind::Read => self.last_fences.get(&hold.name).copied(),
            HoldKind::Lock | HoldKind::Write => None,
        };
        let fence = shared.unwrap_or_else(|| micros().max(self.fence + 1));
        self.give(&hold.name, fence);
        fence
    }

    fn give(&mut self, name: &Arc<str>, fence: u64) {
        self.fence = self.fence.max(fence);
        self.last_fences.insert(name.clone(), fence);
    }

    fn change(&mut self, hold: &HoldId, change: Change) -> HoldReply {
        match change {
            Change::Release { kept_until } => return self.release(hold, kept_until),
            Change::Unregister { .. } => {
                let waited = self.waited_for.remove(&hold.name);
                return if waited { HoldReply::Done } else { HoldReply::Gone };
            }
            Change::Check | Change::Renew { .. } | Change::SetDepth { .. } => {}
        }
        let Some(held) = self.held_by(hold) else { return HoldReply::Gone };
        if let Change::SetDepth { depth, .. } = change {
            held.depth = depth;
        }
        if let Some(lease) = change.lease() {
            held.ends = Moment::now().after(lease);
        }
        HoldReply::Done
    }

    fn release(&mut self, hold: &HoldId, kept_until: Moment) -> HoldReply {
        let Some(held) = self.entry(hold) else { return HoldReply::Gone };
        if kept_until <= Moment::now() {
            self.remove(&hold.name, |held| held.id.nonce == hold.nonce);
        } else if held.depth > 0 {
            (held.depth, held.ends) = (0, kept_until);
        }
        HoldReply::Done
    }

    /// Removes holds, and a name without holds.
    fn remove(&mut self, name: &str, ends: impl Fn(&LiveHold) -> bool) {
        if let Some(holds) = self.by_name.get_mut(name) {
            holds.retain(|held| !ends(held));
            if holds.is_empty() {
                self.by_name.remove(name);
            }
        }
    }
}

/// The system's clock.
fn micros() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or_default()
}

/// Returns `true` if a key of Redis could have both.
fn are_of_one_type(one: HoldKind, other: HoldKind) -> bool {
    let kind = |kind| match kind {
        HoldKind::Lock => 0,
        HoldKind::Permit { .. } => 1,
        HoldKind::Read | HoldKind::Write => 2,
    };
    kind(one) == kind(other)
}

impl Store for Memory {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        self.locks.lock().acquire(request)
    }

    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        if names.is_empty() { Vec::new() } else { vec![(0..names.len()).collect()] }
    }

    fn ask(&self, requests: &[HoldRequest<'_>]) -> Vec<Result<HoldReply, Failure>> {
        let mut locks = self.locks.lock();
        let change = |request: &HoldRequest<'_>| Ok(locks.change(request.hold, request.change));
        requests.iter().map(change).collect()
    }

    fn inspect(&self, name: &str, _: Instant) -> Result<Option<HolderReply>, Failure> {
        let mut locks = self.locks.lock();
        let waited_for = locks.waited_for.contains(name);
        match locks.held(name) {
            [held] if held.id.kind == HoldKind::Lock => {
                let remaining = held.ends.since(Moment::now());
                let (owner, depth, fence) = (held.id.owner().into_bytes(), held.depth, held.fence);
                Ok(Some(HolderReply { owner, depth, remaining, fence }))
            }
            [] if !waited_for => Ok(None),
            [other, ..] => Err(other.wrong_type()),
            [] => Err(Failure::wrong_type(MEMBERS)),
        }
    }

    fn force_release(&self, name: &str, owner: &[u8], _: Instant) -> Result<bool, Failure> {
        let mut locks = self.locks.lock();
        let is_owners =
            |held: &LiveHold| held.id.kind == HoldKind::Lock && held.id.owner().as_bytes() == owner;
        let held = locks.held(name).iter().any(is_owners);
        locks.remove(name, is_owners);
        Ok(held)
    }

    fn count(&self, name: &str, _: Instant) -> Result<u32, Failure> {
        let mut locks = self.locks.lock();
        let holds = locks.held(name);
        match holds.iter().find(|held| !matches!(held.id.kind, HoldKind::Permit { .. })) {
            None => Ok(u32::try_from(holds.len()).unwrap_or(u32::MAX)),
            Some(other) => Err(other.wrong_type()),
        }
    }

    fn ping(&self, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    fn wakeups(&self, _: &str, _: Option<&RedissonChannels>) -> Option<Box<dyn Wakeups>> {
        None
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        Box::new(self.clone())
    }
}

impl JobRunner for Memory {
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        for Job { id, hold, change, .. } in jobs {
            let reply = self.locks.lock().change(&hold, change);
            done(id, Ok(reply.into()));
        }
    }

    fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, JobOutcome)) {}
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::base::failure::FailureKind;

    /// Between the release of a read-write lock and the next attempt of the thread that waits.
    #[test]
    fn a_name_that_is_waited_for_as_another_kind_is_no_lock() {
        let (memory, deadline, lease) = (Memory::default(), Instant::now(), Duration::from_secs(1));
        let hold = |kind, name: &str, nonce| HoldId {
            kind,
            name: Arc::from(name),
            client: Arc::from("c"),
            nonce,
        };
        let acquire = |hold, registration| {
            memory.acquire(Acquire { holds: slice::from_ref(hold), lease, registration, deadline })
        };
        let (reader, writer) = (hold(HoldKind::Read, "x", 1), hold(HoldKind::Write, "x", 2));
        let read = acquire(&reader, Registration::None);
        assert!(matches!(read, Ok(AcquireReply::Acquired { .. })));
        let written = acquire(&writer, Registration::IfHeld);
        assert!(matches!(written, Ok(AcquireReply::Held { .. })));
        memory.locks.lock().release(&reader, Moment::FIRST);
        let holds = [hold(HoldKind::Lock, "a", 3), hold(HoldKind::Lock, "x", 4)];
        let registration = Registration::None;
        let all = memory.acquire(Acquire { holds: &holds, lease, registration, deadline });
        assert!(matches!(all, Ok(AcquireReply::Held { index: 1, .. })));
        assert_eq!(memory.inspect("a", deadline).expect("a reply"), None);
        for failure in [
            acquire(&holds[1], Registration::None).expect_err("no lock"),
            acquire(&holds[1], Registration::IfHeld).expect_err("no lock"),
            memory.inspect("x", deadline).expect_err("no lock"),
        ] {
            assert_eq!(failure.kind, FailureKind::WrongType);
        }
        let written = acquire(&writer, Registration::Registered);
        assert!(matches!(written, Ok(AcquireReply::Acquired { .. })));
    }

    #[test]
    fn names_whose_lease_is_over_are_removed() {
        let memory = Memory::default();
        let mut locks = memory.locks.lock();
        for nonce in 0..10_000 {
            let name = Arc::from(nonce.to_string());
            locks.begin(
                &HoldId { kind: HoldKind::Lock, name, client: Arc::from("c"), nonce },
                Duration::ZERO,
            );
        }
        assert!(locks.by_name.len() <= 100, "{}", locks.by_name.len());
    }
}
