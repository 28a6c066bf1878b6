//! Faults that end with another server as the master.

use std::thread;
use std::time::Duration;

use super::Fault;
use crate::harness::check::Loss;
use crate::harness::history::{Span, nanos, now};
use crate::harness::random::Random;
use crate::harness::sentinel::Watched;
use crate::harness::server::Server;

/// The silence after which sentinels replace a master that should be replaced.
const NERVOUS: Duration = Duration::from_millis(500);

/// How long a client may begin requests at an old master after all sentinels know the new one: the
/// answer of a sentinel is used for half a second, and for two more while no sentinel answers.
const LINGER: Duration = Duration::from_millis(2500);

/// Returns the possible loss. Nothing from before is lost, because both replicas had it.
pub(super) fn disturb(
    lease: Duration,
    watched: &Watched,
    fault: Fault,
    random: &mut Random,
) -> Loss {
    let (old, start) = (watched.master(), now());
    watched.wait_until_replicated();
    // A sentinel that does not know the new master yet would turn it into a replica.
    watched.tell_servers(false);
    take_away(lease, watched, fault, random);
    // A request in flight may take a third of a lease.
    let left = LINGER + lease / 3;
    let end = now() + nanos(left);
    if fault == Fault::TwoMasters {
        // Two holders are excused for one more lease. From then on there must be only one.
        thread::sleep(left + lease + random.tenths(lease, (10, 30)));
    } else {
        bring_back(lease, old, fault, random);
    }
    watched.tell_servers(true);
    watched.wait_until_settled();
    // By now the old master refuses everything.
    Loss { span: Span { start, end: end.min(now()) }, everything: false }
}

/// Resumes the old master, which believes that it is the master until a sentinel tells it
/// otherwise.
fn bring_back(lease: Duration, old: &Server, fault: Fault, random: &mut Random) {
    thread::sleep(random.tenths(lease, (0, 10)));
    match fault {
        Fault::CutReplicas | Fault::KillMaster => old.restart(),
        Fault::StopMaster => old.cont(),
        _ => {}
    }
}

/// Returns once all sentinels have another master.
fn take_away(lease: Duration, watched: &Watched, fault: Fault, random: &mut Random) {
    let old = watched.master();
    match fault {
        Fault::CutReplicas => {
            watched.replicas().for_each(Server::stop);
            // Without a connection, they find nothing to read when they continue.
            old.command(&["CLIENT", "KILL", "TYPE", "replica"]);
            thread::sleep(random.tenths(lease, (1, 10)));
            old.kill();
            watched.replicas().for_each(Server::cont);
            elect_another(watched, old);
        }
        Fault::FailOver | Fault::TwoMasters => {
            watched.fail_over();
        }
        Fault::KillMaster => {
            old.kill();
            elect_another(watched, old);
        }
        Fault::StopMaster => {
            old.stop();
            elect_another(watched, old);
        }
        _ => unreachable!("{fault} is not a failover"),
    }
}

/// Makes the sentinels replace a master that is gone.
fn elect_another(watched: &Watched, old: &Server) {
    watched.set_down_after(NERVOUS);
    watched.wait_for_another(old.port());
    watched.set_down_after(Watched::CALM);
}
