//! The command as a process, and the signals that this program receives while it waits and while
//! the command runs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, id};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use leasehold::Canceller;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, getppid, getsid, kill_process, kill_process_group,
    test_kill_process_group, wait,
};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::signal_name;

use crate::output::{ExitError, of_signal};

/// The argument that tells this program, started by itself, to become the command.
pub(crate) const HELPER: &str = "__run-with-parent";

/// This program, even if its file has been replaced (on Linux).
const THIS_PROGRAM: &str = "/proc/self/exe";

/// How long a command at a terminal has to stop by itself: an editor first restores the terminal.
const STOP_TIME: Duration = Duration::from_millis(100);

/// The signals that end a wait, and that are passed on to the command.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The signals that `--yield` accepts.
const NAMED: [i32; 8] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// The command. It is not ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    /// Set once it has ended, if this process is the first one of the system.
    status: Option<ExitStatus>,
    /// Its process group, if that is its own: then whatever the command has started gets the
    /// signals too. At a terminal it must share ours, or it could not read there.
    group: Option<Pid>,
    /// Where this program, started as the helper, reports that it cannot become the command.
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
        let process = command
            .spawn()
            .map_err(|error| ExitError::of_command(&program.to_string_lossy(), &error))?;
        let group = is_alone.then(|| Pid::from_child(&process));
        Ok(Self { process, status: None, group, report })
    }

    /// Returns `true` if the process that has ended never became the command.
    pub(crate) fn was_not_run(&mut self) -> bool {
        let Some((mut reader, writer)) = self.report.take() else { return false };
        // No other process has the writing end open now, so this does not block.
        drop(writer);
        reader.read(&mut [0]).is_ok_and(|length| length > 0)
    }

    /// Returns the exit status if the command has ended.
    ///
    /// The first process of a container also waits for processes whose own parent has ended.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if id() != 1 {
            return self.process.try_wait();
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == Pid::from_child(&self.process) => {
                    self.status = Some(ExitStatus::from_raw(status.as_raw()));
                }
                Ok(Some(_)) => {}
                // The others run, or there are none.
                Ok(None) | Err(Errno::CHILD) => return Ok(self.status),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Passes on a signal that this process has received, unless the command has received it too: a
    /// terminal sends those of its keys to all processes in the foreground.
    pub(crate) fn forward(&self, signal: i32) {
        let of_key = matches!(signal, SIGINT | SIGQUIT);
        let in_foreground = || tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
        if self.group.is_none() && of_key && in_foreground() {
            return;
        }
        self.send(signal);
    }

    /// Sends the command a signal. One that asks it to end does so even if it is stopped.
    pub(crate) fn send(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        self.signal(signal);
        if matches!(signal, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM) {
            self.signal(Signal::CONT);
        }
    }

    /// Stops the command until it gets SIGCONT.
    pub(crate) fn suspend(&self) {
        if self.group.is_none() {
            // A key may have sent it this, too. What comes after the command has stopped is undone
            // when it is continued.
            self.signal(Signal::TSTP);
            thread::sleep(STOP_TIME);
        }
        self.signal(Signal::STOP);
    }

    /// Returns `true` if there are processes in the command's own group.
    pub(crate) fn has_group(&self) -> bool {
        self.group.is_some_and(|group| test_kill_process_group(group).is_ok())
    }

    fn signal(&self, signal: Signal) {
        // The command may have ended just now; its process id stays its own until it is waited for.
        match self.group {
            Some(group) => kill_process_group(group, signal).ok(),
            None => kill_process(Pid::from_child(&self.process), signal).ok(),
        };
    }
}

/// Returns `true` if the command gets its own process group, which no keys reach.
fn has_own_group() -> bool {
    !io::stdin().is_terminal()
}

/// Returns `true` if SIGTSTP is to stop the command and this process. At a terminal whose session
/// begins with this process group, as in a container, no shell could continue them, and the system
/// ignores keys that would stop them.
pub(crate) fn can_be_stopped() -> bool {
    has_own_group() || getsid(None).is_ok_and(|session| session != getpgrp())
}

/// The exit status for a command that has ended.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        (None, signal) => of_signal(signal.unwrap_or(0)),
    }
}

/// Replaces this process by a command that Linux kills when the parent dies. Returns only if that
/// is not possible. The words are the parent's process id, its file descriptor for a report of
/// that, the command, and its arguments.
///
/// The command cannot do this itself, and without `unsafe` the parent cannot do it for the command
/// between `fork` and `exec`.
pub(crate) fn become_command(mut words: impl Iterator<Item = OsString>) -> ExitError {
    let mut word = || words.next().unwrap_or_default();
    let (parent, report, program) = (word(), word(), word());
    // The command does not inherit it.
    let report =
        File::options().write(true).open(Path::new("/proc").join(&parent).join("fd").join(report));
    let has_parent = || getppid().is_some_and(|pid| *parent == *pid.as_raw_nonzero().to_string());
    let error = match die_with_parent() {
        Err(error) => ExitError::system("be ended along with the parent")(error),
        // The parent died before that took effect.
        Ok(()) if !has_parent() => ExitError::new(of_signal(Signal::KILL.as_raw()), ""),
        Ok(()) => {
            let error = Command::new(&program).args(words).exec();
            ExitError::of_command(&program.to_string_lossy(), &error)
        }
    };
    if let Ok(mut report) = report {
        // The parent may have ended.
        report.write_all(b"\n").ok();
    }
    error
}

/// Has Linux kill this process when its parent dies.
fn die_with_parent() -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Parses the name of a signal, in capitals or not, with the SIG or without.
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
    /// Receives signals from now on. All but SIGCHLD also cancel what waits for a lock.
    ///
    /// What this process was started to ignore, as with nohup(1), stays ignored, by the command
    /// too.
    pub(crate) fn start(canceller: &Canceller) -> io::Result<Self> {
        let ignored = ignored();
        let wanted = FORWARDED.iter().filter(|signal| !is_in(ignored, **signal));
        let mut signals = Signals::new(wanted.chain(&[SIGCHLD]))?;
        let handle = signals.handle();
        let (sender, receiver) = unbounded();
        let canceller = canceller.clone();
        thread::Builder::new().name("leasehold-signals".into()).spawn(move || {
            for signal in signals.forever() {
                // In this order: what was cancelled finds the signal.
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

    /// Receives SIGTSTP from now on, instead of being stopped by it.
    pub(crate) fn add_stop(&self) -> io::Result<()> {
        if is_in(ignored(), SIGTSTP) { Ok(()) } else { self.handle.add_signal(SIGTSTP) }
    }

    /// The first received signal that is not SIGCHLD.
    pub(crate) fn next_forwarded(&self) -> Option<i32> {
        self.receiver.try_iter().find(|signal| *signal != SIGCHLD)
    }
}

/// The signals that this process ignores, as a set of bits; none where the system does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(set: u64, signal: i32) -> bool {
    set >> (signal - 1) & 1 == 1
}
