//! Clients that keep wanting one lock, and the number of turns of each.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;

/// The number of turns that the clients of a contest get together.
pub(crate) const TURNS: usize = 120;

/// Clients with one thread each that want one lock, again and again.
pub(crate) struct Contest<'a> {
    name: &'a str,
    /// How long they hold the lock each time.
    held: Duration,
    turns: AtomicUsize,
    last_fence: AtomicU64,
}

/// One turn of a client.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The last fence of any client when this one asked for the lock.
    asked_after: u64,
    fence: u64,
    #[cfg_attr(windows, allow(dead_code, reason = "one test stops a process"))]
    pub(crate) begin: Instant,
}

impl<'a> Contest<'a> {
    pub(crate) fn new(name: &'a str, held: Duration) -> Self {
        Self { name, held, turns: AtomicUsize::new(0), last_fence: AtomicU64::new(0) }
    }

    /// Takes part with a client until all turns are taken, and returns the turns of this client.
    pub(crate) fn join(&self, client: &Client) -> Vec<Turn> {
        let mut turns = Vec::new();
        while self.turns.fetch_add(1, Ordering::SeqCst) < TURNS {
            let asked_after = self.last_fence.load(Ordering::SeqCst);
            let guard = client.lock(self.name).unwrap();
            let (fence, begin) = (guard.fence(), Instant::now());
            self.last_fence.fetch_max(fence, Ordering::SeqCst);
            turns.push(Turn { asked_after, fence, begin });
            thread::sleep(self.held);
            drop(guard);
        }
        turns
    }

    pub(crate) fn among<const N: usize>(&self, clients: [&Client; N]) -> [Vec<Turn>; N] {
        thread::scope(|scope| {
            let join = |client| scope.spawn(move || self.join(client));
            clients.map(join).map(|turns| turns.join().unwrap())
        })
    }
}

/// Returns the most turns that another client has while a client waits for its own.
pub(crate) fn turns_of_another(wait: &Turn, of_clients: &[Vec<Turn>]) -> usize {
    let during = |turn: &&Turn| wait.asked_after < turn.fence && turn.fence < wait.fence;
    of_clients.iter().map(|turns| turns.iter().filter(during).count()).max().unwrap_or(0)
}

/// Checks that clients with one thread each are served about equally often, and that hardly any
/// wait lasts longer than two turns of another client, in the best of a few tries. The machine may
/// pause in one of them, but an unfair lock is unfair each time.
#[track_caller]
pub(crate) fn assert_turns_are_taken(clients: &[Client; 3], name: &str, held: Duration) {
    let mut tries = Vec::new();
    for _ in 0..4 {
        let turns = Contest::new(name, held).among(clients.each_ref());
        let counts = turns.each_ref().map(Vec::len);
        let evenly = 10 * counts.iter().min().unwrap() >= 8 * counts.iter().max().unwrap();
        let long = |wait: &&Turn| turns_of_another(wait, &turns) > 2;
        let long = turns.iter().flatten().filter(long).count();
        if evenly && 20 * long <= TURNS {
            return;
        }
        tries.push((counts, long));
    }
    panic!("{held:?}: turns of each client, and how many waits were long: {tries:?}");
}
