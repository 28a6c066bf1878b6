//! Opens the state that the clones of a client share, with one function for each way to run Redis.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use std::{io, thread};

use crate::base::clock::end_of;
use crate::base::event_thread::Events;
use crate::base::failure::Failure;
use crate::base::random;
use crate::config::Config;
use crate::config::durability::Durability;
use crate::config::url::Deployment;
use crate::error::{Error, Phase, Result};
use crate::local::shared::Shared;
use crate::net::demand::Demand;
use crate::net::endpoint::Endpoint;
use crate::net::multiplexer::Multiplexer;
use crate::net::sentinels;
use crate::net::server::{Pools, ServerFactory};
use crate::protocol::call::{CallTimes, Wait};
use crate::protocol::retry::RetryPolicy;
use crate::store::Store;
use crate::store::memory::Memory;
use crate::store::memory::memory_server::MemoryServer;
use crate::store::quorum::Quorum;
use crate::store::servers::{Servers, parse_seeds};

/// The attempt named by errors of opening.
const ATTEMPT: &str = "open a client";

pub(crate) fn at(mut config: Config, deployment: Deployment) -> Result<Shared> {
    let has_sentinels = matches!(deployment, Deployment::Sentinel { .. });
    let events = prepare(&mut config, has_sentinels)?;
    let servers = &ServerFactory::new(&config, &events)?;
    match deployment {
        Deployment::Cluster { seeds } => cluster(servers, seeds),
        Deployment::Redlock { urls } => redlock(servers, urls),
        Deployment::Sentinel { urls, master } => sentinel(servers, urls, &master),
        Deployment::Server { url } => one(servers, servers.server(servers.endpoint(&url)?)),
    }
}

fn one(servers: &ServerFactory, server: Arc<Multiplexer>) -> Result<Shared> {
    let config = &servers.config;
    insist(config, || server.ping(end_of(config.connect_timeout)))?;
    if !config.lazy
        && let Some(demand) = Demand::new(config.durability)
    {
        let probed = server.exchange(demand.probe(), None, end_of(config.connect_timeout));
        probed.map_err(|failure| failure.into_error(ATTEMPT, ""))?;
    }
    let store = Servers::one(server, servers);
    if !config.lazy {
        store.check_alone(end_of(config.connect_timeout))?;
    }
    start(servers, Arc::new(store))
}

fn sentinel(servers: &ServerFactory, urls: Vec<String>, master: &str) -> Result<Shared> {
    Error::require(!master.is_empty(), "master", "must not be empty")?;
    let sentinels = sentinels::parse(urls, servers)?;
    let endpoint = master_endpoint(&sentinels, &servers.config)?;
    let route = sentinels::route(&sentinels, master, servers);
    one(servers, servers.server_along(route, endpoint))
}

fn cluster(servers: &ServerFactory, seeds: Vec<String>) -> Result<Shared> {
    let cluster = Servers::cluster(parse_seeds(seeds, servers)?, servers);
    insist(&servers.config, || cluster.explore())?;
    start(servers, Arc::new(cluster))
}

fn redlock(servers: &ServerFactory, urls: Vec<String>) -> Result<Shared> {
    let config = &servers.config;
    Error::require(!config.redisson, "redisson", "must be `false` on independent servers")?;
    let store = Arc::new(Quorum::new(servers.endpoints("urls", urls)?, servers));
    let reached = insist(config, || store.ping(end_of(config.connect_timeout)));
    store.check_distinct().and(reached)?;
    let shared = start(servers, store.clone())?;
    store.report_in_doubt_to(&shared.client, shared.in_doubt_reports());
    Ok(shared)
}

fn start(servers: &ServerFactory, store: Arc<dyn Store>) -> Result<Shared> {
    let config = servers.config.clone();
    Shared::start(config, &servers.events, store, servers.pools())
}

/// Opens a client whose locks exist only in this process.
pub(crate) fn in_memory(mut config: Config, server: &MemoryServer) -> Result<Shared> {
    let events = prepare(&mut config, false)?;
    let in_memory = config.durability == Durability::Memory;
    Error::require(in_memory, "durability", "must be `Memory` in memory")?;
    let store = Memory::new(server, &config);
    insist(&config, || store.connect(end_of(config.connect_timeout)))?;
    Shared::start(config, &events, Arc::new(store), Pools::default())
}

/// Checks the settings, and starts reporting to the program.
fn prepare(config: &mut Config, has_sentinels: bool) -> Result<Events> {
    config.check()?;
    let has_a_use = has_sentinels || config.master_login.is_none();
    let why = "must not be set unless sentinels name the master";
    Error::require(has_a_use, "master_login", why)?;
    // The default label names the process that opens the client.
    config.label = Some(config.label());
    // Moved to the thread that calls it.
    Events::start(config.on_event.take(), config.metrics).map_err(Error::no_thread)
}

/// Returns the endpoint of the master, with the login from the URLs of the sentinels.
fn master_endpoint(sentinels: &[Endpoint], config: &Config) -> Result<Endpoint> {
    let first = with_login_of_master(&sentinels[0], config);
    let are_same =
        sentinels.iter().all(|other| first.has_login_of(&with_login_of_master(other, config)));
    let why = "must have the same database, client name, user and password for the master";
    Error::require(are_same, "sentinels", why).map(|()| first)
}

fn with_login_of_master(sentinel: &Endpoint, config: &Config) -> Endpoint {
    match &config.master_login {
        _ if config.credentials.is_some() => sentinel.without_login(),
        None => sentinel.clone(),
        Some(login) => sentinel.with_login(login),
    }
}

/// Tries to reach the servers for as long as a call without a deadline would. Does nothing for a
/// lazy client.
fn insist(config: &Config, attempt: impl Fn() -> Result<(), Failure>) -> Result<()> {
    if config.lazy {
        return Ok(());
    }
    let times = CallTimes::new(config, Duration::MAX);
    let mut retry = RetryPolicy::new(Wait::No, config.retry_window, times, random());
    while let Err(mut failure) = attempt() {
        let Some(pause) = retry.pause_after(&mut failure, Instant::now()) else {
            return Err(with_hint(failure).into_error(ATTEMPT, ""));
        };
        thread::sleep(pause);
    }
    Ok(())
}

/// Adds a hint to the failure to reach a server, which may start later than the program.
fn with_hint(failure: Failure) -> Failure {
    if !matches!(failure.phase, Phase::Connect | Phase::LookUp) {
        return failure;
    }
    let kind = failure.source.downcast_ref().map_or(io::ErrorKind::Other, io::Error::kind);
    let why = format!("{}; a `lazy` client opens without its servers", failure.source);
    Failure { source: Arc::new(io::Error::new(kind, why)), ..failure }
}
