//! Helpers of the examples: a Redis server to use, and further processes of the same example.
#![allow(dead_code, reason = "every example uses a part of it")]

use std::env;
use std::fmt;
use std::io;
use std::process::Command;
use std::thread;

use leasehold::{Builder, Client};

use self::server::Server;

#[path = "../../tests/it/support/server.rs"]
mod server;

/// A Redis server to use.
pub(crate) enum Redis {
    /// The server that the user named.
    Named(String),
    /// A server of our own, which is stopped when this value is dropped.
    Private(Server),
}

impl Redis {
    /// Uses the server at `url`, or else at `REDIS_URL`, or else starts a private one from PATH.
    ///
    /// Returns `None` on a machine that has no server installed.
    pub(crate) fn find(url: Option<String>) -> Option<Self> {
        url.or_else(|| env::var("REDIS_URL").ok())
            .filter(|url| !url.is_empty())
            .map(Self::Named)
            .or_else(|| Server::on_path().map(Self::Private))
    }

    /// Like `find`, for an example with several processes.
    pub(crate) fn require(url: Option<String>) -> Result<Self, &'static str> {
        let redis = Self::find(url).ok_or(
            "processes can share a lock only through a server: \
             give its URL as an argument or in REDIS_URL, or put redis-server on PATH",
        )?;
        println!("using {redis}");
        Ok(redis)
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Named(url) => url.clone(),
            Self::Private(server) => server.url(),
        }
    }

    /// Returns a command that starts this program again, with this server's URL in `REDIS_URL`:
    /// command lines are visible to all users, and the URL may contain a password.
    pub(crate) fn this_program(&self) -> io::Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.env("REDIS_URL", self.url());
        Ok(command)
    }
}

/// Omits the URL, which may contain a password.
impl fmt::Display for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(_) => write!(f, "the Redis you named"),
            Self::Private(server) => write!(f, "a private Redis on port {}", server.port()),
        }
    }
}

/// Opens a client at `redis`, or in memory if there is none.
pub(crate) fn open(redis: Option<&Redis>, builder: Builder) -> leasehold::Result<Client> {
    if let Some(redis) = redis {
        println!("using {redis}");
        builder.open(&redis.url())
    } else {
        println!("no Redis given and none on PATH: using memory, for this process only");
        builder.in_memory()
    }
}

/// Does the same work in several threads, which are numbered from 1, and collects the results.
pub(crate) fn in_threads<T: Send, E: Send>(
    threads: usize,
    work: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (1..=threads).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

/// Stops this whole process for some seconds, including its background threads, as on a machine
/// that swaps, migrates or is debugged.
pub(crate) fn stop_this_process(seconds: u32) -> io::Result<()> {
    let script = format!("kill -STOP $PPID; sleep {seconds}; kill -CONT $PPID");
    Command::new("sh").args(["-c", &script]).status().map(drop)
}
