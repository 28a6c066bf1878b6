//! The calls of the workers: a file for each process, with a line when a call begins and one when
//! it has returned. So a call during which the process was killed is known too.
//!
//! ```text
//! 8123456789 3 > lock 0 1             time in ns, thread, name, level
//! 8123999999 3 < granted 17 1 8999    fence, depth, time until which it is sure to be held
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Returns the time in nanoseconds by a clock that all processes of this machine share, and that
/// leases are measured by: it counts through suspend.
pub(crate) fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    nanos(clock_gettime(CLOCK).try_into().expect("the clock is past its start"))
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("less than centuries")
}

/// Returns the reading of [`now`] at the beginning of 1970, from which servers count their time, as
/// a number to subtract from theirs.
pub(crate) fn zero() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    nanos(time) - now()
}

/// Later than every time.
pub(crate) const NEVER: u64 = u64::MAX;

/// A time between two readings of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// One thread of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Actor {
    pub(crate) worker: u64,
    pub(crate) thread: u32,
}

/// The line with which a call ends, or begins if it has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) worker: u64,
    /// From 1.
    pub(crate) line: usize,
}

/// One call and its outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) actor: Actor,
    pub(crate) name: u32,
    pub(crate) action: Action,
    pub(crate) outcome: Outcome,
    /// Ends [`NEVER`] if the process was killed during the call.
    pub(crate) span: Span,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Checks, without a request, whether this thread holds the lock with this many guards.
    Check { levels: u32 },
    /// Takes the lock, or the writing side of a read-write lock; above level 1 it is nested.
    Lock { level: u32 },
    /// Takes a permit of a semaphore.
    Permit,
    /// Reads the register.
    Read { fence: u64 },
    /// Takes the reading side of a read-write lock.
    Share,
    /// Releases one of this many levels.
    Unlock { levels: u32 },
    /// Writes to the register.
    Write { fence: u64, value: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Other threads or processes have the lock.
    Busy,
    /// Unlocked, or written.
    Done,
    /// Released by a drop, which does not report whether it was still held.
    Dropped,
    /// Neither held nor reported as lost.
    Free,
    /// Locked. `until` is the time until which the guard has promised to be held. The fence of a
    /// permit is 0.
    Granted {
        fence: u64,
        depth: u32,
        until: u64,
    },
    Held {
        until: u64,
    },
    Lost,
    /// The register has seen a greater fence.
    Stale,
    /// No reply.
    Unknown,
    /// Read.
    Value {
        value: u64,
    },
}

/// The three kinds of outcomes that histories usually have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ok,
    Fail,
    Unknown,
}

impl Outcome {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Busy | Self::Lost | Self::Stale => Kind::Fail,
            Self::Unknown => Kind::Unknown,
            _ => Kind::Ok,
        }
    }

    fn parse(words: &[&str]) -> Option<Self> {
        Some(match *words {
            ["busy"] => Self::Busy,
            ["done"] => Self::Done,
            ["dropped"] => Self::Dropped,
            ["free"] => Self::Free,
            ["granted", fence, depth, until] => Self::Granted {
                fence: fence.parse().ok()?,
                depth: depth.parse().ok()?,
                until: until.parse().ok()?,
            },
            ["held", until] => Self::Held { until: until.parse().ok()? },
            ["lost"] => Self::Lost,
            ["stale"] => Self::Stale,
            ["unknown"] => Self::Unknown,
            ["value", value] => Self::Value { value: value.parse().ok()? },
            _ => return None,
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => write!(f, "busy"),
            Self::Done => write!(f, "done"),
            Self::Dropped => write!(f, "dropped"),
            Self::Free => write!(f, "free"),
            Self::Granted { fence, depth, until } => write!(f, "granted {fence} {depth} {until}"),
            Self::Held { until } => write!(f, "held {until}"),
            Self::Lost => write!(f, "lost"),
            Self::Stale => write!(f, "stale"),
            Self::Unknown => write!(f, "unknown"),
            Self::Value { value } => write!(f, "value {value}"),
        }
    }
}

impl Action {
    /// Returns `true` if this begins a hold.
    pub(crate) fn begins(self) -> bool {
        matches!(self, Self::Lock { level: 1 } | Self::Permit | Self::Share)
    }

    /// Parses an action and the number of its lock.
    fn parse(words: &[&str]) -> Option<(Self, u32)> {
        let (action, name) = match *words {
            ["check", name, levels] => (Self::Check { levels: levels.parse().ok()? }, name),
            ["lock", name, level] => (Self::Lock { level: level.parse().ok()? }, name),
            ["permit", name] => (Self::Permit, name),
            ["read", name, fence] => (Self::Read { fence: fence.parse().ok()? }, name),
            ["share", name] => (Self::Share, name),
            ["unlock", name, levels] => (Self::Unlock { levels: levels.parse().ok()? }, name),
            ["write", name, fence, value] => {
                (Self::Write { fence: fence.parse().ok()?, value: value.parse().ok()? }, name)
            }
            _ => return None,
        };
        Some((action, name.parse().ok()?))
    }

    fn line(self, name: u32) -> String {
        match self {
            Self::Check { levels } => format!("check {name} {levels}"),
            Self::Lock { level } => format!("lock {name} {level}"),
            Self::Permit => format!("permit {name}"),
            Self::Read { fence } => format!("read {name} {fence}"),
            Self::Share => format!("share {name}"),
            Self::Unlock { levels } => format!("unlock {name} {levels}"),
            Self::Write { fence, value } => format!("write {name} {fence} {value}"),
        }
    }
}

/// Returns the file of a worker. Workers are numbered from 1.
pub(crate) fn path(dir: &Path, worker: u64) -> PathBuf {
    dir.join(format!("worker-{worker}"))
}

/// Writes the history of one process.
pub(crate) struct Recorder {
    /// Written without a buffer, so that every line survives SIGKILL.
    file: Mutex<File>,
}

impl Recorder {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: Mutex::new(File::create_new(path)?) })
    }

    /// Makes a call, with a line before and one after it.
    pub(crate) fn record<T>(
        &self,
        (thread, name): (u32, u32),
        action: Action,
        call: impl FnOnce() -> (T, Outcome),
    ) -> T {
        self.write(&format!("{} {thread} > {}\n", now(), action.line(name)));
        let (value, outcome) = call();
        self.write(&format!("{} {thread} < {outcome}\n", now()));
        value
    }

    fn write(&self, line: &str) {
        let mut file = self.file.lock().expect("no write has failed");
        file.write_all(line.as_bytes()).expect("the history can be written");
    }
}

/// Parses the history of one process, and passes on the calls of each thread in order.
pub(crate) fn read(
    mut lines: impl BufRead,
    worker: u64,
    mut note: impl FnMut(&Call),
) -> io::Result<()> {
    let mut open: BTreeMap<Actor, Call> = BTreeMap::new();
    let mut text = String::new();
    let mut place = Place { worker, line: 0 };
    loop {
        text.clear();
        lines.read_line(&mut text)?;
        // The last line of a killed process may be incomplete.
        let Some(line) = text.strip_suffix('\n') else { break };
        place.line += 1;
        read_line(&mut open, line, place, &mut note).ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidData, format!("{place:?} makes no sense: {line}"))
        })?;
    }
    open.values().for_each(&mut note);
    Ok(())
}

/// Parses one line and passes on the call that it ends. Returns `None` if the line makes no sense.
fn read_line(
    open: &mut BTreeMap<Actor, Call>,
    line: &str,
    place: Place,
    note: &mut impl FnMut(&Call),
) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    let [time, thread, mark, rest @ ..] = words.as_slice() else { return None };
    let actor = Actor { worker: place.worker, thread: thread.parse().ok()? };
    let time = time.parse().ok()?;
    if *mark == ">" {
        let (action, name) = Action::parse(rest)?;
        let span = Span { start: time, end: NEVER };
        let call = Call { actor, name, action, outcome: Outcome::Unknown, span, place };
        return open.insert(actor, call).is_none().then_some(());
    }
    let mut call = open.remove(&actor)?;
    call.outcome = Outcome::parse(rest)?;
    call.span.end = time;
    call.place = place;
    note(&call);
    Some(())
}
