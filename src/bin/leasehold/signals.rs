//! The signals that this program receives while it waits and while the command runs.

use std::fs;
use std::io;
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use leasehold::Canceller;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
    SIGWINCH,
};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::{raise, signal_name};

/// The signals that end a wait, and that the command gets.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The signals that a command can be sent by name.
const NAMED: [i32; 8] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

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

/// Receives signals: those to forward, and SIGCHLD.
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

    /// From now on receives SIGTSTP too, instead of being stopped by it.
    pub(crate) fn add_stop(&self) -> io::Result<()> {
        if is_in(ignored(), SIGTSTP) { Ok(()) } else { self.handle.add_signal(SIGTSTP) }
    }

    /// The first signal received that is not about the command.
    pub(crate) fn next_forwarded(&self) -> Option<i32> {
        self.receiver.try_iter().find(|signal| *signal != SIGCHLD)
    }
}

/// Stops this process, as SIGTSTP would have. Returns when it is continued.
pub(crate) fn stop_this_process() -> io::Result<()> {
    raise(SIGSTOP)
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
