//! The signals that this program receives while it waits and while the command runs.

use std::fs;
use std::io;
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::Canceller;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// The signals that end a wait, and that the command gets.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Receives signals from now on: those to forward, and SIGCHLD. All but the latter also cancel
/// what waits for a lock.
///
/// What this process was started to ignore, as with nohup(1), stays ignored, by the command too.
pub(crate) fn receive(canceller: &Canceller) -> io::Result<Receiver<i32>> {
    let ignored = ignored();
    let wanted = FORWARDED.iter().filter(|signal| !is_in(ignored, **signal));
    let mut signals = Signals::new(wanted.chain(&[SIGCHLD]))?;
    let (sender, receiver): (Sender<i32>, _) = unbounded();
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
    Ok(receiver)
}

/// The first signal that was received and does not only tell of the command.
pub(crate) fn next_forwarded(signals: &Receiver<i32>) -> Option<i32> {
    signals.try_iter().find(|signal| *signal != SIGCHLD)
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
