//! The suite that every store must pass.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::Receiver;
use redis::ConnectionLike as _;

use super::*;
use crate::base::clock::{Moment, elapsed, end_of, now};
use crate::base::event_thread::Events;
use crate::base::failure::FailureKind;
use crate::base::sync::{in_virtual_time, sleep};
use crate::config::Config;
use crate::net::packed::{Arg, Request};
use crate::net::server::ServerFactory;
use crate::net::wait::Interrupter;
use crate::store::background::{InDoubtHold, Job, JobOutcome, Wake, Wakeups};
use crate::store::commands::{Commands, micros};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::memory::Memory;
use crate::store::memory::memory_server::MemoryServer;
use crate::store::quorum::Quorum;
use crate::store::request::{Change, NextLease, Registration, TENURE_FENCES, Unused};
use crate::store::scripts::ACQUIRE;
use crate::store::servers::Servers;

#[path = "../../tests/it/support/server.rs"]
pub(crate) mod process;

mod clocks;
mod hostile;
mod jobs;
mod look_ups;
mod members;
mod model;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod waiting;

const LEASE: Duration = Duration::from_secs(30);

/// A generous limit for what should happen at once, even on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn soon() -> Instant {
    end_of(SOON)
}

fn hold(nonce: u64) -> HoldId {
    HoldId { kind: HoldKind::Lock, name: Arc::from("lock"), client: Arc::from("client"), nonce }
}

fn change(store: &dyn Store, hold: &HoldId, change: Change) -> Result<HoldReply, Failure> {
    ask_one(store, HoldRequest { hold, change, deadline: soon() })
}

/// The owner of a lock.
fn lock_of(owner: &[u8]) -> OwnerOf<'_> {
    OwnerOf { kind: HoldKind::Lock, name: "lock", owner }
}

/// Returns the number of permits that are held or offered.
fn permits(store: &dyn Store) -> Option<u32> {
    store.report("lock", Look::Permits, soon()).ok().map(|report| report.permits)
}

/// Removes a client from those that wait for the lock.
fn unregister(store: &dyn Store, client: &str) {
    let hold = HoldId { client: client.into(), ..hold(0) };
    change(store, &hold, Change::Unregister).expect("a reply");
}

/// The wake-ups of a client, without reports of where it listens.
struct Messages(Box<dyn Wakeups>);

impl Wakeups for Messages {
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
        loop {
            match self.0.next(deadline) {
                Some(Ok(Wake::Complete(_))) => {}
                message => return message,
            }
        }
    }

    fn interrupter(&self) -> Interrupter {
        self.0.interrupter()
    }
}

fn messages(store: &dyn Store, client: &str) -> Box<dyn Wakeups> {
    Box::new(Messages(store.wakeups(client, None)))
}

/// A server of locks.
trait Host {
    type Store: Store;

    /// Opens the store of a client.
    fn store(&self) -> Self::Store;

    /// Returns the clients that wait for a lock, each prefixed with the kind that it waits for.
    fn waiting(&self) -> Vec<String>;

    /// Frees the lock without notifying a client.
    fn clear(&self);

    /// Makes the lock last longer by this time, as if the clock had been set back by it.
    fn set_back(&self, time: Duration);
}

const SET_BACK: &str = "
local key, time, left = KEYS[1], tonumber(ARGV[1]), redis.call('pttl', KEYS[1])
if redis.call('type', key).ok == 'zset' then
  local members = redis.call('zrange', key, 0, -1, 'withscores')
  for i = 1, #members, 2 do
    redis.call('zincrby', key, time, members[i])
  end
end
return redis.call('pexpire', key, left + time)";

impl Host for process::Server {
    type Store = Servers;

    fn store(&self) -> Servers {
        single_at(&self.url(), &Config::default())
    }

    fn waiting(&self) -> Vec<String> {
        self.ask(&["ZRANGE", "leasehold:queue:{lock:lock}", "0", "-1"])
    }

    fn clear(&self) {
        self.command(&["DEL", "lock:lock"]);
    }

    fn set_back(&self, time: Duration) {
        self.command(&["EVAL", SET_BACK, "1", "lock:lock", &time.as_millis().to_string()]);
    }
}

impl Host for MemoryServer {
    type Store = Memory;

    fn store(&self) -> Memory {
        Memory::new(self, &Config::default())
    }

    fn waiting(&self) -> Vec<String> {
        MemoryServer::waiting(self, "lock:lock")
    }

    fn clear(&self) {
        self.end_at("lock:lock", Moment::FIRST, |_| true);
    }

    fn set_back(&self, time: Duration) {
        for (hold, _, ends) in self.holds("lock:lock") {
            self.end_at("lock:lock", ends.after(time), |held| *held == hold);
        }
    }
}

fn single<H: Host>(host: &H) -> H::Store {
    host.store()
}

fn single_at(url: &str, config: &Config) -> Servers {
    let servers = ServerFactory::new(config, &Events::default()).expect("a thread");
    let endpoint = servers.endpoint(url).expect("a good URL");
    Servers::one(servers.server(endpoint), &servers)
}

/// A quorum with some dead servers.
struct Majority {
    /// Kept for as long as the store.
    _servers: Vec<process::Server>,
    store: Quorum,
}

impl Majority {
    fn of(servers: usize, dead: usize) -> Self {
        let servers: Vec<_> = (0..servers).map(|_| process::Server::redis()).collect();
        servers[..dead].iter().for_each(process::Server::kill);
        let store = quorum(&servers, &Config::default());
        Self { _servers: servers, store }
    }
}

fn quorum(servers: &[process::Server], config: &Config) -> Quorum {
    let urls: Vec<_> = servers.iter().map(process::Server::url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let servers = ServerFactory::new(config, &Events::default()).expect("a thread");
    Quorum::new(servers.endpoints("urls", &urls).expect("good URLs"), &servers)
}

fn acquire(
    store: &dyn Store,
    hold: &HoldId,
    registration: Registration,
) -> Result<AcquireReply, Failure> {
    store.acquire(Acquire {
        holds: std::slice::from_ref(hold),
        lease: LEASE,
        note: None,
        registration,
        echo: false,
        deadline: soon(),
    })
}

/// Takes the lock, which must be free, and returns the token.
fn must_acquire(store: &dyn Store, hold: &HoldId) -> u64 {
    match acquire(store, hold, Registration::None).expect("a reply") {
        AcquireReply::Acquired { fence, .. } => fence,
        reply @ AcquireReply::Held { .. } => panic!("{reply:?}"),
    }
}

/// Executes requests about holds, and returns the replies in the same order.
fn ask_all(store: &dyn Store, requests: &[HoldRequest<'_>]) -> Vec<Result<HoldReply, Failure>> {
    let mut replies: Vec<_> = vec![None; requests.len()];
    store.ask(requests, &mut |place, reply| {
        assert!(replies[place].replace(reply).is_none(), "a request has one reply");
    });
    replies.into_iter().map(|reply| reply.expect("each request has a reply")).collect()
}

fn set_depth(store: &dyn Store, hold: &HoldId, depth: u32) -> Result<HoldReply, Failure> {
    change(store, hold, Change::SetDepth { depth, lease: Some(LEASE.into()), durable: false })
}

fn release(store: &dyn Store, hold: &HoldId) -> Result<HoldReply, Failure> {
    change(store, hold, Change::RELEASE)
}

fn eventually(mut happened: impl FnMut() -> bool) {
    let end = soon();
    while !happened() {
        assert!(now() < end, "not in time");
        sleep(Duration::from_millis(1));
    }
}

fn is_held(reply: &Result<AcquireReply, Failure>) -> bool {
    matches!(reply, Ok(AcquireReply::Held { remaining: Some(left), .. }) if *left <= LEASE)
}

fn depth(store: &dyn Store) -> Option<u32> {
    store.inspect("lock", soon()).expect("a reply").map(|holder| holder.depth)
}

/// The outcome of a job, whether or not all servers have replied.
type Outcome = Result<HoldReply, Failure>;

fn outcome_of(outcome: JobOutcome) -> Outcome {
    outcome.map(|reply| reply.hold)
}

/// Runs jobs, and returns their outcomes in the order of the jobs.
fn run_jobs(jobs: &mut dyn JobRunner, changes: &[(HoldId, Change)]) -> Vec<Outcome> {
    let numbered = changes.iter().zip(0..);
    let end = soon();
    let job = |((hold, change), id): (&(HoldId, Change), u64)| {
        let hold = hold.clone();
        Job { id, hold, change: *change, deadline: end }
    };
    let mut outcomes = Vec::new();
    jobs.send(numbered.map(job).collect(), &mut |id, outcome| outcomes.push((id, outcome)));
    while outcomes.len() < changes.len() {
        assert!(now() < end, "{} outcomes", outcomes.len());
        jobs.collect(end, &mut |id, outcome| outcomes.push((id, outcome)));
    }
    outcomes.sort_by_key(|(id, _)| *id);
    outcomes.into_iter().map(|(_, outcome)| outcome_of(outcome)).collect()
}

/// Makes a module of tests per store.
macro_rules! stores {
    ($($behaviour:ident),+ $(,)?) => {
        mod on_memory {
            $(#[test] fn $behaviour() {
                super::in_virtual_time(|| super::$behaviour(&super::Memory::default()));
            })+
        }
        mod on_redis {
            use super::process::Server;
            $(#[test] fn $behaviour() { super::$behaviour(&super::single(&Server::redis())); })+
        }
        mod on_valkey {
            use super::process::Server;
            $(#[test] fn $behaviour() { super::$behaviour(&super::single(&Server::valkey())); })+
        }
        mod on_quorum_of_three {
            $(#[test] fn $behaviour() { super::$behaviour(&super::Majority::of(3, 0).store); })+
        }
        mod on_three_of_five {
            $(#[test] fn $behaviour() { super::$behaviour(&super::Majority::of(5, 2).store); })+
        }
    };
}

stores!(
    a_lock_is_taken_once_and_a_repeat_finds_the_hold,
    fences_grow_with_every_hold,
    the_depth_is_absolute,
    a_request_for_a_hold_that_is_gone_changes_nothing,
    blocks_of_fences_belong_to_one_client,
    late_duplicates_of_the_old_hold_do_not_touch_the_new,
    a_forced_release_ends_any_hold,
    a_kept_lock_is_free_when_its_time_is_over,
    no_request_of_a_hold_changes_what_keeps_the_lock,
    a_hold_ends_with_its_lease,
    a_late_renewal_shortens_no_lease,
    a_registered_client_gets_a_free_lock,
    a_client_that_is_not_registered_may_be_unregistered,
    many_holds_are_renewed_and_released_at_once,
);

fn a_lock_is_taken_once_and_a_repeat_finds_the_hold(store: &dyn Store) {
    let fence = must_acquire(store, &hold(1));
    assert!(is_held(&acquire(store, &hold(2), Registration::None)));
    assert_eq!(must_acquire(store, &hold(1)), fence);
    assert_eq!(depth(store), Some(1));
}

fn fences_grow_with_every_hold(store: &dyn Store) {
    let mut last = 0;
    for nonce in 1..100 {
        let fence = must_acquire(store, &hold(nonce));
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(release(store, &hold(nonce)).ok(), Some(HoldReply::Done));
    }
}

fn the_depth_is_absolute(store: &dyn Store) {
    must_acquire(store, &hold(1));
    for level in [2, 2, 3, 1] {
        let nested = set_depth(store, &hold(1), level);
        assert_eq!(nested.ok(), Some(HoldReply::Done));
        assert_eq!(depth(store), Some(level));
    }
    set_depth(store, &hold(1), 5).expect("a reply");
    must_acquire(store, &hold(1));
    assert_eq!(depth(store), Some(5), "a late duplicate of the first request");
}

fn a_request_for_a_hold_that_is_gone_changes_nothing(store: &dyn Store) {
    let mut jobs = store.jobs();
    let mut all_gone = |before: Option<u32>| {
        let stale = hold(1);
        let renewed =
            run_jobs(&mut *jobs, &[(stale.clone(), Change::Renew { lease: LEASE.into() })]);
        assert!(matches!(renewed[..], [Ok(HoldReply::Gone)]));
        assert_eq!(set_depth(store, &stale, 2).ok(), Some(HoldReply::Gone));
        assert_eq!(release(store, &stale).ok(), Some(HoldReply::Gone));
        assert_eq!(depth(store), before);
    };
    all_gone(None);
    must_acquire(store, &hold(1));
    release(store, &hold(1)).expect("a reply");
    all_gone(None);
    must_acquire(store, &hold(2));
    all_gone(Some(1));
}

fn blocks_of_fences_belong_to_one_client(store: &dyn Store) {
    let before = must_acquire(store, &hold(1));
    release(store, &hold(1)).expect("a reply");
    let first = acquire(store, &hold(2), Registration::Followed).expect("a reply");
    let AcquireReply::Acquired { fence, room, .. } = first else { panic!("{first:?}") };
    let room = u64::from(room);
    assert!(fence > before && (1..TENURE_FENCES).contains(&room), "{fence} {room}");
    let again = acquire(store, &hold(2), Registration::Followed).expect("a reply");
    let AcquireReply::Acquired { fence: repeated, .. } = again else { panic!("{again:?}") };
    assert!(repeated == fence || repeated >= fence + room, "no token of others: {again:?}");
    release(store, &hold(2)).expect("a reply");
    let next = must_acquire(store, &hold(3));
    assert!(next > fence + room, "{next} follows {fence} and {room} more");
}

#[test]
fn a_proposed_token_is_the_time_in_microseconds() {
    let clock = || {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later");
        u64::try_from(time.as_micros()).expect("a token")
    };
    let before = clock();
    let token = micros();
    assert!((before..=clock()).contains(&token));
}

#[test]
fn a_hold_that_keeps_its_lock_taken_leaves_the_queue_of_a_server_that_refused_it() {
    let servers = [(); 3].map(|()| process::Server::redis());
    let store = quorum(&servers, &Config::default());
    store.report_in_doubt_to("client", drop);
    let other = &servers[2];
    other.command(&["HSET", "lock:lock", "other:1", "1"]);
    other.command(&["PEXPIRE", "lock:lock", "30000"]);
    // One of the others may be slow to answer.
    eventually(|| {
        let reply = acquire(&store, &hold(1), Registration::IfHeld);
        matches!(reply, Ok(AcquireReply::Acquired { .. }))
    });
    eventually(|| other.waiting() == ["client"]);
    assert_eq!(keep(&store, &hold(1), LEASE).ok(), Some(HoldReply::Done));
    eventually(|| other.waiting().is_empty());
    // It ends no hold there.
    assert!(is_held(&acquire(&single(other), &hold(2), Registration::None)));
    assert!(servers[..2].iter().all(|server| depth(&single(server)) == Some(0)));
}

/// The server's clock may have been set back or, on a quorum, another client's clock may be ahead.
#[test]
fn blocks_of_a_counter_that_is_ahead_are_whole_and_no_faster_than_a_clock() {
    const FENCE: &str = "leasehold:fence:{lock:lock}";
    let servers = [(); 3].map(|()| process::Server::redis());
    let hour = Duration::from_secs(60 * 60);
    // Counters live for different times.
    let config = |hours| Config { fence_life: hour * hours, ..Config::default() };
    let one = [24, 25].map(|hours| single_at(&servers[0].url(), &config(hours)));
    let three = [24, 25].map(|hours| quorum(&servers, &config(hours)));
    let two = |stores: [&dyn Store; 2]| {
        let ahead = micros() + 60_000_000;
        for (server, life) in servers.iter().zip(["86400000", "90000000", "5000000"]) {
            server.command(&["SET", FENCE, &ahead.to_string(), "PX", life]);
        }
        let begin = Instant::now();
        let mut last = ahead;
        let mut block = |nonce: u64| {
            let store = if nonce.is_multiple_of(2) { stores[0] } else { stores[1] };
            let reply = acquire(store, &hold(nonce), Registration::Followed).expect("a reply");
            let AcquireReply::Acquired { fence, room, .. } = reply else { panic!("{reply:?}") };
            assert!(fence > last, "{fence} {last}");
            last = fence + u64::from(room);
            release(store, &hold(nonce)).expect("a reply");
            room
        };
        for nonce in 1..10 {
            let blocks = std::iter::repeat_with(|| block(nonce)).take(100);
            assert!(blocks.into_iter().any(|room| u64::from(room) == TENURE_FENCES - 1));
        }
        // Each server has found the counter with some other TTL.
        let most = 2_000 + 3 * TENURE_FENCES;
        let passed = u64::try_from(begin.elapsed().as_micros()).expect("a short test");
        assert!(last - ahead <= passed + most, "{} {passed}", last - ahead);
    };
    two([&one[0], &one[1]]);
    two([&three[0], &three[1]]);
}

fn late_duplicates_of_the_old_hold_do_not_touch_the_new(store: &dyn Store) {
    must_acquire(store, &hold(1));
    release(store, &hold(1)).expect("a reply");
    must_acquire(store, &hold(2));
    let before = store.inspect("lock", soon()).expect("a reply").map(|holder| holder.owner);
    assert!(is_held(&acquire(store, &hold(1), Registration::None)));
    assert_eq!(set_depth(store, &hold(1), 2).ok(), Some(HoldReply::Gone));
    assert_eq!(release(store, &hold(1)).ok(), Some(HoldReply::Gone));
    let after = store.inspect("lock", soon()).expect("a reply").map(|holder| holder.owner);
    assert_eq!(before, after);
}

fn a_forced_release_ends_any_hold(store: &dyn Store) {
    assert_eq!(store.force_release(lock_of(b"client:1"), soon()).ok(), Some(false));
    must_acquire(store, &hold(1));
    assert_eq!(store.force_release(lock_of(b"client:1"), soon()).ok(), Some(true));
    assert_eq!(release(store, &hold(1)).ok(), Some(HoldReply::Gone));
}

/// Ends a hold, and keeps its lock taken for that long.
fn keep(store: &dyn Store, hold: &HoldId, time: Duration) -> Result<HoldReply, Failure> {
    change(store, hold, Change::Release { taken_until: Moment::now().after(time), unused: None })
}

fn a_kept_lock_is_free_when_its_time_is_over(store: &dyn Store) {
    let (time, begin) = (Duration::from_millis(500), now());
    let fence = must_acquire(store, &hold(1));
    assert_eq!(keep(store, &hold(1), time).ok(), Some(HoldReply::Done));
    let reply = acquire(store, &hold(2), Registration::None);
    assert!(
        matches!(reply, Ok(AcquireReply::Held { remaining: Some(left), .. }) if left <= time),
        "{reply:?}"
    );
    let mut next = None;
    eventually(|| {
        // The servers of a quorum free it one after the other.
        if let AcquireReply::Acquired { fence, .. } =
            acquire(store, &hold(2), Registration::None).expect("a reply")
        {
            next = Some(fence);
        }
        next.is_some()
    });
    assert!(elapsed(begin) >= time);
    assert!(next > Some(fence));
    assert_eq!(keep(store, &hold(1), LEASE).ok(), Some(HoldReply::Gone));
    assert_eq!(depth(store), Some(1));
    assert_eq!(keep(store, &hold(2), Duration::ZERO).ok(), Some(HoldReply::Done));
    assert_eq!(depth(store), None);
}

fn no_request_of_a_hold_changes_what_keeps_the_lock(store: &dyn Store) {
    let kept = hold(2);
    must_acquire(store, &kept);
    assert_eq!(keep(store, &kept, LEASE / 2).ok(), Some(HoldReply::Done));
    let holder = || store.inspect("lock", soon()).expect("a reply").expect("a holder");
    // The last of the servers may do it later.
    eventually(|| holder().depth == 0);
    let before = holder();
    assert!(before.remaining > LEASE / 4 && before.remaining <= LEASE / 2, "{before:?}");

    assert_eq!(change(store, &kept, Change::Check).ok(), Some(HoldReply::Gone));
    let again = acquire(store, &kept, Registration::IfHeld);
    assert!(is_held(&again), "{again:?}");
    assert_eq!(set_depth(store, &kept, 2).ok(), Some(HoldReply::Gone));
    let kept_for = |time| Change::Release { taken_until: Moment::now().after(time), unused: None };
    let renewal = Change::Renew { lease: LEASE.into() };
    let outcomes = run_jobs(&mut *store.jobs(), &[(kept.clone(), renewal)]);
    assert!(matches!(outcomes[..], [Ok(HoldReply::Gone)]), "{outcomes:?}");
    for time in [LEASE, LEASE / 10] {
        assert_eq!(keep(store, &kept, time).ok(), Some(HoldReply::Gone), "it was released");
        let outcomes = run_jobs(&mut *store.jobs(), &[(kept.clone(), kept_for(time))]);
        // A dead server of a quorum reports no outcome.
        assert!(!matches!(outcomes[..], [Ok(HoldReply::Done)]), "{outcomes:?}");
    }
    let after = holder();
    assert_eq!((&after.owner, after.depth), (&before.owner, 0));
    assert!(after.remaining <= before.remaining && after.remaining > LEASE / 5, "{after:?}");

    assert_eq!(store.force_release(lock_of(&before.owner), soon()).ok(), Some(true));
    must_acquire(store, &hold(4));
}

fn a_hold_ends_with_its_lease(store: &dyn Store) {
    let short = Duration::from_millis(50);
    let begin = |nonce| {
        let reply = store.acquire(Acquire {
            holds: &[hold(nonce)],
            lease: short,
            note: None,
            registration: Registration::None,
            echo: false,
            deadline: soon(),
        });
        assert!(matches!(reply, Ok(AcquireReply::Acquired { .. })), "{reply:?}");
        sleep(short + Duration::from_millis(5));
    };
    begin(1);
    assert_eq!(depth(store), None);
    assert_eq!(set_depth(store, &hold(1), 2).ok(), Some(HoldReply::Gone));
    assert_eq!(release(store, &hold(1)).ok(), Some(HoldReply::Gone));
    assert_eq!(store.force_release(lock_of(b"client:1"), soon()).ok(), Some(false));
    begin(2);
    must_acquire(store, &hold(4));
}

/// A renewal is late, for example, if a process that adopted the hold renews it first.
fn a_late_renewal_shortens_no_lease(store: &dyn Store) {
    let lease = LEASE / 10;
    let set = [hold(1), HoldId { name: "other".into(), ..hold(2) }];
    let again = |holds: &[HoldId], registration| {
        let reply = store.acquire(Acquire {
            holds,
            lease,
            note: None,
            registration,
            echo: false,
            deadline: soon(),
        });
        assert!(matches!(reply, Ok(AcquireReply::Acquired { .. })), "{reply:?}");
    };
    must_acquire(store, &set[0]);
    must_acquire(store, &set[1]);
    let rest = NextLease { duration: lease, whole: LEASE };
    let changes = [
        Change::Renew { lease: rest },
        Change::SetDepth { depth: 2, lease: Some(rest), durable: false },
        Change::SetDepth { depth: 1, lease: Some(rest), durable: true },
    ];
    for renewal in changes {
        assert_eq!(change(store, &set[0], renewal).ok(), Some(HoldReply::Done));
        let outcomes = run_jobs(&mut *store.jobs(), &[(set[0].clone(), renewal)]);
        assert!(matches!(outcomes[..], [Ok(HoldReply::Done)]), "{outcomes:?}");
    }
    for registration in [Registration::None, Registration::Followed] {
        again(&set[..1], registration);
    }
    for group in store.groups(&set.each_ref().map(|hold| hold.name.clone())) {
        let holds: Vec<_> = group.into_iter().map(|place| set[place].clone()).collect();
        again(&holds, Registration::None);
    }
    for hold in &set {
        // The last of the servers of a quorum may have got only the late request so far.
        eventually(|| {
            let holder = store.inspect(&hold.name, soon()).expect("a reply");
            holder.expect("a holder").remaining > LEASE / 2
        });
    }
}

fn a_registered_client_gets_a_free_lock(store: &dyn Store) {
    for registration in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
        must_acquire(store, &hold(1));
        assert!(is_held(&acquire(store, &hold(2), registration)), "{registration:?}");
        release(store, &hold(1)).expect("a reply");
        let reply = acquire(store, &hold(2), registration);
        assert!(matches!(reply, Ok(AcquireReply::Acquired { .. })), "{registration:?}: {reply:?}");
        release(store, &hold(2)).expect("a reply");
    }
}

fn a_client_that_is_not_registered_may_be_unregistered(store: &dyn Store) {
    unregister(store, "client");
    must_acquire(store, &hold(1));
    unregister(store, "client");
    assert_eq!(depth(store), Some(1));
}

fn many_holds_are_renewed_and_released_at_once(store: &dyn Store) {
    let holds: Vec<_> =
        (0..600).map(|nonce| HoldId { name: nonce.to_string().into(), ..hold(nonce) }).collect();
    for hold in holds.iter().step_by(2) {
        acquire(store, hold, Registration::None).expect("a reply");
    }
    let mut jobs = store.jobs();
    for change in [Change::Renew { lease: (LEASE * 2).into() }, Change::RELEASE] {
        let changes: Vec<_> = holds.iter().map(|hold| (hold.clone(), change)).collect();
        let outcomes = run_jobs(&mut *jobs, &changes);
        for (nonce, outcome) in outcomes.into_iter().enumerate() {
            let wanted = if nonce.is_multiple_of(2) { HoldReply::Done } else { HoldReply::Gone };
            assert!(matches!(outcome, Ok(reply) if reply == wanted), "{nonce}: {outcome:?}");
        }
        let last = || store.inspect("598", soon()).expect("a reply");
        if change == Change::RELEASE {
            assert_eq!(last(), None);
        } else {
            // A quorum replies before its last server is done.
            eventually(|| last().is_some_and(|holder| holder.remaining > LEASE));
        }
    }
}

#[test]
fn every_script_that_begins_a_hold_sets_both_times_to_live() {
    let process = process::Server::redis();
    let store = single(&process);
    let lives = || {
        let (lock, fence) = ("lock:lock", "leasehold:fence:{lock:lock}");
        [lock, fence].map(|key| process.ask::<i64>(&["PTTL", key]))
    };
    let spoil = || {
        // Without an expiry it would not be a lock.
        process.command(&["PEXPIRE", "lock:lock", "1000"]);
        process.command(&["PERSIST", "leasehold:fence:{lock:lock}"]);
        assert!(lives()[0] <= 1000 && lives()[1] < 0);
    };
    let lease = i64::try_from(LEASE.as_millis()).expect("a short lease");
    let whole = |life: i64| life > lease / 2 && life <= lease;
    let followed = || acquire(&store, &hold(2), Registration::Followed).expect("a reply");

    must_acquire(&store, &hold(1));
    assert!(whole(lives()[0]) && lives()[1] > lease, "{:?}", lives());
    spoil();
    must_acquire(&store, &hold(1));
    assert!(whole(lives()[0]), "a repeat starts a new lease");
    release(&store, &hold(1)).expect("a reply");
    followed();
    assert!(whole(lives()[0]) && lives()[1] > lease, "{:?}", lives());
    spoil();
    followed();
    assert!(whole(lives()[0]), "a repeat starts a new lease");
}

/// Clients with other settings use the same names.
#[test]
fn no_client_shortens_the_life_of_a_counter() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let process = process::Server::redis();
    let [long, short] = [DAY, LEASE * 2]
        .map(|fence_life| single_at(&process.url(), &Config { fence_life, ..Config::default() }));
    let client: Arc<str> = "0123456789abcdef0123456789abcdef".into();
    let of = |kind, nonce| HoldId { kind, client: client.clone(), ..hold(nonce) };
    let key = "leasehold:fence:{lock:lock}";
    let lives_on = |what: &str| {
        let left = process.ask::<u64>(&["PTTL", key]);
        assert!(Duration::from_millis(left) > DAY / 2, "{what}: {left} ms");
    };
    must_acquire(&long, &hold(1));
    release(&long, &hold(1)).expect("a reply");
    for registration in [Registration::None, Registration::Followed] {
        acquire(&short, &hold(2), registration).expect("a reply");
        lives_on("a lock");
        release(&short, &hold(2)).expect("a reply");
    }
    let set = [hold(3), HoldId { name: "other".into(), ..hold(4) }];
    let (lease, registration, deadline) = (LEASE, Registration::None, soon());
    let reply = short.acquire(Acquire {
        holds: &set,
        lease,
        note: None,
        registration,
        echo: false,
        deadline,
    });
    assert!(matches!(reply, Ok(AcquireReply::Acquired { .. })), "{reply:?}");
    lives_on("a set");
    release(&short, &hold(3)).expect("a reply");
    for kind in [HoldKind::Write, HoldKind::Read] {
        must_acquire(&short, &of(kind, 5));
        lives_on("a side");
        change(&short, &of(kind, 5), Change::Renew { lease: LEASE.into() }).expect("a reply");
        lives_on("a renewal");
        // This applies however long the lock is held, and to later readers as well.
        process.command(&["PEXPIRE", key, "10000"]);
        change(&long, &of(kind, 5), Change::Renew { lease: LEASE.into() }).expect("a reply");
        lives_on("a longer renewal");
        if kind == HoldKind::Read {
            process.command(&["PEXPIRE", key, "10000"]);
            must_acquire(&long, &of(kind, 6));
            lives_on("another reader");
        }
        release(&short, &of(kind, 5)).expect("a reply");
    }
}

/// The clocks of two clients may show the same microsecond, and so may that of one server after a
/// failover.
#[test]
fn a_proposal_that_is_the_last_token_is_not_given_again() {
    let process = process::Server::redis();
    let keys = ["lock:lock", "leasehold:fence:{lock:lock}", "leasehold:queue:{lock:lock}"];
    let propose = |owner, proposal| -> u64 {
        let (lease, life) = (Arg::Number(1000), Arg::Number(5000));
        let args = [Arg::Text(owner), lease, life, Arg::Number(0), Arg::Number(proposal)];
        let request = Request::call(&ACQUIRE, &keys, &args).in_full();
        let reply = process.connect().req_packed_command(&request.bytes);
        process.command(&["DEL", keys[0]]);
        redis::from_redis_value(reply.expect("a reply")).expect("a token")
    };
    assert_eq!(["a:1", "b:1"].map(|owner| propose(owner, 1000)), [1000, 1001]);
    assert_eq!(["c:1", "d:1"].map(|owner| propose(owner, 1001)), [1002, 1003]);
    assert_eq!(propose("e:1", 2000), 2000);
}

/// A later hold may already have a greater token, or get one from a counter that a late request
/// has raised.
#[test]
fn a_counter_is_raised_only_by_a_hold_that_exists_and_never_lowered() {
    let process = process::Server::redis();
    let commands = Commands::proposing(&Config::default());
    let raise = |nonce, fence| {
        let request = commands.raise(&hold(nonce), fence, LEASE).in_full();
        let reply = process.connect().req_packed_command(&request.bytes).expect("a reply");
        let raised: u64 = redis::from_redis_value(reply).expect("a number");
        (raised, process.ask::<Option<u64>>(&["GET", "leasehold:fence:{lock:lock}"]))
    };
    assert_eq!(raise(1, 500), (0, None));
    process.command(&["HSET", "lock:lock", &hold(1).owner(), "1"]);
    assert_eq!(raise(1, 500), (1, Some(500)));
    assert_eq!(raise(1, 400), (1, Some(500)));
    assert_eq!(raise(2, 600), (0, Some(500)));
    process.command(&["DEL", "lock:lock"]);
    assert_eq!(raise(1, 700), (0, Some(500)));
}

#[test]
fn a_quorum_server_that_misses_an_early_release_gets_it_in_the_background() {
    let servers = [(); 3].map(|()| process::Server::redis());
    let store = quorum(&servers, &Config::default());
    let (reports, reported) = crossbeam_channel::unbounded();
    store.report_in_doubt_to("client", move |in_doubt| reports.send(in_doubt).unwrap_or_default());
    must_acquire(&store, &hold(1));
    servers[0].kill();
    let taken_until = Moment::now().after(LEASE);
    let released = change(&store, &hold(1), Change::Release { taken_until, unused: None });
    assert_eq!(released.ok(), Some(HoldReply::Done));
    let in_doubt = reported.recv_deadline(soon()).expect("the dead server has not replied");
    assert_eq!((in_doubt.hold.nonce, in_doubt.taken_until), (1, taken_until));
}

/// A quorum with one hanging server, and its reports of holds in doubt.
struct Hanging {
    servers: [process::Server; 3],
    store: Quorum,
    reported: Receiver<InDoubtHold>,
}

impl Hanging {
    fn new(io_timeout: Duration) -> Self {
        let servers = [(); 3].map(|()| process::Server::redis());
        let io_timeout = Some(io_timeout);
        let store = quorum(&servers, &Config { pool_size: 1, io_timeout, ..Config::default() });
        let (reports, reported) = crossbeam_channel::unbounded();
        let report = move |in_doubt| reports.send(in_doubt).unwrap_or_default();
        store.report_in_doubt_to("client", report);
        let this = Self { servers, store, reported };
        eventually(|| {
            this.cycle(1);
            this.servers.iter().all(|server| server.evals() > 0)
        });
        this.servers[0].stop();
        must_acquire(&this.store, &hold(2));
        this
    }

    /// Takes another lock and releases it.
    fn cycle(&self, nonce: u64) {
        let other = HoldId { name: Arc::from("other"), ..hold(nonce) };
        must_acquire(&self.store, &other);
        let released = change(&self.store, &other, Change::RELEASE);
        assert_eq!(released.ok(), Some(HoldReply::Done));
    }

    /// Releases the hold that the server may still begin, which is in doubt after that.
    fn release(&self) {
        assert!(self.reported.is_empty());
        let released = change(&self.store, &hold(2), Change::RELEASE);
        assert_eq!(released.ok(), Some(HoldReply::Done));
        let reported = self.reported.recv_deadline(soon()).expect("it is in doubt");
        assert_eq!((reported.hold.nonce, reported.may_begin), (2, true));
    }
}

/// The server is sent no more than Redis reads at a time.
#[test]
fn a_server_of_a_quorum_that_hangs_for_long_is_left_out() {
    let hanging = Hanging::new(LEASE / 3);
    let Hanging { servers, store, reported } = &hanging;
    for _ in 0..300 {
        assert_eq!(change(store, &hold(2), Change::Check).ok(), Some(HoldReply::Done));
    }
    // It can begin none of these.
    (3..10).for_each(|nonce| hanging.cycle(nonce));
    hanging.release();
    servers[0].cont();
    store.drain(soon());
    assert!(reported.is_empty());
    assert!(servers[0].evals() + 100 < servers[1].evals(), "{} requests", servers[0].evals());
    must_acquire(store, &HoldId { name: Arc::from("other"), ..hold(10) });
    eventually(|| servers[0].ask::<u64>(&["EXISTS", "lock:other"]) == 1);
}

#[test]
fn a_hold_that_a_given_up_server_may_begin_is_in_doubt_for_a_lease() {
    let io_timeout = Duration::from_secs(1);
    let hanging = Hanging::new(io_timeout);
    thread::sleep(io_timeout);
    hanging.release();
}

#[test]
fn a_release_that_a_quorum_cannot_confirm_may_have_been_executed() {
    let majority = Majority::of(3, 2);
    let failure = release(&majority.store, &hold(1)).expect_err("no majority");
    assert!(failure.is_ambiguous(), "{failure:?}");
    let failure = change(&majority.store, &hold(1), Change::Check).expect_err("no majority");
    assert!(!failure.is_ambiguous(), "it has had no effect: {failure:?}");
}
