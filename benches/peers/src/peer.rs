//! The compared locks, each used as its documentation recommends, with settings that favour it.

use std::thread;
use std::time::Duration;

use leasehold::Client;
use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo};
use redlock::RedLock;
use rslock::LockManager;
use tokio::runtime::{Builder, Runtime};

use crate::support::raw::Raw;
use crate::worker::Worker;

/// The same as raw's, and far longer than any cycle.
const LEASE: Duration = Duration::from_secs(30);
/// rslock and redlock retry after a random time below this. The longer it is, the fewer attempts
/// fail, the more handoffs there are, and the less fair they are. Between 1 and 20 ms, this is
/// where the number of handoffs stops growing.
const RETRY_DELAY_MS: u16 = 10;
/// The default of both. When the retries are used up, they start over.
const TRIES: u32 = 3;

/// A lock, and a way for many workers to use it.
pub(crate) trait Peer {
    fn name(&self) -> &'static str;

    /// Runs all `workers` at the same time. Each locks and unlocks until its time is over.
    fn employ(&mut self, workers: Vec<Worker>) -> Vec<Worker>;
}

/// One connection for each name, used by one thread.
pub(crate) struct RawConnections(Vec<Raw>);

impl RawConnections {
    pub(crate) fn open(url: &str, names: usize) -> Self {
        Self((0..names).map(|name| Raw::connect(url, &name.to_string())).collect())
    }
}

impl Peer for RawConnections {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn employ(&mut self, workers: Vec<Worker>) -> Vec<Worker> {
        assert_eq!(workers.len(), self.0.len(), "nobody waits for a connection");
        in_threads(workers.into_iter().zip(&mut self.0), |(mut worker, raw)| {
            while worker.begins() {
                raw.lock_and_unlock();
                worker.is_through();
            }
            worker
        })
    }
}

/// One client for all threads, with default settings.
pub(crate) struct Leasehold(Client);

impl Leasehold {
    pub(crate) fn open(url: &str) -> Self {
        Self(Client::open(url).expect("the server answers"))
    }
}

impl Peer for Leasehold {
    fn name(&self) -> &'static str {
        "leasehold"
    }

    fn employ(&mut self, workers: Vec<Worker>) -> Vec<Worker> {
        let client = &self.0;
        in_threads(workers, |mut worker| {
            while worker.begins() {
                let guard = client.lock(worker.name()).expect("the server answers");
                worker.holds();
                drop(guard);
                worker.is_through();
            }
            worker
        })
    }
}

/// One manager, and so one connection, shared by all.
///
/// It is asynchronous. A threaded program has to block on its futures, on one runtime for all
/// threads; an asynchronous program, which leasehold is not made for, uses tasks. The runtime has
/// one thread per core, but runs in the worker's thread if there is only one worker, which suits it
/// best.
pub(crate) struct Rslock {
    manager: LockManager,
    runtime: Runtime,
    workers_are: RslockWorkers,
}

#[derive(Clone, Copy)]
pub(crate) enum RslockWorkers {
    Tasks,
    Threads,
}

impl Rslock {
    pub(crate) fn open(url: &str, workers: usize, workers_are: RslockWorkers) -> Self {
        let mut manager = LockManager::new(vec![without_nagle(url)]);
        manager.set_retry(TRIES, Duration::from_millis(RETRY_DELAY_MS.into()));
        let mut runtime =
            if workers == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        let runtime = runtime.enable_all().build().expect("the system has threads");
        Self { manager, runtime, workers_are }
    }

    fn employ_threads(&self, workers: Vec<Worker>) -> Vec<Worker> {
        let Self { manager, runtime, .. } = self;
        in_threads(workers, |mut worker| {
            while worker.begins() {
                let guard = runtime.block_on(manager.acquire(worker.name(), LEASE));
                let guard = guard.expect("the lease is not too long");
                worker.holds();
                runtime.block_on(guard.release());
                worker.is_through();
            }
            worker
        })
    }

    fn employ_tasks(&self, workers: Vec<Worker>) -> Vec<Worker> {
        self.runtime.block_on(async {
            let task = |worker| tokio::spawn(be_task(self.manager.clone(), worker));
            let tasks: Vec<_> = workers.into_iter().map(task).collect();
            let mut workers = Vec::new();
            for task in tasks {
                workers.push(task.await.expect("no worker panicked"));
            }
            workers
        })
    }
}

impl Peer for Rslock {
    fn name(&self) -> &'static str {
        match self.workers_are {
            RslockWorkers::Tasks => "rslock, tasks",
            RslockWorkers::Threads => "rslock, threads",
        }
    }

    fn employ(&mut self, workers: Vec<Worker>) -> Vec<Worker> {
        match self.workers_are {
            RslockWorkers::Tasks => self.employ_tasks(workers),
            RslockWorkers::Threads => self.employ_threads(workers),
        }
    }
}

async fn be_task(manager: LockManager, mut worker: Worker) -> Worker {
    while worker.begins() {
        let guard = manager.acquire(worker.name(), LEASE).await.expect("the lease is not too long");
        worker.holds();
        guard.release().await;
        worker.is_through();
    }
    worker
}

/// One manager for all threads. It opens a connection for every request, which Nagle's algorithm
/// does not delay. If the system is slow to reuse the ports of closed connections, it runs out of
/// them and the program ends.
pub(crate) struct Redlock(RedLock);

impl Redlock {
    pub(crate) fn open(url: &str) -> Self {
        let mut manager = RedLock::new(vec![url]);
        manager.set_retry(TRIES, RETRY_DELAY_MS.into());
        Self(manager)
    }
}

impl Peer for Redlock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn employ(&mut self, workers: Vec<Worker>) -> Vec<Worker> {
        let lease_ms = usize::try_from(LEASE.as_millis()).expect("the lease is short");
        in_threads(workers, |mut worker| {
            while worker.begins() {
                let guard = self.0.acquire(worker.name().as_bytes(), lease_ms);
                let guard = guard.expect("the server accepts a connection");
                worker.holds();
                drop(guard);
                worker.is_through();
            }
            worker
        })
    }
}

/// Runs `work` for each of `jobs`, in a thread of its own, all at the same time.
fn in_threads<J: Send>(
    jobs: impl IntoIterator<Item = J>,
    work: impl Fn(J) -> Worker + Sync,
) -> Vec<Worker> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || work(job))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no worker panicked")).collect()
    })
}

fn without_nagle(url: &str) -> ConnectionInfo {
    let info = url.into_connection_info().expect("a valid URL");
    info.set_tcp_settings(TcpSettings::default().set_nodelay(true))
}
