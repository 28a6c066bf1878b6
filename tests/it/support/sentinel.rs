//! A master and its replicas, watched over by sentinels, for a test or an example.
#![allow(
    dead_code,
    reason = "every test, example and bench that includes this file uses a part of it"
)]

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::server::Server;

/// How long an election or a resynchronization may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the sentinels call the master.
pub(crate) const MASTER: &str = "shop";

/// A sentinel looks, tells and asks so often that a failover takes a second rather than ten, and it
/// does not take a pause of the machine for a broken clock, upon which it would do nothing for
/// a while. Since version 7; older sentinels are slow.
const HASTE: [&str; 12] = [
    "info-period",
    "200",
    "publish-period",
    "200",
    "ask-period",
    "100",
    "tilt-trigger",
    "60000",
    "tilt-period",
    "1000",
    "slave-reconf-timeout",
    "2000",
];

/// One master, two replicas and three sentinels.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The first is the master at the start.
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
    binary: PathBuf,
}

impl Watched {
    /// Starts them all. The sentinels take a master for dead that is silent for `down_after`.
    pub(crate) fn start(binary: impl AsRef<Path>, down_after: Duration) -> Watched {
        let watched = Watched::launch(binary, down_after);
        watched.wait_until_watched();
        watched
    }

    /// As `start`, but without waiting until the sentinels know one another and could agree on
    /// a failover.
    pub(crate) fn launch(binary: impl AsRef<Path>, down_after: Duration) -> Watched {
        let binary = binary.as_ref();
        let watched = Watched {
            servers: replicated(2, binary, &[]),
            sentinels: (0..3).map(|_| Server::sentinel(binary, &[])).collect(),
            binary: binary.into(),
        };
        let port = watched.servers[0].port().to_string();
        for sentinel in &watched.sentinels {
            watch(sentinel, &port, down_after);
        }
        watched
    }

    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The master in the eyes of a sentinel.
    pub(crate) fn master_of(&self, sentinel: &Server) -> &Server {
        let (_, port): (String, u16) =
            sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
        let known = self.servers.iter().find(|server| server.port() == port);
        known.expect("a master is one of the servers")
    }

    /// The master in the eyes of the first sentinel.
    pub(crate) fn master(&self) -> &Server {
        self.master_of(&self.sentinels[0])
    }

    /// Orders a failover, and returns the new master when all sentinels know it.
    pub(crate) fn fail_over(&self) -> &Server {
        let old = self.master().port();
        wait(|| self.sentinels[0].try_command(&["SENTINEL", "FAILOVER", MASTER]));
        self.wait_for_another(old)
    }

    /// Waits until all sentinels have another master than the one at that port.
    pub(crate) fn wait_for_another(&self, old: u16) -> &Server {
        wait(|| self.sentinels.iter().all(|one| self.master_of(one).port() != old));
        self.master()
    }

    fn wait_until_watched(&self) {
        wait(|| {
            self.sentinels.iter().all(|sentinel| {
                let info: String = sentinel.ask(&["INFO", "sentinel"]);
                info.contains("status=ok") && info.contains("slaves=2,sentinels=3")
            })
        });
    }
}

/// Starts a master, which comes first, and so many replicas, and waits until they are in step with it.
pub(crate) fn replicated(
    replicas: usize,
    binary: impl AsRef<Path>,
    extra_args: &[&str],
) -> Vec<Server> {
    // From a file a replica is in step at once, without one only when it has said so, once a second.
    let quick = ["--repl-diskless-sync", "no", "--repl-timeout", "60", "--hz", "100"];
    let args = [&quick, extra_args].concat();
    let start = |_| Server::start(binary.as_ref(), &args);
    let servers: Vec<_> = (0..=replicas).map(start).collect();
    let port = servers[0].port().to_string();
    for replica in &servers[1..] {
        replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    }
    wait(|| in_step(&servers[0], &servers[1..]));
    servers
}

fn watch(sentinel: &Server, port: &str, down_after: Duration) {
    // Refused before version 7.
    sentinel.try_command(&[&["SENTINEL", "DEBUG"], &HASTE[..]].concat());
    sentinel.command(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", port, "2"]);
    let down_after = down_after.as_millis().to_string();
    sentinel.command(&["SENTINEL", "SET", MASTER, "down-after-milliseconds", &down_after]);
    sentinel.command(&["SENTINEL", "SET", MASTER, "failover-timeout", "10000"]);
}

/// Whether a master and its replicas agree that these have caught up with it.
pub(crate) fn in_step(master: &Server, replicas: &[Server]) -> bool {
    let info = |server: &Server| server.ask::<String>(&["INFO", "replication"]);
    info(master).matches("state=online").count() == replicas.len()
        && replicas.iter().all(|replica| info(replica).contains("master_link_status:up"))
}

fn wait(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "not even after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}
