//! Releases that travel with the requests of other threads, so that dropping a guard does not wait
//! for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::bounded;
use leasehold::{Builder, Client};

use crate::support::proxy::Proxy;
use crate::support::recorder::Recorder;
use crate::support::{SOON, Server, Store, behind_proxy, eventually, patient, stores, take};

stores! {
    every store:
        busy_threads_lose_no_lock;
    every server:
        busy_clients_make_progress_side_by_side;
    one server:
        a_drop_does_not_wait_while_others_do,
        a_drop_waits_if_no_other_thread_does,
        unlock_always_waits,
        a_lock_that_was_dropped_is_free_for_this_client,
        a_release_without_a_reply_is_repeated_in_the_background;
}

const THREADS: usize = 8;
const ROUNDS: usize = 50;

/// A client that leaves releases to other threads whenever it can.
fn pipelined() -> Builder {
    patient().wait(3 * SOON).pool_size(1).pipelined_release(true)
}

/// Lets every thread lock names that others want too, one after the other.
fn crowd(client: &Client) {
    let names: Vec<_> = (0..THREADS / 2).map(|name| format!("lock {name}")).collect();
    let taken: Vec<_> = names.iter().map(|_| AtomicBool::new(false)).collect();
    let work = |thread: usize| {
        for round in 0..ROUNDS {
            let name = (thread + round / 4) % names.len();
            let guard = client.lock(&names[name]).unwrap();
            assert!(!taken[name].swap(true, Ordering::SeqCst), "two have {:?}", names[name]);
            thread::yield_now();
            taken[name].store(false, Ordering::SeqCst);
            drop(guard);
        }
    };
    thread::scope(|scope| {
        let work = &work;
        for thread in 0..THREADS {
            scope.spawn(move || work(thread));
        }
    });
    for name in &names {
        let free = client.try_lock(name).unwrap();
        assert!(free.is_some(), "all that was released is free when all threads have ended");
    }
}

fn busy_threads_lose_no_lock(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(pipelined().on_event(recorder.listener()));
    crowd(&client);
    let count =
        |word: &str| recorder.events().iter().filter(|event| event.starts_with(word)).count();
    let holds = THREADS * ROUNDS + THREADS / 2;
    eventually(SOON, || count("released") == holds);
    assert_eq!(count("acquired"), holds);
    assert_eq!(count("release failed") + count("lost"), 0);
}

fn busy_clients_make_progress_side_by_side(server: &Server) {
    let clients = [server.open(pipelined()), server.open(pipelined().pool_size(2))];
    let inside = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, inside) = (&clients[thread % 2], &inside);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = client.lock("a").unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    thread::yield_now();
                    inside.store(false, Ordering::SeqCst);
                    drop(guard);
                    drop(client.lock(&format!("of {thread}")).unwrap());
                }
            });
        }
    });
    assert_eq!(server.hashes(), [""; 0], "a lock is left");
}

/// A client with a second connection while the first is kept busy.
struct Scene {
    recorder: Recorder,
    proxy: Proxy,
    client: Client,
}

impl Scene {
    fn new(server: &Server) -> Self {
        let recorder = Recorder::default();
        let builder = pipelined().pool_size(2).io_timeout(SOON).on_event(recorder.listener());
        let (proxy, client) = behind_proxy(server, builder);
        Self { recorder, proxy, client }
    }

    /// Calls `act` while another thread waits for the reply to a handoff, which the proxy holds
    /// back with all requests that name "slow".
    fn while_another_waits(&self, act: impl FnOnce()) {
        let guard = take(&self.client, "slow");
        let before = self.recorder.count("contended slow");
        thread::scope(|scope| {
            scope.spawn(|| self.client.lock("slow").unwrap().unlock().unwrap());
            eventually(SOON, || self.recorder.count("contended slow") > before);
            self.proxy.blackhole_for("slow");
            drop(guard);
            act();
            self.proxy.heal();
        });
    }
}

fn a_drop_does_not_wait_while_others_do(server: &Server) {
    let scene = Scene::new(server);
    let guard = take(&scene.client, "quick");
    scene.while_another_waits(|| {
        drop(guard);
        assert!(server.exists("quick"), "nothing was sent since");
        assert_eq!(scene.recorder.count("released quick"), 0);
    });
    scene.recorder.wait_for("released quick");
    assert!(!server.exists("quick"));
}

fn a_drop_waits_if_no_other_thread_does(server: &Server) {
    let scene = Scene::new(server);
    for _ in 0..100 {
        drop(take(&scene.client, "quick"));
        assert!(!server.exists("quick"));
    }
}

fn unlock_always_waits(server: &Server) {
    let scene = Scene::new(server);
    let (hold, holds) = bounded(0);
    thread::scope(|scope| {
        let (go, going) = bounded(0);
        let (client, hold) = (&scene.client, hold);
        scope.spawn(move || {
            let guard = take(client, "quick");
            hold.send(()).unwrap();
            going.recv().unwrap();
            guard.unlock().unwrap();
            assert!(!server.exists("quick"));
        });
        holds.recv().unwrap();
        scene.while_another_waits(|| go.send(()).unwrap());
    });
}

fn a_lock_that_was_dropped_is_free_for_this_client(server: &Server) {
    let scene = Scene::new(server);
    for round in 0..40 {
        let guard = take(&scene.client, "quick");
        let fence = guard.fence();
        let again = || {
            let guard = scene.client.try_lock("quick").unwrap().expect("no other thread wants it");
            assert!(guard.fence() > fence, "a new hold");
            guard.unlock().unwrap();
        };
        thread::scope(|scope| {
            scene.while_another_waits(|| {
                drop(guard);
                if round % 2 == 0 {
                    // The release may have been sent or not.
                    scope.spawn(again);
                } else {
                    // The release is sent, and held back.
                    let before = server.hold("slow");
                    scene.proxy.blackhole_for("quick");
                    eventually(SOON, || server.hold("slow") != before);
                    scope.spawn(again);
                }
            });
        });
        assert!(!server.exists("quick"));
    }
}

fn a_release_without_a_reply_is_repeated_in_the_background(server: &Server) {
    for executed in [true, false] {
        let scene = Scene::new(server);
        let guard = take(&scene.client, "quick");
        scene.while_another_waits(|| {
            drop(guard);
            if executed {
                scene.proxy.lose_reply_to("quick");
            } else {
                scene.proxy.lose_request_for("quick");
            }
            scene.recorder.wait_for("release failed quick");
        });
        eventually(SOON, || !server.exists("quick"));
        take(&scene.client, "quick").unlock().unwrap();
    }
}
