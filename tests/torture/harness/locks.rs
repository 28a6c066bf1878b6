//! The servers that the locks are on, and how workers reach them.

use leasehold::{Client, Error};

use crate::harness::Result;
use crate::harness::nemesis::Fault;
use crate::harness::options::{Options, Role, Topology};
use crate::harness::proxy::Proxy;
use crate::harness::sentinel::{MASTER, Watched};
use crate::harness::server::Server;

/// Without fsync everything acknowledged survives the end of the server, though not that of the
/// machine.
const KEPT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];

pub(crate) enum Locks {
    Sentinel(Watched),
    /// Behind a proxy if the network is to fail.
    Server {
        server: Server,
        proxy: Option<Proxy>,
    },
}

impl Locks {
    pub(crate) fn start(options: &Options) -> Result<Self> {
        let Options { server, lease, seed, .. } = options;
        if options.topology == Topology::Sentinel {
            // However long the machine pauses, no master is replaced unless that is the fault.
            return Ok(Self::Sentinel(Watched::start_with(server, Watched::CALM, &KEPT)));
        }
        let server = Server::start(server, &KEPT);
        let faulty = options.faults.iter().copied().any(Fault::is_of_network);
        let proxy = faulty.then(|| Proxy::before(server.port(), *lease / 2, *seed)).transpose()?;
        Ok(Self::Server { server, proxy })
    }

    /// The URLs for the workers, see [`open`].
    pub(crate) fn urls(&self) -> String {
        match self {
            Self::Sentinel(watched) => watched.urls().join(","),
            Self::Server { server, proxy } => proxy.as_ref().map_or(server.url(), Proxy::url),
        }
    }

    /// The server that has the locks now.
    pub(crate) fn server(&self) -> &Server {
        match self {
            Self::Sentinel(watched) => watched.master(),
            Self::Server { server, .. } => server,
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
    match options.topology {
        Topology::Sentinel => {
            let mut urls: Vec<&str> = role.locks.split(',').collect();
            // Sentinels learn of a failover one after the other, and so do clients that ask
            // different ones first.
            let first = usize::try_from(role.number).expect("few workers") % urls.len();
            urls.rotate_left(first);
            builder.open_sentinel(&urls, MASTER)
        }
        Topology::Server => builder.open(&role.locks),
    }
}
