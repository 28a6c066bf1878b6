//! The policies of a quorum for background jobs and wake-ups.
//!
//! Each job is sent to all servers, and their votes are counted. Each server on which a lock is
//! released wakes the client, which has a chance to get the lock only when a majority has released
//! it. So messages about a name are gathered until a majority has sent one, or for a moment: some
//! servers may not know the client, or not answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::failure::Failure;
use crate::base::maps::RandomState;
use crate::net::in_flight::Exchange;
use crate::store::background::{Decision, Job, JobPolicy, JobReply, Wake, WakeupPolicy};
use crate::store::quorum::ballot::QuorumServers;
use crate::store::quorum::exclusive::SharedLinks;
use crate::store::quorum::health::QuorumServer;
use crate::store::quorum::votes::{Votes, majority};
use crate::store::request::{Change, HoldReply};

/// How long to gather the messages of a majority.
const GATHER: Duration = Duration::from_millis(5);

/// A message that comes this much later than the first belongs to another release.
const MEMORY: Duration = Duration::from_millis(50);

/// An echo that comes this much later belongs to another request.
const ECHO_MEMORY: Duration = Duration::from_secs(1);

/// Pause between two subscriptions at a server.
const PAUSE: Duration = Duration::from_secs(1);

/// Messages of majorities.
pub(crate) struct WakeupsOfMajorities {
    servers: Arc<QuorumServers>,
    gathered: HashMap<String, Gathered, RandomState>,
    /// The echoes of majorities.
    echoes: HashMap<String, Gathered, RandomState>,
}

/// The messages about one lock.
struct Gathered {
    /// By the number of the server.
    from: Vec<bool>,
    first: Instant,
    /// The number of messages when the client was last notified.
    told: usize,
}

impl WakeupsOfMajorities {
    pub(crate) fn new(servers: Arc<QuorumServers>) -> Self {
        Self { servers, gathered: HashMap::default(), echoes: HashMap::default() }
    }
}

impl WakeupPolicy for WakeupsOfMajorities {
    type Peer = Arc<QuorumServer>;

    fn pause(&self) -> Duration {
        PAUSE
    }

    fn peers(&self) -> Vec<Arc<QuorumServer>> {
        self.servers.each.clone()
    }

    fn is_ready(&self, listening: usize) -> bool {
        listening == majority(self.servers.each.len())
    }

    /// A majority of the servers has the hold, and each of them notifies the client when another
    /// client asks for the lock.
    fn is_complete(&self, listening: usize) -> bool {
        listening >= majority(self.servers.each.len())
    }

    fn receive(&mut self, from: &Arc<QuorumServer>, wake: Wake) -> Option<Wake> {
        match wake {
            Wake::Lock(name) => {
                let now = clock::now();
                self.gathered
                    .retain(|_, gathered| gathered.told == 0 || now < gathered.first + MEMORY);
                let count = self.servers.each.len();
                let gathered = self.gathered.entry(name);
                gathered.or_insert_with(|| Gathered::new(count)).add(from.number);
                // Reported by `take_due` once a majority has sent it, or after a while.
                None
            }
            Wake::Echo(name) => {
                let now = clock::now();
                let count = self.servers.each.len();
                self.echoes.retain(|_, gathered| now < gathered.first + ECHO_MEMORY);
                let gathered = self.echoes.entry(name.clone());
                let gathered = gathered.or_insert_with(|| Gathered::new(count));
                gathered.add(from.number);
                // Any majority that grants the lock next includes a server that notifies this
                // client.
                let is_new = gathered.told == 0 && gathered.count() >= majority(count);
                gathered.told += usize::from(is_new);
                if is_new { Some(Wake::Echo(name)) } else { None }
            }
            // The first message is enough, and those of the other servers repeat it. A majority may
            // still have the hold, so the client asks all servers.
            Wake::Ended { .. } | Wake::Probe { .. } | Wake::Recall { .. } => Some(wake),
            // Redisson does not ask a majority.
            Wake::Complete(_) | Wake::Ready | Wake::Unlocked(_) => None,
        }
    }

    fn take_due(&mut self) -> Option<Wake> {
        let required = majority(self.servers.each.len());
        let now = clock::now();
        let (name, gathered) = self
            .gathered
            .iter_mut()
            .find(|(_, gathered)| gathered.due(required).is_some_and(|due| due <= now))?;
        // If the client is notified after too few messages, it is notified again once a majority
        // has sent one.
        gathered.told = gathered.count();
        Some(Wake::Lock(name.clone()))
    }

    fn next_look(&self) -> Option<Instant> {
        let required = majority(self.servers.each.len());
        self.gathered.values().filter_map(|gathered| gathered.due(required)).min()
    }
}

impl Gathered {
    fn new(servers: usize) -> Self {
        Self { from: vec![false; servers], first: clock::now(), told: 0 }
    }

    fn add(&mut self, server: usize) {
        if self.told > 0 && self.from[server] {
            // The lock was released again.
            *self = Self::new(self.from.len());
        }
        self.from[server] = true;
    }

    fn count(&self) -> usize {
        self.from.iter().filter(|from| **from).count()
    }

    /// Returns when to notify the client. It is notified again if that happened before a majority
    /// had sent the message, because it may have asked too soon.
    fn due(&self, required: usize) -> Option<Instant> {
        if self.count() >= required {
            if self.told < required { Some(self.first) } else { None }
        } else if self.told == 0 {
            // The other servers may be down.
            Some(self.first + GATHER)
        } else {
            None
        }
    }
}

/// Sends each job to all servers.
pub(crate) struct JobsOfMajorities<L> {
    servers: Arc<QuorumServers>,
    links: Vec<L>,
}

impl<L> JobsOfMajorities<L> {
    pub(crate) fn new(servers: Arc<QuorumServers>, links: Vec<L>) -> Self {
        Self { servers, links }
    }
}

impl<L: SharedLinks> JobPolicy for JobsOfMajorities<L> {
    type Peer = Arc<QuorumServer>;
    type Progress = Votes<HoldReply>;

    fn route(&mut self, _: &str) -> Result<(Vec<Arc<QuorumServer>>, Votes<HoldReply>), Failure> {
        let each = &self.servers.each;
        Ok((each.clone(), Votes::new(each.len())))
    }

    fn has_open_ends(&self) -> bool {
        self.servers.in_doubt.has_open_ends()
    }

    fn post_over_pool(
        &self,
        server: &Arc<QuorumServer>,
        posted: Vec<Exchange>,
        deadline: Instant,
    ) -> Vec<Exchange> {
        let mut unsent = posted;
        for links in &self.links {
            unsent = links.post_if_open(server.number, unsent, deadline);
        }
        unsent
    }

    /// A renewal or a release counts once a majority has confirmed it. A release still goes to
    /// every server.
    fn decide(
        &mut self,
        job: &Job,
        votes: &mut Votes<HoldReply>,
        from: &Arc<QuorumServer>,
        reply: Result<HoldReply, Failure>,
    ) -> Decision<Arc<QuorumServer>> {
        from.note(&reply, |reply| *reply != HoldReply::Gone);
        let is_release = matches!(job.change, Change::Release { .. });
        let in_doubt = &self.servers.in_doubt;
        let never_began = is_release && !in_doubt.may_be_at(from, &job.hold);
        let vote = if never_began { Ok(HoldReply::Gone) } else { reply };
        votes.0[from.number] = Some(vote);
        let outcome = match job.change {
            Change::Release { taken_until, .. } => {
                votes.decide_release().inspect(|_| in_doubt.end(&job.hold, taken_until, true))
            }
            change => votes.decide_change(change).map(|reply| reply.map(JobReply::from)),
        };
        outcome.map_or(Decision::Undecided, Decision::Done)
    }

    fn required(&self) -> usize {
        majority(self.servers.each.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    use crossbeam_channel::unbounded;

    use crate::base::event_thread::Events;
    use crate::base::failure::FailureKind;
    use crate::base::sync::{in_virtual_time, sleep};
    use crate::config::Config;
    use crate::net::server::ServerFactory;
    use crate::store::hold_id::{HoldId, HoldKind};
    use crate::store::quorum::Quorum;
    use crate::store::quorum::links::Links;

    fn servers() -> Arc<QuorumServers> {
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let urls = ["redis://a/", "redis://b/", "redis://c/"];
        let endpoints = servers.endpoints("urls", urls).expect("good URLs");
        Quorum::new(endpoints, &servers).servers
    }

    fn wakeups() -> WakeupsOfMajorities {
        WakeupsOfMajorities::new(servers())
    }

    /// Releases a hold with a job that gets these replies from the servers.
    fn release(
        servers: &Arc<QuorumServers>,
        hold: &HoldId,
        replies: [Result<HoldReply, Failure>; 3],
    ) -> Decision<Arc<QuorumServer>> {
        let mut jobs = JobsOfMajorities::<Arc<Links>>::new(servers.clone(), Vec::new());
        let job =
            Job { id: 1, hold: hold.clone(), change: Change::RELEASE, deadline: clock::now() };
        let (peers, mut votes) = jobs.route("a").expect("all servers");
        let mut decision = Decision::Undecided;
        for (peer, reply) in peers.iter().zip(replies) {
            assert!(matches!(decision, Decision::Undecided));
            decision = jobs.decide(&job, &mut votes, peer, reply);
        }
        decision
    }

    fn hold() -> HoldId {
        HoldId { kind: HoldKind::Lock, name: Arc::from("a"), client: Arc::from("me"), nonce: 1 }
    }

    #[test]
    fn a_server_that_was_never_asked_for_a_hold_does_not_have_to_release_it() {
        let servers = servers();
        servers.in_doubt.report_to("me", Box::new(drop));
        for asked in [2, 3] {
            servers.each[..asked].iter().for_each(|server| server.note_begun(&hold()));
            let label = servers.each[2].factory.label();
            let away = Failure::io(FailureKind::Unreachable, &label, io::Error::other("away"));
            let replies = [Ok(HoldReply::Done), Ok(HoldReply::Done), Err(away)];
            let Decision::Done(Ok(reply)) = release(&servers, &hold(), replies) else {
                panic!("a majority has released it")
            };
            assert_eq!(reply.everywhere, asked == 2);
        }
    }

    #[test]
    fn a_job_that_releases_a_hold_which_may_begin_late_says_so() {
        let servers = servers();
        let (sender, reports) = unbounded();
        let report = move |doubt| sender.send(doubt).expect("it is received");
        servers.in_doubt.report_to("me", Box::new(report));
        servers.in_doubt.may_begin_late(&hold());
        for _ in 0..2 {
            let replies = [Ok(HoldReply::Done), Ok(HoldReply::Done), Ok(HoldReply::Done)];
            assert!(matches!(release(&servers, &hold(), replies), Decision::Done(Ok(_))));
        }
        assert!(reports.try_recv().expect("it may begin once more").may_begin);
        assert!(reports.is_empty(), "the second release has ended the doubt");
    }

    #[test]
    fn a_client_hears_of_each_request_by_a_majority() {
        let wakeups = wakeups();
        let complete: Vec<_> = (0..=3).filter(|count| wakeups.is_complete(*count)).collect();
        assert_eq!(complete, [2, 3]);
    }

    #[test]
    fn a_client_that_was_told_too_soon_is_told_again_by_a_majority() {
        in_virtual_time(|| {
            let mut wakeups = wakeups();
            let peers = wakeups.peers();
            let name = || Wake::Lock("a".into());
            assert_eq!(wakeups.receive(&peers[0], name()), None);
            let due = wakeups.next_look().expect("it is notified alone");
            sleep(due.saturating_duration_since(clock::now()));
            assert_eq!(wakeups.take_due(), Some(name()));
            assert_eq!((wakeups.take_due(), wakeups.next_look()), (None, None));
            let told = wakeups.receive(&peers[1], name()).or_else(|| wakeups.take_due());
            assert_eq!(told, Some(name()));
            // The last one belongs to the same release.
            assert_eq!(wakeups.receive(&peers[2], name()), None);
            assert_eq!(wakeups.take_due(), None);
        });
    }

    #[test]
    fn an_echo_is_that_of_a_majority() {
        let mut wakeups = wakeups();
        let peers = wakeups.peers();
        let echo = || Wake::Echo("a".into());
        for _ in 0..2 {
            assert_eq!(wakeups.receive(&peers[0], echo()), None);
            assert_eq!(wakeups.receive(&peers[0], echo()), None, "the same one twice");
            assert_eq!(wakeups.receive(&peers[1], echo()), Some(echo()));
            assert_eq!(wakeups.receive(&peers[2], echo()), None, "it belongs to the same request");
        }
        assert_eq!(wakeups.receive(&peers[0], Wake::Echo("b".into())), None);
    }
}
