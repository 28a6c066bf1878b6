//! On Windows: the process of the command, the job object that ends it with this program, and the
//! keys that end both.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::os::windows::io::{AsHandle, AsRawHandle, OwnedHandle};
use std::os::windows::process::CommandExt;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use leasehold::Canceller;
use send_ctrlc::Interruptible;
use signal_hook::consts::{SIGBREAK, SIGINT};
use signal_hook::flag::register;
use win32job::{ExtendedLimitInfo, Job, JobError};

use super::{Received, ReceivedSignals, set_environment};
use crate::args::Run;
use crate::output::{ExitError, USAGE};

/// How the command is told to end.
pub(crate) const TELL: &str = "Ctrl-Break";

/// How it is ended if that had no effect.
pub(crate) const END: &str = "its end";

/// The flag with which Windows starts a process to which Ctrl-Break can be sent without sending it
/// to all others at the same console. Such a process gets no Ctrl-C.
const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;

/// How often to check whether a key was received.
const LOOK: Duration = Duration::from_millis(50);

/// The exit status of a command for which Windows has none.
const NO_STATUS: i32 = -1;

/// The command.
#[derive(Debug)]
pub(crate) struct Child {
    id: u32,
    #[expect(dead_code, reason = "as long as it is open, no other process gets the id")]
    handle: OwnedHandle,
    /// Gets the status when the command has ended.
    ended: Receiver<io::Result<ExitStatus>>,
    /// Whether the command has a process group of its own, and a console.
    has_own_group: bool,
    /// This process, and everything that it has started since. Windows ends all of them when this
    /// process ends, however that happens, and would end this process if the job were dropped
    /// before that.
    ours: ManuallyDrop<Job>,
    /// The command, and everything that it has started; `None` once it was ended.
    job: Option<Job>,
}

impl Child {
    /// Starts the command.
    pub(crate) fn start(
        command: &[OsString],
        variables: &[(&str, Option<String>)],
        signals: &ReceivedSignals,
    ) -> Result<Self, ExitError> {
        let (program, args) = command.split_first().expect("clap requires a command");
        let mut command = Command::new(program);
        command.args(args);
        set_environment(&mut command, variables);
        let has_own_group = can_have_own_group();
        if has_own_group {
            command.creation_flags(CREATE_NEW_PROCESS_GROUP);
        }
        // The command is in this job from the start.
        let ours = new_job().and_then(|job| job.assign_current_process().map(|()| job));
        let ours = ours.map_err(in_job("end the command along with this program"))?;
        let ours = ManuallyDrop::new(ours);
        let mut process = command
            .spawn()
            .map_err(|error| ExitError::of_command(&program.to_string_lossy(), &error))?;
        // Processes that the command starts before this takes effect end a little later than the
        // rest, with this process.
        let job = new_job()
            .and_then(|job| job.assign_process(process.as_raw_handle() as isize).map(|()| job));
        let job = match job {
            Ok(job) => Some(job),
            // It has already ended, and can no longer join a job.
            Err(_) if matches!(process.try_wait(), Ok(Some(_))) => None,
            Err(error) => {
                process.kill().ok();
                return Err(in_job("put the command into a job object")(error));
            }
        };
        let handle = process.as_handle().try_clone_to_owned();
        let handle = handle.map_err(ExitError::system("keep a handle of the command"))?;
        let id = process.id();
        let (status, ended) = bounded(1);
        let received = signals.source.sender.clone();
        let waiting = thread::Builder::new().name("leasehold-command".into()).spawn(move || {
            let ended = process.wait();
            let is_success = ended.as_ref().is_ok_and(ExitStatus::success);
            status.send(ended).ok();
            if !is_success {
                // A key may have ended the command. This process must receive that key first, or
                // the key would end the release of the lock.
                thread::sleep(2 * LOOK);
            }
            received.send(Received::Child).ok();
        });
        waiting.map_err(ExitError::system("start a thread"))?;
        Ok(Self { id, handle, ended, has_own_group, ours, job })
    }

    /// Returns `true` if the ended process never became the command.
    #[expect(clippy::unused_self, reason = "on Unix, another process becomes the command")]
    pub(crate) fn was_not_run(&self) -> bool {
        false
    }

    /// Returns the exit status if the command has ended. Returns it only once.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.ended.try_recv().ok().transpose()
    }

    /// Forwards a key that this process has received, unless the console has sent it to the command
    /// too.
    ///
    /// # Errors
    ///
    /// Like `send`.
    pub(crate) fn forward(&self, _signal: i32) -> io::Result<()> {
        if self.has_own_group { self.send(SIGBREAK) } else { Ok(()) }
    }

    /// Sends Ctrl-Break to the command and everything it has started.
    ///
    /// # Errors
    ///
    /// Fails if there is no way to send it to these processes alone.
    pub(crate) fn send(&self, _signal: i32) -> io::Result<()> {
        if !self.ended.is_empty() {
            return Ok(());
        }
        if self.has_own_group {
            return Group(self.id).terminate();
        }
        Err(io::Error::new(io::ErrorKind::Unsupported, "others would get it too"))
    }

    /// Tells the command to end, and everything it has started.
    ///
    /// # Errors
    ///
    /// Like `send`.
    pub(crate) fn tell_to_end(&self) -> io::Result<()> {
        self.send(SIGBREAK)
    }

    /// Ends the command, and everything it has started.
    #[expect(clippy::unnecessary_wraps, reason = "on Unix, this can fail")]
    pub(crate) fn end(&mut self) -> io::Result<()> {
        // Windows ends the processes of a job when its last handle is closed.
        self.job = None;
        Ok(())
    }

    /// Returns `true` if [`end`](Child::end) reaches any process besides the command, which must
    /// have ended.
    ///
    /// # Errors
    ///
    /// If Windows does not report it.
    pub(crate) fn has_others(&self) -> io::Result<bool> {
        let Some(job) = &self.job else { return Ok(false) };
        let processes = job.query_process_id_list().map_err(io::Error::other)?;
        Ok(!processes.is_empty())
    }

    /// Lets the processes of the command continue if the command has ended by itself.
    pub(crate) fn clean_up(&self, status: Option<ExitStatus>) {
        if status.is_some() {
            let unlimited = ExtendedLimitInfo::new();
            self.ours.set_extended_limit_info(&unlimited).ok();
            if let Some(job) = &self.job {
                job.set_extended_limit_info(&unlimited).ok();
            }
        }
    }
}

/// A process group, by the id of its first process.
struct Group(u32);

impl Interruptible for Group {
    fn pid(&mut self) -> io::Result<Option<u32>> {
        Ok(Some(self.0))
    }
}

/// Creates a job object whose processes end when it is dropped.
fn new_job() -> Result<Job, JobError> {
    let mut limits = ExtendedLimitInfo::new();
    limits.limit_kill_on_job_close();
    Job::create_with_limit_info(&limits)
}

fn in_job(attempt: &str) -> impl Fn(JobError) -> ExitError {
    move |error| ExitError::system(attempt)(io::Error::other(error))
}

/// Returns `true` if the command gets a process group of its own. One that reads from the console
/// shares ours, because it must get Ctrl-C. Without a console, no process gets any key.
fn can_have_own_group() -> bool {
    !io::stdin().is_terminal() && File::options().write(true).open("CONOUT$").is_ok()
}

/// # Errors
///
/// Fails if an option asks for a signal that this command cannot get.
pub(crate) fn refuse_what_is_missing(run: &Run) -> Result<(), ExitError> {
    let option = match (run.yield_signal, run.kill_after) {
        _ if can_have_own_group() => return Ok(()),
        (Some(_), _) => "--yield",
        (None, Some(_)) => "--kill-after",
        (None, None) => return Ok(()),
    };
    let why = if io::stdin().is_terminal() {
        "a command whose stdin is the console cannot be sent Ctrl-Break alone"
    } else {
        "without a console, a command cannot be sent Ctrl-Break"
    };
    Err(ExitError::new(USAGE, format!("{option}: {why}")))
}

/// Returns the exit status for a command that has ended.
#[expect(clippy::unnecessary_wraps, reason = "on Unix, a signal may have ended it")]
pub(crate) fn outcome(status: ExitStatus, _signals: &ReceivedSignals) -> Result<i32, ExitError> {
    Ok(status.code().unwrap_or(NO_STATUS))
}

/// Runs a script that is not the command, and returns its output.
pub(crate) fn output_of(script: &str) -> io::Result<Output> {
    let mut shell = Command::new("cmd");
    // Between these quotes, the script is taken literally.
    shell.raw_arg(format!("/d /s /c \"{script}\""));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).output()
}

/// Parses the name of the only signal of Windows, Ctrl-Break.
pub(crate) fn parse_signal(word: &str) -> Result<i32, String> {
    match &*word.to_ascii_uppercase() {
        "BREAK" | "CTRL-BREAK" | "SIGBREAK" => Ok(SIGBREAK),
        _ => Err("must be BREAK".into()),
    }
}

/// Returns the name of what was received.
pub(crate) fn name_of(signal: i32) -> &'static str {
    if signal == SIGINT { "Ctrl-C" } else { "Ctrl-Break" }
}

/// Receives Ctrl-C and Ctrl-Break.
#[derive(Debug)]
pub(super) struct Source {
    sender: Sender<Received>,
}

impl Source {
    pub(super) fn start(sender: Sender<Received>, canceller: Canceller) -> io::Result<Self> {
        let mut flags: Vec<(i32, Arc<AtomicBool>)> = Vec::new();
        for signal in [SIGINT, SIGBREAK] {
            let flag = Arc::default();
            register(signal, Arc::clone(&flag))?;
            flags.push((signal, flag));
        }
        let received = sender.clone();
        thread::Builder::new().name("leasehold-signals".into()).spawn(move || {
            loop {
                for (signal, flag) in &flags {
                    if flag.swap(false, Ordering::SeqCst) {
                        // Sent before the call is cancelled, so that the call finds the signal.
                        received.send(Received::Signal(*signal)).ok();
                        canceller.cancel();
                    }
                }
                thread::sleep(LOOK);
            }
        })?;
        Ok(Self { sender })
    }
}
