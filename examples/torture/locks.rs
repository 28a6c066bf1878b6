//! The servers that the locks are on, and how workers reach them.

use leasehold::{Client, Error};

use super::Result;
use super::nemesis::Fault;
use super::options::{Options, Role, Topology};
use super::proxy::Proxy;
use super::sentinel::{MASTER, Watched};
use super::server::Server;

/// Without fsync everything acknowledged survives the server's end, though not the machine's.
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
            // However long the machine pauses, no master is given up unless that is the fault.
            return Ok(Self::Sentinel(Watched::start_with(server, Watched::CALM, &KEPT)));
        }
        let server = Server::start(server, &KEPT);
        let faulty = options.faults.iter().copied().any(Fault::is_of_network);
        let proxy = faulty.then(|| Proxy::before(server.port(), *lease / 2, *seed)).transpose()?;
        Ok(Self::Server { server, proxy })
    }

    /// What workers are told, see [`open`].
    pub(crate) fn urls(&self) -> String {
        match self {
            Self::Sentinel(watched) => watched.urls().join(","),
            Self::Server { server, proxy } => proxy.as_ref().map_or(server.url(), Proxy::url),
        }
    }

    /// The one that has the locks now.
    pub(crate) fn server(&self) -> &Server {
        match self {
            Self::Sentinel(watched) => watched.master(),
            Self::Server { server, .. } => server,
        }
    }

    /// Waits until replicas have caught up with the master, and sentinels know of both.
    pub(crate) fn settle(&self) {
        if let Self::Sentinel(watched) = self {
            watched.wait_until_settled();
        }
    }
}

/// Opens a worker's client.
pub(crate) fn open(options: &Options, role: &Role) -> std::result::Result<Client, Error> {
    let builder = Client::builder().lease(options.lease).wait(options.lease * 5);
    let builder = builder.durability(options.durability);
    match options.topology {
        Topology::Sentinel => {
            let mut urls: Vec<&str> = role.locks.split(',').collect();
            // They learn of a failover one after the other, and so do those who ask them.
            let first = usize::try_from(role.number).expect("few workers") % urls.len();
            urls.rotate_left(first);
            builder.open_sentinel(&urls, MASTER)
        }
        Topology::Server => builder.open(&role.locks),
    }
}
