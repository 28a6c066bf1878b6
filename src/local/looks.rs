//! How one call checks from time to time whether it waits for itself, which is called a look.
//!
//! Decides when the call looks, and sends the messages for which others have no thread. Its own
//! thread does all that, between two sleeps; until the first look, nothing is registered or sent.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::{self, end_of};
use crate::config::{Deadlock, check_note};
use crate::local::deadlock::CircleCall;
use crate::local::parker::{Parker, Signal};
use crate::local::shared::Shared;
use crate::protocol::call::{Caller, Wait};
use crate::protocol::hold::Hold;
use crate::store::hold_id::HoldKind;
use crate::store::request::Telling;

/// The longest pause between two looks, unless the first is longer. Each is twice the last one.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Looks as long as this lives.
pub(super) struct Looks<'a> {
    shared: &'a Shared,
    kind: HoldKind,
    name: &'a str,
    caller: &'a Caller,
    pub(super) parker: &'a Arc<Parker>,
    next: NextLook,
    /// The number of the call. It keeps this number when it waits again, so that the same calls are
    /// recognized as the same circle.
    number: u64,
    is_registered: bool,
    /// When to log that the call still waits, unless it was.
    tell_at: Option<Instant>,
}

#[derive(Clone, Copy)]
enum NextLook {
    /// The call has not slept yet.
    Unknown,
    /// At that time, and again after a pause.
    At(Instant, Duration),
    /// No thread waits for one that holds nothing, and it gets no hold while it waits.
    Never,
}

impl<'a> Looks<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        (kind, name): (HoldKind, &'a str),
        caller: &'a Caller,
        parker: &'a Arc<Parker>,
        number: u64,
    ) -> Self {
        Self {
            shared,
            kind,
            name,
            caller,
            parker,
            next: NextLook::Unknown,
            number,
            is_registered: false,
            tell_at: None,
        }
    }

    /// Like [`Parker::park`], but looks from time to time.
    pub(super) fn park(&mut self, deadline: Option<Instant>) -> Option<Signal> {
        loop {
            let look = self.next();
            let own = look.into_iter().chain(self.tell_at).min();
            match self.parker.park(deadline.into_iter().chain(own).min()) {
                None if own.is_some_and(|own| deadline.is_none_or(|end| own < end)) => {
                    if self.tell_at == own {
                        self.tell_at = None;
                        self.log_wait();
                    } else {
                        self.look();
                    }
                }
                signal => return signal,
            }
        }
    }

    /// Returns when to look next, if at all.
    fn next(&mut self) -> Option<Instant> {
        if let NextLook::Unknown = self.next {
            let caller = self.caller;
            // The thread does not wake for a line that the logger does not want.
            let is_told = caller.wait != Wait::No && log::max_level() >= log::Level::Info;
            let deadlock_after = self.shared.config.deadlock_after;
            let after = if is_told { deadlock_after } else { None };
            let at = after.and_then(|after| caller.begin.checked_add(after));
            // Once for each call, which may have waited here before.
            self.tell_at = at.filter(|at| clock::now() < *at);
            self.next = NextLook::Never;
            if let Some(after) = deadlock_after
                && self.kind.is_lock()
                && caller.wait != Wait::No
                // No other thread can wait for one that holds nothing.
                && !self.shared.held_locks.all().is_empty()
                && let Some(at) = caller.begin.checked_add(after)
            {
                self.next = NextLook::At(at, after);
            }
        }
        if let NextLook::At(at, _) = self.next { Some(at) } else { None }
    }

    /// Logs that the call has waited for long, and which thread of this client has the lock, if
    /// one has.
    fn log_wait(&self) {
        let Shared { reporter, names, .. } = self.shared;
        reporter.events.log(log::Level::Info, || {
            let name = self.name;
            let waited = clock::elapsed(self.caller.begin);
            let held = names.holder(self.kind, name).and_then(|hold| {
                let note = hold.note().map(|note| format!(" ({note})")).unwrap_or_default();
                names.with(&hold.id, |name| {
                    let current = name.tenure(&hold)?.current()?;
                    Some(format!(", held {}{note}", current.site))
                })
            });
            let held = held.unwrap_or_default();
            format!("lock {name:?} {} waits for {waited:?} so far{held}", self.caller.site())
        });
    }

    fn look(&mut self) {
        let NextLook::At(_, pause) = self.next else { return };
        let pause = pause.saturating_mul(2).min(PAUSE_MAX).max(pause);
        self.next = NextLook::At(end_of(pause), pause);
        let Shared { reporter, names, client, .. } = self.shared;
        if !mem::replace(&mut self.is_registered, true) {
            self.register();
        }
        if let Some(circle) = reporter.deadlocks.look(names, self.number) {
            reporter.report_deadlock(&circle, client);
        }
    }

    fn register(&self) {
        let Shared { config, client, held_locks, reporter, .. } = self.shared;
        let now = clock::unix_time();
        let holds = held_locks.all();
        let began = now.saturating_sub(clock::elapsed(self.caller.begin)).as_micros();
        let call = CircleCall {
            client: client.to_string(),
            number: self.number,
            began: u64::try_from(began).unwrap_or(u64::MAX),
            may_fail: config.deadlock == Deadlock::Fail,
            name: self.name.to_owned(),
            note: note_of(&holds),
        };
        reporter.deadlocks.add(call, self.caller.site().to_string(), self.parker, holds);
    }

    /// Sends a message. A later look makes up for a lost one.
    pub(super) fn tell(&self, telling: &Telling) {
        let Shared { store, reporter, .. } = self.shared;
        if let Err(failure) =
            store.tell(self.name, telling, self.caller.request_deadline(clock::now()))
        {
            let source = &failure.source;
            reporter.events.log(log::Level::Debug, || {
                format!("no look for a deadlock at lock {:?}: {source}", self.name)
            });
        }
    }
}

/// Returns the notes of a thread's holds, each once, as many as fit.
fn note_of(holds: &[Arc<Hold>]) -> String {
    let mut notes: Vec<_> = holds.iter().filter_map(|hold| hold.note().cloned()).collect();
    notes.sort_unstable();
    notes.dedup();
    let all = notes.join("; ");
    if check_note(&all).is_ok() { all } else { notes[0].to_string() }
}

impl Drop for Looks<'_> {
    fn drop(&mut self) {
        if self.is_registered {
            self.shared.reporter.deadlocks.remove(self.number);
        }
    }
}
