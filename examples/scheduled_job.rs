//! A job that clocks start on several machines, and that only one of them runs at each tick.
//!
//! See "A scheduled job" in `docs/cookbook.md`.
//!
//! `cargo run --example scheduled_job [URL] [--plain]`. Two processes play the machines. The job
//! takes less time than their clocks differ. The example counts the runs and fails unless each tick
//! had exactly one; `--plain` shows what happens without `hold_at_least`.

use std::env;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Client, Mutex};

use self::support::Redis;

mod support;

const TICKS: u32 = 3;
/// The pause between two ticks.
const PERIOD: Duration = Duration::from_millis(2500);
/// The delay of each machine's clock.
const CLOCKS: [(&str, Duration); 2] =
    [("machine 1", Duration::ZERO), ("machine 2", Duration::from_millis(300))];
/// How long the lock stays taken: longer than the clocks differ, with room for a machine that
/// starts late, and shorter than the pause between two ticks.
const TAKEN: Duration = Duration::from_millis(1500);
/// How long the job takes.
const WORK: Duration = Duration::from_millis(20);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let plain = args.iter().any(|arg| arg == "--plain");
    match &args[..] {
        [option, name, late, first_tick, ..] if option == "--machine" => {
            run_at_each_tick(name, Duration::from_millis(late.parse()?), first_tick, plain)
        }
        _ => run_machines(args.into_iter().find(|arg| !arg.starts_with('-')), plain),
    }
}

/// Starts the machines, waits for them, and checks how often each tick's job was run.
fn run_machines(url: Option<String>, plain: bool) -> Result<()> {
    let redis = Redis::require(url)?;
    let how = if plain { "not kept".into() } else { format!("kept for {TAKEN:?}") };
    println!("a tick every {PERIOD:?}, a job of {WORK:?}, a lock that is {how}");

    // In milliseconds since 1970.
    let first_tick = (UNIX_EPOCH.elapsed()? + Duration::from_secs(1)).as_millis().to_string();
    let start = |(name, late): (&str, Duration)| {
        let clock = if late.is_zero() { "right".into() } else { format!("{late:?} late") };
        println!("the clock of {name} is {clock}");
        let mut machine = redis.this_program()?;
        machine.args(["--machine", name, &late.as_millis().to_string(), &first_tick]);
        Ok(machine.args(plain.then_some("--plain")).spawn()?)
    };
    for mut machine in CLOCKS.map(start).into_iter().collect::<Result<Vec<_>>>()? {
        assert!(machine.wait()?.success(), "a machine failed");
    }

    let mut connection = redis::Client::open(redis.url())?.get_connection()?;
    let key = runs_key(&first_tick);
    let runs: Vec<u32> = redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).query(&mut connection)?;
    redis::cmd("DEL").arg(&key).exec(&mut connection)?;
    for tick in 1..=TICKS {
        let times = runs.iter().filter(|ran| **ran == tick).count();
        if times != 1 {
            return Err(format!("the job of tick {tick} was run {times} times").into());
        }
    }
    println!("the job of each tick was run once");
    Ok(())
}

/// The list of the ticks whose jobs were run.
fn runs_key(first_tick: &str) -> String {
    format!("scheduled_job:{first_tick}")
}

/// One of the machines: runs the job at each tick, unless the other one does.
fn run_at_each_tick(name: &str, late: Duration, first_tick: &str, plain: bool) -> Result<()> {
    let url = env::var("REDIS_URL")?;
    let client = Client::builder().label(name).open(&url)?;
    let report = client.mutex("example:report");
    let report = if plain { report } else { report.hold_at_least(TAKEN) };
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let first = UNIX_EPOCH + Duration::from_millis(first_tick.parse()?);
    for tick in 1..=TICKS {
        sleep_until(first + PERIOD * (tick - 1) + late);
        let ran = report.try_with(|guard| {
            println!("  tick {tick}: {name} runs the job, with fence {}", guard.fence());
            thread::sleep(WORK);
            let mut push = redis::cmd("RPUSH");
            push.arg(runs_key(first_tick)).arg(tick).exec(&mut connection)
        })?;
        match ran {
            Some(outcome) => outcome?,
            None => println!("  tick {tick}: {name} does not, {}", why_not(&report)?),
        }
    }
    Ok(())
}

fn why_not(report: &Mutex) -> Result<String> {
    let Some(holder) = report.holder()? else { return Ok("it was taken".into()) };
    let done = if holder.depth == 0 { "has run it" } else { "is running it" };
    Ok(format!("{} {done}; the lock is taken for {:?}", holder.label, holder.remaining))
}

fn sleep_until(time: SystemTime) {
    thread::sleep(time.duration_since(SystemTime::now()).unwrap_or_default());
}
