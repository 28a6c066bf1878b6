//! The calls of the scripts: keys, arguments and reply of each in one place.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::clock::Moment;
use crate::config::Config;
use crate::net::request::{Arg, Request, Script};
use crate::store::command::{Command, OFFER, millis};
use crate::store::decoder;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::Keys;
use crate::store::member_commands;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HolderReply, Registration, ReportReply, TENURE_FENCES,
};
use crate::store::scripts::{
    ACQUIRE, ACQUIRE_ALL, FORCE_RELEASE, INSPECT, RAISE, RELEASE, REPORT, SET_DEPTH, UNREGISTER,
};
use crate::store::shard_tag::ShardTag;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Servers count the end of a key's life in milliseconds since 1970.
const FENCE_LIFE_MAX: Duration = DAY.saturating_mul(100 * 365);

/// How long the waiting clients of a lock are remembered, at least, after the last of them was
/// registered. It is longer where clients try for the lock less often.
const WAITING_LIFE_MIN: Duration = Duration::from_secs(60);

/// How long a released lock is left to Redisson when it is Redisson's turn. Redisson takes two or
/// three milliseconds from the message to its attempt. In what is left of this time when it
/// releases the lock, it alone can take the lock again, so it is short.
const REDISSON_TURN: Duration = Duration::from_millis(5);

/// How long Redisson counts as waiting after it was last seen waiting. A thread there that locks
/// again at once does not listen for some milliseconds in between, and not at all if it gets the
/// lock at its first attempt.
const REDISSON_MEMORY: Duration = Duration::from_millis(500);

/// The most locks that one request acquires.
const GROUP_MAX: usize = 900;

/// Makes commands for the locks of one client.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) keys: Keys,
    /// How long a counter of fencing tokens is kept after a hold of its name began. It is not kept
    /// forever, so that names do not fill the server's memory.
    fence_life: Duration,
    waiting_life: Duration,
    /// Whether the client proposes fencing tokens, so that several servers can agree on them.
    proposes: bool,
    /// What the names of Redisson's commands for channels begin with, if the client exchanges
    /// wake-ups with it.
    pub(crate) redisson: Option<&'static str>,
    /// If all of them go to one node of a cluster: how clients that listen there are told.
    shard: Option<ShardTag>,
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
            redisson: config.redisson.then_some(""),
            shard: None,
        }
    }

    /// For a cluster, where Redisson uses sharded channels; or for one of its nodes.
    pub(crate) fn in_cluster(self, shard: Option<ShardTag>) -> Self {
        Self { redisson: self.redisson.and(Some("s")), shard, ..self }
    }

    /// For independent servers, to which the client proposes fencing tokens.
    pub(crate) fn proposing(config: &Config) -> Self {
        Self { proposes: true, ..Self::new(config) }
    }

    pub(crate) fn acquire(&self, request: Acquire<'_>) -> Command<AcquireReply> {
        let Acquire { holds, lease, registration, .. } = request;
        if holds[0].kind != HoldKind::Lock {
            return member_commands::acquire(
                &self.keys,
                request,
                self.fence_life(lease),
                self.waiting_life,
                self.shard_tag().as_deref(),
            );
        }
        let [hold] = holds else { return self.acquire_all(request) };
        let owner = hold.owner();
        let negative;
        let waiting_life = match registration {
            Registration::None | Registration::Kept | Registration::Last => Arg::Number(0),
            Registration::IfMayBeKept => {
                negative = format!("-{}", self.waiting_life.as_millis());
                Arg::Text(&negative)
            }
            _ => millis(self.waiting_life),
        };
        let gets_block = hold.may_be_kept() || registration == Registration::Followed;
        let place = match registration {
            Registration::None | Registration::IfHeld | Registration::IfMayBeKept => {
                gets_block.then_some("")
            }
            Registration::Kept => Some("kept"),
            Registration::Followed | Registration::Last | Registration::Registered => {
                Some("queued")
            }
            Registration::Yielding => Some("yields"),
        };
        let (lock, shard) = (self.keys.lock(&hold.name), self.shard_tag());
        let keys = [&*lock, &Keys::fence(&lock), &Keys::waiting(&lock), &Keys::turn(&lock)];
        let keys = if self.redisson.is_some() { &keys[..] } else { &keys[..3] };
        let args = [
            Arg::Text(&owner),
            millis(lease),
            self.fence_life(lease),
            waiting_life,
            if self.proposes { proposal() } else { Arg::Text("") },
            Arg::Text(place.unwrap_or_default()),
            Arg::Number(if gets_block { TENURE_FENCES } else { 1 }),
            millis(OFFER),
            Arg::Text(shard.as_deref().unwrap_or_default()),
        ];
        let args = if place.is_some() { &args[..] } else { &args[..5] };
        Command { request: Request::call(&ACQUIRE, keys, args), decoder: decoder::ACQUIRE }
    }

    /// How many names one request may acquire: services limit the arguments of a command, and
    /// Redisson's turn is looked at only by requests for one.
    pub(crate) fn group_max(&self) -> usize {
        if self.redisson.is_some() { 1 } else { GROUP_MAX }
    }

    fn acquire_all(&self, request: Acquire<'_>) -> Command<AcquireReply> {
        let Acquire { holds, lease, .. } = request;
        let keys: Vec<String> = holds
            .iter()
            .flat_map(|hold| {
                let lock = self.keys.lock(&hold.name);
                let fence = Keys::fence(&lock);
                [lock.into_owned(), fence]
            })
            .collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let owners: Vec<String> = holds.iter().map(HoldId::owner).collect();
        let args: Vec<Arg<'_>> = [millis(lease), self.fence_life(lease)]
            .into_iter()
            .chain(owners.iter().map(|owner| Arg::Text(owner)))
            .collect();
        let request = Request::call(&ACQUIRE_ALL, &keys, &args);
        Command { request, decoder: decoder::ACQUIRE_ALL }
    }

    /// Changes a hold, or finds out whether it exists.
    pub(crate) fn change(&self, hold: &HoldId, change: Change) -> Command<HoldReply> {
        let depth = match change {
            Change::Release { kept_until } => return self.release(hold, kept_until),
            Change::Unregister { any_kind } => return self.unregister(hold, any_kind),
            Change::SetDepth { depth, .. } => Arg::Number(depth.into()),
            Change::Check | Change::Renew { .. } => Arg::Text(""),
            Change::Watch => Arg::Text("watch"),
        };
        match hold.kind {
            HoldKind::Lock => {
                let lease = change.lease().map_or(Arg::Number(0), millis);
                let (owner, lock) = (hold.owner(), self.keys.lock(&hold.name));
                let args = [Arg::Text(&owner), depth, lease];
                let request = Request::call(&SET_DEPTH, &[&lock], &args);
                Command { request, decoder: decoder::HOLD_OR_GONE }
            }
            // It has one level.
            _ => member_commands::renew(&self.keys, hold, change.lease()),
        }
    }

    /// Ends a hold. The lock is free then, or once it has stayed taken for what is left of the time
    /// until `kept_until`.
    fn release(&self, hold: &HoldId, kept_until: Moment) -> Command<HoldReply> {
        if hold.kind != HoldKind::Lock {
            let shard = self.shard_tag();
            return member_commands::release(&self.keys, hold, shard.as_deref());
        }
        let kept = kept_until.since(Moment::now());
        let owner = hold.owner();
        self.freeing(&RELEASE, &hold.name, Arg::Text(&owner), millis(OFFER), kept)
    }

    /// Ends a hold that too few servers have granted, and wakes no client.
    pub(crate) fn withdraw(&self, hold: &HoldId) -> Command<HoldReply> {
        let (owner, no_client) = (hold.owner(), Arg::Text(""));
        self.freeing(&RELEASE, &hold.name, Arg::Text(&owner), no_client, Duration::ZERO)
    }

    /// Raises the counter of fencing tokens to that of a hold.
    pub(crate) fn raise(&self, hold: &HoldId, fence: u64, lease: Duration) -> Command<HoldReply> {
        let lock = self.keys.lock(&hold.name);
        let owner = hold.owner();
        let args = [Arg::Text(&owner), Arg::Number(fence), self.fence_life(lease)];
        let request = Request::call(&RAISE, &[&lock, &Keys::fence(&lock)], &args);
        Command { request, decoder: decoder::HOLD_OR_GONE }
    }

    pub(crate) fn inspect(&self, name: &str) -> Command<Option<HolderReply>> {
        let request = Request::call(&INSPECT, &[&self.keys.lock(name)], &[]);
        Command { request, decoder: decoder::HOLDER }
    }

    pub(crate) fn inspect_fence(&self, name: &str) -> Command<Option<HolderReply>> {
        let lock = self.keys.lock(name);
        let keys = [&*lock, &Keys::fence(&lock)];
        Command { request: Request::call(&INSPECT, &keys, &[]), decoder: decoder::HOLDER }
    }

    pub(crate) fn report(&self, name: &str) -> Command<ReportReply> {
        let lock = self.keys.lock(name);
        let keys = [&*lock, &Keys::fence(&lock), &Keys::waiting(&lock)];
        Command { request: Request::call(&REPORT, &keys, &[]), decoder: decoder::REPORT }
    }

    pub(crate) fn force_release(&self, name: &str, owner: &[u8]) -> Command<HoldReply> {
        self.freeing(&FORCE_RELEASE, name, Arg::Bytes(owner), millis(OFFER), Duration::ZERO)
    }

    fn unregister(&self, hold: &HoldId, any_kind: bool) -> Command<HoldReply> {
        let HoldId { kind, name, client, .. } = hold;
        if !any_kind && *kind != HoldKind::Lock {
            let (keys, shard) = (&self.keys, self.shard_tag());
            return member_commands::unregister(keys, *kind, name, client, shard.as_deref());
        }
        let (client, now) = (Arg::Text(client), Duration::ZERO);
        Command {
            decoder: decoder::HOLD,
            ..self.freeing(&UNREGISTER, name, client, millis(OFFER), now)
        }
    }

    /// Counts the permits of a semaphore that are held.
    pub(crate) fn count(&self, name: &str) -> Command<u32> {
        member_commands::count(&self.keys, name)
    }

    /// Calls a script that may free the lock, and then offers it to a waiting client for the time
    /// `window`. The lock stays taken for `kept`.
    fn freeing(
        &self,
        script: &'static Script,
        name: &str,
        whose: Arg<'_>,
        window: Arg<'_>,
        kept: Duration,
    ) -> Command<HoldReply> {
        let (lock, shard) = (self.keys.lock(name), self.shard_tag());
        let (channel, turn) = match self.redisson {
            Some(_) => (RedissonChannels::channel(&lock), Keys::turn(&lock)),
            None => (String::new(), String::new()),
        };
        let keys = [&*lock, &Keys::waiting(&lock), &turn];
        let args = [
            whose,
            window,
            Arg::Text(shard.as_deref().unwrap_or_default()),
            millis(kept),
            Arg::Text(&channel),
            Arg::Text(self.redisson.unwrap_or_default()),
            millis(self.waiting_life),
            millis(REDISSON_MEMORY),
            millis(REDISSON_TURN),
        ];
        let told = self.redisson.is_some();
        let (keys, args) = if told { (&keys[..], &args[..]) } else { (&keys[..2], &args[..4]) };
        Command { request: Request::call(script, keys, args), decoder: decoder::HOLD_OR_GONE }
    }

    /// The hash tag of sharded channels at the node that the command goes to.
    fn shard_tag(&self) -> Option<Arc<str>> {
        self.shard.as_ref()?.get()
    }

    fn fence_life(&self, lease: Duration) -> Arg<'static> {
        millis(self.fence_life.max(lease * 2))
    }
}

/// The token that every server is to give: this system's clock in microseconds.
fn proposal() -> Arg<'static> {
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    Arg::Number(u64::try_from(micros).unwrap_or(u64::MAX))
}
