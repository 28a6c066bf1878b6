//! The command line.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use leasehold::Durability;

use crate::harness::Result;
use crate::harness::guard::Primitive;
use crate::harness::nemesis::Fault;

pub(crate) const HELP: &str = "\
usage: torture [options]

  --seconds N      how long to run (60)
  --processes N    worker processes (4)
  --threads N      threads in each of them (4)
  --names N        locks for which they contend (3)
  --kind KIND      lock: locks, nested or two at once now and then (lock); with a
                   quorum nothing else
                   rw: read-write locks
                   semaphore: semaphores of three permits
                   all: one name of each kind after the other
  --lease MS       the lease in milliseconds, at least 200 (1000)
  --keep MS        how long processes keep locks that no thread holds, at most the lease (0)
  --locks WHERE    server: one server, behind a network that may fail (server)
                   sentinel: a master with two replicas, watched by three sentinels
                   cluster: three masters that share the slots
                   quorum: three independent servers
  --durability D   memory, disk, or with sentinels also one-replica or all-replicas: what must have
                   a lock before it counts (memory)
  --nemesis LIST   all, none, or some of, with commas between them (all):
                   pause-worker    SIGSTOP to some for longer than a lease, then SIGCONT
                   kill-worker     SIGKILL, and a new process in its place
                   pause-server    SIGSTOP for up to a lease and a half, then SIGCONT
                   restart-server  SIGKILL, and started again with its data
                   wipe-server     the same, without its data
                   close-clients   CLIENT KILL for all connections
                                   (of several servers these faults hit one)
                   and with --locks server or quorum, by a network before one of them,
                   drop-replies    requests are executed, and some replies never arrive
                   delay-messages  some requests and replies take up to half a lease
                   drop-messages   no message of a channel arrives, and all replies do
                   narrow-link     each connection carries 128 KB a second
                   or with --locks sentinel, where clients go to the master's own address,
                   fail-over       a sentinel is ordered to
                   kill-master     SIGKILL; started again with its data when another is elected
                   stop-master     SIGSTOP; SIGCONT when another is elected
                   cut-replicas    the replicas receive nothing for a while, then kill-master
                   two-masters     a failover of which the old master learns only leases later
  --unfenced       the register accepts every write: updates must be lost
  --careful        workers check that they still have the lock before they write, so that an
                   update lost without fences was promised to two workers at once
  --histories DIR  where the workers write down their calls, which is kept (a temporary directory
                   that is kept if there is something to find in it)
  --server FILE    the server to run (redis-server)
  --seed N         repeats the random choices of a run, as far as timing allows
  --help           this text
";

/// The servers that have the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Cluster,
    Quorum,
    Sentinel,
    Server,
}

/// The options of a run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) time: Duration,
    pub(crate) processes: u32,
    pub(crate) threads: u32,
    pub(crate) names: u32,
    /// The kind of all names; `None` if they are of all kinds.
    pub(crate) kind: Option<Primitive>,
    pub(crate) lease: Duration,
    /// How long locks are kept; zero if they are not.
    pub(crate) keep: Duration,
    pub(crate) topology: Topology,
    pub(crate) durability: Durability,
    pub(crate) faults: Vec<Fault>,
    pub(crate) fenced: bool,
    pub(crate) careful: bool,
    /// A directory to create; `None` for one that is removed.
    pub(crate) histories: Option<PathBuf>,
    pub(crate) server: String,
    pub(crate) seed: u64,
    pub(crate) help: bool,
    /// Only for the worker processes.
    pub(crate) role: Option<Role>,
}

/// The information that a worker needs besides the options.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    /// The directory for its history.
    pub(crate) dir: PathBuf,
    /// Its own number, which no process had before.
    pub(crate) number: u64,
    /// The URLs of the locks' server, servers or sentinels, with commas between them.
    pub(crate) locks: String,
    pub(crate) register: String,
}

impl Options {
    pub(crate) fn parse() -> Result<Self> {
        Self::parse_words(env::args().skip(1))
    }

    pub(crate) fn parse_words(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        let (mut nemesis, mut durability) = (String::from("all"), String::from("memory"));
        while let Some(option) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{option} needs a value"));
            match option.as_str() {
                "--seconds" => options.time = Duration::from_secs(number(&value()?)?.into()),
                "--processes" => options.processes = number(&value()?)?,
                "--threads" => options.threads = number(&value()?)?,
                "--names" => options.names = number(&value()?)?,
                "--kind" => options.kind = kind(&value()?)?,
                "--lease" => options.lease = Duration::from_millis(number(&value()?)?.into()),
                "--keep" => options.keep = Duration::from_millis(number(&value()?)?.into()),
                "--locks" => options.topology = topology(&value()?)?,
                "--durability" => durability = value()?,
                "--nemesis" => nemesis = value()?,
                "--careful" => options.careful = true,
                "--unfenced" => options.fenced = false,
                "--histories" => options.histories = Some(value()?.into()),
                "--server" => options.server = value()?,
                "--seed" => options.seed = value()?.parse().map_err(|_| "--seed takes a number")?,
                "--help" => options.help = true,
                "--worker" => {
                    let (dir, number) = (value()?.into(), number(&value()?)?.into());
                    let (locks, register) = (value()?, value()?);
                    options.role = Some(Role { dir, number, locks, register });
                }
                _ => return Err(format!("unknown option {option}: see --help").into()),
            }
        }
        if options.lease < Duration::from_millis(200) {
            return Err("--lease must be at least 200".into());
        }
        if options.keep > options.lease {
            return Err("--keep must be at most the lease".into());
        }
        if options.keeps() && !options.has_locks() {
            return Err("--keep takes locks: nothing else is kept".into());
        }
        if options.topology == Topology::Quorum && options.kind != Some(Primitive::Lock) {
            return Err("--locks quorum takes locks: it has no other kind".into());
        }
        if !options.fenced && !(0..options.names).any(|name| options.primitive(name).has_fences()) {
            return Err("--unfenced takes locks with fences: permits have none".into());
        }
        options.faults = Fault::parse_list(&nemesis, options.topology)?;
        options.durability = options.parse_durability(&durability)?;
        Ok(options)
    }

    /// Returns the kind of a name.
    pub(crate) fn primitive(&self, name: u32) -> Primitive {
        self.kind.unwrap_or(Primitive::ALL[name as usize % Primitive::ALL.len()])
    }

    /// Returns `true` if there are locks that threads of one process hand off to each other.
    pub(crate) fn hands_off(&self) -> bool {
        self.threads > 1 && self.has_locks()
    }

    /// Returns `true` if processes keep locks that no thread holds.
    pub(crate) fn keeps(&self) -> bool {
        !self.keep.is_zero()
    }

    fn has_locks(&self) -> bool {
        (0..self.names).any(|name| self.primitive(name) == Primitive::Lock)
    }

    fn parse_durability(&self, word: &str) -> Result<Durability> {
        // A request may take a third of the lease, and this has to be less.
        let timeout = self.lease / 4;
        let acks = match word {
            "memory" => return Ok(Durability::Memory),
            "disk" => return Ok(Durability::Fsync { local: true, replicas: 0, timeout }),
            "one-replica" => 1,
            "all-replicas" => 2,
            _ => return Err(format!("no such durability: {word:?}").into()),
        };
        if self.topology != Topology::Sentinel {
            return Err(format!("{word} takes --locks sentinel: nothing else has replicas").into());
        }
        Ok(Durability::Replicas { acks, timeout })
    }
}

fn kind(word: &str) -> Result<Option<Primitive>> {
    match Primitive::ALL.into_iter().find(|kind| kind.to_string() == word) {
        None if word != "all" => {
            Err(format!("--kind is lock, rw, semaphore or all, not {word:?}").into())
        }
        kind => Ok(kind),
    }
}

fn topology(word: &str) -> Result<Topology> {
    match word {
        "cluster" => Ok(Topology::Cluster),
        "quorum" => Ok(Topology::Quorum),
        "sentinel" => Ok(Topology::Sentinel),
        "server" => Ok(Topology::Server),
        _ => Err(format!("--locks is server, sentinel, cluster or quorum, not {word:?}").into()),
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            processes: 4,
            threads: 4,
            names: 3,
            kind: Some(Primitive::Lock),
            lease: Duration::from_secs(1),
            keep: Duration::ZERO,
            topology: Topology::Server,
            durability: Durability::Memory,
            faults: Vec::new(),
            fenced: true,
            careful: false,
            histories: None,
            server: "redis-server".into(),
            seed: u64::from(std::process::id()),
            help: false,
            role: None,
        }
    }
}

fn number(text: &str) -> Result<u32> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{text:?} is not a number from 1").into()),
    }
}
