//! A job that several machines start by their clocks, and that one of them runs at each tick.
//!
//! `cargo run --example scheduled_job [URL] [--plain]`. Two processes play the machines, and the
//! clock of one is late. The job takes less time than that, so it is done when the late machine
//! comes: only `hold_at_least` keeps the lock taken until then. The example counts the runs and
//! fails unless each tick had one; `--plain` shows what happens without `hold_at_least`.

use std::env;
use std::process::{Child, ExitCode};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Client, Mutex};

use self::support::Redis;

mod support;

const USAGE: &str = "usage: scheduled_job [URL] [--plain]";
const TICKS: u32 = 3;
/// The pause between two ticks.
const PERIOD: Duration = Duration::from_millis(2500);
/// How late the clocks of the machines are.
const CLOCKS: [(&str, Duration); 2] =
    [("machine 1", Duration::ZERO), ("machine 2", Duration::from_millis(300))];
/// How long the lock stays taken: longer than the clocks differ, with room for a machine that
/// starts late, and shorter than the pause between two ticks.
const TAKEN: Duration = Duration::from_millis(1500);
/// How long the job takes.
const WORK: Duration = Duration::from_millis(20);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let outcome = Options::parse(env::args().skip(1)).and_then(|options| match &options.machine {
        Some(machine) => machine.run(options.plain),
        None => run_machines(&options),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scheduled_job: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the machines, waits for them, and checks how often each tick's job was run.
fn run_machines(options: &Options) -> Result<()> {
    let redis = Redis::require(options.url.clone())?;
    let how = if options.plain { "not kept".into() } else { format!("kept for {TAKEN:?}") };
    println!("a tick every {PERIOD:?}, a job of {WORK:?}, a lock that is {how}");

    let first_tick = (UNIX_EPOCH.elapsed()? + Duration::from_secs(1)).as_millis().to_string();
    let start = |(name, late): (&str, Duration)| {
        println!("the clock of {name} is {late:?} late");
        let mut command = redis.this_program()?;
        command.args(["--machine", name, &late.as_millis().to_string(), &first_tick]);
        command.args(options.plain.then_some("--plain"));
        Ok(command.spawn()?)
    };
    let machines = CLOCKS.map(start).into_iter().collect::<Result<Vec<Child>>>()?;
    for mut machine in machines {
        if !machine.wait()?.success() {
            return Err("a machine failed".into());
        }
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

/// One of the processes that this program starts.
struct Machine {
    name: String,
    /// How late its clock is.
    late: Duration,
    /// In milliseconds since 1970.
    first_tick: String,
}

impl Machine {
    /// Runs the job at each tick, unless the other machine does.
    fn run(&self, plain: bool) -> Result<()> {
        let url = env::var("REDIS_URL")?;
        let client = Client::builder().label(&self.name).open(&url)?;
        let report = client.mutex("example:report");
        let report = if plain { report } else { report.hold_at_least(TAKEN) };
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let first_tick = UNIX_EPOCH + Duration::from_millis(self.first_tick.parse()?);
        for tick in 1..=TICKS {
            sleep_until(first_tick + PERIOD * (tick - 1) + self.late);
            let ran = report.try_with(|guard| {
                println!("  tick {tick}: {} runs the job, with fence {}", self.name, guard.fence());
                thread::sleep(WORK);
                let mut push = redis::cmd("RPUSH");
                push.arg(runs_key(&self.first_tick)).arg(tick).exec(&mut connection)
            })?;
            match ran {
                Some(outcome) => outcome?,
                None => self.show_why_not(tick, &report)?,
            }
        }
        Ok(())
    }

    fn show_why_not(&self, tick: u32, report: &Mutex) -> Result<()> {
        if let Some(holder) = report.holder()? {
            let (name, other, left) = (&self.name, holder.label, holder.remaining);
            let done = if holder.depth == 0 { "has run it" } else { "is running it" };
            println!(
                "  tick {tick}: {name} does not: {other} {done}; the lock is taken for {left:?}"
            );
        }
        Ok(())
    }
}

fn sleep_until(time: SystemTime) {
    thread::sleep(time.duration_since(SystemTime::now()).unwrap_or_default());
}

/// The options on the command line of a process.
struct Options {
    url: Option<String>,
    plain: bool,
    /// Given only to the processes that this program starts.
    machine: Option<Machine>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { url: None, plain: false, machine: None };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(USAGE);
            match arg.as_str() {
                "--plain" => options.plain = true,
                "--machine" => {
                    let name = value()?;
                    let late = Duration::from_millis(value()?.parse().map_err(|_| USAGE)?);
                    options.machine = Some(Machine { name, late, first_tick: value()? });
                }
                option if option.starts_with('-') => return Err(USAGE.into()),
                url => options.url = Some(url.to_owned()),
            }
        }
        Ok(options)
    }
}
