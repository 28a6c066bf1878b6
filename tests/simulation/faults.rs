//! The faults of a world, and how they end.

use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sync::executor::{self, Choice, Process, Random};
use crate::simulation::flaws::{Flaw, flawed};
use crate::simulation::judge::check_server;
use crate::simulation::network::{Weather, Wire, deliver};
use crate::simulation::server::{self, Refusal, Server};
use crate::simulation::world::{
    DIRECTOR, LONGEST, broken, process_of, say, say_what_changed, with,
};
use crate::store::memory::memory_server::MemoryServer;

/// A fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A client is stopped for a while, all its threads at once.
    Stop,
    /// A client cannot reach the server for a while: one of several, or all of them.
    CutOff,
    /// A client can never reach the server again, so others take it for dead.
    Die,
    /// A client no longer receives messages, until it listens again.
    ListenerLost,
    /// No message reaches a client for a while, and it notices that after some time.
    Deaf,
    /// A client is closed.
    Close,
    /// A client is shut down.
    ShutDown,
    /// The server is stopped for a while.
    ServerStops,
    /// The server ends, and comes back with its data.
    ServerRestarts,
    /// The server comes back without its data.
    ServerIsEmpty,
    /// The server comes back with data from a while ago.
    ServerIsOlder,
    /// An operator ends the hold of a name.
    HoldEnded,
    /// The server refuses writes for a while.
    WritesRefused,
    /// The server's clock is set forwards, or back.
    ClockIsSet,
    /// The server is lost, and its replica takes its place.
    FailsOver,
    /// The replica no longer follows the server for a while.
    ReplicaIsCutOff,
}

/// A fault of a client, with its duration, or of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accident {
    pub(super) fault: Fault,
    pub(super) client: Process,
    pub(super) time: Duration,
    pub(super) name: usize,
    pub(super) server: usize,
}

/// How soon a waiting client notices that it receives no messages.
const NOTICED_AFTER: Duration = Duration::from_secs(6);

/// The time from the last fault until everything is healed.
pub(super) const HEALED_AFTER: Duration = Duration::from_secs(3);

pub(super) fn happen(accident: Accident, random: &mut Random) {
    let Accident { fault, client, time, name, server } = accident;
    say(DIRECTOR, || format!("FAULT: {fault:?}, client {client}, server {server}, {time:?}"));
    let now = clock::now();
    note(accident, now);
    match fault {
        Fault::Stop => {
            let before = executor::paused_until(client);
            let start = before.or(executor::now()).unwrap_or_default();
            executor::pause(client, time);
            let end = executor::paused_until(client).unwrap_or_default();
            with(|world| {
                let state = &mut world.clients[client - 1];
                state.stopped += end.saturating_sub(start);
                state.stops.push(now..now + time);
            });
        }
        Fault::CutOff => with(|world| {
            let is_partial = world.network.is_quorum() && random.permille(500);
            let servers = 0..world.network.servers.len();
            for server in servers.filter(|it| !is_partial || *it == server) {
                world.network.links[client - 1].cut_off(server, now + time);
            }
        }),
        Fault::Die => with(|world| {
            world.clients[client - 1].is_dead = true;
            for server in 0..world.network.servers.len() {
                world.network.links[client - 1].cut_off(server, now + LONGEST);
            }
        }),
        Fault::ListenerLost => with(|world| {
            world.network.links[client - 1].break_subscription(server);
        }),
        Fault::Deaf => deafen(accident, now),
        Fault::Close | Fault::ShutDown => end_client(accident, now),
        Fault::ServerStops => executor::pause(process_of(server), time),
        Fault::ServerRestarts => with(|world| {
            let same = world.network.servers[server].memory.copy();
            world.network.restart(server, same, time);
        }),
        Fault::ServerIsEmpty => empty(server, time, random),
        Fault::ServerIsOlder => with(|world| {
            world.change_server(server, false, |network| {
                let older = network.servers[server].older.take().unwrap_or_default().copy();
                network.restart(server, older, time);
            });
        }),
        Fault::HoldEnded => {
            with(|world| {
                world.names[name].was_forced = true;
                let (name, before) = (world.names[name].name.clone(), world.excuses.len());
                world.change_server(server, false, |network| {
                    let server = &network.servers[server];
                    // A server that is down does not ask a client for a kept lock.
                    server.memory.set_down(true);
                    server.at_its_time(|memory| memory.end_hold(&name));
                    server.memory.set_down(false);
                });
                world.expect_told(before..world.excuses.len(), server, now);
            });
            deliver(server);
        }
        Fault::WritesRefused => server::refuse(server, random.pick(&Refusal::ALL), time),
        Fault::ClockIsSet => {
            let forwards = random.permille(500);
            with(|world| {
                world.change_server(server, false, |network| {
                    network.servers[server].clock.jump(time, forwards);
                });
            });
        }
        Fault::FailsOver => fail_over(accident, random),
        Fault::ReplicaIsCutOff => cut_off_replica(server, time),
    }
    say_what_changed(server);
    let_listeners_notice();
}

/// Closes a client, or shuts it down.
fn end_client(Accident { fault, client: process, time, .. }: Accident, now: Instant) {
    let client = with(|world| {
        world.clients[process - 1].closed.get_or_insert(now);
        if let Fault::ShutDown = fault {
            world.clients[process - 1].shut_down.get_or_insert(now);
            world.forget_watches(process);
            world.end_adopted(process);
            world.end_taken(process);
        }
        world.clients[process - 1].client.clone().expect("it is open")
    });
    executor::spawn(Some(process), move || {
        if let Fault::Close = fault {
            return client.close();
        }
        let begun = with(|world| world.begin_shutdown(process));
        let result = client.shutdown(time);
        say(process, || format!("shut down: {result:?}"));
        if let Err(why) = with(|world| world.check_shutdown(&begun, time, &result)) {
            broken(&format!("a shutdown of client {process}: {why}"));
        }
    });
}

/// A client notices when its connection for messages is closed.
fn let_listeners_notice() {
    for client in 1..=with(|world| world.clients.len()) {
        executor::after(client, Duration::ZERO, || ());
    }
}

/// Records which clients a fault disturbs.
fn note(Accident { fault, client, time, .. }: Accident, now: Instant) {
    with(|world| match fault {
        Fault::HoldEnded => {}
        Fault::Stop | Fault::CutOff | Fault::Die | Fault::ListenerLost | Fault::Deaf => {
            world.disturb(client, now + time);
            let before = world.only_faulty.replace(client);
            world.is_mild &= before.is_none_or(|before| before == client);
        }
        _ => {
            world.disturb_all(now + time);
            world.is_mild = false;
        }
    });
}

fn deafen(Accident { client, time, server, .. }: Accident, now: Instant) {
    with(|world| world.network.links[client - 1].wires[server].deaf_until = now + time);
    executor::after(client, (time / 2).min(NOTICED_AFTER), move || {
        with(|world| world.network.links[client - 1].break_subscription(server));
    });
}

/// Stops a client within a few round trips.
pub(super) fn stop_soon(client: Process, random: &mut Random) {
    let (soon, time) =
        with(|world| (random.time(world.network.latency * 6), random.time(world.lease * 2)));
    let accident = Accident { fault: Fault::Stop, client, time, name: 0, server: 0 };
    executor::spawn(Some(DIRECTOR), move || {
        executor::sleep(soon);
        if !with(|world| world.is_healed) {
            happen(accident, &mut Random::default());
        }
    });
}

/// Brings a server back without its data.
fn empty(server: usize, time: Duration, random: &mut Random) {
    with(|world| {
        // In a quorum, it does no harm if it stays away until every lease has ended, unless
        // everything is healed earlier.
        let is_brief = world.lease < HEALED_AFTER;
        let stays_away = world.network.is_quorum() && random.permille(700) && is_brief;
        let is_late = stays_away && !flawed(Flaw::ReturnsTooSoon);
        let time = if is_late { world.lease * 102 / 100 } else { time };
        world.change_server(server, stays_away, |network| {
            network.restart(server, MemoryServer::new(), time);
        });
    });
}

/// Promotes the replica of a server. In a quorum, perhaps all servers at once, because they may
/// share a power supply.
fn fail_over(Accident { server, time, .. }: Accident, random: &mut Random) {
    let (all, lease) = with(|world| (world.network.servers.len(), world.lease));
    let servers = if all > 1 && random.permille(500) { 0..all } else { server..server + 1 };
    if random.permille(500) {
        for server in servers.clone() {
            cut_off_replica(server, lease * 2);
        }
        executor::sleep(random.time(lease / 2));
    }
    for server in servers {
        with(|world| {
            let is_durable = world.is_durable;
            world.change_server(server, is_durable, |network| {
                network.fail_over(server, time / 4);
            });
            world.disturb_all(clock::now());
        });
    }
}

fn cut_off_replica(server: usize, time: Duration) {
    with(|world| {
        if let Some(replica) = &mut world.network.servers[server].replica {
            replica.cut_off(time);
        }
    });
}

/// Ends all faults.
pub(super) fn heal() {
    say(DIRECTOR, || "everything is healed".into());
    executor::end_choices();
    let now = clock::now();
    executor::resume_all();
    with(|world| {
        world.network.weather = Weather::default();
        world.network.servers.iter_mut().for_each(Server::heal);
        for (link, client) in world.network.links.iter_mut().zip(&mut world.clients) {
            client.closed = client.closed.or(client.is_dead.then_some(now));
            for stop in &mut client.stops {
                stop.end = stop.end.min(now);
            }
            if !client.is_dead {
                link.wires.iter_mut().for_each(Wire::heal);
            }
        }
        world.is_healed = true;
        for client in &mut world.clients {
            client.disturbed = now;
        }
    });
}

/// Causes one of the world's accidents, or none, after the server has executed a request.
pub(super) fn after_execution() {
    check_server();
    let ways = with(|world| world.accidents.len() + 1);
    if ways > 1
        && let Some(way @ 1..) = executor::choose(Choice::Fault, ways)
    {
        let accident = with(|world| world.accidents[way - 1]);
        executor::spawn(Some(DIRECTOR), move || happen(accident, &mut Random::default()));
    }
}
