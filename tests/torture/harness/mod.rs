//! The harness: starts servers and workers, disturbs them, and judges their histories.

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use self::guard::{PERMITS, Primitive};
use self::judge::{Run, judge};
use self::locks::Locks;
use self::options::{HELP, Options, Role};
use self::register::Register;
use self::server::Server;
use self::workers::Workers;

pub(crate) mod check;
#[path = "../../it/support/cluster.rs"]
mod cluster;
mod guard;
pub(crate) mod history;
mod judge;
mod kept_use;
mod locks;
pub(crate) mod messages;
pub(crate) mod nemesis;
pub(crate) mod options;
mod outcomes;
mod proxy;
mod random;
mod register;
#[path = "../../it/support/sentinel.rs"]
mod sentinel;
#[path = "../../it/support/server.rs"]
mod server;
mod summary;
mod worker;
mod workers;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Runs as the command line says.
pub(crate) fn main() -> ExitCode {
    let outcome = Options::parse().and_then(|options| match &options.role {
        _ if options.help => {
            print!("{HELP}");
            Ok(())
        }
        Some(role) => worker::run(&options, role),
        None => run(&options),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("torture: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Keeps the histories only if they show a problem, or on request.
fn run(options: &Options) -> Result<()> {
    let usual = || env::temp_dir().join(format!("leasehold-torture-{}", std::process::id()));
    let dir = options.histories.clone().unwrap_or_else(usual);
    fs::create_dir(&dir)?;
    let outcome = torture(options, &dir);
    match &outcome {
        Ok(()) if options.histories.is_some() => {}
        Ok(()) => fs::remove_dir_all(&dir)?,
        Err(_) => eprintln!("the histories are in {}", dir.display()),
    }
    outcome
}

fn torture(options: &Options, dir: &Path) -> Result<()> {
    let Options { processes, threads, names, lease, time, seed, server, .. } = options;
    println!("{processes} processes x {threads} threads, {names} names, a lease of {lease:?}");
    let kinds: Vec<_> = (0..*names).map(|name| options.primitive(name).to_string()).collect();
    println!("the names are: {}", kinds.join(", "));
    println!("for {time:?}, with seed {seed}");
    let protected = Server::start(server, &[]);
    let locks = Locks::start(options)?;

    let urls = (locks.urls(), protected.url());
    let first = Role { dir: dir.into(), number: 1, locks: urls.0, register: urls.1 };
    let mut workers = Workers::start(*processes, *seed, first)?;
    let incidents = nemesis::disturb(options, &mut workers, &locks)?;
    let mut register = Register::open(&protected.url(), true)?;
    (0..*names).try_for_each(|name| {
        let holders = if options.primitive(name) == Primitive::Semaphore { PERMITS } else { 1 };
        register.wait_for_use(name, holders)
    })?;
    workers.finish(*lease * 10)?;

    let finals: std::result::Result<Vec<u64>, _> =
        (0..*names).map(|name| register.value(name)).collect();
    judge(options, &Run { dir, workers: workers.started(), incidents, finals: finals? })
}
