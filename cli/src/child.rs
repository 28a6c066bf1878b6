//! The process of the command, the terminal that it uses, and the signals that this program
//! receives while it waits and while the command runs.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, id};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, select, unbounded};
use leasehold::Canceller;
use nix::sys::signal::{SigSet, Signal as Blockable};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, getppid, getsid, kill_process, kill_process_group,
    test_kill_process, test_kill_process_group, wait,
};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::signal_name;

use crate::output::{ExitError, of_signal};

/// The argument with which this program starts itself in order to become the command.
pub(crate) const HELPER: &str = "__run-with-parent";

/// The path of this program, even if its file has been replaced (on Linux).
const THIS_PROGRAM: &str = "/proc/self/exe";

/// How long a command at a terminal has to stop by itself: an editor first restores the terminal.
const STOP_TIME: Duration = Duration::from_millis(100);

/// The signals that end a wait and are forwarded to the command.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The signals that `--yield` accepts.
const NAMED: [i32; 8] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// How long a call that a signal ends may take to finish what it has begun.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// Locked while a process other than the command's must be waited for by the code that started it.
pub(crate) static OTHER_PROCESS: Mutex<()> = Mutex::new(());

/// The command. Dropping this does not end it.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    /// Whether processes whose own parent has ended become children of this one.
    adopts: bool,
    /// Set once the command has ended, if this process also waits for others.
    status: Option<ExitStatus>,
    /// The process group of the command, if it has its own: then everything that the command has
    /// started gets the signals too. At a terminal it must share ours, or it could not read there.
    group: Option<Pid>,
    /// The pipe on which this program, started as the helper, reports that it cannot become the
    /// command.
    report: Option<(PipeReader, PipeWriter)>,
}

impl Child {
    /// Starts the command. Must be called on the main thread: Linux kills the command when the
    /// thread that started it ends.
    pub(crate) fn start(
        command: &[OsString],
        env: &[(&str, Option<String>)],
    ) -> Result<Self, ExitError> {
        let (program, args) = command.split_first().expect("clap requires a command");
        let (mut command, report) = if Path::new(THIS_PROGRAM).exists() {
            let pipe = io::pipe().map_err(ExitError::system("make a pipe"))?;
            let mut helper = Command::new(THIS_PROGRAM);
            helper.arg(HELPER).arg(id().to_string()).arg(pipe.1.as_raw_fd().to_string());
            helper.arg(program);
            (helper, Some(pipe))
        } else {
            (Command::new(program), None)
        };
        command.args(args);
        for (name, value) in env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let is_alone = has_own_group();
        if is_alone {
            command.process_group(0);
        }
        let adopts = id() == 1 || !is_alone && adopt_orphans();
        let process = command
            .spawn()
            .map_err(|error| ExitError::of_command(&program.to_string_lossy(), &error))?;
        let group = is_alone.then(|| Pid::from_child(&process));
        Ok(Self { process, adopts, status: None, group, report })
    }

    /// Returns `true` if the ended process never became the command.
    pub(crate) fn was_not_run(&mut self) -> bool {
        let Some((mut reader, writer)) = self.report.take() else { return false };
        // No other process has the writing end open by now, so this does not block.
        drop(writer);
        reader.read(&mut [0]).is_ok_and(|length| length > 0)
    }

    /// Returns the exit status if the command has ended.
    ///
    /// Also waits for processes whose own parent has ended, if this one adopts them.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if !self.adopts {
            return self.process.try_wait();
        }
        let Some(_only_ours) = OTHER_PROCESS.try_lock() else { return Ok(self.status) };
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == Pid::from_child(&self.process) => {
                    self.status = Some(ExitStatus::from_raw(status.as_raw()));
                }
                Ok(Some(_)) => {}
                // The others are running, or there are none.
                Ok(None) | Err(Errno::CHILD) => return Ok(self.status),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Forwards a signal that this process has received, unless the command has received it too: a
    /// terminal sends the signals of its keys to all processes in the foreground.
    ///
    /// # Errors
    ///
    /// Like `send`.
    pub(crate) fn forward(&self, signal: i32) -> io::Result<()> {
        let of_key = matches!(signal, SIGINT | SIGQUIT);
        if self.group.is_none() && of_key && is_in_foreground() {
            return Ok(());
        }
        self.send(signal)
    }

    /// Sends the command a signal. One that asks it to end takes effect even if the command is
    /// stopped.
    ///
    /// # Errors
    ///
    /// If the command has more rights than this process, so that no signal reaches it.
    pub(crate) fn send(&self, signal: i32) -> io::Result<()> {
        let Some(signal) = Signal::from_named_raw(signal) else { return Ok(()) };
        self.signal(signal)?;
        if matches!(signal, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM) {
            self.signal(Signal::CONT)?;
        }
        Ok(())
    }

    /// Stops the command until it gets SIGCONT.
    ///
    /// # Errors
    ///
    /// Like `send`. At a terminal there are none, because a key may have stopped the command.
    pub(crate) fn suspend(&self) -> io::Result<()> {
        if self.group.is_some() {
            return self.signal(Signal::STOP);
        }
        // A key may have sent it this signal too. If it arrives after the command has stopped,
        // continuing the command undoes it.
        self.signal(Signal::TSTP).ok();
        thread::sleep(STOP_TIME);
        self.signal(Signal::STOP).ok();
        Ok(())
    }

    /// Sends a signal to the command and everything it has started: the processes of its own group,
    /// or at a terminal those of this session.
    ///
    /// # Errors
    ///
    /// Like `send`.
    pub(crate) fn end(&self, signal: i32) -> io::Result<()> {
        let sent = self.send(signal);
        if let Some(signal) = Signal::from_named_raw(signal)
            && self.group.is_none()
        {
            for pid in descendants() {
                kill_process(pid, signal).ok();
                kill_process(pid, Signal::CONT).ok();
            }
        }
        sent
    }

    /// Returns `true` if [`end`](Child::end) reaches any process besides the command.
    ///
    /// # Errors
    ///
    /// If there are some, and all have more rights than this process.
    pub(crate) fn has_others(&self) -> io::Result<bool> {
        if let Some(group) = self.group {
            return reaches(test_kill_process_group(group));
        }
        let mut refusal = Ok(false);
        for pid in descendants() {
            match reaches(test_kill_process(pid)) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => refusal = Err(error),
            }
        }
        refusal
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // The command may just have ended. Its process id stays its own until it is waited for.
        reaches(match self.group {
            Some(group) => kill_process_group(group, signal),
            None => kill_process(Pid::from_child(&self.process), signal),
        })?;
        Ok(())
    }
}

/// Returns `true` if a signal has reached a process, or `false` if there was none.
///
/// # Errors
///
/// If all have more rights than this process.
fn reaches(sent: rustix::io::Result<()>) -> io::Result<bool> {
    match sent {
        // Other systems also say this of groups whose processes have all ended.
        Err(error @ Errno::PERM) if cfg!(any(target_os = "linux", target_os = "android")) => {
            Err(error.into())
        }
        sent => Ok(sent.is_ok()),
    }
}

/// Makes this process the parent of what the command has started and not waited for, so that it can
/// be ended with the command. Returns `false` where the system does not support this.
fn adopt_orphans() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok();
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    false
}

/// Returns the descendants of this process that are in its session; none where the system does not
/// list them.
fn descendants() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let stats =
        entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    let processes: Vec<_> = stats.filter_map(|stat| ProcessStat::parse(&stat)).collect();
    let session = getsid(None).map_or(0, Pid::as_raw_pid);
    let mut found = vec![id().cast_signed()];
    let mut index = 0;
    while let Some(parent) = found.get(index) {
        let children = processes.iter().filter(|process| process.parent == *parent);
        let children: Vec<_> = children.map(|process| process.id).collect();
        found.extend(children);
        index += 1;
    }
    let runs = |process: &&ProcessStat| process.session == session && process.state != 'Z';
    let running = processes.iter().filter(runs).map(|process| process.id);
    running.filter(|id| found[1..].contains(id)).filter_map(Pid::from_raw).collect()
}

/// The part of `/proc/<id>/stat` about a process that is used here.
#[derive(Debug, PartialEq)]
struct ProcessStat {
    id: i32,
    state: char,
    parent: i32,
    session: i32,
}

impl ProcessStat {
    fn parse(stat: &str) -> Option<Self> {
        let (id, _) = stat.split_once(" (")?;
        // The name may contain parentheses.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?.chars().next()?;
        let (parent, _group, session) = (fields.next()?, fields.next()?, fields.next()?);
        let number = |text: &str| text.parse().ok();
        Some(Self { id: number(id)?, state, parent: number(parent)?, session: number(session)? })
    }
}

/// The state of the terminal before the command, which may not restore it if it is killed.
#[derive(Debug)]
pub(crate) struct TerminalState(Termios);

impl TerminalState {
    /// Returns `None` if stdin is no terminal, or one that this process does not control now.
    pub(crate) fn save() -> Option<Self> {
        if is_in_foreground() { tcgetattr(io::stdin()).ok().map(Self) } else { None }
    }

    /// Restores the settings, and takes the terminal back. Does not wait for output.
    pub(crate) fn restore(&self) {
        // Otherwise the system stops this process, if the command had the terminal to itself.
        let mut stop = SigSet::empty();
        stop.add(Blockable::SIGTTOU);
        let is_blocked = stop.thread_block().is_ok();
        if is_blocked {
            tcsetpgrp(io::stdin(), getpgrp()).ok();
            tcsetattr(io::stdin(), OptionalActions::Now, &self.0).ok();
        }
    }
}

fn is_in_foreground() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
}

/// Returns `true` if the command gets its own process group, which no keys reach.
fn has_own_group() -> bool {
    !io::stdin().is_terminal()
}

/// Returns `true` if SIGTSTP should stop the command and this process. At a terminal whose session
/// begins with this process group, as in a container, no shell could continue them, and the system
/// ignores keys that would stop them.
pub(crate) fn can_be_stopped() -> bool {
    has_own_group() || getsid(None).is_ok_and(|session| session != getpgrp())
}

/// Returns the exit status for a command that has ended.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        (None, signal) => of_signal(signal.unwrap_or(0)),
    }
}

/// Replaces this process with a command that Linux kills when the parent dies. Returns only if that
/// is not possible. The words are the parent's process id, its file descriptor for reporting that,
/// the command, and its arguments.
///
/// The command cannot do this by itself, and without `unsafe` the parent cannot do it between
/// `fork` and `exec`.
pub(crate) fn become_command(mut words: impl Iterator<Item = OsString>) -> ExitError {
    let mut word = || words.next().unwrap_or_default();
    let (parent, report, program) = (word(), word(), word());
    // The command does not inherit the descriptor.
    let report =
        File::options().write(true).open(Path::new("/proc").join(&parent).join("fd").join(report));
    let has_parent = || getppid().is_some_and(|pid| *parent == *pid.as_raw_nonzero().to_string());
    let error = match die_with_parent() {
        Err(error) => ExitError::system("be ended along with the parent")(error),
        // The parent died before this took effect.
        Ok(()) if !has_parent() => ExitError::new(of_signal(Signal::KILL.as_raw()), ""),
        Ok(()) => {
            let mut command = Command::new(&program);
            command.args(words);
            // These variables of systemd name the process that it started, but are meant for the
            // command.
            for variable in ["LISTEN_PID", "WATCHDOG_PID"] {
                if env::var_os(variable).is_some_and(|pid| pid == parent) {
                    command.env(variable, id().to_string());
                }
            }
            // The variable names another id, that of our parent.
            command.env_remove("LISTEN_PIDFDID");
            let error = command.exec();
            ExitError::of_command(&program.to_string_lossy(), &error)
        }
    };
    if let Ok(mut report) = report {
        // The parent may have ended.
        report.write_all(b"\n").ok();
    }
    error
}

/// Makes Linux kill this process when its parent dies.
fn die_with_parent() -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Parses the name of a signal, in upper or lower case, with or without `SIG`.
pub(crate) fn parse_signal(word: &str) -> Result<i32, String> {
    let word = word.to_ascii_uppercase();
    let word = word.strip_prefix("SIG").unwrap_or(&word);
    let is_meant =
        |signal: &i32| signal_name(*signal).and_then(|it| it.strip_prefix("SIG")) == Some(word);
    NAMED.into_iter().find(is_meant).ok_or_else(|| {
        format!("must be one of {}", NAMED.map(|it| signal_name(it).unwrap_or_default()).join(", "))
    })
}

/// Receives SIGCHLD and the signals to forward.
#[derive(Debug)]
pub(crate) struct ReceivedSignals {
    pub(crate) receiver: Receiver<i32>,
    handle: Handle,
}

impl ReceivedSignals {
    /// Receives signals from now on. All but SIGCHLD also cancel a wait for a lock.
    ///
    /// Signals that this process was started to ignore, as with nohup(1), stay ignored, by the
    /// command too. Signals that it was started to block do not stay blocked: they must be received
    /// here, and end the command.
    ///
    /// Must be called before threads are started, because they block what this thread blocks.
    pub(crate) fn start(canceller: &Canceller) -> io::Result<Self> {
        let ignored = ignored();
        let wanted = FORWARDED.iter().filter(|signal| !is_in(ignored, **signal));
        let mut signals = Signals::new(wanted.chain(&[SIGCHLD]))?;
        unblock(FORWARDED.iter().chain(&[SIGCHLD, SIGTSTP]))?;
        let handle = signals.handle();
        let (sender, receiver) = unbounded();
        let canceller = canceller.clone();
        thread::Builder::new().name("leasehold-signals".into()).spawn(move || {
            for signal in signals.forever() {
                // In this order, so that the cancelled call finds the signal.
                let is_received = sender.send(signal).is_ok();
                if signal != SIGCHLD {
                    canceller.cancel();
                }
                if !is_received {
                    return;
                }
            }
        })?;
        Ok(Self { receiver, handle })
    }

    /// Starts to receive SIGTSTP, instead of being stopped by it.
    pub(crate) fn add_stop(&self) -> io::Result<()> {
        if is_in(ignored(), SIGTSTP) { Ok(()) } else { self.handle.add_signal(SIGTSTP) }
    }

    /// Runs work that may block on a thread of its own, and returns its result.
    ///
    /// # Errors
    ///
    /// If a signal is received. Then this returns soon afterwards, whatever the thread still does.
    pub(crate) fn unless_received<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ExitError> {
        let done = in_background(work)?;
        loop {
            select! {
                recv(done) -> result => {
                    let failed = |_| io::Error::other("a thread failed");
                    return result.map_err(failed).map_err(ExitError::system("go on"));
                }
                recv(self.receiver) -> signal => match signal {
                    Ok(SIGCHLD | SIGTSTP) => {}
                    signal => {
                        done.recv_timeout(LAST_MOMENT).ok();
                        return Err(ExitError::new(of_signal(signal.unwrap_or(SIGTERM)), ""));
                    }
                }
            }
        }
    }

    /// Returns the first received signal that is not SIGCHLD.
    pub(crate) fn next_forwarded(&self) -> Option<i32> {
        self.receiver.try_iter().find(|signal| *signal != SIGCHLD)
    }
}

/// Runs work that may block, for at most a moment.
pub(crate) fn for_a_moment<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) {
    if let Ok(done) = in_background(work) {
        done.recv_timeout(LAST_MOMENT).ok();
    }
}

/// Runs work on a new thread, and returns the receiver of its result.
fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Receiver<T>, ExitError> {
    let (sender, done) = bounded(1);
    let thread = thread::Builder::new().name("leasehold-work".into());
    // The receiver is gone if the result is no longer awaited.
    let started = thread.spawn(move || drop(sender.send(work())));
    started.map_err(ExitError::system("start a thread"))?;
    Ok(done)
}

fn unblock<'a>(signals: impl Iterator<Item = &'a i32>) -> io::Result<()> {
    let mut set = SigSet::empty();
    for signal in signals {
        set.add(Blockable::try_from(*signal)?);
    }
    Ok(set.thread_unblock()?)
}

/// Returns the signals that this process ignores, as a bit set; none where the system does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(set: u64, signal: i32) -> bool {
    set >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "4711 (a) R 1 (b) S 4710 4709 4708 34816 4711 4194304";
        let expected = ProcessStat { id: 4711, state: 'S', parent: 4710, session: 4708 };
        assert_eq!(ProcessStat::parse(stat), Some(expected));
        assert_eq!(ProcessStat::parse("4711 (a"), None);
    }
}
