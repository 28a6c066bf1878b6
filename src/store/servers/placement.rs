//! Finds the node that has a name, for calls and for background work, and handles requests that
//! were sent to the wrong node.
//!
//! A message reaches every node of a cluster, but `wake.lua` considers a client dead unless it
//! listens to the node where the script runs. So a client listens to all masters. If the servers
//! have sharded channels, whose messages stay on one node, it listens twice: on its own channel,
//! and on a sharded one in the lowest slot of each master.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::{Failure, FailureKind};
use crate::net::error_reply::ErrorReply;
use crate::net::in_flight::Exchange;
use crate::store::background::{Decision, Job, JobPolicy, JobReply, Wake, WakeupPolicy};
use crate::store::commands::{Commands, Scope};
use crate::store::request::HoldReply;
use crate::store::servers::node::{Node, Target, is_known, uncovered};
use crate::store::servers::topology::Topology;

/// If a request is redirected more often than this, the nodes disagree at the moment.
const REDIRECTIONS_MAX: u32 = 5;

/// Pause after listening to a node of a cluster has failed. If there is only one node, the caller
/// decides when to try again.
const PAUSE: Duration = Duration::from_secs(1);

/// The location of names.
#[derive(Clone)]
pub(super) enum Placement {
    /// All on one server, as if they were in one slot. It redirects nothing.
    One(Target),
    /// Each name on the cluster node that serves its hash slot.
    Slots(Arc<Topology>),
}

/// The progress of a request.
#[derive(Clone, Copy)]
pub(super) struct Progress {
    redirections: u32,
    scope: Scope,
}

impl Default for Progress {
    fn default() -> Self {
        Self { redirections: 0, scope: Scope::All }
    }
}

/// A redirection: the node to send the request to instead.
#[derive(Debug, PartialEq, Eq)]
struct Redirect<'a> {
    /// Whether it is for this request only, because the slot is moving. Otherwise the slot has
    /// moved for good.
    asking: bool,
    /// `None` stands for the host that has redirected the request.
    host: Option<&'a str>,
    port: u16,
}

impl<'a> Redirect<'a> {
    /// Parses `MOVED 3999 127.0.0.1:6381` or ASK; `None` for every other failure.
    fn of(failure: &'a Failure) -> Option<Self> {
        if !matches!(&*failure.code, "ASK" | "MOVED") {
            return None;
        }
        let reply = failure.source.downcast_ref::<ErrorReply>()?;
        let (_slot, address) = reply.details.split_once(' ')?;
        // An IPv6 address has no brackets here.
        let (host, port) = address.rsplit_once(':')?;
        Some(Self {
            asking: failure.code == "ASK",
            host: Some(host).filter(|host| is_known(host)),
            port: port.parse().ok()?,
        })
    }
}

impl Placement {
    pub(super) fn slot(&self, name: &str) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Slots(topology) => topology.slot(name),
        }
    }

    /// Returns the node that is known to have a name.
    pub(super) fn known(&self, name: &str) -> Option<Target> {
        match self {
            Self::One(target) => Some(target.clone()),
            Self::Slots(topology) => topology.owner(topology.slot(name)),
        }
    }

    /// Returns the nodes that are known to have names.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        match self {
            Self::One(target) => vec![target.node.clone()],
            Self::Slots(topology) => topology.masters(),
        }
    }

    /// Sends a request to a node that may have a name, and follows redirections. `narrowest` is the
    /// narrowest scope that the request can have.
    pub(super) fn follow<T>(
        &self,
        name: &str,
        mut target: Target,
        narrowest: Scope,
        mut ask: impl FnMut(&Target, Scope) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut progress = Progress::default();
        loop {
            let reply = ask(&target, progress.scope);
            match self.next(name, narrowest, &mut progress, &reply, &target) {
                Some(next) => target = next,
                None => return reply.map_err(|failure| self.classify(failure)),
            }
        }
    }

    /// Handles the reply of a node to a request about a name. Returns where to send the request
    /// again after a redirection, or in a narrower scope.
    pub(super) fn next<T>(
        &self,
        name: &str,
        narrowest: Scope,
        progress: &mut Progress,
        reply: &Result<T, Failure>,
        from: &Target,
    ) -> Option<Target> {
        let Self::Slots(topology) = self else { return None };
        let Err(failure) = reply else {
            // Any other reply shows that the node serves the slot.
            from.node.trust();
            return None;
        };
        // Counts every failure, so that nodes that contradict each other cannot keep a call busy.
        progress.redirections += 1;
        // While a slot moves, some keys of a name may be at one node and some at the other.
        if failure.code == "TRYAGAIN" && progress.scope != narrowest {
            progress.scope = narrowest;
            // A node to which the slot is still moving may have none of the keys yet.
            return topology.owner(topology.slot(name));
        }
        let mut next = Redirect::of(failure).and_then(|Redirect { asking, host, port }| {
            let host = host.or(from.node.server.factory.endpoint.host())?;
            Some(topology.redirected(asking, host, port, topology.slot(name)))
        });
        if progress.redirections > REDIRECTIONS_MAX {
            // The nodes redirect to each other. The next call begins with the nodes that they have
            // named.
            next = None;
        }
        if next.is_none() {
            topology.note_failure(failure, &from.node);
        }
        next
    }

    /// Returns the failure for the caller: transient if the cluster is likely to recover soon.
    pub(super) fn classify(&self, failure: Failure) -> Failure {
        let Self::Slots(topology) = self else { return failure };
        let passes = match failure.kind {
            // The nodes disagree at the moment.
            FailureKind::Rejected => matches!(failure.code.as_str(), "ASK" | "MOVED"),
            // A replica may take over soon, unless all nodes are unreachable. A mismatch in TLS
            // remains a failure, because the replica would be reached with the same settings.
            FailureKind::Foreign | FailureKind::Unreachable => !topology.is_unreachable(),
            _ => false,
        };
        if passes { Failure { kind: FailureKind::Transient, ..failure } } else { failure }
    }
}

/// Sends each job to the node that has its name.
impl JobPolicy for Placement {
    type Peer = Target;
    type Progress = Progress;

    fn route(&mut self, name: &str) -> Result<(Vec<Target>, Progress), Failure> {
        if let Some(target) = self.known(name) {
            return Ok((vec![target], Progress::default()));
        }
        if let Self::Slots(topology) = self {
            // Not awaited, because the renewer has jobs for other nodes.
            topology.learn();
        }
        Err(uncovered())
    }

    fn commands<'a>(&self, target: &'a Target) -> Option<&'a Commands> {
        Some(&target.node.commands)
    }

    fn post_over_pool(
        &self,
        target: &Target,
        posted: Vec<Exchange>,
        deadline: Instant,
    ) -> Vec<Exchange> {
        target.node.server.post_if_open(posted, deadline)
    }

    fn decide(
        &mut self,
        job: &Job,
        progress: &mut Progress,
        from: &Target,
        reply: Result<HoldReply, Failure>,
    ) -> Decision<Target> {
        let narrowest = Scope::narrowest(job.change);
        match self.next(&job.hold.name, narrowest, progress, &reply, from) {
            Some(next) => Decision::SendTo(next, progress.scope),
            None => Decision::Done(reply.map(JobReply::from)),
        }
    }

    fn keeps(&self, target: &Target) -> bool {
        match self {
            Self::One(_) => true,
            Self::Slots(topology) => topology.is_in_use(target),
        }
    }
}

/// The messages of one server, or of every master.
impl WakeupPolicy for Placement {
    type Peer = Target;

    fn pause(&self) -> Duration {
        if let Self::One(_) = self { Duration::ZERO } else { PAUSE }
    }

    fn peers(&self) -> Vec<Target> {
        self.masters().into_iter().map(Target::of).collect()
    }

    fn is_home(&self, target: &Target, name: &str) -> bool {
        self.known(name).is_none_or(|known| known == *target)
    }

    fn shard_tag(&self, target: &Target) -> Arc<str> {
        target.node.commands.shard_tag()
    }

    /// Every node passes a message on, but it counts only from the node that serves the slot of its
    /// lock.
    fn receive(&mut self, from: &Target, wake: Wake) -> Option<Wake> {
        let (Wake::Echo(name) | Wake::Lock(name)) = &wake else { return Some(wake) };
        if self.is_home(from, name) { Some(wake) } else { None }
    }

    fn fail(&mut self, target: &Target, failure: &Failure) {
        let Self::Slots(topology) = self else { return };
        if failure.code == "MOVED" {
            // It is about a channel of Redisson's, which is on the node of its lock.
            topology.learn();
        }
        topology.note_failure(failure, &target.node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use crate::base::clock::end_of;
    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::net::error_reply;
    use crate::net::server::ServerFactory;
    use crate::store::background::jobs::BackgroundJobs;
    use crate::store::background::{BackgroundSettings, JobRunner};
    use crate::store::hold_id::{HoldId, HoldKind};
    use crate::store::request::Change;
    use crate::store::tests::process::Server;

    const AGES: Duration = Duration::from_secs(60);
    const SOON: Duration = Duration::from_secs(5);

    fn job(id: u64, name: &str, time: Duration) -> Job {
        let hold = HoldId {
            kind: HoldKind::Lock,
            name: Arc::from(name),
            client: Arc::from("me"),
            nonce: id,
        };
        Job { id, hold, change: Change::RELEASE, deadline: end_of(time) }
    }

    #[test]
    fn a_node_that_hangs_in_the_login_delays_no_other() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        // With a login, connecting means waiting for a reply.
        delays_no_other(&format!("redis://:sesame@127.0.0.1:{port}/"));
    }

    #[test]
    fn a_node_whose_name_is_not_found_delays_no_other() {
        delays_no_other("redis://dead.example/");
    }

    /// A cluster of two nodes. Connecting to the second one's address takes very long.
    fn delays_no_other(silent: &str) {
        let server = Server::redis();
        let urls = [&server.url(), silent];
        let config = Config { connect_timeout: AGES, ..Config::default() };
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let servers = servers.looking_up(|_| {
            thread::sleep(AGES);
            Err(io::ErrorKind::TimedOut.into())
        });
        let seeds = servers.endpoints("seeds", urls).expect("good URLs");
        let topology = Topology::new(seeds, &servers);
        topology.place(topology.slot("good"), 0);
        topology.place(topology.slot("silent"), 1);

        let settings = BackgroundSettings {
            io_timeout: AGES,
            ..BackgroundSettings::new(&Commands::new(&config), &servers)
        };
        let policy = Placement::Slots(Arc::new(topology));
        let mut runner = BackgroundJobs::new(policy, settings);
        let mut outcomes = Vec::new();
        let jobs = vec![job(1, "silent", AGES), job(2, "good", AGES), job(3, "silent", SOON)];
        let start = Instant::now();
        runner.send(jobs, &mut |id, outcome| outcomes.push((id, outcome)));
        while outcomes.is_empty() {
            runner.collect(end_of(SOON / 5), &mut |id, outcome| outcomes.push((id, outcome)));
            assert!(start.elapsed() < SOON, "the good node's job has no outcome");
        }
        assert!(
            matches!(outcomes[..], [(2, Ok(JobReply { hold: HoldReply::Gone, .. }))]),
            "{outcomes:?}"
        );

        runner.collect(start + SOON * 3 / 2, &mut |id, outcome| outcomes.push((id, outcome)));
        assert!(
            matches!(outcomes[1..], [(3, Err(_))]),
            "it has a deadline of its own: {outcomes:?}"
        );
        runner.abandon();
        runner.collect(start + AGES, &mut |id, outcome| outcomes.push((id, outcome)));
        assert!(outcomes.len() == 2 && start.elapsed() < AGES, "no job is left: {outcomes:?}");
    }

    /// A cluster with one known node, at whose address no program listens.
    fn cluster_of(seed: &str) -> (Placement, Arc<Topology>, Target) {
        let config = Config { connect_timeout: SOON, ..Config::default() };
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let seeds = servers.endpoints("seeds", [seed]).expect("a good URL");
        let topology = Arc::new(Topology::new(seeds, &servers));
        topology.place(topology.slot("a"), 0);
        let target = topology.owner(topology.slot("a")).expect("a node");
        (Placement::Slots(topology.clone()), topology, target)
    }

    #[test]
    fn a_reply_of_a_doubted_node_ends_the_doubt() {
        let (placement, _, target) = cluster_of("redis://127.0.0.1:1");
        target.node.doubt();
        let reply = Ok(HoldReply::Done);
        let next = placement.next("a", Scope::All, &mut Progress::default(), &reply, &target);
        assert!(next.is_none() && !target.node.is_doubted());
    }

    #[test]
    fn a_redirection_without_a_host_leads_to_another_port_of_the_same_one() {
        let (placement, _, target) = cluster_of("redis://127.0.0.1:1");
        let reply: Result<HoldReply, _> = Err(failure("MOVED 1 :2"));
        let next = placement.next("a", Scope::All, &mut Progress::default(), &reply, &target);
        assert_eq!(&**next.expect("another node").node.label(), "127.0.0.1:2");
    }

    #[test]
    fn an_outage_of_one_node_passes_and_one_of_all_nodes_does_not() {
        let (placement, topology, target) = cluster_of("redis://127.0.0.1:1");
        let away = || {
            let error = io::Error::other("no program listens");
            Failure::io(FailureKind::Unreachable, target.node.label(), error)
        };
        assert_eq!(placement.classify(away()).kind, FailureKind::Transient);
        topology.explore().expect_err("no node answers");
        assert_eq!(placement.classify(away()).kind, FailureKind::Unreachable);
    }

    fn failure(reply: &str) -> Failure {
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).expect("a reply");
        let redis::Value::ServerError(error) = reply else { panic!("an error reply") };
        error_reply::failure(&error, &Arc::from("here"))
    }

    #[test]
    fn redirections_are_read() {
        for (reply, asking, host, port) in [
            ("MOVED 3999 10.0.0.1:6381", false, Some("10.0.0.1"), 6381),
            ("ASK 3999 node-2.example:7", true, Some("node-2.example"), 7),
            ("MOVED 1 fe80::1:7000", false, Some("fe80::1"), 7000),
            ("MOVED 1 :7000", false, None, 7000),
            ("MOVED 1 ?:7000", false, None, 7000),
        ] {
            let failure = failure(reply);
            assert_eq!(Redirect::of(&failure), Some(Redirect { asking, host, port }), "{reply}");
        }
    }

    #[test]
    fn other_replies_are_no_redirections() {
        for reply in ["MOVED", "MOVED 1", "MOVED 1 host", "MOVED 1 host:x", "ERR 1 host:7"] {
            let failure = failure(reply);
            assert_eq!(Redirect::of(&failure), None, "{reply}");
        }
    }
}
