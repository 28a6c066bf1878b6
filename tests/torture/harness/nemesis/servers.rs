//! Faults of the server that has the locks, of the sentinels, and of the network.

use std::thread;
use std::time::Duration;

use super::{Fault, failover};
use crate::harness::check::Loss;
use crate::harness::history::{Span, now};
use crate::harness::locks::Locks;
use crate::harness::proxy::Proxy;
use crate::harness::random::Random;

/// Causes a fault and returns the possible loss.
pub(super) fn disturb(
    lease: Duration,
    locks: &Locks,
    fault: Fault,
    random: &mut Random,
) -> Option<Loss> {
    match (fault, locks) {
        (fault, Locks::Independent { proxies, .. }) if fault.is_of_network() => {
            worsen(lease, random.one_of(proxies), fault, random);
            None
        }
        (_, Locks::Sentinel(watched)) if fault.is_failover() => {
            Some(failover::disturb(lease, watched, fault, random))
        }
        _ => disturb_one(lease, locks, fault, random),
    }
}

fn worsen(lease: Duration, proxy: &Proxy, fault: Fault, random: &mut Random) {
    let set = match fault {
        Fault::DelayMessages => Proxy::delay,
        Fault::DropMessages => Proxy::lose_messages,
        Fault::NarrowLink => Proxy::narrow,
        _ => Proxy::lose_replies,
    };
    set(proxy, true);
    thread::sleep(random.tenths(lease, (3, 20)));
    set(proxy, false);
}

/// Causes a fault of one server. A master remains the master, because sentinels wait for longer.
fn disturb_one(lease: Duration, locks: &Locks, fault: Fault, random: &mut Random) -> Option<Loss> {
    let (server, start) = (random.one_of(locks.servers()), now());
    match fault {
        Fault::CloseClients => {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        Fault::PauseServer => {
            server.stop();
            thread::sleep(random.tenths(lease, (1, 15)));
            server.cont();
        }
        Fault::RestartServer => server.restart(),
        Fault::WipeServer => {
            // From here on, everything acknowledged is kept again, including the loss of
            // everything.
            server.command(&["FLUSHALL"]);
            server.restart();
            return Some(Loss { span: Span { start, end: now() }, everything: true });
        }
        _ => unreachable!("{fault} does not happen here: the options are checked"),
    }
    None
}
