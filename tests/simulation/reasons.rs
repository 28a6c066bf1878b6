//! The excuses for something that would otherwise be a mistake. Each is counted, which shows the
//! ones that are no longer needed, and `tests/README.md` names a mutant that it might hide.

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
    /// The client was shut down, which ends its holds.
    ClientClosed,
    /// The client was stopped while something was due.
    ClientStopped,
    /// A call that does not wait has time for few requests.
    FarAway,
    /// A hold that was over is back on the server, which has older data or has executed a request
    /// twice.
    HoldIsBack,
    /// A late request began the hold.
    LateRequest,
    /// The hold was detached.
    LeftToAdopt,
    /// A request had no usable answer.
    NoAnswer,
    /// The client does not renew the lease.
    NotRenewed,
    /// The client itself had the lock, by a hold that it may not know of.
    OwnHold,
    /// The server ended a hold too early.
    ServerForgot,
    /// The servers of a quorum may give a token again.
    TokensRepeat,
}

/// How often a reason was the only one, and how often it was one of several.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    only: u64,
    of_several: u64,
}

/// The count of each reason.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reasons {
    counts: [Count; ALL.len()],
}

thread_local! {
    static COUNTED: RefCell<Reasons> = RefCell::default();
}

/// Returns `true` if one of these reasons excuses what is otherwise forbidden.
pub(super) fn excused(reasons: &[(Reason, bool)]) -> bool {
    let apply = reasons.iter().filter(|(_, applies)| *applies).count();
    COUNTED.with_borrow_mut(|counted| {
        for (reason, _) in reasons.iter().filter(|(_, applies)| *applies) {
            let count = &mut counted.counts[*reason as usize];
            if apply == 1 {
                count.only += 1;
            } else {
                count.of_several += 1;
            }
        }
    });
    apply > 0
}

/// Returns the counts of this thread since the last call.
pub(super) fn take() -> Reasons {
    COUNTED.take()
}

impl Reasons {
    pub(super) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            count.only += more.only;
            count.of_several += more.of_several;
        }
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "excused only for this reason, and for others, too:")?;
        for (reason, count) in ALL.iter().zip(&self.counts) {
            let name = format!("{reason:?}");
            writeln!(f, "{name:>16} {:>8} {:>8}", count.only, count.of_several)?;
        }
        Ok(())
    }
}
