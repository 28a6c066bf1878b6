//! The location of a behaviour's locks, for its child processes too.

use std::fmt;
#[cfg(feature = "tls")]
use std::fs;
use std::time::Duration;

use leasehold::{Builder, Client, Durability, Error};

use super::sentinel::MASTER;
use super::{ms, opened};

/// The location of locks, and the way in which clients are opened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Address {
    /// Empty if no single server is meant.
    pub(crate) url: String,
    pub(crate) way: Way,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Way {
    /// Through the node of a cluster that has this URL, with that prefix.
    Cluster(String),
    /// At its URL.
    Direct,
    /// At its URL; a lock counts when it is on disk.
    Fsync,
    /// In the process.
    Memory,
    /// At independent servers with these URLs.
    Redlock(Vec<String>),
    /// At its URL; a lock counts when a replica has it, too.
    Replica,
    /// Through sentinels with these URLs.
    Sentinels(Vec<String>),
    /// At its URL, with TLS; the authority that has certified the server is in this file.
    #[cfg(feature = "tls")]
    Tls(String),
}

impl Address {
    /// Parses the output of `to_string`.
    pub(crate) fn parse(text: &str) -> Address {
        let mut words = text.split('\t').map(str::to_owned);
        let (url, way) = (words.next().expect("a URL"), words.next().expect("a way"));
        let way = match &*way {
            "cluster" => Way::Cluster(words.next().expect("a prefix")),
            "direct" => Way::Direct,
            "fsync" => Way::Fsync,
            "memory" => Way::Memory,
            "redlock" => Way::Redlock(words.collect()),
            "replica" => Way::Replica,
            "sentinels" => Way::Sentinels(words.collect()),
            #[cfg(feature = "tls")]
            "tls" => Way::Tls(words.next().expect("a file")),
            _ => panic!("no way: {way}"),
        };
        Address { url, way }
    }

    pub(crate) fn open(&self, builder: Builder) -> Client {
        self.open_for(Duration::MAX, builder)
    }

    /// Opens a client for locks whose lease may be as short as that.
    pub(crate) fn open_for(&self, lease: Duration, builder: Builder) -> Client {
        opened(|| self.try_open(lease, builder.clone()))
    }

    fn try_open(&self, lease: Duration, builder: Builder) -> Result<Client, Error> {
        match &self.way {
            Way::Cluster(prefix) => builder.prefix(prefix).open_cluster([&self.url]),
            Way::Direct => builder.open(&self.url),
            Way::Fsync => self.open_durably(lease, builder, |timeout| Durability::Fsync {
                local: true,
                replicas: 0,
                timeout,
            }),
            Way::Memory => builder.in_memory(),
            Way::Redlock(urls) => builder.open_redlock(urls),
            Way::Replica => self
                .open_durably(lease, builder, |timeout| Durability::Replicas { acks: 1, timeout }),
            Way::Sentinels(urls) => {
                let urls: Vec<_> = urls.iter().map(String::as_str).collect();
                builder.open_sentinel(&urls, MASTER)
            }
            #[cfg(feature = "tls")]
            Way::Tls(file) => {
                let authority = fs::read(file).expect("the authority still exists");
                builder.tls(leasehold::Tls::new().ca_pem(authority)).open(&self.url)
            }
        }
    }

    /// Waits for replicas and disks for as long as the leases and the options allow. The longer the
    /// wait, the less often a pause of the machine looks like a lagging replica.
    fn open_durably(
        &self,
        lease: Duration,
        builder: Builder,
        durability: impl Fn(Duration) -> Durability,
    ) -> Result<Client, Error> {
        let timeouts = [8000, 900, 280, 90].map(ms).into_iter();
        let mut tries = timeouts
            .filter(|timeout| *timeout < lease / 3)
            .map(|timeout| builder.clone().durability(durability(timeout)).open(&self.url));
        let accepted = tries.find(|client| !matches!(client, Err(Error::InvalidInput(_))));
        accepted.expect("one of them is short enough")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match &self.way {
            Way::Cluster(prefix) => &format!("cluster\t{prefix}"),
            Way::Direct => "direct",
            Way::Fsync => "fsync",
            Way::Memory => "memory",
            Way::Redlock(urls) => &format!("redlock\t{}", urls.join("\t")),
            Way::Replica => "replica",
            Way::Sentinels(urls) => &format!("sentinels\t{}", urls.join("\t")),
            #[cfg(feature = "tls")]
            Way::Tls(file) => &format!("tls\t{file}"),
        };
        write!(f, "{}\t{way}", self.url)
    }
}
