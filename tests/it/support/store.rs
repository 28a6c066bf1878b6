//! The stores that behaviours run on, and the macro that makes their tests.

use std::any::Any;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client, MemoryServer, NameReport};
use redis::Connection;

use super::address::{Address, Way};
#[cfg(feature = "tls")]
use super::authority::Authority;
use super::cluster::unique_prefix;
use super::kinds::Kind;
use super::sentinel::{in_step, replicated};
use super::server::{self, redis_binary, valkey_binary};
use super::{Cluster, Quorum, SOON, Watched, eventually, ms, opened};

/// Makes a test of every listed behaviour for every store it applies to.
///
/// - `every store`: for behaviour that is the same wherever the locks are. Runs in memory, on a
///   cluster of Redis and one of Valkey, with locks that must be on disk, on a quorum of three
///   servers, on one of five that has lost two, and on all of the following.
/// - `every store but a quorum`: the same for features that a quorum does not have. A file has
///   either this or `every store`.
/// - `several clients`: for the effects of clients on each other, which are the same on all stores.
///   Runs in memory, and on all of the following.
/// - `every server`: for tests that look into the server with the locks, or need a second process.
///   Runs behind sentinels, and on all of the following.
/// - `every direct server`: for tests that lose, repeat or garble single requests and replies with
///   a proxy, which no sentinel names. Runs with locks that a replica must have, and on all of the
///   following.
/// - `one server`: for tests about a URL, a user, connections that threads share or a network that
///   carries nothing, and for tests that count everything that reaches the server. On other stores
///   the result would be the same, or would include the requests of others. Runs on Redis and on
///   Valkey.
///
/// Separately, `over tls` lists those that also run on Redis with TLS, where the end of a
/// connection is a message.
///
/// A behaviour that some systems lack has `#[cfg(unix)]` or the like before its name. An unlisted
/// behaviour is dead code, which is a warning.
macro_rules! stores {
    (over tls: $($behaviour:ident),+ $(,)?;) => {
        #[cfg(feature = "tls")]
        $crate::support::stores! { @server over_tls, with_tls, [] [$($behaviour)+] }
    };
    (
        $(every store: $($common:ident),+ $(,)?;)?
        $(every store but a quorum: $($alone:ident),+ $(,)?;)?
        $(several clients: $($several:ident),+ $(,)?;)?
        $(every server: $($(#[$if_special:meta])? $special:ident),+ $(,)?;)?
        $(every direct server: $($direct:ident),+ $(,)?;)?
        $(one server: $($(#[$if_single:meta])? $single:ident),+ $(,)?;)?
    ) => {
        $crate::support::stores! {
            @store on_memory, memory, $($($common)+)? $($($alone)+)? $($($several)+)?
        }
        $(
            $crate::support::stores! { @store on_a_cluster, cluster, $($common)+ }
            $crate::support::stores! { @store on_a_valkey_cluster, valkey_cluster, $($common)+ }
            $crate::support::stores! { @store on_disk, on_disk, $($common)+ }
            $crate::support::stores! { @store on_a_quorum, quorum, $($common)+ }
            $crate::support::stores! { @store on_the_rest_of_a_quorum, rest, $($common)+ }
        )?
        $(
            $crate::support::stores! { @store on_a_cluster, cluster, $($alone)+ }
            $crate::support::stores! { @store on_a_valkey_cluster, valkey_cluster, $($alone)+ }
            $crate::support::stores! { @store on_disk, on_disk, $($alone)+ }
        )?
        $crate::support::stores! {
            @server on_redis, redis,
            [$($($common)+)? $($($alone)+)? $($($several)+)?]
            [
                $($($(#[$if_special])? $special)+)?
                $($($direct)+)?
                $($($(#[$if_single])? $single)+)?
            ]
        }
        $crate::support::stores! {
            @server on_valkey, valkey,
            [$($($common)+)? $($($alone)+)? $($($several)+)?]
            [
                $($($(#[$if_special])? $special)+)?
                $($($direct)+)?
                $($($(#[$if_single])? $single)+)?
            ]
        }
        $crate::support::stores! {
            @server behind_sentinels, watched,
            [$($($common)+)? $($($alone)+)? $($($several)+)?] [$($($(#[$if_special])? $special)+)?]
        }
        $crate::support::stores! {
            @server with_a_replica, replicated,
            [$($($common)+)? $($($alone)+)? $($($several)+)?]
            [$($($(#[$if_special])? $special)+)? $($($direct)+)?]
        }
    };
    (@store $module:ident, $store:ident, $($behaviour:ident)*) => {
        mod $module {
            $(#[test]
            fn $behaviour() {
                super::$behaviour(&$crate::support::Store::$store());
            })*
        }
    };
    (
        @server $module:ident, $server:ident,
        [$($common:ident)*] [$($(#[$if_special:meta])? $special:ident)*]
    ) => {
        mod $module {
            $(#[test]
            fn $common() {
                let server = $crate::support::Server::$server();
                super::$common(&$crate::support::Store::Server(server));
            })*
            $($(#[$if_special])?
            #[test]
            fn $special() {
                super::$special(&$crate::support::Server::$server());
            })*
        }
    };
}
pub(crate) use stores;

/// Makes two tests of every listed behaviour, for servers that a function starts from a binary:
/// Redis, and Valkey.
macro_rules! on_both {
    ($($start:ident: $($behaviour:ident),+ $(,)?;)+) => {
        mod on_redis {
            $($(#[test]
            fn $behaviour() {
                super::$behaviour(&super::$start(&$crate::support::server::redis_binary()));
            })+)+
        }
        mod on_valkey {
            $($(#[test]
            fn $behaviour() {
                super::$behaviour(&super::$start($crate::support::server::valkey_binary()));
            })+)+
        }
    };
}
pub(crate) use on_both;

/// The location of a behaviour's locks.
pub(crate) enum Store {
    /// A cluster that several tests share, each with its own prefix.
    Cluster(&'static Cluster, String),
    Memory(MemoryServer),
    Quorum(Quorum),
    Server(Server),
}

impl Store {
    pub(crate) fn cluster() -> Store {
        Store::Cluster(Cluster::shared(), unique_prefix())
    }

    pub(crate) fn valkey_cluster() -> Store {
        Store::Cluster(Cluster::shared_valkey(), unique_prefix())
    }

    pub(crate) fn memory() -> Store {
        Store::Memory(MemoryServer::new())
    }

    pub(crate) fn on_disk() -> Store {
        Store::Server(Server::synced())
    }

    pub(crate) fn quorum() -> Store {
        Store::Quorum(Quorum::of(3))
    }

    /// Returns five servers, of which two are down.
    pub(crate) fn rest() -> Store {
        let quorum = Quorum::of(5);
        quorum.servers[..2].iter().for_each(server::Server::kill);
        Store::Quorum(quorum)
    }

    /// Opens a client of the behaviour.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        self.open_for(Duration::MAX, builder)
    }

    /// Like `open`, for a behaviour with a lock whose own lease is as short as that.
    pub(crate) fn open_for(&self, lease: Duration, builder: Builder) -> Client {
        match self {
            Store::Cluster(cluster, prefix) => cluster.open(builder.prefix(prefix)),
            Store::Memory(server) => builder.open_memory(server).expect("the options are good"),
            Store::Quorum(quorum) => quorum.open(builder),
            Store::Server(server) => server.open_for(lease, builder),
        }
    }

    /// Returns the kinds of hold that it has.
    pub(crate) fn kinds(&self) -> &'static [Kind] {
        if let Store::Quorum(_) = self { &Kind::LOCKS } else { &Kind::ALL }
    }

    /// Returns the address for a child process.
    pub(crate) fn address(&self) -> String {
        let (url, way) = match self {
            Store::Cluster(cluster, prefix) => {
                (cluster.nodes()[0].url(), Way::Cluster(prefix.clone()))
            }
            Store::Memory(_) => (String::new(), Way::Memory),
            Store::Quorum(quorum) => (String::new(), Way::Redlock(quorum.urls())),
            Store::Server(server) => return server.address(),
        };
        Address { url, way }.to_string()
    }

    /// Returns the time to live of a name's counter of fences, at a server that has it; `None` if
    /// there is none, as in memory.
    pub(crate) fn fence_life(&self, name: &str) -> Option<Duration> {
        let (servers, prefix): (&[server::Server], _) = match self {
            Store::Cluster(cluster, prefix) => (cluster.nodes(), prefix.as_str()),
            Store::Memory(_) => return None,
            // The server that is never down.
            Store::Quorum(quorum) => (slice::from_ref(quorum.last()), "lock:"),
            Store::Server(server) => (slice::from_ref(&**server), "lock:"),
        };
        let key = format!("leasehold:fence:{{{prefix}{name}}}");
        // Other nodes of a cluster refuse the question.
        let lives = servers.iter().filter_map(|server| server.try_ask::<i64>(&["PTTL", &key]).ok());
        lives.filter_map(|life| u64::try_from(life).ok()).map(Duration::from_millis).next()
    }

    /// The ids of the clients that wait for a lock, in the order of their arrival.
    pub(crate) fn queue(&self, name: &str) -> Vec<String> {
        let client_of = |entry: String| {
            let mut kinds = ["p:", "r:", "w:"].iter();
            kinds.find_map(|kind| entry.strip_prefix(kind)).unwrap_or(&entry).to_owned()
        };
        match self {
            Store::Server(server) => server.queue(name).into_iter().map(client_of).collect(),
            _ => self.report(name).waiting,
        }
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        match self {
            Store::Server(server) => server.exists(name),
            _ => !self.report(name).holds.is_empty(),
        }
    }

    fn report(&self, name: &str) -> NameReport {
        let operator = self.open(Client::builder());
        operator.survey().report(name).expect("the servers answer")
    }

    /// Returns `true` if a client gets messages about its turn, as it does once it has waited.
    pub(crate) fn listens(&self, client: &Client) -> bool {
        match self {
            Store::Server(server) => server.listeners(client) > 0,
            _ => true,
        }
    }

    /// Returns a shared number. It is kept on the server of the locks if that is a single one.
    pub(crate) fn register(&self) -> Register {
        match self {
            Store::Cluster(..) | Store::Memory(_) => Register::Local(Arc::default()),
            Store::Quorum(quorum) => Register::Remote(quorum.last().url()),
            Store::Server(server) => Register::Remote(server.url()),
        }
    }
}

/// The server with the locks of a behaviour, and how clients reach it.
pub(crate) struct Server {
    address: Address,
    master: server::Server,
    replicas: Vec<server::Server>,
    /// Dropped together with this: sentinels, or the authority that has certified the server.
    _kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl Server {
    pub(crate) fn redis() -> Server {
        Server::alone(Way::Direct, server::Server::redis())
    }

    pub(crate) fn valkey() -> Server {
        Server::alone(Way::Direct, server::Server::valkey())
    }

    pub(crate) fn replicated() -> Server {
        Server::with_replicas(Way::Replica, replicated(1, redis_binary(), &[]), vec![])
    }

    pub(crate) fn synced() -> Server {
        let at_once = ["--appendonly", "yes", "--appendfsync", "always"];
        Server::alone(Way::Fsync, server::Server::start(valkey_binary(), &at_once))
    }

    pub(crate) fn watched() -> Server {
        let watched = Watched::launch(redis_binary(), Duration::from_secs(30), &[]);
        let way = Way::Sentinels(watched.urls());
        Server::with_replicas(way, watched.servers, watched.sentinels)
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_tls() -> Server {
        let authority = Authority::new("good");
        let certified = authority.certify("localhost");
        let server = authority.start(&certified, &["--tls-auth-clients", "no"]);
        let way = Way::Tls(authority.file().to_str().expect("a path in UTF-8").to_owned());
        let address = Address { url: server.tls_url(), way };
        let alone = Server::alone(Way::Direct, server);
        Server { address, _kept: vec![Box::new(authority)], ..alone }
    }

    fn alone(way: Way, server: server::Server) -> Server {
        Server::with_replicas(way, vec![server], vec![])
    }

    /// The master comes first.
    fn with_replicas(
        way: Way,
        mut servers: Vec<server::Server>,
        sentinels: Vec<server::Server>,
    ) -> Server {
        let master = servers.remove(0);
        let address = Address { url: master.url(), way };
        let kept = sentinels.into_iter().map(|sentinel| Box::new(sentinel) as _);
        Server { address, master, replicas: servers, _kept: kept.collect() }
    }

    /// Like [`server::Server::restart`], but also waits for the replicas.
    pub(crate) fn restart(&self) {
        self.master.restart();
        eventually(SOON, || in_step(&self.master, &self.replicas));
    }

    /// Returns the address of the server through a relay on that port.
    pub(crate) fn through(&self, port: u16) -> Address {
        assert!(!matches!(self.address.way, Way::Sentinels(_)), "sentinels name no other port");
        let url = format!("redis://127.0.0.1:{port}/");
        Address { url, way: self.address.way.clone() }
    }

    /// Returns the address for a child process.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Opens a client of the behaviour.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        self.address.open(builder)
    }

    /// Like `open`, for a behaviour with a lock whose own lease is as short as that.
    pub(crate) fn open_for(&self, lease: Duration, builder: Builder) -> Client {
        self.address.open_for(lease, builder)
    }
}

impl Deref for Server {
    type Target = server::Server;

    fn deref(&self) -> &server::Server {
        &self.master
    }
}

impl Cluster {
    /// Opens a client of this cluster.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        let urls = self.urls();
        opened(|| builder.clone().open_cluster(&urls))
    }
}

impl server::Server {
    /// Opens a client of this server.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        opened(|| builder.clone().open(&self.url()))
    }
}

/// A number that every thread may read and write, but not change in one step, so it needs a lock.
#[derive(Clone)]
pub(crate) enum Register {
    Local(Arc<AtomicU64>),
    Remote(String),
}

impl Register {
    /// Returns access to the number for one thread.
    pub(crate) fn handle(&self) -> Handle {
        match self {
            Register::Local(number) => Handle::Local(Arc::clone(number)),
            Register::Remote(url) => Handle::connect(url),
        }
    }
}

/// Access of one thread to a [`Register`].
pub(crate) enum Handle {
    Local(Arc<AtomicU64>),
    Remote(Box<Connection>),
}

impl Handle {
    /// Returns access for another process to the number on a server.
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

    /// Adds one in a way that loses updates if another thread does so at the same time.
    pub(crate) fn add_one(&mut self) {
        let read = self.read();
        thread::sleep(ms(1));
        self.write(read + 1);
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
