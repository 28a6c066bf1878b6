//! Why the judge lets something pass that would be a mistake otherwise. Each reason is counted, so
//! that it shows which of them nothing needs any more.

use std::cell::RefCell;
use std::fmt;

/// Declares the reasons, and a list of all.
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Reason {
            $($(#[$doc])* $reason,)+
        }

        const ALL: &[Reason] = &[$(Reason::$reason,)+];
    };
}

reasons! {
    /// The client was closed or shut down.
    ClientClosed,
    /// The client was stopped while something was due.
    ClientStopped,
    /// The client cannot do as usual: it is stopped or cut off, a server is away, or a request of
    /// it has failed.
    Disturbed,
    /// The server has ended a hold before its time.
    Forgotten,
    /// The server has a hold again that was over, because it has older data, or has executed a
    /// request twice.
    HoldIsBack,
    /// A late request has begun a hold.
    LateRequest,
    /// A call of the same client may have the lock, or come first.
    OwnCall,
    /// Its own client's hold is in the way of a call: one that it has forgotten.
    OwnHold,
    /// Another client waits for what is free.
    OthersWait,
    /// Requests fail in this world.
    RequestsFail,
    /// A server's data or clock have changed since.
    ServerChanged,
    /// The replica did not acknowledge a request in time.
    ShortOfReplicas,
    /// Another user of a ticket has ended the hold.
    TicketUsed,
    /// The server has refused writes.
    WritesRefused,
}

/// How often each reason was the only one, and how often one of several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reasons {
    counts: [(u64, u64); ALL.len()],
}

thread_local! {
    static COUNTED: RefCell<Reasons> = RefCell::default();
}

/// Returns `true` if one of these reasons applies to something that must not be otherwise.
pub(super) fn excused(reasons: &[(Reason, bool)]) -> bool {
    let applies = reasons.iter().filter(|(_, applies)| *applies);
    let apply: Vec<_> = applies.map(|(reason, _)| *reason).collect();
    COUNTED.with_borrow_mut(|counted| {
        for reason in &apply {
            let (only, of_several) = &mut counted.counts[*reason as usize];
            *(if apply.len() == 1 { only } else { of_several }) += 1;
        }
    });
    !apply.is_empty()
}

/// Returns what was counted on this thread since the last call.
pub(super) fn take() -> Reasons {
    COUNTED.take()
}

impl Reasons {
    pub(super) fn add(&mut self, other: &Self) {
        for ((only, of_several), more) in self.counts.iter_mut().zip(&other.counts) {
            *only += more.0;
            *of_several += more.1;
        }
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "what was excused, and how often only by this, or by others, too:")?;
        for (reason, (only, of_several)) in ALL.iter().zip(&self.counts) {
            writeln!(f, "{:>16} {only:>8} {of_several:>8}", format!("{reason:?}"))?;
        }
        Ok(())
    }
}
