//! One suite of behaviours, run on every store.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use leasehold::{Builder, Client};
use redis::Connection;

use super::cluster::unique_prefix;
use super::sentinel::MASTER;
use super::server::redis_binary;
use super::{Cluster, Quorum, Server, Watched};

/// Makes a test of every listed behaviour for every store it applies to: `every store` for what
/// needs no more than one client, `every server` for what looks into Redis or needs a second client.
/// What is true of every store is asked of a cluster too, of a quorum of three servers, and of one
/// of five that has lost two. What is listed under `sentinel` as well is also run on a master that
/// sentinels name.
///
/// A behaviour that is not listed is dead code, and that is a warning.
macro_rules! stores {
    (
        $(every store: $($common:ident),+ $(,)?;)?
        $(every server: $($special:ident),+ $(,)?;)?
        $(sentinel: $($watched:ident),+ $(,)?;)?
    ) => {
        $(mod on_sentinel {
            $(#[test]
            fn $watched() {
                super::$watched(&$crate::support::Store::watched());
            })+
        })?
        $(mod on_memory {
            $(#[test]
            fn $common() {
                super::$common(&$crate::support::Store::Memory);
            })+
        }
        mod on_cluster {
            $(#[test]
            fn $common() {
                super::$common(&$crate::support::Store::cluster());
            })+
        })?
        $(mod on_a_quorum {
            $(#[test]
            fn $common() {
                super::$common(&$crate::support::Store::Quorum($crate::support::Quorum::of(3)));
            })+
        }
        mod on_the_rest_of_a_quorum {
            $(#[test]
            fn $common() {
                let quorum = $crate::support::Quorum::of(5);
                quorum.servers[..2].iter().for_each($crate::support::Server::kill);
                super::$common(&$crate::support::Store::Quorum(quorum));
            })+
        })?
        $crate::support::stores! { @server on_redis, redis, [$($($common),+)?] [$($($special),+)?] }
        $crate::support::stores! { @server on_valkey, valkey, [$($($common),+)?] [$($($special),+)?] }
    };
    (@server $module:ident, $server:ident, [$($common:ident),*] [$($special:ident),*]) => {
        mod $module {
            $(#[test]
            fn $common() {
                let server = $crate::support::Server::$server();
                super::$common(&$crate::support::Store::Server(server));
            })*
            $(#[test]
            fn $special() {
                super::$special(&$crate::support::Server::$server());
            })*
        }
    };
}
pub(crate) use stores;

/// Where the locks of a behaviour live.
pub(crate) enum Store {
    /// A cluster that others use too, each with a prefix.
    Cluster(&'static Cluster, String),
    Memory,
    Quorum(Quorum),
    Server(Server),
    Watched {
        database: u32,
    },
}

/// Shared, because they take seconds to find each other. They end with this process.
static WATCHED: LazyLock<Watched> = LazyLock::new(|| {
    let databases = ["--databases", "256"];
    Watched::start_with(redis_binary(), Duration::from_secs(30), &databases)
});

impl Store {
    pub(crate) fn cluster() -> Store {
        Store::Cluster(Cluster::shared(), unique_prefix())
    }

    /// A database of its own on a master that sentinels name.
    pub(crate) fn watched() -> Store {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Store::Watched { database: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Opens the client of the behaviour. Only once: two in-memory clients share nothing.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        match self {
            Store::Cluster(cluster, prefix) => cluster.open(builder.prefix(prefix)),
            Store::Memory => builder.in_memory().expect("the options are good"),
            Store::Quorum(quorum) => quorum.open(builder),
            Store::Server(server) => server.open(builder),
            Store::Watched { database } => {
                let urls: Vec<_> =
                    WATCHED.urls().iter().map(|url| format!("{url}{database}")).collect();
                let urls: Vec<_> = urls.iter().map(String::as_str).collect();
                builder.open_sentinel(&urls, MASTER).expect("there is a master")
            }
        }
    }

    /// A shared number, kept where the locks are if that is one server.
    pub(crate) fn register(&self) -> Register {
        match self {
            Store::Cluster(..) | Store::Memory => Register::Local(Arc::default()),
            Store::Quorum(quorum) => Register::Remote(quorum.last().url()),
            Store::Server(server) => Register::Remote(server.url()),
            Store::Watched { database } => {
                Register::Remote(format!("{}{database}", WATCHED.master().url()))
            }
        }
    }
}

impl Cluster {
    /// Opens a client of this cluster.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        let urls = self.urls();
        let seeds: Vec<_> = urls.iter().map(String::as_str).collect();
        builder.open_cluster(&seeds).expect("the cluster is up")
    }
}

impl Server {
    /// Opens a client of this server.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        builder.open(&self.url()).expect("the server is up")
    }
}

/// A number that anybody may read and write, but not change in one step: it needs a lock.
#[derive(Clone)]
pub(crate) enum Register {
    Local(Arc<AtomicU64>),
    Remote(String),
}

impl Register {
    /// A way to the number for one thread.
    pub(crate) fn handle(&self) -> Handle {
        match self {
            Register::Local(number) => Handle::Local(Arc::clone(number)),
            Register::Remote(url) => Handle::connect(url),
        }
    }
}

/// One thread's way to a [`Register`].
pub(crate) enum Handle {
    Local(Arc<AtomicU64>),
    Remote(Box<Connection>),
}

impl Handle {
    /// The way of another process to the number in a server.
    pub(crate) fn connect(url: &str) -> Handle {
        let client = redis::Client::open(url).unwrap();
        Handle::Remote(Box::new(client.get_connection().unwrap()))
    }

    pub(crate) fn read(&mut self) -> u64 {
        match self {
            Handle::Local(number) => number.load(Ordering::SeqCst),
            Handle::Remote(connection) => {
                let number = redis::cmd("GET").arg("register").query(connection);
                number.map(Option::unwrap_or_default).unwrap()
            }
        }
    }

    pub(crate) fn write(&mut self, number: u64) {
        match self {
            Handle::Local(register) => register.store(number, Ordering::SeqCst),
            Handle::Remote(connection) => {
                redis::cmd("SET").arg(&["register", &number.to_string()]).exec(connection).unwrap();
            }
        }
    }
}
