//! How a hold begins: a majority grants it, and a majority confirms its fencing token.
//!
//! A token must be greater than those of all earlier holds of the name, though no single server has
//! seen all of them. The client proposes one: its clock in microseconds. A server gives that token,
//! or one more than its counter if the counter has reached the proposal, and sets its counter to
//! the token that it gives. The hold's token is the greatest that a majority M has given. Before
//! the caller gets the guard, a majority C confirms that its counters have reached the token *while
//! the hold existed there*. A server that gave just that token has confirmed it already; on the
//! others `change.lua` raises the counter. Usually all servers have given the proposal, and there
//! is nothing to raise.
//!
//! Why tokens grow: let a hold with token F be followed by another. The later hold's M and the
//! earlier hold's C are majorities, so they have a server S in common. A majority counts only while
//! its leases last, so the later hold existed on S when it was granted. S therefore let it begin
//! after the earlier hold had ended there. S had confirmed F while the earlier hold existed, so its
//! counter had reached F before, and counters only grow. So S gave a token greater than F, and the
//! later hold's token is the greatest of those given. `tests/simulation` leaves out the steps of
//! this one at a time, and must then find tokens that do not grow.
//!
//! If several threads of a client wait, it asks for a block of tokens, for holds that follow one
//! another. A server raises its counter to the end of the block, even if the counter is ahead of
//! the proposal because another client's clock is (`token.lua` says how far). The hold has as many
//! of these tokens as the counters of a majority have reached, which takes the place of C. If no
//! majority has given the same first token, the hold has only one token.
//!
//! The argument needs, for any two majorities, a common server that has kept its counter. If the
//! number of servers is even, one of them may lose its counter; if it is odd, none may. If more
//! counters are lost, the token is still greater as long as the client's clock is not behind.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::failure::{Failure, FailureKind};
use crate::store::quorum::ballot::{Ballot, Effect, QuorumServers};
use crate::store::quorum::exclusive::ExclusiveLinks;
use crate::store::quorum::votes::Votes;
use crate::store::request::{Acquire, AcquireReply, HoldReply, is_granted};

/// Acquires the lock if a majority grants it. Otherwise withdraws the hold from the servers where
/// it has begun, without waiting for replies. A hold that only falls short of the demanded
/// durability exists until it is released.
pub(super) fn acquire(
    links: &mut impl ExclusiveLinks,
    request: Acquire<'_>,
) -> Result<AcquireReply, Failure> {
    let ballot = propose(links, request);
    conclude(links, &ballot, request)
}

/// Asks all servers for the lock. [`conclude`] must follow.
pub(super) fn propose(
    links: &mut impl ExclusiveLinks,
    request: Acquire<'_>,
) -> Arc<Ballot<AcquireReply>> {
    let ballot = ballot_to_acquire(links.servers(), request);
    links.send(ballot, |_| true)
}

/// Waits for the decision about a proposed hold, and confirms its token or withdraws it.
pub(super) fn conclude(
    links: &mut impl ExclusiveLinks,
    ballot: &Ballot<AcquireReply>,
    request: Acquire<'_>,
) -> Result<AcquireReply, Failure> {
    let hold = &request.holds[0];
    let servers = links.servers().clone();
    let mut outcome = links.wait(ballot, request.deadline);
    if let Ok(AcquireReply::Acquired { fence, .. }) = outcome
        && !ballot.look(|votes| votes.agree_on(fence))
        // This makes the counters agree, so that the next tenure can have a block.
        && let Err(failure) = confirm(links, ballot.look(Votes::reached), request)
    {
        outcome = Err(failure);
    }
    if !is_granted(&outcome) {
        // A minority may have begun the hold, or may still do so, which would keep all other
        // clients out.
        let ends = Effect::Ends { hold: hold.clone(), taken_until: Moment::FIRST };
        let withdraw = servers.settings.commands.withdraw(hold);
        let withdraw = Ballot::new(&servers, withdraw, Votes::decide_hold).with(ends);
        links.send(withdraw, |number| {
            ballot.look(|votes| {
                votes.may_be(number, |reply| matches!(reply, AcquireReply::Acquired { .. }))
            })
        });
    }
    outcome
}

fn ballot_to_acquire(servers: &Arc<QuorumServers>, request: Acquire<'_>) -> Ballot<AcquireReply> {
    let begins = Effect::Begins(request.holds[0].clone());
    let acquire = servers.settings.commands.acquire(request);
    Ballot::new(servers, acquire, Votes::decide_acquire).with(begins).durable(request.deadline)
}

/// Ensures that the counters of a majority have reached a token, which is not below that of a hold
/// that a majority has begun.
fn confirm(
    links: &mut impl ExclusiveLinks,
    fence: u64,
    request: Acquire<'_>,
) -> Result<(), Failure> {
    let (Acquire { holds, lease, deadline, .. }, servers) = (request, links.servers());
    let raise = servers.settings.commands.raise(&holds[0], fence, lease);
    let raise = Ballot::new(servers, raise, Votes::decide_hold).durable(deadline);
    let ballot = links.send(raise, |_| true);
    match links.wait(&ballot, deadline) {
        Ok(HoldReply::Done | HoldReply::Wanted) => Ok(()),
        // The lease ended at a majority before the tokens agreed.
        Ok(HoldReply::Gone) => Err(Failure::late()),
        // The hold exists on some servers.
        Err(failure) => Err(ambiguous(failure)),
    }
}

/// Marks the failure of a request that some servers may have executed, or that jobs will complete.
/// A repeat may find it done.
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
    use std::time::{Duration, Instant};

    use crossbeam_channel::unbounded;

    use crate::base::clock::end_of;
    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::config::durability::Durability;
    use crate::net::server::ServerFactory;
    use crate::net::wait::ReplyWait;
    use crate::store::Store;
    use crate::store::hold_id::{HoldId, HoldKind};
    use crate::store::quorum::Quorum;
    use crate::store::quorum::exclusive::SharedLinks;
    use crate::store::request::{Change, HoldRequest, PostedChange, Registration};
    use crate::store::scripts::ScriptReply;
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
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let endpoints = servers.endpoints("urls", &urls).expect("good URLs");
        let store = Quorum::new(endpoints, &servers);
        let (reports, reported) = unbounded();
        store.report_in_doubt_to("me", move |doubt| {
            reports.send(doubt.hold.nonce).unwrap_or_default();
        });

        let deadline = end_of(SOON);
        let mut waits = 0;
        for nonce in 3.. {
            // Connecting to the last server may take longer than to the others.
            let mut links = store.links("a").connect(deadline).expect("a majority");
            assert!(Instant::now() < deadline, "the last server is not connected");
            // That server has no replicas, so it soon lags.
            let (holds, registration) = (&[hold(nonce)], Registration::None);
            let acquire =
                Acquire { holds, lease: SOON, note: None, registration, echo: false, deadline };
            let ballot = ballot_to_acquire(&store.servers, acquire);
            waits += usize::from(
                links.send(ballot, |number| number == 2).look(|votes| votes.may_be(2, |_| true)),
            );
            if waits == 3 {
                break;
            }
        }
        store.servers.in_doubt.may_begin_late(&hold(1));
        let request = HoldRequest { hold: &hold(1), change: Change::RELEASE, deadline };
        store.post(vec![PostedChange {
            request,
            write_by: deadline,
            on_reply: Box::new(|reply| assert_eq!(reply.ok(), Some(HoldReply::Gone))),
        }]);
        assert!(reported.try_recv().is_err(), "the release is on its way");
        store.drain(deadline);
        assert_eq!(reported.try_recv(), Ok(1));
    }

    /// Links whose connections have ended.
    struct EndedLinks(Arc<QuorumServers>);

    impl ExclusiveLinks for EndedLinks {
        fn servers(&self) -> &Arc<QuorumServers> {
            &self.0
        }

        fn is_connected(&self, _: usize) -> bool {
            false
        }

        fn check(&self, server: usize, _: bool) -> Result<(), Failure> {
            Err(self.0.each[server].unreachable())
        }

        fn write<T: ScriptReply>(&mut self, _: usize, _: &Arc<Ballot<T>>) {
            unreachable!("no server is connected")
        }

        fn read(&mut self, _: Option<&mut ReplyWait<'_>>, _: Instant) -> bool {
            false
        }

        fn drain(&mut self, _: Instant) {}
    }

    #[test]
    fn a_hold_whose_token_could_not_be_confirmed_may_exist() {
        let config = Config::default();
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let urls = [1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}"));
        let store = Quorum::new(servers.endpoints("urls", &urls).expect("good URLs"), &servers);
        let (holds, registration) = (&[hold(1)], Registration::None);
        let deadline = end_of(SOON);
        let acquire =
            Acquire { holds, lease: SOON, note: None, registration, echo: false, deadline };
        let failure = confirm(&mut EndedLinks(store.servers.clone()), 7, acquire);
        assert!(failure.expect_err("no reply").is_ambiguous());
    }

    #[test]
    fn changes_that_no_majority_has_confirmed_may_have_been_made() {
        use FailureKind::{Disconnected, Rejected, Timeout, Transient, Unreachable};
        let becomes = |kind| {
            let failure = Failure::io(kind, &Arc::from("there"), std::io::Error::other("test"));
            ambiguous(failure).kind
        };
        assert_eq!([Unreachable, Transient].map(becomes), [Timeout, Disconnected]);
        assert_eq!([Rejected, Timeout].map(becomes), [Rejected, Timeout]);
    }
}
