//! How a hold begins: a majority grants it, and a majority confirms its token.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::{Failure, FailureKind};
use crate::store::hold_id::HoldId;
use crate::store::quorum::broadcast::Broadcast;
use crate::store::quorum::commands::{Effect, QuorumCommand, QuorumCommands};
use crate::store::quorum::in_doubt::{DecidesEnd, InDoubtHolds};
use crate::store::quorum::link_set::LinkSet;
use crate::store::quorum::rounds::Rounds;
use crate::store::quorum::shared_links::LockedLinks;
use crate::store::quorum::votes::{HoldDecision, Votes};
use crate::store::request::{Acquire, AcquireReply, HoldReply, is_granted};

/// What is needed to begin holds. A reply that is still to come keeps it too.
#[derive(Debug)]
pub(super) struct Grants {
    pub(super) rounds: Rounds,
    pub(super) commands: QuorumCommands,
}

impl Grants {
    /// Takes the lock if a majority grants it. Otherwise the hold is withdrawn where it has begun,
    /// unless it only falls short of the durability that is demanded: then it exists until it is
    /// released.
    pub(super) fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let Self { rounds, commands } = self;
        let Acquire { holds, lease, deadline, .. } = request;
        let hold = &holds[0];
        self.in_doubt().note_lease(lease);
        let mut links = rounds.connect(&hold.name, deadline)?;
        let command = commands.acquire(request);
        let (decision, votes) = rounds.ask(&mut links, command, deadline, Votes::decide_acquire);
        let outcome = match decision {
            HoldDecision::Granted { fence, agreed, wanted } => {
                let confirmed = match agreed {
                    Some(_) => Ok(()),
                    None => self.confirm(&mut links, hold, fence, lease, deadline),
                };
                let room = agreed.unwrap_or_default();
                let others = Vec::new();
                confirmed.map(|()| AcquireReply::Acquired { fence, others, room, wanted })
            }
            HoldDecision::NotGranted(outcome) => outcome,
        };
        if !is_granted(&outcome) {
            let begun = |reply: &AcquireReply| matches!(reply, AcquireReply::Acquired { .. });
            drop(self.withdraw(&mut links, hold, |number| votes.may_be(number, begun)));
        }
        outcome
    }

    /// Makes sure that the counters of a majority have reached the token of a hold that a majority
    /// has begun.
    fn confirm(
        &self,
        links: &mut LockedLinks<'_>,
        hold: &HoldId,
        fence: u64,
        lease: Duration,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let Self { rounds, commands } = self;
        let raise = commands.commands.raise(hold, fence, lease);
        let raise = commands.durable(QuorumCommand::new(raise, Effect::None), deadline);
        match rounds.ask(links, raise, deadline, Votes::decide_hold).0 {
            Ok(HoldReply::Done) => Ok(()),
            Ok(HoldReply::Gone) => Err(Failure::late()),
            // The hold exists on some servers.
            Err(failure) => Err(ambiguous(failure)),
        }
    }

    /// Ends a hold that was not granted, or not by all, on those servers where it may exist. Does
    /// not wait for replies. What is in doubt about it is reported when the returned value is
    /// dropped.
    fn withdraw(
        &self,
        links: &mut LinkSet,
        hold: &HoldId,
        may_exist: impl Fn(usize) -> bool,
    ) -> Option<DecidesEnd> {
        links.send(&self.broadcast(self.commands.withdraw(hold)), may_exist)
    }

    fn broadcast<T>(&self, command: QuorumCommand<T>) -> Arc<Broadcast> {
        self.rounds.servers.broadcast(command)
    }

    pub(super) fn in_doubt(&self) -> &InDoubtHolds {
        &self.rounds.servers.in_doubt
    }
}

/// The failure of a request that some servers have executed, or that the background jobs complete
/// where they have not. A repeat may find it done.
pub(super) fn ambiguous(failure: Failure) -> Failure {
    let kind = match failure.kind {
        FailureKind::Unreachable => FailureKind::Timeout,
        FailureKind::Transient => FailureKind::Disconnected,
        other => other,
    };
    Failure { kind, ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::unbounded;

    use crate::base::clock::end_of;
    use crate::config::Config;
    use crate::config::durability::Durability;
    use crate::net::endpoint::Endpoint;
    use crate::net::server::ServerFactory;
    use crate::store::Store;
    use crate::store::hold_id::HoldKind;
    use crate::store::quorum::Quorum;
    use crate::store::request::{Change, HoldRequest, PostedChange, Registration};
    use crate::store::tests::process::Server;

    const SOON: Duration = Duration::from_secs(5);

    fn hold(nonce: u64) -> HoldId {
        HoldId { kind: HoldKind::Lock, name: Arc::from("a"), client: Arc::from("me"), nonce }
    }

    #[test]
    fn a_hold_that_a_release_ends_is_reported_when_the_replies_are_in() {
        let servers = [(); 3].map(|()| Server::redis());
        let durability = Durability::Replicas { acks: 1, timeout: SOON };
        let config = Config { durability, ..Config::default() };
        let urls = servers.each_ref().map(Server::url);
        let endpoints = Endpoint::parse_all("urls", &urls, &config).expect("good URLs");
        let store =
            Quorum::new(endpoints, &config, &ServerFactory::new(&config).expect("a thread"));
        let (reports, reported) = unbounded();
        store.report_in_doubt_to("me", move |doubt| {
            reports.send(doubt.hold.nonce).unwrap_or_default();
        });

        let (grants, deadline) = (&store.grants, end_of(SOON));
        let mut links = grants.rounds.connect("a", deadline).expect("a majority");
        for nonce in 3..6 {
            // It has no replicas, so it soon lags.
            let (hold, registration) = (&hold(nonce), Registration::None);
            let acquire =
                Acquire { holds: std::slice::from_ref(hold), lease: SOON, registration, deadline };
            links.send(&grants.broadcast(grants.commands.acquire(acquire)), |number| number == 2);
        }
        drop(links);
        grants.in_doubt().may_begin_late(&hold(1));
        let request = HoldRequest { hold: &hold(1), change: Change::RELEASE, deadline };
        store.post(vec![PostedChange {
            request,
            on_reply: Box::new(|reply| assert_eq!(reply.ok(), Some(HoldReply::Gone))),
        }]);
        assert!(reported.try_recv().is_err(), "the release is on its way");
        store.settle(deadline);
        assert_eq!(reported.try_recv(), Ok(1));
    }
}
