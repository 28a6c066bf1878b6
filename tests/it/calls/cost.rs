//! The number of requests that a lock costs, counted by the server.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard};

use crate::support::{
    LEASE, SOON, Server, elsewhere, eventually, ms, patient, stores, take, throughout,
};

stores! {
    every server:
        a_nested_cycle_costs_two_scripts,
        a_busy_try_lock_costs_one_script,
        a_wait_of_zero_is_one_attempt,
        a_long_wait_costs_few_scripts,
        a_renewal_of_many_holds_costs_one_script_each,
        scripts_may_be_flushed_at_any_time,
        renewal_survives_flushed_scripts;
    one server:
        a_cycle_costs_two_scripts_and_nothing_else,
        a_cycle_costs_eight_commands,
        a_cycle_costs_few_allocations,
        an_idle_client_sends_nothing;
}

/// A client on a server that knows every script.
fn warm_client(server: &Server) -> Client {
    let client = server.open(patient());
    let guard = take(&client, "warm");
    take(&client, "warm").unlock().unwrap();
    assert!(elsewhere(|| client.try_lock("warm").unwrap().is_none()));
    guard.unlock().unwrap();
    client
}

/// Counts the scripts that the server runs for `work`.
fn scripts(server: &Server, work: impl FnOnce()) -> u64 {
    let before = server.evals();
    work();
    server.evals() - before
}

fn a_cycle_costs_two_scripts_and_nothing_else(server: &Server) {
    let client = warm_client(server);
    let cycles = || {
        for _ in 0..10 {
            drop(client.try_lock("b").unwrap());
            client.lock("a").unwrap().unlock().unwrap();
        }
    };
    let pings = server.calls("ping");
    assert_eq!(scripts(server, cycles), 40);
    assert_eq!(server.calls("ping"), pings);

    let before = server.connections();
    cycles();
    assert_eq!(server.connections(), before + 1, "only the connection of this check is new");
}

/// Ten are for names, keys and owners, two for requests, and two for the hold and its waiter.
fn a_cycle_costs_few_allocations(server: &Server) {
    let client = warm_client(server);
    let cycles = |count: u64| {
        allocation_counter::measure(|| {
            (0..count).for_each(|_| client.lock("a").unwrap().unlock().unwrap());
        })
        .count_total
    };
    cycles(10);
    let allocations = cycles(100);
    assert!(allocations <= 14 * 100 + 20, "{allocations}: some more are of tables that grow");
}

/// The scripts' commands are most of what a lock costs the server.
fn a_cycle_costs_eight_commands(server: &Server) {
    // The lives of the lock and of its counter are both read, so that neither is shortened.
    const COMMANDS: [(&str, u64); 7] = [
        ("pttl", 20),
        ("time", 10),
        ("set", 10),
        ("hset", 10),
        ("pexpire", 10),
        ("hdel", 10),
        ("exists", 10),
    ];
    let client = warm_client(server);
    server.command(&["CONFIG", "RESETSTAT"]);
    for _ in 0..10 {
        client.lock("a").unwrap().unlock().unwrap();
    }
    let stats: String = server.ask(&["INFO", "commandstats"]);
    let own = ["client", "config", "evalsha", "hello", "info"];
    let mut executed: Vec<_> = stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'))
        .map(|(command, _)| command)
        .filter(|command| !own.iter().any(|own| command.starts_with(own)))
        .collect();
    executed.sort_unstable();
    let mut wanted = COMMANDS.map(|(command, _)| command);
    wanted.sort_unstable();
    assert_eq!(executed, wanted);
    let is_called = |(command, times): &(&str, u64)| server.calls(command) == *times;
    assert!(COMMANDS.iter().all(is_called), "{stats}");
}

fn a_nested_cycle_costs_two_scripts(server: &Server) {
    let client = warm_client(server);
    let outer = take(&client, "a");
    let nested = scripts(server, || {
        for _ in 0..5 {
            client.lock("a").unwrap().unlock().unwrap();
        }
    });
    assert_eq!(nested, 10);
    outer.unlock().unwrap();
}

fn a_busy_try_lock_costs_one_script(server: &Server) {
    let client = warm_client(server);
    let other = server.open(patient());
    let _guard = take(&other, "a");
    let busy = scripts(server, || {
        for _ in 0..10 {
            assert!(client.try_lock("a").unwrap().is_none());
        }
    });
    assert_eq!(busy, 10);
}

fn a_wait_of_zero_is_one_attempt(server: &Server) {
    let client = warm_client(server);
    let other = server.open(patient());
    let _guard = take(&other, "a");
    let impatient = client.mutex("a").wait(Duration::ZERO);
    // Makes that script known to the server.
    assert!(impatient.holder().unwrap().is_some());
    let attempts = scripts(server, || {
        assert!(client.try_lock_for("a", Duration::ZERO).unwrap().is_none());
        assert!(client.try_lock_until("a", Instant::now()).unwrap().is_none());
        assert!(matches!(impatient.lock(), Err(Error::Timeout { .. })));
    });
    assert_eq!(attempts, 4, "the last asks for the holder, too");
}

fn a_long_wait_costs_few_scripts(server: &Server) {
    drop(warm_client(server));
    let client = server.open(Client::builder());
    let other = server.open(patient());
    let names = ["a", "b", "c", "d"];
    let _guards = names.map(|name| take(&other, name));
    let attempts = scripts(server, || {
        thread::scope(|scope| {
            for name in names {
                let client = &client;
                scope
                    .spawn(move || assert!(client.try_lock_for(name, ms(3000)).unwrap().is_none()));
            }
        });
    });
    // The backoff soon reaches half a second. Polling every 5 ms would make 600 attempts per wait.
    // In one of five hundred waits, the random pauses stay short for long, so the limit is for four
    // waits together: 250 attempts in all were seen once.
    assert!((8..4 * 100).contains(&attempts), "{attempts} attempts");
}

fn a_renewal_of_many_holds_costs_one_script_each(server: &Server) {
    let client = server.open(patient().lease(ms(3000)));
    let _guards: Vec<_> = (0..50).map(|n| take(&client, &format!("lock {n}"))).collect();
    let renewals = scripts(server, || thread::sleep(ms(3000)));
    // One per third of the lease, and perhaps one more at the start or the end of the time.
    assert!((50..=250).contains(&renewals), "{renewals} renewals");
}

fn an_idle_client_sends_nothing(server: &Server) {
    let client = warm_client(server);
    let pings = server.calls("ping");
    assert_eq!(scripts(server, || thread::sleep(ms(1500))), 0);
    assert_eq!(server.calls("ping"), pings);
    drop(client);
}

fn scripts_may_be_flushed_at_any_time(server: &Server) {
    let client = server.open(patient().lease(ms(3000)));
    let (end, ended) = crossbeam_channel::bounded::<()>(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut connection = server.connect();
            while ended
                .recv_timeout(Duration::from_micros(500))
                .is_err_and(|error| error.is_timeout())
            {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
            }
        });
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let client = &client;
                scope.spawn(move || {
                    for round in 0..50 {
                        let name = format!("lock {}", (worker + round) % 3);
                        let outer = client.lock(&name).unwrap();
                        let inner = client.lock(&name).unwrap();
                        inner.verify().unwrap();
                        assert!(client.mutex(&name).is_locked().unwrap());
                        inner.unlock().unwrap();
                        outer.unlock().unwrap();
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        drop(end);
    });
    assert!(server.hashes().is_empty());
}

fn renewal_survives_flushed_scripts(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guards: Vec<_> = (0..100).map(|n| take(&client, &format!("lock {n}"))).collect();
    throughout(3 * LEASE, || {
        server.command(&["SCRIPT", "FLUSH"]);
        guards.iter().all(Guard::is_held)
    });
    assert_eq!(server.hashes().len(), 100);
    drop(guards);
    eventually(SOON, || server.hashes().is_empty());
}
