//! Builds the script calls: the keys and arguments of each. `scripts.rs` reads the replies.
//!
//! Read-write locks and semaphores look the same in Redis: a sorted set of holds.
//! `acquire_member.lua` and `serve.lua` decide which holds can coexist.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::RwLock;

use crate::base::clock::{self, Moment};
use crate::config::Config;
use crate::net::packed::{Arg, Request, Script};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::{FENCE, Keys, NOTE, POLLERS, QUEUE, TURN};
use crate::store::redisson_channels::{MEMORY, RedissonChannels, TURN_TIME};
use crate::store::request::{
    Acquire, Change, Look, NextLease, OFFER, OwnerOf, Registration, Telling, Unused,
};
use crate::store::scripts::{
    ACQUIRE, ACQUIRE_ALL, ACQUIRE_MEMBER, CHANGE, NOTED_ACQUIRE, NOTED_ACQUIRE_ALL,
    NOTED_ACQUIRE_MEMBER, NOTED_CHANGE, NOTED_RELEASE, NOTED_RELEASE_MEMBER, PING, RELEASE,
    RELEASE_MEMBER, REPORT, TELL, UNREGISTER,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Limits the life of a counter: servers store an expiry in milliseconds since 1970.
const FENCE_LIFE_MAX: Duration = DAY.saturating_mul(100 * 365);

/// Minimum time for which the waiting clients of a lock are remembered after the last one
/// registered. It is longer where clients try for the lock less often.
const WAITING_LIFE_MIN: Duration = Duration::from_secs(60);

/// Lifetime of the keys that a ping writes, in case they are not removed at once.
const PING_LIFE: Duration = Duration::from_secs(1);

/// Maximum number of locks that one request acquires.
const GROUP_MAX: usize = 900;

/// The keys of a name that a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of them.
    All,
    /// Only the key of the lock. While a slot of a cluster moves, no node executes a request if
    /// some of its keys have moved and others have not, or do not exist. A request with one key is
    /// executed by the node that has that key. It wakes no client, finds no waiting one, and
    /// prolongs no counter.
    Lock,
}

impl Scope {
    /// Returns the narrowest scope in which a change can be executed.
    pub(crate) fn narrowest(change: Change) -> Self {
        // `Unregister` changes the queue of waiting clients.
        if change == Change::Unregister { Self::All } else { Self::Lock }
    }

    /// Returns the narrowest scope in which a question can be answered.
    pub(crate) fn narrowest_look(look: Look) -> Self {
        // With the key of the lock alone, only the holder's note is missing, which is merely shown.
        if look == Look::Holder { Self::Lock } else { Self::All }
    }

    /// Returns the keys within this scope. The first one is the lock.
    fn of<'k, 'a>(self, keys: &'a [&'k str]) -> &'a [&'k str] {
        if self == Self::All { keys } else { &keys[..1] }
    }
}

/// Builds the requests about the locks of one client.
#[derive(Clone)]
pub(crate) struct Commands {
    pub(crate) keys: Keys,
    /// Minimum life of a counter of fencing tokens, from the start of a hold of its name or a
    /// renewal of a side of a read-write lock. It is not kept forever, so that names do not fill
    /// the server's memory.
    fence_life: Duration,
    waiting_life: Duration,
    /// Whether the client proposes fencing tokens, so that independent servers can agree on one.
    proposes: bool,
    /// Prefix of the names of Redisson's commands for channels, if the client exchanges wake-ups
    /// with Redisson.
    pub(crate) redisson: Option<&'static str>,
    /// Whether the client leaves turns to other programs that poll for the same keys.
    pollers: bool,
    /// The hash tag of the sharded channels of one cluster node. Empty if there is none or it is
    /// not known. It changes when slots move. Clones share it.
    pub(crate) shard_tag: Arc<RwLock<Arc<str>>>,
}

impl Commands {
    /// For a server that makes fencing tokens from its own clock.
    pub(crate) fn new(config: &Config) -> Self {
        let (_, longest_pause) = config.backoff;
        Self {
            keys: Keys::new(&config.prefix),
            fence_life: config.fence_life.min(FENCE_LIFE_MAX),
            waiting_life: longest_pause.saturating_mul(2).clamp(WAITING_LIFE_MIN, DAY),
            proposes: false,
            redisson: if config.redisson { Some("") } else { None },
            pollers: config.pollers,
            shard_tag: Arc::default(),
        }
    }

    /// For a cluster, where Redisson uses sharded channels; or for one of its nodes.
    pub(crate) fn in_cluster(self) -> Self {
        Self { redisson: self.redisson.and(Some("s")), ..self }
    }

    /// For independent servers, to which the client proposes fencing tokens.
    pub(crate) fn proposing(config: &Config) -> Self {
        Self { proposes: true, ..Self::new(config) }
    }

    pub(crate) fn acquire(&self, request: Acquire<'_>) -> Request {
        match request.holds {
            [hold @ HoldId { kind: HoldKind::Lock, .. }] => self.acquire_one(hold, request),
            [HoldId { kind: HoldKind::Lock, .. }, ..] => self.acquire_all(request),
            _ => self.acquire_members(request),
        }
    }

    fn acquire_one(&self, hold: &HoldId, request: Acquire<'_>) -> Request {
        let Acquire { lease, registration, echo, .. } = request;
        let life = millis(self.waiting_life);
        let negative;
        let (place, life) = match registration {
            Registration::None => ("", Arg::Number(0)),
            Registration::IfMayBeKept | Registration::Recall => {
                // Negative: the client joins the queue only if the lock is kept, to ask for it.
                negative = format!("-{}", self.waiting_life.as_millis());
                let never = registration == Registration::Recall;
                (if never { "kept" } else { "" }, Arg::Text(&negative))
            }
            Registration::IfHeld => ("", life),
            Registration::Kept => ("kept", Arg::Number(0)),
            Registration::Last => ("queued", Arg::Number(0)),
            Registration::Followed | Registration::Registered => ("queued", life),
            Registration::Yielding => ("yields", life),
            Registration::Returning => ("returns", life),
        };
        let tokens = request.tokens();
        let owner = hold.owner();
        let shard = self.shard_tag();
        let args = [
            Arg::Text(&owner),
            millis(lease),
            self.fence_life(lease),
            life,
            if self.proposes { Arg::Number(micros()) } else { Arg::Text("") },
            Arg::Text(place),
            Arg::Number(tokens),
            millis(OFFER),
            Arg::Text(&shard),
            Arg::Text("echo"),
        ];
        // If the lock is held, the script may notify the holder's client, over a sharded channel if
        // there is one.
        let tells = registration != Registration::None && !shard.is_empty();
        // Each argument costs the server time, so those at the end are sent only if needed.
        let args = if echo {
            &args[..]
        } else if tokens > 1 || tells || !place.is_empty() {
            &args[..9]
        } else if self.proposes {
            &args[..5]
        } else {
            &args[..4]
        };
        if self.leaves_turns() {
            let kinds = [FENCE, QUEUE, TURN, POLLERS];
            let (lock, [fence, queue, turn, pollers]) =
                self.keys.with_companions(&hold.name, kinds);
            let keys = [&*lock, &fence, &queue, &turn, &pollers];
            self.begin(
                &ACQUIRE,
                &NOTED_ACQUIRE,
                request,
                &keys[..4 + usize::from(self.pollers)],
                args,
            )
        } else {
            let (lock, [fence, queue]) = self.keys.with_companions(&hold.name, [FENCE, QUEUE]);
            self.begin(&ACQUIRE, &NOTED_ACQUIRE, request, &[&lock, &fence, &queue], args)
        }
    }

    /// Calls a script that begins holds. If they have a note, calls the variant that also writes
    /// it.
    fn begin(
        &self,
        script: &'static Script,
        noted: &'static LazyLock<Script>,
        request: Acquire<'_>,
        keys: &[&str],
        args: &[Arg<'_>],
    ) -> Request {
        let Some(note) = request.note else { return Request::call(script, keys, args) };
        // Holds of a kind with several owners share one name, and one key for their notes.
        let is_set = request.holds[0].kind.is_lock();
        let noted_holds = if is_set { request.holds } else { &request.holds[..1] };
        let notes: Vec<_> = noted_holds.iter().map(|hold| self.notes(&hold.name)).collect();
        let keys = keys.iter().copied().chain(notes.iter().map(String::as_str));
        let args = args.iter().copied().chain([Arg::Text(note)]);
        Request::call(noted, &keys.collect::<Vec<_>>(), &args.collect::<Vec<_>>())
    }

    /// Calls a script about an existing hold. If the hold has a note and all keys can be changed,
    /// calls the variant that also keeps or removes the note. A note that is left behind is never
    /// shown for another hold, and expires.
    fn call_about(
        &self,
        script: &'static Script,
        noted: &'static LazyLock<Script>,
        (scope, hold): (Scope, &HoldId),
        keys: &[&str],
        args: &[Arg<'_>],
    ) -> Request {
        if !hold.has_note() || scope == Scope::Lock {
            return Request::call(script, keys, args);
        }
        let notes = self.notes(&hold.name);
        let keys = keys.iter().copied().chain([&*notes]);
        Request::call(noted, &keys.collect::<Vec<_>>(), args)
    }

    /// Returns the key of the notes of a name.
    fn notes(&self, name: &str) -> String {
        let (_, [notes]) = self.keys.with_companions(name, [NOTE]);
        notes
    }

    /// Maximum number of names in one request: services limit the arguments of a command, and only
    /// requests for a single name check the turns of other programs.
    pub(crate) fn group_max(&self) -> usize {
        if self.leaves_turns() { 1 } else { GROUP_MAX }
    }

    fn leaves_turns(&self) -> bool {
        self.redisson.is_some() || self.pollers
    }

    fn acquire_all(&self, request: Acquire<'_>) -> Request {
        let Acquire { holds, lease, .. } = request;
        let keys = holds.iter().flat_map(|hold| {
            let (lock, [fence]) = self.keys.with_companions(&hold.name, [FENCE]);
            [lock.into_owned(), fence]
        });
        let keys: Vec<String> = keys.collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let owners: Vec<String> = holds.iter().map(HoldId::owner).collect();
        let owners = owners.iter().map(|owner| Arg::Text(owner));
        let args: Vec<_> =
            [millis(lease), self.fence_life(lease)].into_iter().chain(owners).collect();
        self.begin(&ACQUIRE_ALL, &NOTED_ACQUIRE_ALL, request, &keys, &args)
    }

    /// Begins a hold of a read-write lock, or permits of a semaphore.
    fn acquire_members(&self, request: Acquire<'_>) -> Request {
        let Acquire { holds, lease, registration, echo, .. } = request;
        let HoldId { kind, name, client, .. } = &holds[0];
        let members: Vec<_> = holds.iter().map(HoldId::member).collect();
        let client = [kind.row().prefix, client].concat();
        let shard = self.shard_tag();
        let args = [
            Arg::Text(&members[0]),
            millis(lease),
            self.fence_life(lease),
            Arg::Text(&client),
            Arg::Number(if echo { 2 } else { registration.joins().into() }),
            millis(self.waiting_life),
            millis(OFFER),
            Arg::Number(kind.permits().into()),
            Arg::Text(&shard),
            Arg::Number(request.tokens()),
        ];
        let others = members[1..].iter().map(|member| Arg::Text(member));
        let args: Vec<_> = args.into_iter().chain(others).collect();
        let (lock, [fence, queue]) = self.keys.with_companions(name, [FENCE, QUEUE]);
        let keys = [&*lock, &fence, &queue];
        self.begin(&ACQUIRE_MEMBER, &NOTED_ACQUIRE_MEMBER, request, &keys, &args)
    }

    /// Changes a hold, or checks whether it exists.
    pub(crate) fn change(&self, hold: &HoldId, change: Change) -> Request {
        self.change_within(Scope::All, hold, change)
    }

    /// Like `change`, within a scope that is allowed for such a change.
    pub(crate) fn change_within(&self, scope: Scope, hold: &HoldId, change: Change) -> Request {
        let HoldId { kind, name, client, .. } = hold;
        let what = match change {
            Change::Unregister => {
                let args = [Arg::Text(client), millis(OFFER), Arg::Number(0)];
                return self
                    .free(scope, name, args, |keys, args| Request::call(&UNREGISTER, keys, args));
            }
            Change::Downgrade { .. } => return self.free_place(scope, hold, "", change),
            Change::Release { .. } if !kind.is_lock() => {
                return self.free_place(scope, hold, "", change);
            }
            Change::Release { taken_until, .. } => {
                let owner = hold.owner();
                let taken = Arg::Number(taken_millis(taken_until));
                let args = [Arg::Text(&owner), millis(OFFER), taken];
                return self.release(scope, hold, args);
            }
            // A hold of a kind with several owners has one level.
            _ if !kind.is_lock() => Arg::Text("member"),
            Change::SetDepth { depth, .. } => Arg::Number(depth.into()),
            Change::Watch { .. } => Arg::Text("watch"),
            Change::Check | Change::Renew { .. } => Arg::Text(""),
        };
        let member = hold.member();
        let owner = Arg::Text(&member);
        let lease = change.lease().unwrap_or_default();
        let next = millis(lease.duration);
        let whole = millis(lease.whole);
        match (kind, change) {
            // The counter must outlive the hold, because readers take their token from it.
            (
                HoldKind::Read | HoldKind::Write,
                Change::Renew { .. } | Change::SetDepth { lease: Some(_), .. },
            ) => {
                let (lock, [fence]) = self.keys.with_companions(name, [FENCE]);
                let args = [owner, next, whole, what, self.fence_life(lease.whole)];
                let keys = [&*lock, &fence];
                self.call_about(&CHANGE, &NOTED_CHANGE, (scope, hold), scope.of(&keys), &args)
            }
            (_, change) => {
                let (lock, [queue]) = self.keys.with_companions(name, [QUEUE]);
                // Each key costs the server time, and only `watch` reads the queue.
                let watches = matches!(change, Change::Watch { .. });
                let narrow = if watches { scope } else { Scope::Lock };
                let args = [owner, next, whole, what];
                let keys = [&*lock, &queue];
                self.call_about(&CHANGE, &NOTED_CHANGE, (scope, hold), narrow.of(&keys), &args)
            }
        }
    }

    /// Raises the counter of fencing tokens to the token of a hold.
    pub(crate) fn raise(&self, hold: &HoldId, fence: u64, lease: Duration) -> Request {
        let owner = hold.owner();
        // Without a lease and a depth, the script leaves the hold as it is.
        let args = [
            Arg::Text(&owner),
            Arg::Number(0),
            Arg::Number(0),
            Arg::Text(""),
            self.fence_life(lease),
            Arg::Number(fence),
        ];
        let (lock, [fence]) = self.keys.with_companions(&hold.name, [FENCE]);
        Request::call(&CHANGE, &[&lock, &fence], &args)
    }

    /// Ends a hold that a majority has granted. On servers where it has not begun, removes the
    /// client from the queue.
    pub(crate) fn release_and_leave(&self, hold: &HoldId, taken_until: Moment) -> Request {
        let owner = hold.owner();
        let taken = format!("leave{}", taken_millis(taken_until));
        let args = [Arg::Text(&owner), millis(OFFER), Arg::Text(&taken)];
        self.release(Scope::All, hold, args)
    }

    /// Ends a hold that too few servers have granted. Wakes no client.
    pub(crate) fn withdraw(&self, hold: &HoldId) -> Request {
        let owner = hold.owner();
        // Clients whose attempts have collided would collide again if they were woken at once.
        let args = [Arg::Text(&owner), Arg::Text(""), Arg::Number(0)];
        self.release(Scope::All, hold, args)
    }

    /// Ends the hold of an owner, and notifies the owner's client.
    pub(crate) fn force_release(&self, scope: Scope, owner: OwnerOf<'_>) -> Request {
        let OwnerOf { kind, name, owner } = owner;
        match HoldId::of_owner(owner, kind, name) {
            Some(hold) if !kind.is_lock() => {
                self.free_place(scope, &hold, "force", Change::RELEASE)
            }
            hold => {
                let args = [Arg::Bytes(owner), millis(OFFER), Arg::Text("force")];
                match hold {
                    Some(hold) => self.release(scope, &hold, args),
                    None => self
                        .free(scope, name, args, |keys, args| Request::call(&RELEASE, keys, args)),
                }
            }
        }
    }

    /// Ends a hold of a lock. The arguments are those of `free`.
    fn release(&self, scope: Scope, hold: &HoldId, args: [Arg<'_>; 3]) -> Request {
        self.free(scope, &hold.name, args, |keys, args| {
            self.call_about(&RELEASE, &NOTED_RELEASE, (scope, hold), keys, args)
        })
    }

    /// Calls a script that may free the lock and then offer it to a waiting client. The arguments
    /// are the owner or client, the duration of the offer, and how long the lock stays taken.
    fn free(
        &self,
        scope: Scope,
        name: &str,
        [whose, window, taken]: [Arg<'_>; 3],
        call: impl FnOnce(&[&str], &[Arg<'_>]) -> Request,
    ) -> Request {
        let shard = self.shard_tag();
        if !self.leaves_turns() {
            let (lock, [queue]) = self.keys.with_companions(name, [QUEUE]);
            let args = [whose, window, taken, Arg::Text(&shard)];
            // Each argument costs the server time.
            let args = if shard.is_empty() { &args[..3] } else { &args[..] };
            return call(scope.of(&[&lock, &queue]), args);
        }
        let kinds = [QUEUE, TURN, POLLERS];
        let (lock, [queue, turn, pollers]) = self.keys.with_companions(name, kinds);
        let channel = RedissonChannels::channel(&lock);
        let args = [
            whose,
            window,
            taken,
            Arg::Text(&shard),
            Arg::Text(&channel),
            Arg::Text(self.redisson.unwrap_or_default()),
            millis(MEMORY),
            millis(TURN_TIME),
        ];
        let args = if self.redisson.is_some() { &args[..] } else { &args[..4] };
        let keys = [&*lock, &queue, &turn, &pollers];
        let keys = if self.pollers { &keys[..] } else { &keys[..3] };
        call(scope.of(keys), args)
    }

    /// Calls the script that ends a hold of a read-write lock or a semaphore, or turns a writer
    /// into a reader, and then offers places to waiting clients.
    fn free_place(&self, scope: Scope, hold: &HoldId, how: &str, change: Change) -> Request {
        let (lock, [queue]) = self.keys.with_companions(&hold.name, [QUEUE]);
        let shard = self.shard_tag();
        let member = hold.member();
        let mut args = vec![
            Arg::Text(&member),
            millis(OFFER),
            Arg::Number(hold.kind.permits().into()),
            Arg::Text(how),
            Arg::Text(&shard),
        ];
        args.extend(match change.lease() {
            Some(NextLease { duration, whole }) => [duration, whole].map(millis),
            None => [Arg::Text(""); 2],
        });
        let Some(Unused { before, last }) = change.unused() else {
            return self.call_about(
                &RELEASE_MEMBER,
                &NOTED_RELEASE_MEMBER,
                (scope, hold),
                scope.of(&[&lock, &queue]),
                &args,
            );
        };
        let (_, [fence]) = self.keys.with_companions(&hold.name, [FENCE]);
        args.extend([before, last].map(Arg::Number));
        self.call_about(
            &RELEASE_MEMBER,
            &NOTED_RELEASE_MEMBER,
            (scope, hold),
            scope.of(&[&lock, &queue, &fence]),
            &args,
        )
    }

    /// Exercises everything that a lock needs, and leaves nothing behind.
    pub(crate) fn ping(&self, hold: &HoldId) -> Request {
        let (lock, [fence]) = self.keys.with_companions(&hold.name, [FENCE]);
        let owner = hold.owner();
        let args = [Arg::Text(&owner), millis(PING_LIFE), millis(PING_LIFE)];
        Request::call(&PING, &[&lock, &fence], &args)
    }

    /// Asks for the state of a name.
    pub(crate) fn report(&self, scope: Scope, name: &str, look: Look) -> Request {
        let kinds = [NOTE, FENCE, QUEUE];
        let (lock, [notes, fence, queue]) = self.keys.with_companions(name, kinds);
        let keys = [&*lock, &notes, &fence, &queue];
        let (keys, args) = match look {
            Look::All => (&keys[..], &[][..]),
            Look::Owner => (&keys[..1], &[][..]),
            Look::Holder => (&keys[..2], &[][..]),
            Look::Permits => (&keys[..1], &[Arg::Text("count")][..]),
            Look::Token => (&keys[..3], &[][..]),
        };
        Request::call(&REPORT, scope.of(keys), args)
    }

    /// Sends a message about a lock to other clients.
    pub(crate) fn tell(&self, name: &str, telling: &Telling) -> Request {
        let lock = self.keys.lock(name);
        let shard = self.shard_tag();
        let clients = telling.clients.iter().map(String::as_str);
        let args = [&*telling.message, &*shard].into_iter().chain(clients).map(Arg::Text);
        Request::call(&TELL, &[&lock], &args.collect::<Vec<_>>())
    }

    pub(crate) fn shard_tag(&self) -> Arc<str> {
        self.shard_tag.read().clone()
    }

    fn fence_life(&self, lease: Duration) -> Arg<'static> {
        millis(self.fence_life.max(lease * 2))
    }
}

/// This system's clock in microseconds. Fencing tokens are not below the clock of their server.
pub(super) fn micros() -> u64 {
    u64::try_from(clock::unix_time().as_micros()).unwrap_or(u64::MAX)
}

/// Returns for how many milliseconds a lock stays taken.
fn taken_millis(taken_until: Moment) -> u64 {
    match taken_until {
        // Most locks become free at once, which needs no clock.
        Moment::FIRST => 0,
        _ => whole_millis(taken_until.left()),
    }
}

/// A time in milliseconds, rounded up: zero would delete the key.
fn millis(time: Duration) -> Arg<'static> {
    Arg::Number(whole_millis(time))
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_to_whole_milliseconds() {
        let millis = |time| match millis(time) {
            Arg::Number(number) => number,
            Arg::Bytes(_) | Arg::Text(_) => panic!("a time is a number"),
        };
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(10)), 10);
        assert_eq!(millis(Duration::from_micros(10_001)), 11);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
