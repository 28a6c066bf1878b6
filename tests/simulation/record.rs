//! The requests of all clients and the outcome of each, by which the judge decides whether a client
//! could have done better.

use std::time::{Duration, Instant};

use redis::Value;

use crate::base::clock;
use crate::base::failure::Failure;
use crate::base::sync::executor::{self, Process};
use crate::protocol::hold::reliable;
use crate::simulation::network::Pair;
use crate::simulation::world::{self, NameState};
use crate::store::hold_id::HoldId;
use crate::store::request::{AcquireReply, Change, HoldReply, ReportReply};

/// The purpose of a request about a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Acquire(Duration),
    Check,
    Release,
    Renew(Duration),
    Other,
}

impl From<Change> for Wish {
    fn from(change: Change) -> Self {
        match change {
            Change::Check => Self::Check,
            Change::Release { .. } => Self::Release,
            _ => change.lease().map_or(Self::Other, |lease| Self::Renew(lease.duration)),
        }
    }
}

/// A hold that a request is about, and the purpose of the request.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) hold: HoldId,
    pub(super) wish: Wish,
}

impl Subject {
    pub(super) fn of(hold: &HoldId, wish: impl Into<Wish>) -> Self {
        Self { hold: hold.clone(), wish: wish.into() }
    }
}

/// A server's answer about one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// No usable answer, and the client knows that the request was not executed.
    Failed,
    /// No usable answer: the request may have been executed.
    Nothing,
    /// Another owner holds the lock, or the hold is gone.
    No,
    Yes,
    /// The hold has begun, with the first of these tokens. The others, up to the last one, are for
    /// the holds that follow it in its tenure.
    Granted(u64, u64),
}

impl Said {
    fn of(failure: &Failure) -> Self {
        if failure.is_ambiguous() { Self::Nothing } else { Self::Failed }
    }

    pub(super) fn is_yes(self) -> bool {
        matches!(self, Self::Yes | Self::Granted(..))
    }

    pub(super) fn is_answer(self) -> bool {
        !matches!(self, Self::Failed | Self::Nothing)
    }
}

/// The reply to a request about one or several holds.
pub(super) trait Answer {
    /// Returns the part about the hold with this index.
    fn said(&self, place: usize) -> Said;
}

impl Answer for AcquireReply {
    fn said(&self, place: usize) -> Said {
        match self {
            Self::Acquired { fence, room, .. } if place == 0 => {
                Said::Granted(*fence, fence + u64::from(*room))
            }
            Self::Acquired { others, .. } => {
                others.get(place - 1).map_or(Said::No, |fence| Said::Granted(*fence, *fence))
            }
            Self::Held { .. } => Said::No,
        }
    }
}

impl Answer for HoldReply {
    fn said(&self, _: usize) -> Said {
        if *self == Self::Gone { Said::No } else { Said::Yes }
    }
}

impl Answer for Vec<Result<HoldReply, Failure>> {
    fn said(&self, place: usize) -> Said {
        self[place].as_ref().map_or_else(Said::of, |reply| reply.said(0))
    }
}

/// A reply of a quorum server, in the form of the scripts.
impl Answer for Value {
    fn said(&self, _: usize) -> Said {
        match self {
            Self::Int(0) => Said::No,
            Self::Int(3..) => token_of(self).map_or(Said::Yes, |token| Said::Granted(token, token)),
            Self::Array(parts) => match token_of(&parts[0]) {
                Some(0) => Said::No,
                Some(first) => {
                    let last = parts.get(1).and_then(token_of);
                    Said::Granted(first, last.unwrap_or(first))
                }
                None => Said::Yes,
            },
            _ => Said::Yes,
        }
    }
}

fn token_of(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// A reply about no hold.
macro_rules! says_nothing_of_holds {
    ($($reply:ty),*) => {
        $(impl Answer for $reply {
            fn said(&self, _: usize) -> Said {
                Said::Yes
            }
        })*
    };
}

says_nothing_of_holds!(ReportReply, (), bool);

/// One request to one server, about one hold.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) client: Process,
    /// The thread that has sent it.
    pub(super) thread: u64,
    pub(super) subject: Subject,
    pub(super) sent: Instant,
    /// When the client got the outcome, and what it was.
    pub(super) outcome: Option<(Instant, Said)>,
}

impl Asked {
    pub(super) fn is_about(&self, hold: &HoldId) -> bool {
        self.subject.hold.nonce == hold.nonce && self.subject.hold.client == hold.client
    }

    pub(super) fn said(&self) -> Said {
        self.outcome.map_or(Said::Nothing, |(_, said)| said)
    }

    /// Returns `true` if it failed, or still had no outcome then.
    pub(super) fn has_failed_since(&self, since: Instant) -> bool {
        self.outcome.is_none_or(|(at, said)| !said.is_answer() && at >= since)
    }

    /// Returns when the server's answer arrived.
    pub(super) fn answered(&self) -> Option<Instant> {
        self.outcome.filter(|(_, said)| said.is_answer()).map(|(at, _)| at)
    }

    /// Returns the lease that the request begins or renews.
    fn lease(&self) -> Option<Duration> {
        match self.subject.wish {
            Wish::Acquire(lease) | Wish::Renew(lease) => Some(lease),
            Wish::Check | Wish::Release | Wish::Other => None,
        }
    }
}

/// All requests by name.
#[derive(Default)]
pub(super) struct Record {
    names: Vec<Vec<Asked>>,
}

/// The position of each part of a request in the record: the number of its name, and its index
/// among the requests about that name.
#[derive(Clone, Default)]
pub(super) struct Places(Vec<(usize, usize)>);

/// Records a request that is being sent.
pub(super) fn begin(pair: Pair, subjects: Vec<Subject>) -> Places {
    let (sent, thread) = (clock::now(), executor::thread_number());
    world::with(|world| {
        let mut places = Places::default();
        for subject in subjects {
            let is_meant = |name: &NameState| *name.name == *subject.hold.name;
            let Some(name) = world.names.iter().position(is_meant) else { continue };
            let names = &mut world.record.names;
            names.resize_with(names.len().max(name + 1), Vec::new);
            places.0.push((name, names[name].len()));
            names[name].push(Asked { client: pair.client, thread, subject, sent, outcome: None });
        }
        places
    })
}

/// Records the outcome of a request.
pub(super) fn end<T: Answer>(places: &Places, outcome: &Result<T, Failure>) {
    let now = clock::now();
    world::with(|world| {
        for (place, (name, at)) in places.0.iter().enumerate() {
            let said = outcome.as_ref().map_or_else(Said::of, |reply| reply.said(place));
            world.record.names[*name][*at].outcome = Some((now, said));
        }
    });
}

impl Record {
    /// Returns the requests about a name, the last one first.
    pub(super) fn latest(&self, name: usize) -> impl Iterator<Item = &Asked> {
        self.names.get(name).into_iter().flatten().rev()
    }

    /// Returns the requests about a hold, the last one first.
    pub(super) fn of<'a>(
        &'a self,
        name: usize,
        hold: &'a HoldId,
    ) -> impl Iterator<Item = &'a Asked> {
        self.latest(name).filter(|it| it.is_about(hold))
    }

    /// Returns the holds of a client with this token, the last one first. Readers share a token.
    pub(super) fn holds_with(&self, name: usize, client: &str, fence: u64) -> Vec<HoldId> {
        let mut holds: Vec<HoldId> = Vec::new();
        for asked in self.latest(name).filter(|it| *it.subject.hold.client == *client) {
            let Said::Granted(first, last) = asked.said() else { continue };
            if (first..=last).contains(&fence) && !holds.contains(&asked.subject.hold) {
                holds.push(asked.subject.hold.clone());
            }
        }
        holds
    }

    /// Returns when a client read that this many servers had begun its hold.
    pub(super) fn granted(&self, name: usize, hold: &HoldId, required: usize) -> Option<Instant> {
        let asked = self.of(name, hold).filter(|it| matches!(it.said(), Said::Granted(..)));
        let mut granted: Vec<Instant> = asked.filter_map(Asked::answered).collect();
        granted.sort_unstable();
        granted.get(required - 1).copied()
    }

    /// Returns when a client sent the last request that brought it this token.
    pub(super) fn sent_for(&self, name: usize, client: Process, fence: u64) -> Option<Instant> {
        let has_it = |it: &&Asked| {
            let Said::Granted(first, last) = it.said() else { return false };
            it.client == client && (first..=last).contains(&fence)
        };
        self.latest(name).find(has_it).map(|it| it.sent)
    }

    /// Returns when a client first asked for a hold.
    pub(super) fn first_asked(&self, name: usize, hold: &HoldId) -> Option<Instant> {
        let is_acquire = |it: &&Asked| matches!(it.subject.wish, Wish::Acquire(_));
        self.of(name, hold).filter(is_acquire).last().map(|it| it.sent)
    }

    /// Returns the last request about a hold that this many servers granted, and what it promises.
    pub(super) fn last_grant(
        &self,
        name: usize,
        hold: &HoldId,
        client: Process,
        required: usize,
    ) -> Option<Promise> {
        let is_lease = |it: &&Asked| it.client == client && it.lease().is_some();
        let asked: Vec<_> = self.of(name, hold).filter(is_lease).collect();
        let mut groups = asked.chunk_by(|one, it| one.sent == it.sent);
        let is_granted =
            |group: &&[&Asked]| group.iter().filter(|it| it.said().is_yes()).count() >= required;
        let last = groups.find(is_granted)?[0];
        let (sent, lease) = (last.sent, last.lease().unwrap_or_default());
        Some(Promise { until: sent + reliable(lease), sent, lease })
    }

    /// Returns the time until which a client may at least rely on a hold, and when it sent the
    /// request that allows this: the last one that this many servers granted in time. A reply
    /// within the `slack` before the end of the hold does not count.
    pub(super) fn promised(
        &self,
        name: usize,
        hold: &HoldId,
        client: Process,
        required: usize,
        slack: Duration,
    ) -> Option<Promise> {
        let is_lease = |it: &&Asked| it.client == client && it.lease().is_some();
        let mut asked: Vec<_> = self.of(name, hold).filter(is_lease).collect();
        asked.reverse();
        let mut best: Option<Promise> = None;
        // The servers of a quorum are asked at the same time.
        for group in asked.chunk_by(|one, it| one.sent == it.sent) {
            let granted = group.iter().filter_map(|it| it.outcome);
            let granted = granted.filter(|(_, said)| said.is_yes()).map(|(at, _)| at);
            let mut granted: Vec<_> = granted.collect();
            granted.sort_unstable();
            let Some(since) = granted.get(required - 1) else { continue };
            if best.as_ref().is_none_or(|best| *since + slack < best.until) {
                let sent = group[0].sent;
                let lease = group[0].lease().unwrap_or_default();
                let until = sent + reliable(lease);
                let promise = Promise { until, sent, lease };
                best = best.filter(|best| best.until > until).or(Some(promise));
            }
        }
        best
    }
}

/// The time until which a client may rely on a hold, and the request that allows it: when it was
/// sent, and for which lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    pub(super) until: Instant,
    pub(super) sent: Instant,
    pub(super) lease: Duration,
}
