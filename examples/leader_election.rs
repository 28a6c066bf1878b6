//! One leader among several processes, and a follower that takes over.
//!
//! See "Leader election" in `docs/cookbook.md`.
//!
//! `cargo run --example leader_election [URL]` starts three candidates and kills the first leader.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Election, HoldEnd, Leader, Term};

use self::support::Redis;

mod support;

const NAME: &str = "example:scheduler";
const LEASE: Duration = Duration::from_secs(1);
/// How long a candidate leads before it resigns.
const STEPS: u32 = 10;
const STEP: Duration = Duration::from_millis(100);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [option, name] if option == "--candidate" => take_part(name),
        _ => watch(args.into_iter().next()),
    }
}

/// One of the processes: waits until it leads, then leads for a while.
fn take_part(name: &str) -> Result<()> {
    let client = Client::builder().lease(LEASE).label(name).open(&env::var("REDIS_URL")?)?;
    println!("{name} is a candidate");
    let term = client.election(NAME).campaign()?;
    println!("{name} leads, with fence {}", term.fence());
    if lead(&term) {
        println!("{name} resigns");
        term.resign()?;
    } else {
        println!("{name} no longer leads, and has stopped its work");
    }
    Ok(())
}

/// Does the work of the leader, and returns `false` if the term was lost meanwhile.
fn lead(term: &Term) -> bool {
    let lost = term.lost();
    for _ in 0..STEPS {
        // A step of the real work goes here, with the fence in every write. The pause until the
        // next one ends early if the term is lost.
        if lost.wait_timeout(STEP) == Some(HoldEnd::Lost) {
            return false;
        }
    }
    true
}

/// Starts the candidates, kills the first leader, and checks who leads next.
fn watch(url: Option<String>) -> Result<()> {
    let redis = Redis::require(url)?;
    let election = Client::open(&redis.url())?.election(NAME);
    let start = |name| redis.this_program()?.args(["--candidate", name]).spawn();
    let mut ann = start("Ann")?;
    let first = wait_for_leader(&election, 0)?;
    let others = [start("Bob")?, start("Cem")?];
    thread::sleep(STEP * 3);

    println!("-- {} is killed", first.label);
    ann.kill()?;
    let killed = Instant::now();
    let second = wait_for_leader(&election, first.fence)?;
    println!("-- {} has taken over after {:.1?}", second.label, killed.elapsed());
    let third = wait_for_leader(&election, second.fence)?;
    println!("-- {} has taken over", third.label);

    ann.wait()?;
    for mut candidate in others {
        assert!(candidate.wait()?.success(), "a candidate failed");
    }
    let mut names = [&first, &second, &third].map(|leader| &leader.label[..]);
    names.sort_unstable();
    assert_eq!(names, ["Ann", "Bob", "Cem"], "each has led once");
    assert!(election.leader()?.is_none(), "the last leader has resigned");
    println!("each has led once, under a fence greater than the one before");
    Ok(())
}

/// Returns the first leader whose fence is greater than that of the leader before.
fn wait_for_leader(election: &Election, before: u64) -> Result<Leader> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if let Some(leader) = election.leader()?.filter(|leader| leader.fence > before) {
            return Ok(leader);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err("nobody leads".into())
}
