//! A master and its replicas, watched by sentinels, for a test or an example.
#![allow(
    dead_code,
    reason = "every test, example and bench that includes this file uses a part of it"
)]

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use redis::RedisResult;

use super::server::Server;

/// The longest time for an election or a resynchronization.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// The name of the master at the sentinels.
pub(crate) const MASTER: &str = "shop";

/// Makes sentinels poll and publish so often that a failover takes one second instead of ten. Also
/// keeps them from taking a pause of the machine for a broken clock, after which they would do
/// nothing for a while. Only since version 7; older sentinels are slow.
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
    /// The first one is the master at the start.
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
    binary: PathBuf,
}

impl Watched {
    /// Starts all of them. A master counts as dead after being silent for `down_after`.
    pub(crate) fn start(binary: impl AsRef<Path>, down_after: Duration) -> Watched {
        Watched::start_with(binary, down_after, &[])
    }

    /// Like `start`, with further arguments for the servers.
    pub(crate) fn start_with(
        binary: impl AsRef<Path>,
        down_after: Duration,
        extra_args: &[&str],
    ) -> Watched {
        let watched = Watched::launch(binary, down_after, extra_args);
        watched.wait_until_watched();
        watched
    }

    /// Like `start_with`, but without waiting until the sentinels know each other and could agree
    /// on a failover.
    pub(crate) fn launch(
        binary: impl AsRef<Path>,
        down_after: Duration,
        extra_args: &[&str],
    ) -> Watched {
        let binary = binary.as_ref();
        let watched = Watched {
            servers: replicated(2, binary, extra_args),
            sentinels: (0..3).map(|_| Server::sentinel(binary, &[])).collect(),
            binary: binary.into(),
        };
        let port = watched.servers[0].port().to_string();
        for sentinel in &watched.sentinels {
            watch(sentinel, &port, down_after);
        }
        watched
    }

    /// Longer than a machine pauses: no live server counts as dead.
    pub(crate) const CALM: Duration = Duration::from_secs(60);

    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The master that a sentinel names.
    pub(crate) fn master_of(&self, sentinel: &Server) -> &Server {
        self.try_master_of(sentinel).expect("the sentinel answers")
    }

    fn try_master_of(&self, sentinel: &Server) -> RedisResult<&Server> {
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let (_, port): (String, u16) = sentinel.try_ask(&question)?;
        let known = self.servers.iter().find(|server| server.port() == port);
        Ok(known.expect("a master is one of the servers"))
    }

    /// The master that the first sentinel names.
    pub(crate) fn master(&self) -> &Server {
        self.master_of(&self.sentinels[0])
    }

    /// Orders a failover, and returns the new master once all sentinels know it.
    pub(crate) fn fail_over(&self) -> &Server {
        let old = self.master().port();
        let first = &self.sentinels[0];
        wait(|| match self.try_master_of(first) {
            Ok(one) if one.port() == old => {
                // Refused during a failover. Without recent information about replicas, the
                // sentinel silently does nothing.
                first.try_command(&["SENTINEL", "FAILOVER", MASTER]);
                false
            }
            answer => answer.is_ok(),
        });
        self.wait_for_another(old)
    }

    /// Waits until all sentinels name another master than the one at that port.
    pub(crate) fn wait_for_another(&self, old: u16) -> &Server {
        let is_another = |one: &Server| one.port() != old;
        wait(|| self.sentinels.iter().all(|one| self.try_master_of(one).is_ok_and(is_another)));
        self.master()
    }

    /// The servers that are not the master.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &Server> {
        let master = self.master().port();
        self.servers.iter().filter(move |server| server.port() != master)
    }

    /// From now on, a master counts as dead after being silent for `down_after`.
    pub(crate) fn set_down_after(&self, down_after: Duration) {
        for sentinel in &self.sentinels {
            set_down_after(sentinel, down_after);
        }
    }

    /// Sets whether the sentinels tell servers at once which of them is the master. A sentinel that
    /// does not know of a failover yet may turn the new master into a replica. Before version 7,
    /// they always take some seconds.
    pub(crate) fn tell_servers(&self, tell: bool) {
        let period = if tell { "200" } else { "60000" };
        for sentinel in &self.sentinels {
            sentinel.try_command(&["SENTINEL", "DEBUG", "publish-period", period]);
        }
    }

    /// Waits until both replicas have everything that the master has acknowledged.
    pub(crate) fn wait_until_replicated(&self) {
        let mut connection = self.master().connect();
        wait(|| {
            let mut write = redis::pipe();
            write.cmd("PUBLISH").arg("replicated").arg("").ignore();
            write.cmd("WAIT").arg(2).arg(100);
            write.query(&mut connection).is_ok_and(|(replicas,): (u32,)| replicas == 2)
        });
    }

    /// Waits until there is one master, the replicas are in step with it, and all sentinels know
    /// that.
    pub(crate) fn wait_until_settled(&self) {
        wait(|| self.is_settled().unwrap_or(false));
        self.wait_until_watched();
    }

    /// Returns an error while a server closes the connections of its clients because its role
    /// changes.
    fn is_settled(&self) -> RedisResult<bool> {
        let master = self.try_master_of(&self.sentinels[0])?;
        for sentinel in &self.sentinels {
            if self.try_master_of(sentinel)?.port() != master.port() {
                return Ok(false);
            }
        }
        let follows = format!("master_port:{}\r\n", master.port());
        for server in &self.servers {
            let info: String = server.try_ask(&["INFO", "replication"])?;
            let is_right = if server.port() == master.port() {
                info.contains("role:master")
            } else {
                info.contains(&follows) && info.contains("master_link_status:up")
            };
            if !is_right {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn wait_until_watched(&self) {
        wait(|| {
            self.sentinels.iter().all(|sentinel| {
                let info = sentinel.try_ask::<String>(&["INFO", "sentinel"]).unwrap_or_default();
                info.contains("status=ok") && info.contains("slaves=2,sentinels=3")
            })
        });
    }
}

/// Starts a master and this many replicas, and waits until they are in step. The master comes
/// first.
pub(crate) fn replicated(
    replicas: usize,
    binary: impl AsRef<Path>,
    extra_args: &[&str],
) -> Vec<Server> {
    // With a file, a replica is in step at once. Without one it is in step only after its next
    // report, once a second.
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
    set_down_after(sentinel, down_after);
    sentinel.command(&["SENTINEL", "SET", MASTER, "failover-timeout", "10000"]);
}

fn set_down_after(sentinel: &Server, down_after: Duration) {
    let down_after = down_after.as_millis().to_string();
    sentinel.command(&["SENTINEL", "SET", MASTER, "down-after-milliseconds", &down_after]);
}

/// Returns `true` if a master and its replicas agree that the replicas have caught up.
pub(crate) fn in_step(master: &Server, replicas: &[Server]) -> bool {
    let info = |server: &Server| server.ask::<String>(&["INFO", "replication"]);
    info(master).matches("state=online").count() == replicas.len()
        && replicas.iter().all(|replica| info(replica).contains("master_link_status:up"))
}

#[track_caller]
fn wait(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + ELECTION_TIMEOUT;
    while !happened() {
        assert!(Instant::now() < deadline, "not within {ELECTION_TIMEOUT:?}");
        thread::sleep(Duration::from_millis(20));
    }
}
