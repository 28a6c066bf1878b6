//! Decides a request from the replies of N servers, as soon as they allow it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use crate::base::failure::{Failure, FailureKind};
use crate::error::{ServerFailure, Shortfall};
use crate::store::background::JobReply;
use crate::store::hold_id::HeldAs;
use crate::store::request::{AcquireReply, Change, HoldReply, HolderReply, ReportReply};

pub(super) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// The replies of all servers to one request; `None` where the reply is outstanding.
#[derive(Clone, Debug)]
pub(crate) struct Votes<T>(pub(super) Vec<Option<Result<T, Failure>>>);

impl<T> Votes<T> {
    pub(super) fn new(servers: usize) -> Self {
        Self((0..servers).map(|_| None).collect())
    }

    /// Counts the outstanding replies as this failure.
    pub(super) fn close(&mut self, failure: impl Fn(usize) -> Failure) {
        for (server, vote) in self.0.iter_mut().enumerate() {
            vote.get_or_insert_with(|| Err(failure(server)));
        }
    }

    pub(super) fn required(&self) -> usize {
        majority(self.0.len())
    }

    pub(super) fn pending(&self) -> usize {
        self.0.iter().filter(|vote| vote.is_none()).count()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failures().next().is_some()
    }

    /// Returns `true` if `is` accepts the reply of a server, or may accept an outstanding one.
    pub(super) fn may_be(&self, server: usize, is: impl Fn(&T) -> bool) -> bool {
        match &self.0[server] {
            None => true,
            Some(Ok(answer)) => is(answer),
            // Without a reply, the server may have executed the request, or may still do so.
            Some(Err(failure)) => failure.is_in_doubt(),
        }
    }

    fn answers(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(|vote| vote.as_ref()?.as_ref().ok())
    }

    fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.0.iter().filter_map(|vote| vote.as_ref()?.as_ref().err())
    }

    fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        self.answers().filter(|answer| is(answer)).count()
    }

    fn count_failures(&self, kind: FailureKind) -> usize {
        self.failures().filter(|failure| failure.kind == kind).count()
    }

    /// Returns how many servers have executed the request, but not as durably as demanded.
    fn count_short(&self) -> usize {
        self.failures().filter(|failure| failure.is_shortfall()).count()
    }

    /// Returns how many servers have something that is not a lock. Such a server counts as if
    /// another client held the lock. If the other servers are not a majority, the request fails.
    fn count_wrong(&self) -> usize {
        self.count_failures(FailureKind::WrongType)
    }

    /// Returns `true` if some server has something that is not a lock, and the outstanding replies
    /// decide whether the other servers are a majority.
    fn may_be_wrong(&self) -> bool {
        let wrong = self.count_wrong();
        wrong > 0 && !self.outvoted_by(wrong) && self.outvoted_by(wrong + self.pending())
    }

    /// Returns `true` if the servers other than `against` are not a majority.
    fn outvoted_by(&self, against: usize) -> bool {
        self.0.len() - against < self.required()
    }

    /// Returns the failure if a majority has executed the request, but only `ok` servers as durably
    /// as demanded. Servers with more confirmations count as nearer to a majority; it is the
    /// failure of the last one that a majority would need. Returns `None` if the next try may
    /// succeed.
    fn not_replicated(&self, ok: usize) -> Option<Failure> {
        if ok + self.count_failures(FailureKind::Transient) >= self.required() {
            return None;
        }
        let mut short: Vec<_> =
            self.failures().filter_map(|failure| Some((failure.acked()?, failure))).collect();
        short.sort_by_key(|(acked, _)| Reverse(*acked));
        let (_, next) = short.get(self.required() - ok - 1)?;
        Some((*next).clone())
    }

    /// Returns the failure of a request that `ok` servers have granted and no majority can grant.
    fn shortfall(&self, ok: usize) -> Failure {
        if let Some(failure) = self.not_replicated(ok) {
            return failure;
        }
        let lasting = [
            FailureKind::Rejected,
            FailureKind::WrongType,
            FailureKind::Foreign,
            FailureKind::Misfit,
        ];
        for kind in lasting {
            let mut like = self.failures().filter(|failure| failure.kind == kind);
            if self.outvoted_by(self.count_failures(kind))
                && let Some(failure) = like.next()
            {
                return failure.clone();
            }
        }
        // The most important failure is that of a request that may have been executed, and the
        // least important is a temporary condition.
        let kinds = [
            FailureKind::Timeout,
            FailureKind::Unclear,
            FailureKind::Disconnected,
            FailureKind::Transient,
        ];
        let worst = kinds.into_iter().find(|kind| self.count_failures(*kind) > 0);
        let failures = self.failures().map(|failure| ServerFailure {
            server: failure.server.to_string(),
            phase: failure.phase,
            source: failure.source.clone(),
        });
        let no_quorum = Arc::new(Shortfall {
            ok: u32::try_from(ok).unwrap_or(u32::MAX),
            required: u32::try_from(self.required()).unwrap_or(u32::MAX),
            failures: failures.collect(),
        });
        let kind = worst.unwrap_or(FailureKind::Unreachable);
        let server = Arc::from("a majority of the servers");
        let failure = Failure::caused_by(kind, &server, no_quorum.clone());
        Failure { no_quorum: Some(no_quorum), ..failure }
    }

    /// Decides whether a majority has answered. A failure says that `ok` servers have succeeded.
    fn answered(&self, ok: usize) -> Option<Result<(), Failure>> {
        let wrong = self.count_wrong();
        if self.may_be_wrong() {
            return None;
        }
        if self.answers().count() + wrong >= self.required() && !self.outvoted_by(wrong) {
            return Some(Ok(()));
        }
        self.unanswered(ok).map(Err)
    }

    /// Returns the failure once too few servers are left to make a majority for any answer.
    fn unanswered(&self, ok: usize) -> Option<Failure> {
        let wrong = self.count_wrong();
        let rejected = self.count_failures(FailureKind::Rejected);
        let refused = self.outvoted_by(rejected) || self.outvoted_by(wrong);
        let answers = self.answers().count() + self.count_short() + wrong;
        let hopeless = answers + self.pending() < self.required();
        if refused || hopeless || self.pending() == 0 { Some(self.shortfall(ok)) } else { None }
    }
}

impl Votes<AcquireReply> {
    /// Decides whether a hold was granted, with the greatest token that a server gave. The tenure
    /// has room for more holds only if a majority agrees on that token.
    pub(super) fn decide_acquire(&self) -> Option<Result<AcquireReply, Failure>> {
        let grants = self.answers().filter_map(|reply| match reply {
            AcquireReply::Acquired { fence, room, .. } => Some((*fence, *room)),
            AcquireReply::Held { .. } => None,
        });
        let mut grants: Vec<(u64, u32)> = grants.collect();
        grants.sort_unstable_by(|one, other| other.cmp(one));
        let granted = grants.len();
        if granted >= self.required() {
            // The greatest token counts. If too few servers gave it, their counters are raised.
            let (fence, _) = grants[0];
            let (least, room) = grants[self.required() - 1];
            let room = if least == fence { room } else { 0 };
            let wanted = self
                .answers()
                .any(|reply| matches!(reply, AcquireReply::Acquired { wanted: true, .. }));
            return Some(Ok(AcquireReply::Acquired { fence, others: Vec::new(), room, wanted }));
        }
        // The outstanding replies may still complete a majority, or rule it out.
        if granted + self.pending() >= self.required() || self.may_be_wrong() {
            return None;
        }
        let short = self.count_short();
        let wrong = self.count_wrong();
        let refused = self.outvoted_by(self.count_failures(FailureKind::Rejected));
        if self.outvoted_by(wrong) || refused || granted + short >= self.required() {
            return Some(Err(self.shortfall(granted)));
        }
        if self.answers().count() + short + wrong >= self.required() {
            let remaining = self.until_majority_is_free(granted + short);
            let in_doubt = self.failures().any(Failure::is_ambiguous);
            let recalled = self
                .answers()
                .any(|reply| matches!(reply, AcquireReply::Held { recalled: true, .. }));

            let echoed = if granted == 0 { self.echoed() } else { None };
            let held = AcquireReply::Held { index: 0, remaining, in_doubt, recalled, echoed };
            return Some(Ok(held));
        }
        self.unanswered(granted).map(Err)
    }

    /// Returns the owner that the servers of a majority report, if each of them has sent an echo.
    /// If attempts have collided, no owner has a majority, and no client is notified when they end.
    fn echoed(&self) -> Option<String> {
        let owners = self.answers().filter_map(|reply| match reply {
            AcquireReply::Held { echoed, .. } => echoed.clone(),
            AcquireReply::Acquired { .. } => None,
        });
        let owners: Vec<_> = owners.collect();
        for owner in &owners {
            let count = owners.iter().filter(|other| *other == owner).count();
            if count >= self.required() {
                return Some(owner.clone());
            }
        }
        None
    }

    pub(super) fn agree_on(&self, token: u64) -> bool {
        let agreeing = self.count(
            |reply| matches!(reply, AcquireReply::Acquired { fence, .. } if *fence == token),
        );
        agreeing >= self.required()
    }

    /// Returns the greatest token that the counter of any server has reached.
    pub(super) fn reached(&self) -> u64 {
        let ends = self.answers().map(|reply| match reply {
            AcquireReply::Acquired { fence, room, .. } => fence + u64::from(*room),
            AcquireReply::Held { .. } => 0,
        });
        ends.max().unwrap_or_default()
    }

    /// Returns the time until a majority is free: the `granted` servers, because the hold is
    /// withdrawn there, and others as their leases end.
    fn until_majority_is_free(&self, granted: usize) -> Option<Duration> {
        let leases = self.answers().filter_map(|reply| match reply {
            AcquireReply::Held { remaining, .. } => *remaining,
            AcquireReply::Acquired { .. } => None,
        });
        let mut leases: Vec<Duration> = leases.collect();
        leases.sort_unstable();
        leases.get(self.required() - granted - 1).copied()
    }
}

impl Votes<HoldReply> {
    /// Decides whether a majority has confirmed a hold, or no majority can have it any more.
    pub(super) fn decide_hold(&self) -> Option<Result<HoldReply, Failure>> {
        let ours = self.count(|reply| *reply != HoldReply::Gone);
        let gone = self.count(|reply| *reply == HoldReply::Gone);
        if ours >= self.required() {
            // A waiting client has asked a majority, and any two majorities share a server.
            let is_wanted = self.count(|reply| *reply == HoldReply::Wanted) > 0;
            return Some(Ok(if is_wanted { HoldReply::Wanted } else { HoldReply::Done }));
        }
        if self.outvoted_by(gone) {
            return Some(Ok(HoldReply::Gone));
        }
        let undecided =
            ours + self.pending() >= self.required() || self.outvoted_by(gone + self.pending());
        if undecided { None } else { Some(Err(self.shortfall(ours))) }
    }

    /// Decides whether any server had the hold, once a majority has answered.
    pub(super) fn decide_any(&self) -> Option<Result<HoldReply, Failure>> {
        let any = self.answers().any(|reply| *reply != HoldReply::Gone);
        let answered = self.answered(self.answers().count())?;
        Some(answered.map(|()| if any { HoldReply::Done } else { HoldReply::Gone }))
    }

    /// Decides the result of a change to a hold. A client may be registered at any of the servers.
    pub(super) fn decide_change(&self, change: Change) -> Option<Result<HoldReply, Failure>> {
        match change {
            Change::Unregister => self.decide_any(),
            _ => self.decide_hold(),
        }
    }

    /// Once all replies have arrived or failed, decides the answer of a majority, and whether every
    /// server has answered.
    pub(super) fn decide_release(&self) -> Option<Result<JobReply, Failure>> {
        if self.pending() > 0 {
            return None;
        }
        let everywhere = !self.has_failed();
        self.decide_hold().map(|decided| decided.map(|hold| JobReply { hold, everywhere }))
    }
}

impl Votes<ReportReply> {
    /// Decides which holder has a majority, if any can.
    pub(super) fn decide_holder(&self) -> Option<Result<ReportReply, Failure>> {
        let holders: Vec<&HolderReply> = self.answers().filter_map(ReportReply::holder).collect();
        let same = holders.iter().map(|holder| -> Vec<&HolderReply> {
            holders.iter().filter(|other| other.owner == holder.owner).copied().collect()
        });
        // A minority may have a hold that was never granted, or whose release it has missed.
        let best = same.max_by_key(Vec::len).unwrap_or_default();
        let most = best.len();
        if most >= self.required() {
            // The depth on most servers, and the time until they are no longer a majority.
            let mut depths: Vec<u32> = best.iter().map(|holder| holder.depth).collect();
            depths.sort_unstable();
            let mut leases: Vec<Duration> = best.iter().map(|holder| holder.remaining).collect();
            leases.sort_unstable_by(|one, other| other.cmp(one));
            let fence = best.iter().map(|holder| holder.fence).max().unwrap_or(0);
            let depth = depths[depths.len() / 2];
            let remaining = leases[self.required() - 1];
            let note = best.iter().find_map(|holder| holder.note.clone());
            let owner = best[0].owner.clone();
            let holder = HolderReply { owner, depth, remaining, fence, note };
            let holds = vec![(HeldAs::Lock, holder)];
            return Some(Ok(ReportReply { holds, fence, ..ReportReply::default() }));
        }
        if most + self.pending() >= self.required() {
            return None;
        }
        Some(self.answered(most)?.map(|()| ReportReply::default()))
    }
}

#[cfg(test)]
mod tests;
