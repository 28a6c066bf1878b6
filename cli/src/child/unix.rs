//! On Unix: the process of the command, the terminal that it uses, and the signals.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{self, Command, ExitStatus, Output, Stdio, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Sender;
use leasehold::Canceller;
use nix::sys::signal::{SigSet, SigmaskHow, Signal as Blockable};
use nix::unistd;
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpgid, getppid, getrlimit,
    kill_current_process_group, kill_process, kill_process_group, setrlimit, test_kill_process,
    test_kill_process_group, wait, waitpid,
};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP,
    SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::flag::register;
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::{emulate_default_handler, raise, signal_name};

#[cfg(any(target_os = "linux", target_os = "android"))]
use {
    nix::sys::wait::WaitPidFlag,
    rustix::process::{
        DumpableBehavior, WaitId, WaitIdOptions, set_child_subreaper, set_dumpable_behavior, waitid,
    },
};

use super::{Received, ReceivedSignals, say_if_refused, set_environment};
use crate::output::{ExitError, not_stopped_by_output, of_signal};

/// How the command is told to end.
pub(crate) const TELL: &str = "SIGTERM";

/// How it is ended if that had no effect.
pub(crate) const END: &str = "SIGKILL";

/// The argument with which this program starts itself in order to become the command.
const AS_COMMAND: &str = "__run-with-parent";

/// The argument with which this program starts itself in order to become another program.
const AS_OTHER: &str = "__run";

/// The path of this program, even if its file has been replaced (on Linux).
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The terminal that controls the session of a process.
const TERMINAL: &str = "/dev/tty";

/// The signals with which a terminal stops the processes of a job.
const STOPS: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];

/// How long a command at a terminal has to stop by itself: an editor first restores the terminal.
const STOP_TIME: Duration = Duration::from_millis(100);

/// The signals that end a wait and are forwarded to the command.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The signals that `--yield` accepts.
const NAMED: [i32; 8] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Limits a wait for any process to those that the calling thread has started and, on the main
/// thread, those whose own parent has ended.
#[cfg(any(target_os = "linux", target_os = "android"))]
const OF_THIS_THREAD: WaitOptions =
    WaitOptions::from_bits_retain(WaitPidFlag::__WNOTHREAD.bits().cast_unsigned());
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const OF_THIS_THREAD: WaitOptions = WaitOptions::empty();

/// The command. Dropping this does not end it.
#[derive(Debug)]
pub(crate) struct Child {
    state: State,
    orphans: Orphans,
    /// The process group of the command, if it has its own: then everything that the command has
    /// started gets the signals too. With the terminal as its stdin it must share ours, or it could
    /// not read there.
    group: Option<Pid>,
    terminal: Option<Terminal>,
    /// The pipe on which this program, started as the helper, reports that it cannot become the
    /// command.
    report: Option<(PipeReader, PipeWriter)>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The process id is the command's until this process has waited for it.
    Running(Pid),
    /// The process id may be that of any other process by now.
    Ended(ExitStatus),
}

/// Where the system puts processes whose parent has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Orphans {
    /// Orphans of the command become children of this process, and no others do.
    Ours,
    /// Orphans of the command become children of this process, and so do orphans of processes that
    /// were its children before.
    Mixed,
    /// Orphans become children of another process.
    Elsewhere,
}

impl Child {
    /// Starts the command. Must be called on the main thread: Linux kills the command when the
    /// thread that started it ends.
    ///
    /// Signals that stop this program now stop the command, too.
    pub(crate) fn start(
        command: &[OsString],
        variables: &[(&str, Option<String>)],
        signals: &ReceivedSignals,
    ) -> Result<Self, ExitError> {
        if can_be_stopped() {
            signals.source.add_stops().map_err(ExitError::system("receive SIGTSTP"))?;
        }
        let (program, args) = command.split_first().expect("clap requires a command");
        let helper = helper(AS_COMMAND).map_err(ExitError::system("read /proc"))?;
        let (mut command, report) = match helper {
            Some(mut helper) => {
                let pipe = io::pipe().map_err(ExitError::system("make a pipe"))?;
                let own = fs::read_link("/proc/self").map_err(ExitError::system("read /proc"))?;
                let writer = pipe.1.as_raw_fd().to_string();
                let writer = Path::new("/proc").join(own).join("fd").join(writer);
                helper.arg(id().to_string()).arg(writer).arg(program);
                (helper, Some(pipe))
            }
            None => (Command::new(program), None),
        };
        command.args(args);
        set_environment(&mut command, variables);
        let is_alone = has_own_group();
        if is_alone {
            command.process_group(0);
        }
        let terminal = Terminal::open();
        // The children that this process has now are not the command's.
        let orphans = Orphans::settle(is_alone);
        let process = spawn(&mut command)
            .map_err(|error| ExitError::of_command(&program.to_string_lossy(), &error))?;
        let id = Pid::from_child(&process);
        let group = if is_alone { Some(id) } else { None };
        Ok(Self { state: State::Running(id), orphans, group, terminal, report })
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
    /// Also waits for processes whose own parent has ended, if they are children of this one. Must
    /// be called on the main thread.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        while let Some((pid, status)) = self.next_change()? {
            match self.state {
                State::Running(id) if id == pid => match status.stopping_signal() {
                    Some(signal) => self.follow_stop(signal),
                    None => self.state = State::Ended(ExitStatus::from_raw(status.as_raw())),
                },
                // A process that has lost its parent.
                State::Running(_) | State::Ended(_) => {}
            }
        }
        match self.state {
            State::Running(_) => Ok(None),
            State::Ended(status) => Ok(Some(status)),
        }
    }

    /// Waits for the next process of this thread that has ended or stopped. Other threads wait for
    /// those that they have started, such as password commands.
    fn next_change(&self) -> io::Result<Option<(Pid, WaitStatus)>> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let waited = match (self.orphans, self.state) {
            (Orphans::Elsewhere, State::Running(id)) => waitpid(Some(id), options),
            (Orphans::Elsewhere, State::Ended(_)) => return Ok(None),
            (Orphans::Mixed | Orphans::Ours, _) => wait(options | OF_THIS_THREAD),
        };
        match (waited, self.state) {
            (Err(Errno::CHILD), State::Ended(_)) => Ok(None),
            (waited, _) => Ok(waited?),
        }
    }

    /// Does for a command with a process group of its own what a shell does when a job has stopped,
    /// because the shell of this session does not know that group.
    fn follow_stop(&self, signal: i32) {
        let (Some(group), Some(terminal)) = (self.group, &self.terminal) else { return };
        let needs_terminal = matches!(signal, SIGTTIN | SIGTTOU);
        if needs_terminal && terminal.is_ours() {
            terminal.give_to(group);
            // The command may have been given more rights.
            self.signal(Signal::CONT).ok();
        } else if has_shell()
            && (needs_terminal || terminal.foreground() == Some(group))
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            // The job of the shell stops too, as if the command belonged to it. This process
            // receives the signal, and continues the command when the shell continues the job.
            kill_current_process_group(signal).ok();
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
        if self.group.is_none()
            && of_key
            && let Some(terminal) = &self.terminal
            && terminal.is_ours()
        {
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

    /// Stops the command and this process, as a signal that stops a job would have. Returns when
    /// both are continued.
    pub(crate) fn stop_with_this_process(&self) -> io::Result<()> {
        // While this process is stopped, the lease is not renewed.
        let stopped = self.suspend();
        if stopped.is_ok() {
            raise(SIGSTOP)?;
            self.send(SIGCONT).ok();
        }
        say_if_refused(SIGSTOP, stopped);
        Ok(())
    }

    /// Stops the command until it gets SIGCONT.
    ///
    /// # Errors
    ///
    /// Like `send`. At a terminal there are none, because a key may have stopped the command.
    fn suspend(&self) -> io::Result<()> {
        if self.group.is_some() {
            return self.signal(Signal::STOP);
        }
        // A key may have sent the command this signal too. If that one arrives after the command
        // has stopped, continuing the command discards it.
        self.signal(Signal::TSTP).ok();
        thread::sleep(STOP_TIME);
        self.signal(Signal::STOP).ok();
        Ok(())
    }

    /// Tells the command to end, and everything it has started.
    ///
    /// # Errors
    ///
    /// Like `send`.
    pub(crate) fn tell_to_end(&self) -> io::Result<()> {
        self.send_to_all(SIGTERM)
    }

    /// Ends the command, and everything it has started.
    ///
    /// # Errors
    ///
    /// Like `send`.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.send_to_all(SIGKILL)
    }

    /// Sends a signal to the command and everything it has started: the processes of its own group,
    /// or at a terminal those of this session.
    fn send_to_all(&self, signal: i32) -> io::Result<()> {
        let sent = self.send(signal);
        if let Some(signal) = Signal::from_named_raw(signal)
            && self.group.is_none()
        {
            for pid in self.descendants() {
                kill_process(pid, signal).ok();
                kill_process(pid, Signal::CONT).ok();
            }
        }
        sent
    }

    /// Returns `true` if [`end`](Child::end) reaches any process besides the command, which must
    /// have ended.
    ///
    /// # Errors
    ///
    /// If there are such processes, and all have more rights than this process.
    pub(crate) fn has_others(&self) -> io::Result<bool> {
        if let Some(group) = self.group {
            return reaches(test_kill_process_group(group));
        }
        let mut refusal = Ok(false);
        for pid in self.descendants() {
            match reaches(test_kill_process(pid)) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => refusal = Err(error),
            }
        }
        refusal
    }

    /// The only place that uses the process id and the group of the command. The command may just
    /// have ended. Its id stays its own until it is waited for, and its group for as long as any
    /// process is in it.
    fn signal(&self, signal: Signal) -> io::Result<()> {
        reaches(match (self.group, self.state) {
            (Some(group), _) => kill_process_group(group, signal),
            (None, State::Running(id)) => kill_process(id, signal),
            (None, State::Ended(_)) => return Ok(()),
        })?;
        Ok(())
    }

    /// Returns the processes that the command has started, if they are in this session.
    fn descendants(&self) -> Vec<Pid> {
        match (self.orphans, self.state) {
            (Orphans::Ours, State::Running(command)) => {
                descendants(own_id()).into_iter().filter(|id| *id != command).collect()
            }
            (Orphans::Ours, State::Ended(_)) => descendants(own_id()),
            (Orphans::Mixed | Orphans::Elsewhere, State::Running(command)) => descendants(command),
            (Orphans::Mixed | Orphans::Elsewhere, State::Ended(_)) => Vec::new(),
        }
    }

    /// Takes the terminal back from a command that has ended with this status, or that was ended.
    pub(crate) fn clean_up(&self, status: Option<ExitStatus>) {
        match status {
            Some(status) if status.signal().is_none() => self.take_terminal_back(),
            _ => self.restore_terminal(),
        }
    }

    /// Takes the terminal back from the command, which may have had it to itself.
    fn take_terminal_back(&self) {
        if let Some(terminal) = &self.terminal
            && let Some(group) = terminal.foreground()
            && let Some(own) = own_group()
            && group != own
            && self.is_left_by_command(group)
        {
            terminal.give_to(own);
        }
    }

    /// Takes the terminal back from a command that was killed, and gives it the settings that it
    /// had before. Does not wait for output.
    fn restore_terminal(&self) {
        self.take_terminal_back();
        if let Some(terminal) = &self.terminal
            && terminal.is_ours()
        {
            terminal.restore();
        }
    }

    /// Returns `true` if this process group is the command's, or no longer exists. Otherwise it is
    /// another program's: a shell takes the terminal from a job that is in the background.
    fn is_left_by_command(&self, group: Pid) -> bool {
        Some(group) == self.group
            || test_kill_process_group(group) == Err(Errno::SRCH)
            || self.descendants().into_iter().any(|pid| getpgid(Some(pid)) == Ok(group))
    }
}

/// Returns `true` if a signal has reached a process, or `false` if there was none.
///
/// # Errors
///
/// If all have more rights than this process.
fn reaches(sent: rustix::io::Result<()>) -> io::Result<bool> {
    match sent {
        // Other systems also return this for groups whose processes have all ended.
        Err(error @ Errno::PERM) if cfg!(any(target_os = "linux", target_os = "android")) => {
            Err(error.into())
        }
        sent => Ok(sent.is_ok()),
    }
}

impl Orphans {
    /// Makes this process the parent of processes that a command at a terminal has started and not
    /// waited for, so that they can be ended with the command, where the system supports this.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn settle(is_alone: bool) -> Self {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let of_this_thread = WaitIdOptions::from_bits_retain(OF_THIS_THREAD.bits());
        // A shell may have started processes before it replaced itself with this program.
        let has_children = waitid(WaitId::All, options | of_this_thread).is_ok();
        if id() == 1 {
            // The system gives the first process of a container all orphans.
            return if has_children { Self::Mixed } else { Self::Ours };
        }
        if is_alone || has_children || set_child_subreaper(Some(own_id())).is_err() {
            return Self::Elsewhere;
        }
        Self::Ours
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn settle(_is_alone: bool) -> Self {
        Self::Elsewhere
    }
}

/// Returns a command that starts this program with the argument that makes it become another one;
/// `None` where the system does not name the file of this program.
fn helper(role: &str) -> io::Result<Option<Command>> {
    if !Path::new(THIS_PROGRAM).exists() {
        return Ok(None);
    }
    let mut helper = Command::new(THIS_PROGRAM);
    helper.args(words_of_loader(&fs::read("/proc/self/cmdline")?, env::args_os().count()));
    helper.arg(role);
    Ok(Some(helper))
}

/// Returns the arguments of the system's loader if this program was started through it, as with
/// ld.so(8). They come before the words that this program sees as its own.
fn words_of_loader(command_line: &[u8], own: usize) -> Vec<OsString> {
    // Each word ends with a zero.
    let words = command_line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.into()));
    let words: Vec<_> = words.collect();
    let others = words.len().saturating_sub(1 + own);
    words.into_iter().skip(1).take(others).collect()
}

/// Starts a program, or the helper.
fn spawn(program: &mut Command) -> io::Result<process::Child> {
    if program.get_program() != THIS_PROGRAM {
        return program.spawn();
    }
    // This thread waits until the new process has become the helper, whatever happens meanwhile. A
    // key that stopped the new process before that would hang both, so such signals are blocked.
    // The helper inherits that, and unblocks them once it runs.
    let before = set_of(&STOPS)?.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let spawned = program.spawn();
    before.thread_set_mask()?;
    spawned
}

/// Runs a script that is not the command, and returns its output.
pub(crate) fn output_of(script: &str) -> io::Result<Output> {
    let mut shell = match helper(AS_OTHER)? {
        Some(mut helper) => {
            helper.arg("sh");
            helper
        }
        None => Command::new("sh"),
    };
    shell.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    spawn(&mut shell)?.wait_with_output()
}

fn own_id() -> Pid {
    rustix::process::getpid()
}

/// Returns the process group of this process; `None` if the group was created outside its
/// container.
fn own_group() -> Option<Pid> {
    Pid::from_raw(unistd::getpgrp().as_raw())
}

/// Returns the session of this process; 0 if the session was created outside its container.
fn own_session() -> i32 {
    unistd::getsid(None).map_or(0, unistd::Pid::as_raw)
}

/// Returns the descendants of a process that are in this session; none where the system does not
/// list them.
fn descendants(root: Pid) -> Vec<Pid> {
    let own = id().to_string();
    // Otherwise `/proc` lists processes by the ids that they have outside the container.
    if fs::read_link("/proc/self").is_ok_and(|link| link != Path::new(&own)) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let stats =
        entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    let processes: Vec<_> = stats.filter_map(|stat| ProcessStat::parse(&stat)).collect();
    let session = own_session();
    let mut found = vec![root.as_raw_pid()];
    let mut index = 0;
    while let Some(parent) = found.get(index) {
        let children = processes.iter().filter(|process| process.parent == *parent);
        let children: Vec<_> = children.map(|process| process.id).collect();
        found.extend(children);
        index += 1;
    }
    let running = processes.iter().filter(|process| {
        process.session == session && process.state != 'Z' && found[1..].contains(&process.id)
    });
    running.filter_map(|process| Pid::from_raw(process.id)).collect()
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
        let parent = fields.next()?;
        let _group = fields.next()?;
        let session = fields.next()?;
        Some(Self {
            id: id.parse().ok()?,
            state,
            parent: parent.parse().ok()?,
            session: session.parse().ok()?,
        })
    }
}

/// The terminal that controls this session.
#[derive(Debug)]
struct Terminal {
    device: OwnedFd,
    /// The settings before the command, which may not restore them if it is killed. `None` if the
    /// terminal was not ours.
    settings: Option<Termios>,
}

impl Terminal {
    fn open() -> Option<Self> {
        let stdin = io::stdin();
        // Only the controlling terminal has a foreground.
        let device = if tcgetpgrp(&stdin).is_ok() {
            stdin.as_fd().try_clone_to_owned().ok()?
        } else {
            File::open(TERMINAL).ok()?.into()
        };
        let mut terminal = Self { device, settings: None };
        if terminal.is_ours() {
            terminal.settings = tcgetattr(&terminal.device).ok();
        }
        Some(terminal)
    }

    /// Returns the process group that the keys reach.
    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.device).ok()
    }

    fn is_ours(&self) -> bool {
        own_group().is_some_and(|own| self.foreground() == Some(own))
    }

    fn give_to(&self, group: Pid) {
        if not_stopped_by_output().is_ok() {
            tcsetpgrp(&self.device, group).ok();
        }
    }

    fn restore(&self) {
        if let Some(settings) = &self.settings
            && not_stopped_by_output().is_ok()
        {
            tcsetattr(&self.device, OptionalActions::Now, settings).ok();
        }
    }
}

/// Returns `true` if the command gets its own process group, which no keys reach.
fn has_own_group() -> bool {
    !io::stdin().is_terminal()
}

/// Returns `true` if SIGTSTP should stop the command and this process. At a terminal whose session
/// begins with this process group, as in a container, no shell could continue them, and the system
/// ignores keys that would stop them.
fn can_be_stopped() -> bool {
    has_own_group() || has_shell()
}

/// Returns `true` if this process may be part of a job of a shell.
fn has_shell() -> bool {
    own_group().map_or(0, Pid::as_raw_pid) != own_session()
}

/// Returns the exit status for a command that has ended.
///
/// # Errors
///
/// Fails if the command was ended by a signal that this process has received, too.
pub(crate) fn outcome(status: ExitStatus, signals: &ReceivedSignals) -> Result<i32, ExitError> {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ok(code & 0xff),
        (None, Some(signal)) if signals.source.has_received(signal) => {
            Err(ExitError::of_signal(signal))
        }
        (None, signal) => Ok(of_signal(signal.unwrap_or(0))),
    }
}

/// Becomes another program if these words ask for it. Returns only if they do not, or if that is
/// not possible.
pub(crate) fn become_asked(mut words: impl Iterator<Item = OsString>) -> Result<(), ExitError> {
    match words.next() {
        Some(word) if word == AS_COMMAND => Err(become_command(words)),
        Some(word) if word == AS_OTHER => Err(become_other(words)),
        _ => Ok(()),
    }
}

/// Replaces this process with a command that Linux kills when the parent dies. Returns only if that
/// is not possible. The words are the parent's process id, the file on which to report that to it,
/// the command, and its arguments.
///
/// The command cannot do this by itself, and without `unsafe` the parent cannot do it between
/// `fork` and `exec`.
fn become_command(mut words: impl Iterator<Item = OsString>) -> ExitError {
    let parent = words.next().unwrap_or_default();
    // The command does not inherit this descriptor.
    let report = File::options().write(true).open(words.next().unwrap_or_default());
    let error = match die_with_parent() {
        Err(error) => ExitError::system("be ended along with the parent")(error),
        // The parent died before this took effect.
        Ok(()) if !is_parent(&parent) => ExitError::new(of_signal(Signal::KILL.as_raw()), ""),
        Ok(()) => {
            let mut command = Command::new(words.next().unwrap_or_default());
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
            replace_with(&mut command)
        }
    };
    if let Ok(mut report) = report {
        // The parent may have ended.
        report.write_all(b"\n").ok();
    }
    error
}

/// Replaces this process with a program. Returns only if that is not possible. The words are the
/// program and its arguments.
fn become_other(mut words: impl Iterator<Item = OsString>) -> ExitError {
    let mut program = Command::new(words.next().unwrap_or_default());
    replace_with(program.args(words))
}

fn replace_with(program: &mut Command) -> ExitError {
    // The signals were blocked only until this process runs.
    if let Err(error) = unblock(&STOPS) {
        return ExitError::system("unblock signals")(error);
    }
    let error = program.exec();
    ExitError::of_command(&program.get_program().to_string_lossy(), &error)
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
    for signal in NAMED {
        if signal_name(signal).and_then(|name| name.strip_prefix("SIG")) == Some(word) {
            return Ok(signal);
        }
    }
    let names = NAMED.map(|signal| signal_name(signal).unwrap_or_default()).join(", ");
    Err(format!("must be one of {names}"))
}

/// Returns `true` if the parent of this process still is the one with this id.
fn is_parent(id: &OsStr) -> bool {
    getppid().is_some_and(|pid| *id == *pid.as_raw_nonzero().to_string())
}

/// Returns the name of a signal.
pub(crate) fn name_of(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// Receives SIGCHLD and the signals to forward.
#[derive(Debug)]
pub(super) struct Source {
    handle: Handle,
    /// Each signal to forward, and whether it was received.
    flags: Vec<(i32, Arc<AtomicBool>)>,
}

impl Source {
    /// Signals that were ignored when this process started, as with nohup(1), stay ignored, by the
    /// command too. Signals that were blocked then do not stay blocked: they must be received here,
    /// and end the command.
    pub(super) fn start(sender: Sender<Received>, canceller: Canceller) -> io::Result<Self> {
        let ignored = ignored();
        let mut flags = Vec::new();
        for signal in FORWARDED.into_iter().filter(|signal| !is_in(ignored, *signal)) {
            let flag = Arc::default();
            register(signal, Arc::clone(&flag))?;
            flags.push((signal, flag));
        }
        let wanted = flags.iter().map(|(signal, _)| signal);
        let mut signals = Signals::new(wanted.chain(&[SIGCHLD]))?;
        unblock(FORWARDED.iter().chain(&[SIGCHLD]).chain(&STOPS))?;
        let handle = signals.handle();
        thread::Builder::new().name("leasehold-signals".into()).spawn(move || {
            for signal in signals.forever() {
                let received = match signal {
                    SIGCHLD => Received::Child,
                    SIGTSTP | SIGTTIN | SIGTTOU => Received::Stop,
                    signal => Received::Signal(signal),
                };
                // Sent before the call is cancelled, so that the call finds the signal.
                let is_received = sender.send(received).is_ok();
                if signal != SIGCHLD {
                    canceller.cancel();
                }
                if !is_received {
                    return;
                }
            }
        })?;
        Ok(Self { handle, flags })
    }

    /// Starts to receive the signals that stop a job, instead of being stopped by them: the command
    /// must be stopped too, even if it ignores them.
    fn add_stops(&self) -> io::Result<()> {
        let ignored = ignored();
        for signal in STOPS.into_iter().filter(|signal| !is_in(ignored, *signal)) {
            self.handle.add_signal(signal)?;
        }
        Ok(())
    }

    /// Returns `true` if this process, too, has received the signal that has ended the command.
    ///
    /// The receiver may not get the signal of a key until the command has ended.
    fn has_received(&self, signal: i32) -> bool {
        self.flags.iter().any(|(it, flag)| *it == signal && flag.load(Ordering::SeqCst))
    }
}

fn unblock<'a>(signals: impl IntoIterator<Item = &'a i32>) -> io::Result<()> {
    Ok(set_of(signals)?.thread_unblock()?)
}

fn set_of<'a>(signals: impl IntoIterator<Item = &'a i32>) -> io::Result<SigSet> {
    let mut set = SigSet::empty();
    for signal in signals {
        set.add(Blockable::try_from(*signal)?);
    }
    Ok(set)
}

/// Makes the system keep the exit status of a process that this one has started, even if SIGCHLD
/// was ignored when this one started.
pub(crate) fn expect_children() -> io::Result<()> {
    register(SIGCHLD, Arc::default()).map(drop)
}

/// Ends this process by a signal, as a shell expects of a program that a signal has ended: the
/// shell then ends its own loop. Returns if that is not possible, as in the first process of a
/// container.
pub(crate) fn end_by(signal: i32) {
    if id() == 1 {
        return;
    }
    // The command may have left a core dump, but there is nothing to debug in this process.
    let maximum = getrlimit(Resource::Core).maximum;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }).ok();
    // That limit does not apply to a core dump that the system passes to another program.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    emulate_default_handler(signal).ok();
}

/// Returns the signals that this process ignores, as a bit set; none where the system does not list
/// them.
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
    fn the_words_of_the_loader_come_before_those_of_the_program() {
        let words = |line: &str, own| words_of_loader(line.replace(' ', "\0").as_bytes(), own);
        assert_eq!(words("leasehold run a ", 3), [""; 0]);
        assert_eq!(words("ld.so ./leasehold run a ", 3), ["./leasehold"]);
        assert_eq!(words("ld.so --argv0 x ./leasehold run  ", 3), ["--argv0", "x", "./leasehold"]);
    }

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "4711 (a) R 1 (b) S 4710 4709 4708 34816 4711 4194304";
        let expected = ProcessStat { id: 4711, state: 'S', parent: 4710, session: 4708 };
        assert_eq!(ProcessStat::parse(stat), Some(expected));
        assert_eq!(ProcessStat::parse("4711 (a"), None);
    }
}
