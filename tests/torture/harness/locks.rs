//! The servers that the locks are on, and how workers reach them.

use std::io;
use std::slice;

use leasehold::{Client, Durability, Error};

use crate::harness::Result;
use crate::harness::cluster::Cluster;
use crate::harness::nemesis::Fault;
use crate::harness::options::{Options, Role, Topology};
use crate::harness::proxy::Proxy;
use crate::harness::sentinel::{MASTER, Watched};
use crate::harness::server::Server;

pub(crate) enum Locks {
    Cluster(Cluster),
    /// One server, or those of a quorum. Each is behind a proxy if the network should fail.
    /// Otherwise there are no proxies.
    Independent {
        servers: Vec<Server>,
        proxies: Vec<Proxy>,
    },
    Sentinel(Watched),
}

impl Locks {
    pub(crate) fn start(options: &Options) -> Result<Self> {
        let Options { server, lease, seed, durability, .. } = options;
        // Without fsync, everything acknowledged survives the end of the server, though not that of
        // the machine.
        let to_disk = matches!(durability, Durability::Fsync { .. });
        let args = ["--appendonly", "yes", "--appendfsync", if to_disk { "always" } else { "no" }];
        let count = match options.topology {
            Topology::Cluster => {
                return Ok(Self::Cluster(Cluster::three_with(server.as_ref(), &args)));
            }
            // However long the machine pauses, no master is replaced unless that is the fault.
            Topology::Sentinel => {
                return Ok(Self::Sentinel(Watched::start_with(server, Watched::CALM, &args)));
            }
            Topology::Quorum => 3,
            Topology::Server => 1,
        };
        let servers: Vec<_> = (0..count).map(|_| Server::start(server, &args)).collect();
        let faulty = options.faults.iter().copied().any(Fault::is_of_network);
        let proxied = servers.iter().filter(|_| faulty);
        let proxies = proxied.map(|server| Proxy::before(server.port(), *lease / 2, *seed));
        Ok(Self::Independent { proxies: proxies.collect::<io::Result<_>>()?, servers })
    }

    /// Returns the URLs for the workers, see [`open`].
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<String> = match self {
            Self::Cluster(cluster) => cluster.urls(),
            Self::Independent { servers, proxies } if proxies.is_empty() => {
                servers.iter().map(Server::url).collect()
            }
            Self::Independent { proxies, .. } => proxies.iter().map(Proxy::url).collect(),
            Self::Sentinel(watched) => watched.urls(),
        };
        urls.join(",")
    }

    /// Returns the servers that have the locks now.
    pub(crate) fn servers(&self) -> &[Server] {
        match self {
            Self::Cluster(cluster) => cluster.nodes(),
            Self::Independent { servers, .. } => servers,
            Self::Sentinel(watched) => slice::from_ref(watched.master()),
        }
    }

    /// Waits until the replicas have caught up with the master and the sentinels know all of them.
    pub(crate) fn settle(&self) {
        if let Self::Sentinel(watched) = self {
            watched.wait_until_settled();
        }
    }
}

/// Opens a worker's client.
pub(crate) fn open(options: &Options, role: &Role) -> std::result::Result<Client, Error> {
    let builder = Client::builder().lease(options.lease).wait(options.lease * 5);
    let mut builder = builder.keep(options.keep).durability(options.durability);
    // Long enough that most faults hit a client within a tenure.
    if role.number.is_multiple_of(2) {
        builder = builder.tenure(options.lease / 3);
    }
    let mut urls: Vec<&str> = role.locks.split(',').collect();
    match options.topology {
        Topology::Cluster => builder.open_cluster(urls),
        Topology::Quorum => builder.open_redlock(urls),
        Topology::Sentinel => {
            // Sentinels learn of a failover one after another, and so do clients that ask different
            // ones first.
            let first = usize::try_from(role.number).expect("few workers") % urls.len();
            urls.rotate_left(first);
            builder.open_sentinel(&urls, MASTER)
        }
        Topology::Server => builder.open(&role.locks),
    }
}
