//! Measures the cost of some work: wall time, CPU time, wake-ups of a thread, memory.
//!
//! CPU time is that of the whole process, so that work on background threads is counted.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io;
use std::ops::Add;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::server::Server;

/// Linux reports times in /proc in hundredths of a second, regardless of the kernel's tick.
const PROC_TICK: Duration = Duration::from_millis(10);

/// The cost of some work.
#[derive(Clone, Copy)]
pub(crate) struct Spent {
    pub(crate) wall: Duration,
    /// In user code, and in the kernel on its behalf, where a spinning reader spends most of it.
    pub(crate) cpu: Duration,
    /// The CPU time of the servers that are known to take part.
    pub(crate) servers: Duration,
}

impl Spent {
    pub(crate) fn by(servers: &[&Server], work: impl FnOnce()) -> Self {
        let of_servers = || servers.iter().map(|server| server.cpu_time()).sum::<Duration>();
        let (before, cpu, wall) = (of_servers(), cpu_time(), Instant::now());
        work();
        let (wall, cpu) = (wall.elapsed(), cpu_time().saturating_sub(cpu));
        Self { wall, cpu, servers: of_servers().saturating_sub(before) }
    }
}

/// The context switches so far of each thread with a given name.
pub(crate) struct Switches(BTreeMap<PathBuf, u64>);

impl Switches {
    pub(crate) fn of(thread: &str) -> Self {
        let switches = |task: io::Result<DirEntry>| {
            let task = task.ok()?.path();
            let name = fs::read_to_string(task.join("comm")).ok()?;
            let status = fs::read_to_string(task.join("status")).ok()?;
            (name.trim_end() == thread).then(|| (task, switches_in(&status)))
        };
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
        Self(tasks.filter_map(switches).collect())
    }

    /// Returns the sum over the threads that existed both times; `None` if there were none, or if
    /// there is no /proc.
    pub(crate) fn since(&self, before: &Self) -> Option<u64> {
        let now = self.0.iter();
        now.filter_map(|(task, now)| Some(now - before.0.get(task)?)).reduce(Add::add)
    }
}

/// Returns the CPU time so far of all threads with this name; `None` where there is no /proc.
#[derive(Clone, Copy)]
pub(crate) struct CpuTime(Option<Duration>);

impl CpuTime {
    pub(crate) fn of(thread: &str) -> Self {
        let ticks = |task: io::Result<DirEntry>| {
            let task = task.ok()?.path();
            let name = fs::read_to_string(task.join("comm")).ok()?;
            let stat = fs::read_to_string(task.join("stat")).ok()?;
            (name.trim_end() == thread)
                .then(|| PROC_TICK * (stat_field(&stat, 14) + stat_field(&stat, 15)))
        };
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
        Self(tasks.filter_map(ticks).reduce(Add::add))
    }

    pub(crate) fn since(self, before: Self) -> Option<Duration> {
        Some(self.0?.saturating_sub(before.0?))
    }
}

/// Returns the private memory of a process; `None` where there is no /proc.
pub(crate) fn private_bytes(process: u32) -> Option<u64> {
    let all = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("Private_Dirty:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Returns one of the numbers in a section of the server's INFO.
pub(crate) fn info(server: &Server, section: &str, field: &str) -> u64 {
    let info: String = server.ask(&["INFO", section]);
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|number| number.trim().parse().ok()).expect("a number")
}

fn switches_in(status: &str) -> u64 {
    let counters = status.lines().filter(|line| line.contains("ctxt_switches:"));
    counters.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(now).expect("a CPU clock is not negative")
}

/// Returns the number at an index of a `stat` file in /proc, or zero if there is none.
fn stat_field(stat: &str, field: usize) -> u32 {
    // The program's name, in parentheses, may contain spaces. Field 3 follows it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().nth(field - 3).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}
