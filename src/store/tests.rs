//! What every store must do, asked of each without the engine above it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::clock::end_of;
use crate::config::Config;
use crate::failure::FailureKind;
use crate::net::endpoint::Endpoint;
use crate::net::server::ServerFactory;
use crate::store::job::{Action, Job, JobOutcome};
use crate::store::memory::Memory;
use crate::store::quorum::Quorum;
use crate::store::request::Registration;
use crate::store::standalone::Standalone;
use crate::store::wake::Wake;

#[path = "../../tests/it/support/server.rs"]
pub(crate) mod process;

mod jobs;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod waiting;

const LEASE: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    end_of(Duration::from_secs(5))
}

fn hold(nonce: u64) -> HoldId {
    HoldId { name: Arc::from("lock"), client: Arc::from("client"), nonce }
}

fn single(process: &process::Server) -> Standalone {
    single_at(&process.url(), &Config::default())
}

fn single_at(url: &str, config: &Config) -> Standalone {
    let endpoint = Endpoint::parse(url, config).expect("a good URL");
    Standalone::new(ServerFactory::new(config).server(endpoint), config)
}

/// A quorum of which some servers are dead.
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
    let endpoints = Endpoint::parse_all("urls", &urls, &Config::default()).expect("good URLs");
    Quorum::new(endpoints, config, &ServerFactory::new(config))
}

fn won(store: &dyn Store, hold: &HoldId) -> u64 {
    match store
        .acquire(Acquire { hold, lease: LEASE, registration: Registration::None, deadline: soon() })
        .expect("an answer")
    {
        AcquireReply::Acquired { fence } => fence,
        bid => panic!("{bid:?}"),
    }
}

fn eventually(mut happened: impl FnMut() -> bool) {
    let end = soon();
    while !happened() {
        assert!(Instant::now() < end, "not in time");
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_busy(bid: &Result<AcquireReply, Failure>) -> bool {
    matches!(bid, Ok(AcquireReply::Held { remaining: Some(left) }) if *left <= LEASE)
}

fn depth(store: &dyn Store) -> Option<u32> {
    store.inspect("lock", soon()).expect("an answer").map(|holder| holder.depth)
}

/// Has tasks done and returns the outcomes in the order of the tasks.
fn care(jobs: &mut dyn JobRunner, cares: &[(HoldId, Action)]) -> Vec<JobOutcome> {
    let numbered = cares.iter().zip(0..);
    let end = soon();
    let task = |((hold, care), id): (&(HoldId, Action), u64)| {
        let hold = hold.clone();
        Job { id, hold, action: *care, deadline: end }
    };
    let mut outcomes = Vec::new();
    jobs.send(numbered.map(task).collect(), &mut |id, outcome| outcomes.push((id, outcome)));
    while outcomes.len() < cares.len() {
        assert!(Instant::now() < end, "{} outcomes", outcomes.len());
        jobs.collect(end, &mut |id, outcome| outcomes.push((id, outcome)));
    }
    outcomes.sort_by_key(|(id, _)| *id);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Makes a module of tests per store.
macro_rules! stores {
    ($($behaviour:ident),+ $(,)?) => {
        mod on_memory {
            $(#[test] fn $behaviour() { super::$behaviour(&super::Memory::default()); })+
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
    a_transfer_begins_a_new_hold_and_a_repeat_finds_it,
    late_duplicates_of_the_old_hold_do_not_touch_the_new,
    only_the_holder_can_transfer,
    force_takes_a_lock_from_anybody,
    a_lease_that_is_over_is_nobodys,
    a_client_in_the_queue_gets_a_free_lock,
    a_client_may_leave_a_queue_that_it_is_not_in,
    many_holds_are_cared_for_at_once,
);

fn a_lock_is_taken_once_and_a_repeat_finds_the_hold(store: &dyn Store) {
    let fence = won(store, &hold(1));
    assert!(is_busy(&store.acquire(Acquire {
        hold: &hold(2),
        lease: LEASE,
        registration: Registration::None,
        deadline: soon()
    })));
    assert_eq!(won(store, &hold(1)), fence);
    assert_eq!(depth(store), Some(1));
}

fn fences_grow_with_every_hold(store: &dyn Store) {
    let mut last = 0;
    for nonce in 1..100 {
        let fence = won(store, &hold(nonce));
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(store.release(&hold(nonce), soon()).ok(), Some(HoldReply::Held));
    }
}

fn the_depth_is_absolute(store: &dyn Store) {
    won(store, &hold(1));
    for level in [2, 2, 3, 1] {
        let nested = store.set_depth(SetDepth {
            hold: &hold(1),
            depth: level,
            lease: LEASE,
            durable: false,
            deadline: soon(),
        });
        assert_eq!(nested.ok(), Some(HoldReply::Held));
        assert_eq!(depth(store), Some(level));
    }
    store
        .set_depth(SetDepth {
            hold: &hold(1),
            depth: 5,
            lease: LEASE,
            durable: false,
            deadline: soon(),
        })
        .expect("an answer");
    won(store, &hold(1));
    assert_eq!(depth(store), Some(5), "a late duplicate of the first request");
}

fn a_request_for_a_hold_that_is_gone_changes_nothing(store: &dyn Store) {
    let mut jobs = store.jobs();
    let mut all_gone = |before: Option<u32>| {
        let stale = hold(1);
        let renewed = care(&mut *jobs, &[(stale.clone(), Action::Renew { lease: LEASE })]);
        assert!(matches!(renewed[..], [Ok(HoldReply::Gone)]));
        assert_eq!(
            store
                .set_depth(SetDepth {
                    hold: &stale,
                    depth: 2,
                    lease: LEASE,
                    durable: false,
                    deadline: soon()
                })
                .ok(),
            Some(HoldReply::Gone)
        );
        assert_eq!(store.release(&stale, soon()).ok(), Some(HoldReply::Gone));
        assert_eq!(depth(store), before);
    };
    all_gone(None);
    won(store, &hold(1));
    store.release(&hold(1), soon()).expect("an answer");
    all_gone(None);
    won(store, &hold(2));
    all_gone(Some(1));
}

fn a_transfer_begins_a_new_hold_and_a_repeat_finds_it(store: &dyn Store) {
    let first = won(store, &hold(1));
    store
        .set_depth(SetDepth {
            hold: &hold(1),
            depth: 3,
            lease: LEASE,
            durable: false,
            deadline: soon(),
        })
        .expect("an answer");
    let second = store
        .transfer(Transfer {
            from: &hold(1),
            to: &hold(2),
            lease: LEASE,
            yields: false,
            deadline: soon(),
        })
        .wait()
        .expect("an answer");
    assert!(matches!(second, TransferReply::Transferred { fence } if fence > first), "{second:?}");
    assert_eq!(depth(store), Some(1));
    assert_eq!(
        store
            .transfer(Transfer {
                from: &hold(1),
                to: &hold(2),
                lease: LEASE,
                yields: false,
                deadline: soon()
            })
            .wait()
            .ok(),
        Some(second)
    );
    let holder = store.inspect("lock", soon()).expect("an answer").expect("a holder");
    assert_eq!(holder.owner, hold(2).owner());
    assert!(holder.remaining > LEASE / 2 && holder.remaining <= LEASE);
}

fn late_duplicates_of_the_old_hold_do_not_touch_the_new(store: &dyn Store) {
    won(store, &hold(1));
    store
        .transfer(Transfer {
            from: &hold(1),
            to: &hold(2),
            lease: LEASE,
            yields: false,
            deadline: soon(),
        })
        .wait()
        .expect("an answer");
    let before = store.inspect("lock", soon()).expect("an answer").map(|holder| holder.owner);
    assert!(is_busy(&store.acquire(Acquire {
        hold: &hold(1),
        lease: LEASE,
        registration: Registration::None,
        deadline: soon()
    })));
    assert_eq!(
        store
            .set_depth(SetDepth {
                hold: &hold(1),
                depth: 2,
                lease: LEASE,
                durable: false,
                deadline: soon()
            })
            .ok(),
        Some(HoldReply::Gone)
    );
    assert_eq!(store.release(&hold(1), soon()).ok(), Some(HoldReply::Gone));
    let after = store.inspect("lock", soon()).expect("an answer").map(|holder| holder.owner);
    assert_eq!(before, after);
}

fn only_the_holder_can_transfer(store: &dyn Store) {
    let nobody = store
        .transfer(Transfer {
            from: &hold(1),
            to: &hold(2),
            lease: LEASE,
            yields: false,
            deadline: soon(),
        })
        .wait();
    assert_eq!(nobody.ok(), Some(TransferReply::Gone));
    assert_eq!(depth(store), None);
    won(store, &hold(3));
    let other = store
        .transfer(Transfer {
            from: &hold(1),
            to: &hold(2),
            lease: LEASE,
            yields: false,
            deadline: soon(),
        })
        .wait();
    assert_eq!(other.ok(), Some(TransferReply::Gone));
    assert_eq!(store.release(&hold(3), soon()).ok(), Some(HoldReply::Held));
}

fn force_takes_a_lock_from_anybody(store: &dyn Store) {
    assert_eq!(store.force_release("lock", soon()).ok(), Some(false));
    won(store, &hold(1));
    assert_eq!(store.force_release("lock", soon()).ok(), Some(true));
    assert_eq!(store.release(&hold(1), soon()).ok(), Some(HoldReply::Gone));
}

fn a_lease_that_is_over_is_nobodys(store: &dyn Store) {
    let short = Duration::from_millis(50);
    let begin = |nonce| {
        let bid = store.acquire(Acquire {
            hold: &hold(nonce),
            lease: short,
            registration: Registration::None,
            deadline: soon(),
        });
        assert!(matches!(bid, Ok(AcquireReply::Acquired { .. })), "{bid:?}");
        thread::sleep(short + Duration::from_millis(5));
    };
    begin(1);
    assert_eq!(depth(store), None);
    assert_eq!(
        store
            .set_depth(SetDepth {
                hold: &hold(1),
                depth: 2,
                lease: LEASE,
                durable: false,
                deadline: soon()
            })
            .ok(),
        Some(HoldReply::Gone)
    );
    assert_eq!(store.release(&hold(1), soon()).ok(), Some(HoldReply::Gone));
    assert_eq!(store.force_release("lock", soon()).ok(), Some(false));
    begin(2);
    let handed = store
        .transfer(Transfer {
            from: &hold(2),
            to: &hold(3),
            lease: LEASE,
            yields: false,
            deadline: soon(),
        })
        .wait();
    assert_eq!(handed.ok(), Some(TransferReply::Gone));
    begin(3);
    won(store, &hold(4));
}

fn a_client_in_the_queue_gets_a_free_lock(store: &dyn Store) {
    for queue in [Registration::IfHeld, Registration::Registered, Registration::Yielding] {
        won(store, &hold(1));
        assert!(
            is_busy(&store.acquire(Acquire {
                hold: &hold(2),
                lease: LEASE,
                registration: queue,
                deadline: soon()
            })),
            "{queue:?}"
        );
        store.release(&hold(1), soon()).expect("an answer");
        let bid = store.acquire(Acquire {
            hold: &hold(2),
            lease: LEASE,
            registration: queue,
            deadline: soon(),
        });
        assert!(matches!(bid, Ok(AcquireReply::Acquired { .. })), "{queue:?}: {bid:?}");
        store.release(&hold(2), soon()).expect("an answer");
    }
}

fn a_client_may_leave_a_queue_that_it_is_not_in(store: &dyn Store) {
    store.unregister("lock", "client", soon()).expect("an answer");
    won(store, &hold(1));
    store.unregister("lock", "client", soon()).expect("an answer");
    assert_eq!(depth(store), Some(1));
}

fn many_holds_are_cared_for_at_once(store: &dyn Store) {
    let holds: Vec<_> =
        (0..600).map(|nonce| HoldId { name: nonce.to_string().into(), ..hold(nonce) }).collect();
    for hold in holds.iter().step_by(2) {
        store
            .acquire(Acquire {
                hold,
                lease: LEASE,
                registration: Registration::None,
                deadline: soon(),
            })
            .expect("an answer");
    }
    let mut jobs = store.jobs();
    for kind in [Action::Renew { lease: LEASE * 2 }, Action::Release] {
        let cares: Vec<_> = holds.iter().map(|hold| (hold.clone(), kind)).collect();
        let outcomes = care(&mut *jobs, &cares);
        for (nonce, outcome) in outcomes.into_iter().enumerate() {
            let wanted = if nonce % 2 == 0 { HoldReply::Held } else { HoldReply::Gone };
            assert!(matches!(outcome, Ok(standing) if standing == wanted), "{nonce}: {outcome:?}");
        }
        let last = || store.inspect("598", soon()).expect("an answer");
        match kind {
            // A quorum answers before the last of its servers has done it.
            Action::Renew { .. } => {
                eventually(|| last().is_some_and(|holder| holder.remaining > LEASE));
            }
            Action::Release => assert_eq!(last(), None),
        }
    }
}

#[test]
fn a_full_server_refuses_to_transfer_and_leaves_the_hold() {
    let process = process::Server::redis();
    let store = single(&process);
    won(&store, &hold(1));
    process.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = store
        .transfer(Transfer {
            from: &hold(1),
            to: &hold(2),
            lease: LEASE,
            yields: false,
            deadline: soon(),
        })
        .wait()
        .expect_err("no memory");
    assert_eq!((refused.kind, refused.code.as_str()), (FailureKind::Rejected, "OOM"));
    assert_eq!(store.release(&hold(1), soon()).ok(), Some(HoldReply::Held));
}

#[test]
fn every_script_that_begins_a_hold_sets_both_times_to_live() {
    let process = process::Server::redis();
    let store = single(&process);
    let lives = || {
        let (lock, fence) = ("lock", "leasehold:fence:{lock}");
        [lock, fence].map(|key| process.ask::<i64>(&["PTTL", key]))
    };
    let spoil = || {
        process.command(&["PERSIST", "lock"]);
        process.command(&["PERSIST", "leasehold:fence:{lock}"]);
        assert!(lives().iter().all(|life| *life < 0));
    };
    let lease = i64::try_from(LEASE.as_millis()).expect("a short lease");
    let whole = |life: i64| life > lease / 2 && life <= lease;
    let transfer = || {
        store
            .transfer(Transfer {
                from: &hold(1),
                to: &hold(2),
                lease: LEASE,
                yields: false,
                deadline: soon(),
            })
            .wait()
            .expect("an answer")
    };

    won(&store, &hold(1));
    assert!(whole(lives()[0]) && lives()[1] > lease, "{:?}", lives());
    spoil();
    won(&store, &hold(1));
    assert!(whole(lives()[0]), "a repeat begins the lease anew");
    spoil();
    transfer();
    assert!(whole(lives()[0]) && lives()[1] > lease, "{:?}", lives());
    spoil();
    transfer();
    assert!(whole(lives()[0]), "a repeat begins the lease anew");
}
