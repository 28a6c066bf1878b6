//! Background jobs in a cluster: each is sent to the node that serves the slot of its lock, and
//! follows redirections.

use std::sync::Arc;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::net::connection::Connection;
use crate::net::request::Request;
use crate::store::background::connection::Node;
use crate::store::background::jobs::{Decision, JobPolicy};
use crate::store::background::{Job, JobReply};
use crate::store::cluster::node::Target;
use crate::store::cluster::slots::slot_of;
use crate::store::cluster::topology::{REDIRECTIONS_MAX, Topology, uncovered};
use crate::store::keys::Keys;
use crate::store::request::HoldReply;

impl Node for Target {
    fn label(&self) -> Arc<str> {
        self.node.label().clone()
    }

    fn is(&self, other: &Self) -> bool {
        self == other
    }

    fn connect(
        &self,
        previous: Option<Connection>,
        deadline: Instant,
    ) -> Result<Connection, Failure> {
        self.store().server().connect(previous, deadline)
    }

    fn addressed(&self, request: Request) -> Request {
        self.store().server().addressed(request)
    }
}

/// Each job to the node that serves its slot.
#[derive(Debug)]
pub(super) struct JobsBySlot {
    topology: Arc<Topology>,
    keys: Keys,
}

/// A job on its way to the right node.
#[derive(Debug)]
pub(super) struct RoutedJob {
    slot: usize,
    redirections: u32,
}

impl JobsBySlot {
    pub(super) fn new(topology: Arc<Topology>, keys: Keys) -> Self {
        Self { topology, keys }
    }
}

impl JobPolicy for JobsBySlot {
    type Node = Target;
    type Progress = RoutedJob;

    fn route(&mut self, job: &Job) -> Result<(Vec<Target>, RoutedJob), Failure> {
        let slot = slot_of(&self.keys.lock(&job.hold.name));
        let Some(owner) = self.topology.owner(slot) else {
            self.topology.learn();
            return Err(uncovered());
        };
        Ok((vec![Target::of(owner)], RoutedJob { slot, redirections: 0 }))
    }

    fn decide(
        &mut self,
        _: &Job,
        progress: &mut RoutedJob,
        from: &Target,
        reply: Result<HoldReply, Failure>,
    ) -> Decision<Target> {
        match &reply {
            Ok(_) => from.node.trust(),
            Err(failure) => {
                let target = self.topology.redirected(failure, progress.slot, &from.node);
                if let Some(target) = target.filter(|_| progress.redirections < REDIRECTIONS_MAX) {
                    progress.redirections += 1;
                    return Decision::SendTo(target);
                }
                self.topology.note_failure(failure, &from.node);
            }
        }
        Decision::Done(reply.map(JobReply::from))
    }

    fn keeps(&self, target: &Target) -> bool {
        self.topology.is_in_use(target)
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
    use crate::config::Config;
    use crate::net::endpoint::Endpoint;
    use crate::net::server::ServerFactory;
    use crate::store::background::JobRunner;
    use crate::store::background::jobs::BackgroundJobs;
    use crate::store::commands::Commands;
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
        // With a login, to connect is to wait for a reply.
        delays_no_other(&format!("redis://:sesame@127.0.0.1:{port}/"));
    }

    #[test]
    fn a_node_whose_name_is_not_found_delays_no_other() {
        delays_no_other("redis://dead.example/");
    }

    /// A cluster of two nodes, of which the second is at an address where connecting takes ages.
    fn delays_no_other(silent: &str) {
        let server = Server::redis();
        let urls = [&server.url(), silent];
        let config = Config { connect_timeout: AGES, ..Config::default() };
        let seed = |url: &&str| Endpoint::parse(url, &config).expect("a good URL");
        let seeds = urls.iter().map(seed).collect();
        let servers = ServerFactory::new(&config).expect("a thread").looking_up(|_| {
            thread::sleep(AGES);
            Err(io::ErrorKind::TimedOut.into())
        });
        let topology = Topology::new(seeds, &config, &servers);
        topology.place(slot_of("good"), 0);
        topology.place(slot_of("silent"), 1);

        let mut runner = BackgroundJobs::new(
            JobsBySlot::new(Arc::new(topology), Keys::new("")),
            Commands::new(&config),
            None,
            AGES,
        );
        let mut outcomes = Vec::new();
        let jobs = vec![job(1, "silent", AGES), job(2, "good", AGES), job(3, "silent", SOON)];
        let start = Instant::now();
        runner.send(jobs, &mut |id, outcome| outcomes.push((id, outcome)));
        while outcomes.is_empty() {
            runner.collect(end_of(SOON / 5), &mut |id, outcome| outcomes.push((id, outcome)));
            assert!(start.elapsed() < SOON, "no outcome of the good node's job");
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
}
