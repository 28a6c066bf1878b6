//! The servers that the locks are on, and how workers reach them.

use std::slice;
use std::sync::Arc;

use leasehold::{Client, Durability, Error};

use crate::harness::Result;
use crate::harness::cluster::Cluster;
use crate::harness::nemesis::Fault;
use crate::harness::options::{Options, Role, Topology};
use crate::harness::proxy::Proxy;
use crate::harness::sentinel::{MASTER, Watched};
use crate::harness::server::Server;
use crate::harness::trace::Answers;

pub(crate) enum Locks {
    Cluster(Cluster),
    Quorum(Vec<Server>),
    Sentinel(Watched),
    /// Behind a proxy if the network is to fail, or if answers are to be written down.
    Server {
        server: Server,
        proxy: Option<Proxy>,
        answers: Arc<Answers>,
    },
}

impl Locks {
    pub(crate) fn start(options: &Options) -> Result<Self> {
        let Options { server, lease, seed, durability, .. } = options;
        // Without fsync everything acknowledged survives the end of the server, though not that of
        // the machine.
        let to_disk = matches!(durability, Durability::Fsync { .. });
        let args = ["--appendonly", "yes", "--appendfsync", if to_disk { "always" } else { "no" }];
        Ok(match options.topology {
            Topology::Cluster => Self::Cluster(Cluster::three_with(server.as_ref(), &args)),
            Topology::Quorum => {
                Self::Quorum((0..3).map(|_| Server::start(server, &args)).collect())
            }
            // However long the machine pauses, no master is replaced unless that is the fault.
            Topology::Sentinel => Self::Sentinel(Watched::start_with(server, Watched::CALM, &args)),
            Topology::Server => {
                let server = Server::start(server, &args);
                let faulty = options.faults.iter().copied().any(Fault::is_of_network);
                let answers = Arc::default();
                let proxy = || Proxy::before(server.port(), *lease / 2, *seed, &answers);
                let proxy = (faulty || options.trace).then(proxy).transpose()?;
                Self::Server { server, proxy, answers }
            }
        })
    }

    /// The URLs for the workers, see [`open`].
    pub(crate) fn urls(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.urls().join(","),
            Self::Quorum(servers) => servers.iter().map(Server::url).collect::<Vec<_>>().join(","),
            Self::Sentinel(watched) => watched.urls().join(","),
            Self::Server { server, proxy, .. } => proxy.as_ref().map_or(server.url(), Proxy::url),
        }
    }

    /// The servers that have the locks now.
    pub(crate) fn servers(&self) -> &[Server] {
        match self {
            Self::Cluster(cluster) => cluster.nodes(),
            Self::Quorum(servers) => servers,
            Self::Sentinel(watched) => slice::from_ref(watched.master()),
            Self::Server { server, .. } => slice::from_ref(server),
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
    // So long that most faults hit a client within a tenure.
    if role.number.is_multiple_of(2) {
        builder = builder.tenure(options.lease / 3);
    }
    let mut urls: Vec<&str> = role.locks.split(',').collect();
    match options.topology {
        Topology::Cluster => builder.open_cluster(urls),
        Topology::Quorum => builder.open_redlock(urls),
        Topology::Sentinel => {
            // Sentinels learn of a failover one after the other, and so do clients that ask
            // different ones first.
            let first = usize::try_from(role.number).expect("few workers") % urls.len();
            urls.rotate_left(first);
            builder.open_sentinel(&urls, MASTER)
        }
        Topology::Server => builder.open(&role.locks),
    }
}
