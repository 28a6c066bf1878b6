//! One suite of behaviours, run on every store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::{Builder, Client};
use redis::Connection;

use super::{Quorum, Server};

/// Makes a test of every listed behaviour for every store it applies to: `every store` for what
/// needs no more than one client, `every server` for what looks into Redis or needs a second client.
/// What is true of every store is asked of a quorum of three servers too, and of one of five that
/// has lost two.
///
/// A behaviour that is not listed is dead code, and that is a warning.
macro_rules! stores {
    (
        $(every store: $($common:ident),+ $(,)?;)?
        $(every server: $($special:ident),+ $(,)?;)?
    ) => {
        $(mod on_memory {
            $(#[test]
            fn $common() {
                super::$common(&$crate::support::Store::Memory);
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
    Memory,
    Quorum(Quorum),
    Server(Server),
}

impl Store {
    /// Opens the client of the behaviour. Only once: two in-memory clients share nothing.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        match self {
            Store::Memory => builder.in_memory().expect("the options are good"),
            Store::Quorum(quorum) => quorum.open(builder),
            Store::Server(server) => server.open(builder),
        }
    }

    /// A shared number that is kept where the locks are.
    pub(crate) fn register(&self) -> Register<'_> {
        match self {
            Store::Memory => Register::Local(Arc::default()),
            Store::Quorum(quorum) => Register::Remote(quorum.last()),
            Store::Server(server) => Register::Remote(server),
        }
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
pub(crate) enum Register<'store> {
    Local(Arc<AtomicU64>),
    Remote(&'store Server),
}

impl Register<'_> {
    /// A way to the number for one thread.
    pub(crate) fn handle(&self) -> Handle {
        match self {
            Register::Local(number) => Handle::Local(Arc::clone(number)),
            Register::Remote(server) => Handle::connect(&server.url()),
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
