//! What the answers of N servers amount to, as soon as they amount to anything.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ServerFailure, Shortfall};
use crate::failure::{Failure, FailureKind};
use crate::store::hold::Holder;
use crate::store::request::{AcquireReply, HoldReply, TransferReply};

/// How many of so many servers are a majority.
pub(super) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// The answers of all servers to one request; `None` from who may still answer.
#[derive(Debug)]
pub(super) struct Votes<T>(pub(super) Vec<Option<Result<T, Failure>>>);

/// How an attempt to begin a hold went.
#[derive(Debug)]
pub(super) enum HoldVote<T> {
    /// A majority has begun it. The greatest of the tokens is the hold's, and `agreed` if a
    /// majority has given just that.
    Won { fence: u64, agreed: bool },
    /// No majority can have begun it.
    Lost(Result<T, Failure>),
}

impl<T> Votes<T> {
    pub(super) fn new(servers: usize) -> Self {
        Self((0..servers).map(|_| None).collect())
    }

    /// Counts those who have not answered as silent.
    pub(super) fn close(&mut self, silence: impl Fn(usize) -> Failure) {
        for (server, vote) in self.0.iter_mut().enumerate() {
            vote.get_or_insert_with(|| Err(silence(server)));
        }
    }

    pub(super) fn required(&self) -> usize {
        majority(self.0.len())
    }

    pub(super) fn pending(&self) -> usize {
        self.0.iter().filter(|vote| vote.is_none()).count()
    }

    /// Tells whether the answer of a server is such a one, as far as is known.
    pub(super) fn may_be(&self, server: usize, is: impl Fn(&T) -> bool) -> bool {
        match &self.0[server] {
            None => true,
            Some(Ok(answer)) => is(answer),
            Some(Err(failure)) => failure.is_ambiguous() || failure.is_shortfall(),
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

    /// How many have done what they were asked, but not as durably as demanded.
    fn count_short(&self) -> usize {
        self.failures().filter(|failure| failure.is_shortfall()).count()
    }

    /// Tells whether so many that are against leave no majority of others.
    fn outvoted_by(&self, against: usize) -> bool {
        self.0.len() - against < self.required()
    }

    /// The failure of what a majority has done, but only `ok` as durably as demanded: that of the
    /// server which is next to it. `None` as well if it may be done that durably at the next try.
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

    /// The failure of a request to which `ok` servers have agreed and no majority can.
    fn shortfall(&self, ok: usize) -> Failure {
        if let Some(failure) = self.not_replicated(ok) {
            return failure;
        }
        for kind in [FailureKind::Rejected, FailureKind::WrongType] {
            let mut like = self.failures().filter(|failure| failure.kind == kind);
            if self.outvoted_by(self.count_failures(kind))
                && let Some(failure) = like.next()
            {
                return failure.clone();
            }
        }
        // That a request may have been executed somewhere counts most, and least what passes
        // without waiting.
        let kinds = [FailureKind::Timeout, FailureKind::Disconnected, FailureKind::Transient];
        let worst = kinds.into_iter().find(|kind| self.count_failures(*kind) > 0);
        let failures = self.failures().map(|failure| ServerFailure {
            server: failure.server.to_string(),
            source: failure.source.clone(),
        });
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let shortfall = Shortfall {
            ok: number(ok),
            required: number(self.required()),
            failures: failures.collect(),
        };
        let server = Arc::from("a majority of the servers");
        Failure::io(worst.unwrap_or(FailureKind::Unreachable), &server, shortfall)
    }

    /// The failure, once no answer that is still to come can bring `enough` answers of any kind.
    fn unanswered(&self, ok: usize) -> Option<Failure> {
        let wrong = self.count_failures(FailureKind::WrongType);
        let answers = self.answers().count() + self.count_short() + wrong;
        let refused = self.outvoted_by(self.count_failures(FailureKind::Rejected));
        let hopeless = answers + self.pending() < self.required();
        (refused || hopeless || self.pending() == 0).then(|| self.shortfall(ok))
    }
}

impl Votes<AcquireReply> {
    /// The outcome of a race for a lock.
    pub(super) fn race(&self) -> Option<HoldVote<AcquireReply>> {
        let fences: Vec<u64> = self.answers().filter_map(fence_of_bid).collect();
        let won = fences.len();
        if won >= self.required() {
            return Some(self.won(&fences));
        }
        if won + self.pending() >= self.required() {
            return None;
        }
        let (short, wrong) = (self.count_short(), self.count_failures(FailureKind::WrongType));
        let refused = self.count_failures(FailureKind::Rejected);
        if self.outvoted_by(wrong) || self.outvoted_by(refused) || won + short >= self.required() {
            return Some(HoldVote::Lost(Err(self.shortfall(won))));
        }
        if self.answers().count() + short + wrong >= self.required() {
            let remaining = self.until_majority_is_free(won + short);
            let unclear = self.failures().any(Failure::is_ambiguous);
            let bid = if unclear {
                AcquireReply::Unknown { remaining }
            } else {
                AcquireReply::Held { remaining }
            };
            return Some(HoldVote::Lost(Ok(bid)));
        }
        self.unanswered(won).map(|failure| HoldVote::Lost(Err(failure)))
    }

    /// When so many of the others' leases are over that, with those that were won and are given
    /// back, a majority is free.
    fn until_majority_is_free(&self, won: usize) -> Option<Duration> {
        let mut leases: Vec<Duration> = self.answers().filter_map(remaining_of_bid).collect();
        leases.sort_unstable();
        leases.get(self.required() - won - 1).copied()
    }
}

impl<T> Votes<T> {
    fn won(&self, fences: &[u64]) -> HoldVote<T> {
        let fence = fences.iter().copied().max().unwrap_or_default();
        let same = fences.iter().filter(|token| **token == fence).count();
        HoldVote::Won { fence, agreed: same >= self.required() }
    }
}

impl Votes<TransferReply> {
    /// The outcome of a transfer.
    pub(super) fn passage(&self) -> Option<HoldVote<TransferReply>> {
        let fences: Vec<u64> = self.answers().filter_map(fence_of_handover).collect();
        let done = fences.len();
        if done >= self.required() {
            return Some(self.won(&fences));
        }
        if done + self.pending() >= self.required() {
            return None;
        }
        let gone = self.count(|answer| *answer == TransferReply::Gone);
        let yielded = self.count(|answer| *answer == TransferReply::Yielded);
        if self.outvoted_by(gone) {
            return Some(HoldVote::Lost(Ok(TransferReply::Gone)));
        }
        let done_anyhow = done + self.count_short();
        if done_anyhow >= self.required() {
            return Some(HoldVote::Lost(Err(self.shortfall(done))));
        }
        if done_anyhow + yielded >= self.required() {
            return Some(HoldVote::Lost(Ok(TransferReply::Yielded)));
        }
        self.unanswered(done).map(|failure| HoldVote::Lost(Err(failure)))
    }
}

impl Votes<HoldReply> {
    /// Whether a majority has confirmed a hold, or no majority can have it any more.
    pub(super) fn standing(&self) -> Option<Result<HoldReply, Failure>> {
        let ours = self.count(|standing| *standing == HoldReply::Held);
        let gone = self.count(|standing| *standing == HoldReply::Gone);
        if ours >= self.required() {
            return Some(Ok(HoldReply::Held));
        }
        if self.outvoted_by(gone) {
            return Some(Ok(HoldReply::Gone));
        }
        let undecided =
            ours + self.pending() >= self.required() || self.outvoted_by(gone + self.pending());
        if undecided && self.pending() > 0 { None } else { Some(Err(self.shortfall(ours))) }
    }

    /// Whether any server of an answering majority knew what it was asked about.
    pub(super) fn any(&self) -> Option<Result<HoldReply, Failure>> {
        let ours = self.count(|standing| *standing == HoldReply::Held);
        let answers = self.answers().count();
        if answers >= self.required() {
            return Some(Ok(if ours > 0 { HoldReply::Held } else { HoldReply::Gone }));
        }
        self.unanswered(answers).filter(|_| answers + self.pending() < self.required()).map(Err)
    }

    /// Whether all servers have answered, once that is known of each.
    pub(super) fn all(&self) -> Option<Result<HoldReply, Failure>> {
        if self.pending() > 0 {
            return None;
        }
        let ours = self.count(|standing| *standing == HoldReply::Held);
        Some(match self.failures().next() {
            Some(failure) => Err(failure.clone()),
            None if ours > 0 => Ok(HoldReply::Held),
            None => Ok(HoldReply::Gone),
        })
    }
}

impl Votes<Option<Holder>> {
    /// Who has a majority, if anybody can.
    pub(super) fn holder(&self) -> Option<Result<Option<Holder>, Failure>> {
        let holders: Vec<&Holder> = self.answers().filter_map(|seen| seen.as_ref()).collect();
        let votes = |owner: &str| holders.iter().filter(|other| other.owner == owner).count();
        let best = holders.iter().max_by_key(|holder| votes(&holder.owner));
        let most = best.map_or(0, |holder| votes(&holder.owner));
        if let Some(best) = best.filter(|_| most >= self.required()) {
            let same: Vec<_> =
                holders.iter().filter(|other| other.owner == best.owner).copied().collect();
            return Some(Ok(Some(self.summary(&same))));
        }
        if most + self.pending() >= self.required() {
            return None;
        }
        let wrong = self.count_failures(FailureKind::WrongType);
        if !self.outvoted_by(wrong) && self.answers().count() + wrong >= self.required() {
            return Some(Ok(None));
        }
        self.unanswered(most).map(Err)
    }

    /// What those who see the same holder see: the depth that most have been told, and the time
    /// until they are no majority any more.
    fn summary(&self, same: &[&Holder]) -> Holder {
        let mut depths: Vec<u32> = same.iter().map(|holder| holder.depth).collect();
        depths.sort_unstable();
        let mut leases: Vec<Duration> = same.iter().map(|holder| holder.remaining).collect();
        leases.sort_unstable_by(|one, other| other.cmp(one));
        Holder {
            owner: same[0].owner.clone(),
            depth: depths[depths.len() / 2],
            remaining: leases[self.required() - 1],
        }
    }
}

fn fence_of_bid(bid: &AcquireReply) -> Option<u64> {
    if let AcquireReply::Acquired { fence } = bid { Some(*fence) } else { None }
}

fn remaining_of_bid(bid: &AcquireReply) -> Option<Duration> {
    if let AcquireReply::Held { remaining } = bid { *remaining } else { None }
}

fn fence_of_handover(handover: &TransferReply) -> Option<u64> {
    if let TransferReply::Transferred { fence } = handover { Some(*fence) } else { None }
}

#[cfg(test)]
mod tests;
