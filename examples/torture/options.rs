//! The command line.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use super::Result;
use super::nemesis::Fault;

pub(crate) const HELP: &str = "\
usage: torture [options]

  --seconds N      how long to run (60)
  --processes N    worker processes (4)
  --threads N      threads in each of them (4)
  --names N        locks they compete for (3)
  --lease MS       the lease in milliseconds, at least 200 (1000)
  --nemesis LIST   all, none, or some of, with commas between them (all):
                   pause-worker    SIGSTOP to some for longer than a lease, then SIGCONT
                   kill-worker     SIGKILL, and a new process in its place
                   pause-server    SIGSTOP for up to a lease and a half, then SIGCONT
                   restart-server  SIGKILL, and started again with its data
                   wipe-server     the same, without its data
                   drop-replies    requests are executed, and some replies never arrive
                   delay-messages  some requests and replies take up to half a lease
                   close-clients   CLIENT KILL for all connections
  --unfenced       the register takes every write: updates must get lost when workers are paused
  --server FILE    the server to run (redis-server)
  --seed N         repeats the random choices of a run, as far as timing allows
  --help           this text
";

/// What a run is asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) time: Duration,
    pub(crate) processes: u32,
    pub(crate) threads: u32,
    pub(crate) names: u32,
    pub(crate) lease: Duration,
    pub(crate) faults: Vec<Fault>,
    pub(crate) fenced: bool,
    pub(crate) server: String,
    pub(crate) seed: u64,
    pub(crate) help: bool,
    /// Only for the processes that this program starts.
    pub(crate) role: Option<Role>,
}

/// What a worker is told besides.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    /// Where it writes its history.
    pub(crate) dir: PathBuf,
    /// Its own, which no process had before.
    pub(crate) number: u64,
    pub(crate) locks: String,
    pub(crate) register: String,
}

impl Options {
    pub(crate) fn parse() -> Result<Self> {
        let mut options = Self::default();
        let mut args = env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--seconds" => options.time = Duration::from_secs(number(&value()?)?.into()),
                "--processes" => options.processes = number(&value()?)?,
                "--threads" => options.threads = number(&value()?)?,
                "--names" => options.names = number(&value()?)?,
                "--lease" => options.lease = Duration::from_millis(number(&value()?)?.into()),
                "--nemesis" => options.faults = Fault::parse_list(&value()?)?,
                "--unfenced" => options.fenced = false,
                "--server" => options.server = value()?,
                "--seed" => options.seed = value()?.parse().map_err(|_| "--seed takes a number")?,
                "--help" => options.help = true,
                "--worker" => {
                    let (dir, number) = (value()?.into(), number(&value()?)?.into());
                    let (locks, register) = (value()?, value()?);
                    options.role = Some(Role { dir, number, locks, register });
                }
                _ => return Err(format!("unknown option {arg}: see --help").into()),
            }
        }
        if options.lease < Duration::from_millis(200) {
            return Err("--lease must be at least 200".into());
        }
        Ok(options)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            processes: 4,
            threads: 4,
            names: 3,
            lease: Duration::from_secs(1),
            faults: Fault::ALL.to_vec(),
            fenced: true,
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
