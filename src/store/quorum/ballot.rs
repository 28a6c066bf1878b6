//! A request to all servers of a quorum, their votes on it, and the holds that it may leave in
//! doubt on servers that do not reply.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::clock::{self, Moment};
use crate::base::failure::Failure;
use crate::net::demand::{Demand, is_done};
use crate::net::factory::ConnectionFactory;
use crate::net::in_flight::{Exchange, SendWait};
use crate::net::packed::{Reply, Request};
use crate::net::wait::Spin;
use crate::store::background::{BackgroundSettings, InDoubtHold};
use crate::store::hold_id::HoldId;
use crate::store::quorum::health::{QuorumServer, RunIds};
use crate::store::quorum::votes::Votes;
use crate::store::scripts::ScriptReply;

/// With this many holds in `late`, those that can no longer begin are removed.
const LATE_MAX: usize = 64;

/// State that all requests of a client share.
pub(crate) struct QuorumServers {
    pub(crate) each: Vec<Arc<QuorumServer>>,
    /// The builder of requests, with the durability that each server must reach for a new hold or
    /// level.
    pub(crate) settings: BackgroundSettings,
    pub(super) in_doubt: InDoubtHolds,
    pub(super) spin: Spin,
}

impl QuorumServers {
    pub(crate) fn new(
        factories: impl IntoIterator<Item = ConnectionFactory>,
        settings: BackgroundSettings,
        spin: Spin,
    ) -> Arc<Self> {
        let run_ids = Arc::<RunIds>::default();
        let each = factories.into_iter().enumerate().map(|(number, factory)| {
            Arc::new(QuorumServer::new(number, Arc::new(factory), settings.demand, &run_ids))
        });
        let each = each.collect();
        Arc::new(Self { each, settings, in_doubt: InDoubtHolds::default(), spin })
    }
}

/// The effect of a request on a server, which is in doubt if the request fails.
#[derive(Clone)]
pub(super) enum Effect {
    /// The request leaves nothing in doubt.
    None,
    /// The hold may begin there.
    Begins(HoldId),
    /// The hold may still exist there. The lock stays taken until `taken_until` in any case.
    Ends { hold: HoldId, taken_until: Moment },
}

/// A request in flight to several servers. The thread that reads a reply counts it here, whether or
/// not a thread waits for the decision.
pub(crate) struct Ballot<T> {
    servers: Arc<QuorumServers>,
    pub(crate) request: Request,
    effect: Effect,
    /// Counted by [`InDoubtHolds`], if the request ends a hold.
    _open_end: Option<Arc<()>>,
    /// The durability that a server must reach for its reply to count, and the deadline for that.
    pub(crate) demand: Option<(Demand, Instant)>,
    count: Mutex<Count<T>>,
}

/// Returns the decision once the votes so far allow one.
type Decide<T> = Box<dyn Fn(&Votes<T>) -> Option<Result<T, Failure>> + Send>;

type OnDecision<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

type OnInDoubt = Box<dyn Fn(InDoubtHold) + Send + Sync>;

struct Count<T> {
    votes: Votes<T>,
    /// `None` after the decision.
    decide: Option<Decide<T>>,
    decision: Option<Result<T, Failure>>,
    /// Called with the decision if no thread waits for it.
    on_decision: Option<OnDecision<T>>,
}

impl<T: ScriptReply> Ballot<T> {
    /// Decides as soon as `decide` can do so from the votes so far.
    pub(super) fn new(
        servers: &Arc<QuorumServers>,
        request: Request,
        decide: impl Fn(&Votes<T>) -> Option<Result<T, Failure>> + Send + 'static,
    ) -> Self {
        let votes = Votes::new(servers.each.len());
        let decide = Some(Box::new(decide) as Box<_>);
        let count = Count { votes, decide, decision: None, on_decision: None };
        Self {
            servers: servers.clone(),
            request,
            effect: Effect::None,
            _open_end: None,
            demand: None,
            count: Mutex::new(count),
        }
    }

    pub(super) fn with(self, effect: Effect) -> Self {
        let ends = matches!(effect, Effect::Ends { .. });
        let open_end = ends.then(|| self.servers.in_doubt.open_ends.clone());
        Self { effect, _open_end: open_end, ..self }
    }

    /// Makes the reply of a server count only once the change is durable there.
    pub(super) fn durable(self, deadline: Instant) -> Self {
        Self { demand: self.servers.settings.demand.map(|demand| (demand, deadline)), ..self }
    }

    /// Makes the thread that reads the last needed reply pass on the decision.
    pub(super) fn passed_on(
        self,
        on_decision: impl FnOnce(Result<T, Failure>) + Send + 'static,
    ) -> Self {
        self.count.lock().on_decision = Some(Box::new(on_decision));
        self
    }

    /// Returns the hold that the request ends, if any.
    pub(super) fn ended(&self) -> Option<&HoldId> {
        if let Effect::Ends { hold, .. } = &self.effect { Some(hold) } else { None }
    }

    /// Records that a server is about to get the request.
    pub(super) fn note_sent_to(&self, server: &QuorumServer) {
        if let Effect::Begins(hold) = &self.effect {
            server.note_begun(hold);
        }
    }

    /// Returns the request to one server, with its reply counted here.
    pub(super) fn exchange_with(self: &Arc<Self>, number: usize) -> Exchange {
        let ballot = self.clone();
        let on_reply = Box::new(move |reply: Reply| ballot.receive(number, reply));
        let deadline = self.demand.map_or_else(clock::now, |(_, deadline)| deadline);
        let demand = self.demand.map(|(demand, _)| (demand, SendWait::Along));
        // A later request must not overtake a release.
        let exchange = Exchange::posted(self.request.clone(), deadline, on_reply);
        exchange.in_order().durable(demand)
    }

    /// Counts the reply of a server.
    pub(crate) fn receive(&self, number: usize, reply: Reply) {
        // The reply may be read by any thread that uses these links, long after the call has ended.
        self.servers.each[number].note(&reply, is_done);
        if let (Effect::Begins(hold), Err(failure)) = (&self.effect, &reply)
            && failure.is_ambiguous()
        {
            // The request may still be on its way, behind a release over the next connection.
            self.servers.in_doubt.may_begin_late(hold);
        }
        self.count(number, reply);
    }

    /// Counts the vote of a server. Only the last vote shows whether a hold that ends may remain
    /// somewhere, and no job to release it begins before that: the job could overtake the request
    /// and find the hold gone.
    pub(super) fn count(&self, number: usize, reply: Reply) {
        let vote = T::decode(reply, &self.servers.each[number].factory);
        let mut count = self.count.lock();
        count.votes.0[number] = Some(vote);
        let on_decision = count.decide();
        let is_last = count.votes.pending() == 0;
        let everywhere = is_last && !count.votes.has_failed();
        // Without the lock, because the callback may lead to another ballot, or take the locks of a
        // caller.
        drop(count);
        if let Some((on_decision, decision)) = on_decision {
            on_decision(decision);
        }
        if let Effect::Ends { hold, taken_until } = &self.effect
            && is_last
        {
            self.servers.in_doubt.end(hold, *taken_until, everywhere);
        }
    }

    pub(super) fn look<R>(&self, at: impl FnOnce(&Votes<T>) -> R) -> R {
        at(&self.count.lock().votes)
    }

    /// Returns the decision, once.
    pub(super) fn take_decision(&self) -> Option<Result<T, Failure>> {
        self.count.lock().decision.take()
    }

    /// Returns the decision if no more votes arrive in time. Late ones are still counted.
    pub(super) fn close(&self) -> Result<T, Failure> {
        let mut count = self.count.lock();
        let Count { votes, decide, decision, .. } = &mut *count;
        if decision.is_none() {
            // On a copy, because the missing votes may still arrive and count.
            let mut votes = votes.clone();
            votes.close(|number| self.servers.each[number].factory.no_reply());
            *decision = decide.take().and_then(|decide| decide(&votes));
        }
        decision.take().expect("there is a decision when all votes are in")
    }
}

impl<T> Count<T> {
    /// Decides if the votes allow it. Returns the decision, and the callback for it if no thread
    /// waits.
    fn decide(&mut self) -> Option<(OnDecision<T>, Result<T, Failure>)> {
        let decision = self.decide.as_ref()?(&self.votes)?;
        // Decided once. Later votes are only counted.
        self.decide = None;
        match self.on_decision.take() {
            Some(on_decision) => return Some((on_decision, decision)),
            None => self.decision = Some(decision),
        }
        None
    }
}

/// The holds of a client that are in doubt, and the callback that they are reported to.
#[derive(Default)]
pub(crate) struct InDoubtHolds {
    /// The client whose holds begin here, and the callback.
    client: OnceLock<(Arc<str>, OnInDoubt)>,
    /// The holds that an abandoned request may still begin somewhere, and how long that matters.
    /// One release does not end the doubt about them.
    late: Mutex<HashMap<HoldId, Moment>>,
    /// The longest lease of all requests.
    lease: Mutex<Duration>,
    /// Each request that ends a hold has a copy until its last reply is counted.
    open_ends: Arc<()>,
}

impl InDoubtHolds {
    /// Sets the client and the callback. Only the first call has an effect.
    pub(super) fn report_to(&self, client: &str, report: OnInDoubt) {
        drop(self.client.set((client.into(), report)));
    }

    /// Returns `true` if a server may have the hold. An adopted hold, which another client began,
    /// may be anywhere.
    pub(super) fn may_be_at(&self, server: &QuorumServer, hold: &HoldId) -> bool {
        server.was_asked_to_begin(hold) || !self.is_own(hold)
    }

    /// Returns `true` if requests that end holds wait for replies.
    pub(super) fn has_open_ends(&self) -> bool {
        Arc::strong_count(&self.open_ends) > 1
    }

    pub(super) fn is_own(&self, hold: &HoldId) -> bool {
        self.client.get().is_some_and(|(client, _)| *client == hold.client)
    }

    pub(super) fn note_lease(&self, lease: Duration) {
        let mut longest = self.lease.lock();
        *longest = lease.max(*longest);
    }

    /// Notes that a server may begin the hold late, whether or not the client has it by then.
    pub(super) fn may_begin_late(&self, hold: &HoldId) {
        let mut late = self.late.lock();
        let now = Moment::now();
        // In an outage, every abandoned request adds a hold. Those that can no longer begin are
        // removed.
        if late.len() >= LATE_MAX {
            late.retain(|_, until| *until > now);
        }
        // Remembered until the hold is released, and for one more lease.
        late.insert(hold.clone(), now.after(self.lease.lock().saturating_mul(2)));
    }

    /// Reports a hold that may remain on a server, unless it has ended `everywhere` for good. The
    /// lock still stays taken until `taken_until`.
    pub(super) fn end(&self, hold: &HoldId, taken_until: Moment, everywhere: bool) {
        // The renewer takes over the doubt, and repeats the release for long enough.
        let may_begin = self.late.lock().remove(hold).is_some();
        if (may_begin || !everywhere)
            && let Some((_, report)) = self.client.get()
        {
            // A separate statement, so that this lock is released before the callback takes others.
            let lease = *self.lease.lock();
            report(InDoubtHold { hold: hold.clone(), taken_until, lease, may_begin });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    use crossbeam_channel::{Receiver, unbounded};

    use crate::base::event_thread::Events;
    use crate::base::failure::FailureKind;
    use crate::config::Config;
    use crate::net::server::ServerFactory;
    use crate::store::commands::Commands;
    use crate::store::hold_id::HoldKind;
    use crate::store::request::HoldReply;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(nonce: u64) -> HoldId {
        HoldId { kind: HoldKind::Lock, name: Arc::from("a"), client: Arc::from("me"), nonce }
    }

    fn reporting() -> (InDoubtHolds, Receiver<InDoubtHold>) {
        let (holds, (sender, reports)) = (InDoubtHolds::default(), unbounded());
        let report = move |doubt| sender.send(doubt).expect("it is received");
        holds.report_to("me", Box::new(report));
        (holds, reports)
    }

    #[test]
    fn a_hold_is_in_doubt_until_a_release_that_every_server_has_answered() {
        let (holds, reports) = reporting();
        holds.end(&hold(1), Moment::FIRST, true);
        assert!(reports.is_empty());
        let adopted = HoldId { client: Arc::from("other"), ..hold(1) };
        assert!(holds.is_own(&hold(1)) && !holds.is_own(&adopted));
        holds.end(&hold(2), Moment::FIRST, false);
        let doubt = reports.try_recv().expect("some server may have it");
        assert!(doubt.hold == hold(2) && !doubt.may_begin);
        // A hold that may begin late outlasts a release.
        holds.may_begin_late(&hold(3));
        holds.end(&hold(3), Moment::FIRST, true);
        let doubt = reports.try_recv().expect("some server may begin it");
        assert!(doubt.hold == hold(3) && doubt.may_begin);
        holds.end(&hold(3), Moment::FIRST, true);
        assert!(reports.is_empty());
    }

    /// Returns a server that gets no requests.
    fn one_server() -> Arc<QuorumServers> {
        let config = Config::default();
        let factory = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let endpoint = factory.endpoint("redis://there/").expect("a good URL");
        let settings = BackgroundSettings::new(&Commands::proposing(&config), &factory);
        let connections = [factory.connections(endpoint)];
        QuorumServers::new(connections, settings, Spin::new(config.spin))
    }

    #[test]
    fn an_end_is_pending_until_its_last_reply_is_counted() {
        let servers = one_server();
        let request = Request::command(&redis::cmd("PING"));
        let ballot = Ballot::<HoldReply>::new(&servers, request, |_| None);
        assert!(!servers.in_doubt.has_open_ends());
        let ends = Effect::Ends { hold: hold(1), taken_until: Moment::FIRST };
        let exchange = Arc::new(ballot.with(ends)).exchange_with(0);
        assert!(servers.in_doubt.has_open_ends());
        drop(exchange);
        assert!(!servers.in_doubt.has_open_ends());
    }

    /// The release overtakes the request that may begin the hold, which was sent over a connection
    /// that has been closed.
    #[test]
    fn a_hold_that_a_lost_request_may_begin_outlasts_its_release() {
        let servers = one_server();
        let (sender, reports) = unbounded();
        let report = move |doubt| sender.send(doubt).expect("it is received");
        servers.in_doubt.report_to("me", Box::new(report));
        let label = servers.each[0].factory.label();
        let failed = |kind| Err(Failure::io(kind, &label, io::Error::other("no reply")));
        let kinds = [(1, FailureKind::Unreachable), (2, FailureKind::Timeout)];
        for (nonce, kind) in kinds {
            let request = Request::command(&redis::cmd("PING"));
            let ballot = Ballot::<HoldReply>::new(&servers, request, |_| None);
            ballot.with(Effect::Begins(hold(nonce))).receive(0, failed(kind));
            servers.in_doubt.end(&hold(nonce), Moment::FIRST, true);
        }
        let doubt = reports.try_recv().expect("a server may begin it");
        assert!(doubt.hold == hold(2) && doubt.may_begin);
        assert!(reports.is_empty(), "the first one was not sent");
    }

    #[test]
    fn a_doubt_lasts_for_the_longest_lease() {
        let (holds, reports) = reporting();
        for lease in [LEASE / 2, LEASE, LEASE / 3] {
            holds.note_lease(lease);
        }
        holds.end(&hold(1), Moment::FIRST, false);
        assert_eq!(reports.try_recv().expect("a doubt").lease, LEASE);
    }

    #[test]
    fn holds_that_can_no_longer_begin_are_forgotten_when_there_are_many() {
        let holds = InDoubtHolds::default();
        let count_after = |nonces: std::ops::Range<usize>| {
            for nonce in nonces {
                holds.may_begin_late(&hold(nonce as u64));
            }
            holds.late.lock().len()
        };
        // No lease is known, so the doubt about each hold is over at once.
        assert_eq!(count_after(0..LATE_MAX), LATE_MAX);
        assert_eq!(count_after(LATE_MAX..LATE_MAX + 1), 1);
        holds.note_lease(LEASE);
        assert_eq!(count_after(0..2 * LATE_MAX), 2 * LATE_MAX);
    }
}
