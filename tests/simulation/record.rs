//! What the clients have asked the servers for, and what became of each request: by that the judge
//! decides whether a client could have done better.

use std::time::{Duration, Instant};

use redis::Value;

use crate::base::clock;
use crate::base::failure::Failure;
use crate::base::sync::executor::Process;
use crate::protocol::lease::reliable;
use crate::simulation::network::Pair;
use crate::simulation::world;
use crate::store::hold_id::HoldId;
use crate::store::request::{AcquireReply, Change, HoldReply, ReportReply};

/// What a request wants of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Acquire(Duration),
    Renew(Duration),
    Release,
    Other,
}

impl From<Change> for Wish {
    fn from(change: Change) -> Self {
        match (change, change.lease()) {
            (Change::Release { .. }, _) => Self::Release,
            (_, Some(lease)) => Self::Renew(lease.duration),
            _ => Self::Other,
        }
    }
}

/// A hold that a request is about, and what the request wants of it.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) hold: HoldId,
    pub(super) wish: Wish,
}

impl From<(&HoldId, Change)> for Subject {
    fn from((hold, change): (&HoldId, Change)) -> Self {
        Self { hold: hold.clone(), wish: change.into() }
    }
}

/// What a server has said about one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing that the client could use.
    Nothing,
    /// Another owner has it, or it is gone.
    No,
    Yes,
    /// It has begun, with the first of these tokens, and the others are for those that follow it.
    Granted(u64, u64),
}

impl Said {
    pub(super) fn is_yes(self) -> bool {
        matches!(self, Self::Yes | Self::Granted(..))
    }
}

/// A reply to a request, which may be about several holds.
pub(super) trait Answer {
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
        self[place].as_ref().map_or(Said::Nothing, |reply| reply.said(0))
    }
}

impl Answer for Value {
    fn said(&self, _: usize) -> Said {
        match self {
            Self::Int(0) => Said::No,
            Self::Int(3..) => self.token().map_or(Said::Yes, |token| Said::Granted(token, token)),
            Self::Array(parts) => match (parts[0].token(), parts.get(1).and_then(Token::token)) {
                (Some(0), _) => Said::No,
                (Some(first), last) => Said::Granted(first, last.unwrap_or(first)),
                (None, _) => Said::Yes,
            },
            _ => Said::Yes,
        }
    }
}

impl Answer for ReportReply {
    fn said(&self, _: usize) -> Said {
        Said::Yes
    }
}

impl Answer for () {
    fn said(&self, _: usize) -> Said {
        Said::Yes
    }
}

impl Answer for bool {
    fn said(&self, _: usize) -> Said {
        Said::Yes
    }
}

trait Token {
    fn token(&self) -> Option<u64>;
}

impl Token for Value {
    fn token(&self) -> Option<u64> {
        if let Self::Int(number) = self { u64::try_from(*number).ok() } else { None }
    }
}

/// One request to one server, about one hold.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) client: Process,
    pub(super) subject: Subject,
    pub(super) sent: Instant,
    /// When the client has had the outcome, and what it was.
    pub(super) end: Option<(Instant, Said)>,
}

impl Asked {
    pub(super) fn is_about(&self, hold: &HoldId) -> bool {
        self.subject.hold.nonce == hold.nonce && self.subject.hold.client == hold.client
    }

    /// Returns when the server's answer has come.
    pub(super) fn answered(&self) -> Option<Instant> {
        self.end.filter(|(_, said)| *said != Said::Nothing).map(|(at, _)| at)
    }

    /// Returns when the client has learned that there is no answer.
    pub(super) fn failed(&self) -> Option<Instant> {
        self.end.filter(|(_, said)| *said == Said::Nothing).map(|(at, _)| at)
    }

    fn lease(&self) -> Option<Duration> {
        match self.subject.wish {
            Wish::Acquire(lease) | Wish::Renew(lease) => Some(lease),
            Wish::Release | Wish::Other => None,
        }
    }
}

/// All requests, by the number of the name.
#[derive(Default)]
pub(super) struct Record {
    names: Vec<Vec<Asked>>,
}

/// The places of the parts of a request in the record.
#[derive(Clone, Default)]
pub(super) struct Places(Vec<(usize, usize)>);

/// Notes a request that is sent now.
pub(super) fn begin(Pair { client, .. }: Pair, subjects: Vec<Subject>) -> Places {
    let sent = clock::now();
    world::with(|world| {
        let mut places = Places::default();
        for subject in subjects {
            let name = |it: &world::NameState| *it.name == *subject.hold.name;
            let Some(at) = world.names.iter().position(name) else { continue };
            let names = &mut world.record.names;
            names.resize_with(names.len().max(at + 1), Vec::new);
            places.0.push((at, names[at].len()));
            names[at].push(Asked { client, subject, sent, end: None });
        }
        places
    })
}

/// Notes the outcome of a request.
pub(super) fn end<T: Answer>(places: &Places, outcome: &Result<T, Failure>) {
    let now = clock::now();
    world::with(|world| {
        for (place, (name, at)) in places.0.iter().enumerate() {
            let said = outcome.as_ref().map_or(Said::Nothing, |reply| reply.said(place));
            world.record.names[*name][*at].end = Some((now, said));
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

    /// Returns the holds of a client that have this token, the last one first.
    pub(super) fn holds_with(&self, name: usize, client: &str, fence: u64) -> Vec<HoldId> {
        let mut holds: Vec<HoldId> = Vec::new();
        for asked in self.latest(name).filter(|it| *it.subject.hold.client == *client) {
            let Some((_, Said::Granted(first, last))) = asked.end else { continue };
            if (first..=last).contains(&fence) && !holds.contains(&asked.subject.hold) {
                holds.push(asked.subject.hold.clone());
            }
        }
        holds
    }

    /// Returns until when a client may rely on a hold at least, and when the request was sent by
    /// which it may: the last one that so many servers have granted in time. A reply that comes
    /// just when the hold is over counts for nothing.
    pub(super) fn promised(
        &self,
        name: usize,
        hold: &HoldId,
        client: Process,
        required: usize,
        slack: Duration,
    ) -> Option<(Instant, Instant)> {
        let own = |it: &&Asked| it.client == client && it.lease().is_some();
        let mut asked: Vec<_> = self.of(name, hold).filter(own).collect();
        asked.reverse();
        let mut best: Option<(Instant, Instant)> = None;
        let mut at = 0;
        while at < asked.len() {
            let (first, sent) = (at, asked[at].sent);
            while at < asked.len() && asked[at].sent == sent {
                at += 1;
            }
            let granted = asked[first..at].iter().filter_map(|it| it.end);
            let mut granted: Vec<_> =
                granted.filter(|(_, said)| said.is_yes()).map(|(at, _)| at).collect();
            granted.sort_unstable();
            let Some(since) = granted.get(required - 1) else { continue };
            if best.is_none_or(|(until, _)| *since + slack < until) {
                let until = sent + reliable(asked[first].lease().unwrap_or_default());
                best = best.max(Some((until, sent)));
            }
        }
        best
    }
}
