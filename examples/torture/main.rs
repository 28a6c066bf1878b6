//! A checked history: processes full of threads compete for a few locks while everything around
//! them fails, write down every call, and what they wrote is compared with what was promised.
//!
//! `cargo run --release --example torture -- --seconds 60`; `--help` lists the options. It starts a
//! `redis-server` of its own, and fails if a promise was broken, or if a lock is not used any more when
//! the faults are over. Four models are checked:
//!
//! | model | promise | voided by |
//! |---|---|---|
//! | exclusion | believed holds of a name never overlap, and none is lost early | lost data only |
//! | nesting | who has a lock gets it again at once, with the same fence; lost is final | nothing |
//! | fences | a later hold has a greater fence | nothing |
//! | register | with the fence, no acknowledged write is lost | nothing |
//!
//! A server that loses its data excuses two holders of one lock if one got it before and the other
//! after the loss, for a lease at most. The summary counts these. With `--locks sentinel` the locks
//! are on a master with replicas, and a failover is such a loss of what was promised between its
//! start and the time when nobody uses the old master any more.
//!
//! The register is on another server that nothing disturbs. Workers write to it whether they still
//! have the lock or not. With `--unfenced` it lets them, and the run fails unless updates get lost:
//! that shows that the faults hurt, and that the check sees it.

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use self::crew::Crew;
use self::judge::{Run, judge};
use self::locks::Locks;
use self::options::{HELP, Options, Role};
use self::register::Register;
use self::server::Server;

mod check;
mod crew;
mod history;
mod judge;
mod locks;
mod nemesis;
mod options;
mod proxy;
mod random;
mod register;
#[path = "../../tests/it/support/sentinel.rs"]
mod sentinel;
#[path = "../../tests/it/support/server.rs"]
mod server;
mod summary;
mod worker;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
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

/// Keeps the histories only if there is something to find in them.
fn run(options: &Options) -> Result<()> {
    let dir = env::temp_dir().join(format!("leasehold-torture-{}", std::process::id()));
    fs::create_dir(&dir)?;
    let outcome = torture(options, &dir);
    match &outcome {
        Ok(()) => fs::remove_dir_all(&dir)?,
        Err(_) => eprintln!("the histories are in {}", dir.display()),
    }
    outcome
}

fn torture(options: &Options, dir: &Path) -> Result<()> {
    let Options { processes, threads, names, lease, time, seed, server, .. } = options;
    println!("{processes} processes x {threads} threads, {names} names, a lease of {lease:?}");
    println!("for {time:?}, with seed {seed}");
    let protected = Server::start(server, &[]);
    let locks = Locks::start(options)?;

    let urls = (locks.urls(), protected.url());
    let first = Role { dir: dir.into(), number: 1, locks: urls.0, register: urls.1 };
    let mut crew = Crew::start(*processes, *seed, first)?;
    let deeds = nemesis::disturb(options, &mut crew, &locks)?;
    let mut register = Register::open(&protected.url(), true)?;
    (0..*names).try_for_each(|name| register.wait_for_use(name))?;
    crew.finish(*lease * 10)?;

    let finals: std::result::Result<Vec<u64>, _> =
        (0..*names).map(|name| register.value(name)).collect();
    judge(options, &Run { dir, workers: crew.started(), deeds, finals: finals? })
}
