//! The promises of a store to its callers, whatever the network does.
//!
//! - A reply is the one that the server gave to this request. No request is executed twice, and
//!   none is ever executed once its caller has learned that it was not sent.
//! - No call takes longer than its deadline, and each request has one outcome.
//! - No call fails while there is no fault, nor some time after the last fault.
//! - A client never has too many connections, and loses none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::executor::Process;
use crate::simulation::wire::network::Link;
use crate::simulation::wire::server::{Kind, Role};
use crate::simulation::wire::world::{World, now, with};
use crate::store::hold_id::HoldId;
use crate::store::request::{AcquireReply, HoldReply};

/// How long after the end of all faults a call may still fail.
pub(super) const RECOVERY: Duration = Duration::from_secs(5);

/// This many trips are enough for a call that must first find its server and connect, behind calls
/// of other threads. They must fit into the call's time, and into `connect_timeout`.
const ENOUGH: u32 = 60;

/// The connections of a client to a server besides its pool: for durable jobs and for others, for
/// wake-ups, the successor of each, and one to find out whether the server uses TLS.
const BESIDE_THE_POOL: usize = 7;

/// A request that a server has executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution {
    pub(super) kind: Kind,
    pub(super) reply: i64,
}

/// The executed requests, by the owners of the holds.
#[derive(Default)]
pub(super) struct Ledger {
    executions: BTreeMap<String, Vec<Execution>>,
    /// The requests that must not be executed any more.
    not_sent: BTreeSet<(String, Kind)>,
    /// How many requests without a reply may still be executed.
    doubtful: BTreeMap<(String, Kind), usize>,
}

/// A request about one hold.
pub(super) struct Call {
    process: Process,
    kind: Kind,
    owner: String,
    begun: Duration,
    time: Duration,
    /// How many such requests were executed before.
    before: usize,
    /// Whether a connection of the client was dead, without any sign of it.
    has_dead_connection: bool,
    /// No thread waits for the reply, and the request is not repeated at another node.
    is_posted: bool,
}

/// Records what a server has executed.
pub(super) fn record(world: &mut World, owner: &str, execution: Execution) {
    world.tally.executed += 1;
    if world.ledger.not_sent.contains(&(owner.to_owned(), execution.kind)) {
        world.break_promise(format!(
            "{:?} of {owner} is executed, but its caller was told that it was not sent",
            execution.kind
        ));
    }
    let is_repeated = world.ledger.of(owner, execution.kind).next().is_some();
    if is_repeated && execution.kind.is_asked_for_once() {
        world.break_promise(format!("{:?} of {owner} is executed twice", execution.kind));
    }
    world.ledger.executions.entry(owner.into()).or_default().push(execution);
}

impl Ledger {
    fn of(&self, owner: &str, kind: Kind) -> impl Iterator<Item = Execution> {
        let all = self.executions.get(owner).map(Vec::as_slice).unwrap_or_default();
        all.iter().copied().filter(move |execution| execution.kind == kind)
    }
}

impl Call {
    /// Records the beginning of a call with this much time.
    pub(super) fn begin(process: Process, kind: Kind, hold: &HoldId, time: Duration) -> Self {
        let owner = hold.owner();
        with(|world| {
            world.tally.calls += 1;
            world.say(|| format!("p{process} begins {kind:?} of {owner} within {time:?}"));
            let before = world.ledger.of(&owner, kind).count();
            let mut links = world.links.values().filter(|link| link.process == process);
            let has_dead_connection = links.any(|link| link.is_silent && link.socket.is_some());
            Self {
                process,
                kind,
                owner,
                begun: now(),
                time,
                before,
                has_dead_connection,
                is_posted: false,
            }
        })
    }

    pub(super) fn end_acquire(&self, reply: &Result<AcquireReply, Failure>) {
        self.end(match reply {
            Ok(AcquireReply::Acquired { fence, .. }) => Ok(i64::try_from(*fence).unwrap_or(-1)),
            Ok(AcquireReply::Held { .. }) => Ok(0),
            Err(failure) => Err(failure),
        });
    }

    pub(super) fn end_change(&self, reply: &Result<HoldReply, Failure>) {
        self.end(match reply {
            Ok(HoldReply::Gone) => Ok(0),
            Ok(HoldReply::Done | HoldReply::Wanted) => Ok(1),
            Err(failure) => Err(failure),
        });
    }

    /// The same for a posted request.
    pub(super) fn posted(self) -> Self {
        Self { is_posted: true, ..self }
    }

    /// Records that the store did not send it.
    pub(super) fn end_unsent(&self) {
        with(|world| {
            world.say(|| format!("p{} does not send it: {}", self.process, self.owner));
            if world.ledger.of(&self.owner, self.kind).next().is_some() {
                world.break_promise(format!("{} was sent", self.owner));
            }
            world.ledger.not_sent.insert((self.owner.clone(), self.kind));
        });
    }

    /// Records the end of a call, with a server's reply or a failure.
    fn end(&self, reply: Result<i64, &Failure>) {
        let Self { process, kind, owner, begun, time, before, .. } = self;
        with(|world| {
            let shown = reply.map_err(|failure| (failure.kind, failure.source.to_string()));
            world.say(|| format!("p{process} ends {kind:?} of {owner}: {shown:?}"));
            let executed: Vec<_> = world.ledger.of(owner, *kind).skip(*before).collect();
            let what = format!("{kind:?} of {owner} by p{process}");
            let took = now().saturating_sub(*begun);
            if took > *time + world.slack {
                world.break_promise(format!("{what} took {took:?}, and had {time:?}"));
            }
            let request = (owner.clone(), *kind);
            let doubtful = world.ledger.doubtful.get(&request).copied().unwrap_or(0);
            if executed.len() > 1 + doubtful {
                world.break_promise(format!("{what} was executed twice: {executed:?}"));
            }
            match reply {
                Ok(reply) => {
                    world.tally.replied += 1;
                    if executed.iter().all(|execution| execution.reply != reply) {
                        world.break_promise(format!("{what} has got {reply}: {executed:?}"));
                    }
                }
                Err(failure) => {
                    world.tally.failed += 1;
                    let is_executed = !executed.is_empty();
                    let is_wrong = match failure.kind {
                        FailureKind::NotReplicated { .. } => !is_executed,
                        _ => executed.len() > doubtful && !failure.is_ambiguous(),
                    };
                    if is_wrong {
                        world.break_promise(format!("{what} {shown:?}, but: {executed:?}"));
                    }
                    if failure.is_ambiguous() {
                        *world.ledger.doubtful.entry(request).or_default() += 1;
                    } else if !failure.is_in_doubt() && kind.is_asked_for_once() {
                        world.ledger.not_sent.insert(request);
                    }
                    let enough = (world.weather.latency + world.weather.jitter) * ENOUGH;
                    let is_unopened = failure.kind == FailureKind::Unreachable;
                    let is_excused = self.has_dead_connection
                        || failure.is_redirection() && self.is_posted
                        || *time <= enough
                        || is_unopened && world.connect_timeout <= enough;
                    if !is_excused {
                        world.check_failure(*begun, failure, &what);
                    }
                }
            }
        });
    }
}

impl Kind {
    /// Returns `true` if no two calls make this request for one hold.
    fn is_asked_for_once(self) -> bool {
        matches!(self, Self::Acquire | Self::Release)
    }
}

impl World {
    /// Checks a failed call that began then.
    fn check_failure(&mut self, begun: Duration, failure: &Failure, what: &str) {
        // A replica may be late even in a calm world, and some keys of a name may already have
        // moved.
        if failure.is_shortfall() || failure.code == "TRYAGAIN" {
            return;
        }
        if self.is_calm {
            self.break_promise(format!("{what} has failed in a calm world: {failure:?}"));
        } else if self.healed.is_some_and(|healed| begun > healed + RECOVERY) {
            self.break_promise(format!("{what} has failed after all faults: {failure:?}"));
        }
    }
}

/// Records that a client has opened a connection.
pub(super) fn check_connections(world: &mut World, process: Process, server: usize) {
    let of_client =
        |link: &&Link| link.process == process && link.server == server && link.socket.is_some();
    let count = world.links.values().filter(of_client).count();
    let most = match world.servers[server].role {
        Role::Sentinel(_) => 2,
        Role::Master | Role::Replica => world.pool_size + BESIDE_THE_POOL,
    };
    if count > most {
        world.break_promise(format!("p{process} has {count} connections to server {server}"));
    }
}

/// Checks the pools of a client that no thread uses any more.
pub(super) fn check_pools(process: Process, (connections, idle): (u64, u64), masters: usize) {
    with(|world| {
        if connections != idle {
            let used = connections - idle;
            world.break_promise(format!("p{process} has lost {used} of {connections} connections"));
        }
        if connections > (world.pool_size * masters) as u64 {
            world.break_promise(format!("p{process} has {connections} connections in pools"));
        }
    });
}
