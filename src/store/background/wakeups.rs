//! Wake-ups over connections that one thread keeps.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::{Failure, FailureKind};
use crate::event::Events;
use crate::net::interrupter::Interrupter;
use crate::net::socket::{Alarm, PollFd};
use crate::store::background::connection::{
    BackgroundConnection, ConnectAttempt, Node, Pauses, sleep,
};
use crate::store::background::opening::Opening;
use crate::store::background::subscription::{Channel, Received, Subscription};
use crate::store::commands::Commands;
use crate::store::keys::Keys;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::wake::{STABLE, Wake, Wakeups};

/// Without an open connection an interrupt is looked for this often.
const LOOK: Duration = Duration::from_millis(20);

/// Which nodes are listened at, and what their messages amount to.
pub(crate) trait WakeupPolicy: fmt::Debug + Send {
    type Node: Node;

    /// How long a node is left alone after a failure.
    fn pauses(&self) -> Pauses;

    /// The nodes to listen at; `None` if they are the same as at the last call.
    fn changed_nodes(&mut self) -> Option<Vec<Self::Node>>;

    /// Returns `true` if that node serves the lock of this name, or may.
    fn is_home(&self, _: &Self::Node, _: &str) -> bool {
        true
    }

    /// The hash tag of sharded channels at that node, if clients may be told over one.
    fn shard_tag(&self, _: &Self::Node) -> Option<Arc<str>> {
        None
    }

    /// Receives the message of a node, with the number of nodes whose messages come now. Returns
    /// what the client is told at once.
    fn receive(&mut self, from: &Self::Node, wake: Wake, listening: usize) -> Option<Wake>;

    /// Returns what the client is to be told by now, though no further message has come.
    fn take_due(&mut self) -> Option<Wake> {
        None
    }

    /// When to call this policy again even if no message comes.
    fn next_look(&self) -> Option<Instant> {
        None
    }

    /// Learns that messages of a node do not come.
    fn fail(&mut self, _: &Self::Node, _: &Failure) {}
}

/// The wake-ups of one client.
#[derive(Debug)]
pub(crate) struct BackgroundWakeups<P: WakeupPolicy> {
    policy: P,
    /// A node whose connection is soon no longer valid has another one, until messages come there.
    nodes: Vec<BackgroundConnection<P::Node, Subscription>>,
    channel: Channel,
    /// Readable when threads have begun or ended to wait for channels of Redisson.
    redisson_alarm: Option<Alarm>,
    interrupter: Interrupter,
    events: Events,
}

impl<P: WakeupPolicy> BackgroundWakeups<P> {
    /// Sends nothing yet. A server that does not answer for `io_timeout` is given up.
    pub(crate) fn new(
        policy: P,
        commands: &Commands,
        client: &str,
        io_timeout: Duration,
        redisson: Option<&RedissonChannels>,
        events: &Events,
    ) -> Self {
        let (name, redisson_alarm) =
            (Keys::channel(client), redisson.and_then(RedissonChannels::alarm));
        let (keys, redisson) = (commands.keys.clone(), redisson.cloned().zip(commands.redisson));
        let channel = Channel { keys, name, io_timeout, redisson };
        Self {
            policy,
            nodes: Vec::new(),
            channel,
            redisson_alarm,
            interrupter: Interrupter::new(),
            events: events.clone(),
        }
    }

    fn wait(&mut self, deadline: Instant) -> Result<Option<Wake>, Failure> {
        loop {
            self.check_interrupt()?;
            self.follow_nodes();
            self.add_successors();
            self.begin_openings();
            self.finish_openings();
            self.follow_channels();
            if let Some(wake) = self.read().or_else(|| self.policy.take_due()) {
                return Ok(Some(wake));
            }
            self.check_nodes()?;
            if Instant::now() >= deadline {
                return Ok(None);
            }
            self.sleep(deadline)?;
        }
    }

    fn check_interrupt(&self) -> Result<(), Failure> {
        if self.interrupter.is_interrupted() { Err(failure("interrupted")) } else { Ok(()) }
    }

    /// Listens at the nodes that the policy names, and nowhere else.
    fn follow_nodes(&mut self) {
        let Some(nodes) = self.policy.changed_nodes() else { return };
        self.nodes.retain(|known| nodes.iter().any(|node| known.node.is(node)));
        for node in nodes {
            if !self.nodes.iter().any(|known| known.node.is(&node)) {
                self.nodes.push(BackgroundConnection::new(node, self.policy.pauses()));
            }
        }
    }

    /// Adds a second connection where the first is soon no longer valid.
    fn add_successors(&mut self) {
        for place in 0..self.nodes.len() {
            let Some(validity) = self.nodes[place].as_open().and_then(Subscription::retiring)
            else {
                continue;
            };
            let node = &self.nodes[place].node;
            if self.nodes.iter().filter(|known| known.node.is(node)).count() == 1 {
                let pauses = Pauses::of_successor(validity);
                self.nodes.push(BackgroundConnection::new(node.clone(), pauses));
            }
        }
    }

    /// Notes that messages come over this connection: another one to its node is not needed any
    /// more. Returns `true` if there was one.
    fn replace_other(&mut self, place: usize) -> bool {
        let node = &self.nodes[place].node;
        let is_other = |other: &usize| *other != place && self.nodes[*other].node.is(node);
        let Some(other) = (0..self.nodes.len()).find(is_other) else { return false };
        // The first of the two has the pauses of the node.
        let second = self.nodes.remove(place.max(other));
        if other < place {
            self.nodes[other].take_over(second);
        }
        true
    }

    fn begin_openings(&mut self) {
        for node in &mut self.nodes {
            if node.as_open().is_some_and(|open| !open.connection.is_open()) {
                node.close();
            }
            let deadline = Instant::now() + self.channel.io_timeout;
            // A failure is kept in the state of the connection.
            node.begin_opening(None, ConnectAttempt { deadline, urgent: false })
                .unwrap_or_default();
        }
    }

    /// Subscribes over the connections that have been opened.
    fn finish_openings(&mut self) {
        for node in &mut self.nodes {
            let subscribe = |connection| Subscription::begin(connection, &self.channel);
            if let Some(Err(failure)) = node.finish_opening(subscribe) {
                self.policy.fail(&node.node, &failure);
            }
        }
    }

    /// Subscribes to the client's sharded channels, and to those of Redisson's that threads wait
    /// for.
    fn follow_channels(&mut self) {
        if let Some(alarm) = &mut self.redisson_alarm {
            alarm.reset();
        }
        for place in 0..self.nodes.len() {
            let node = self.nodes[place].node.clone();
            let Some(subscription) = self.nodes[place].as_open_mut() else { continue };
            if let Some(failure) = subscription.refusal.take() {
                self.policy.fail(&node, &failure);
            }
            let tag = self.policy.shard_tag(&node);
            let sharded = tag.map_or(Ok(()), |tag| subscription.follow_shard(&self.channel, &tag));
            let home = |name: &str| self.policy.is_home(&node, name);
            let follow = |()| subscription.follow_redisson(&self.channel, home);
            if let Err(failure) = sharded.and_then(follow) {
                self.fail(place, failure);
            }
        }
    }

    /// Reads what has come, until there is something to tell the client.
    fn read(&mut self) -> Option<Wake> {
        let is_ready = |node: &BackgroundConnection<P::Node, Subscription>| {
            node.as_open().is_some_and(|open| open.ready.is_some())
        };
        for place in 0..self.nodes.len() {
            while let Some(subscription) = self.nodes[place].as_open_mut() {
                match subscription.receive(&self.channel) {
                    Ok(None) => break,
                    // The known slots may be out of date.
                    Ok(Some(Received { wake, sharded: true })) => return Some(wake),
                    Ok(Some(Received { wake, .. })) => {
                        if wake == Wake::Ready && self.replace_other(place) {
                            // A message may have been on its way over the other one.
                            return Some(wake);
                        }
                        let listening = self.nodes.iter().filter(|node| is_ready(node)).count();
                        let from = &self.nodes[place].node;
                        let told = self.policy.receive(from, wake, listening);
                        if told.is_some() {
                            return told;
                        }
                    }
                    Err(failure) => self.fail(place, failure),
                }
            }
        }
        None
    }

    /// Gives up the connection to a node. One that has lasted is opened again at once.
    fn fail(&mut self, place: usize, failure: Failure) {
        let (server, source) = (&failure.server, &failure.source);
        self.events.debug(|| format!("no wake-ups from {server}: {source}"));
        let node = &mut self.nodes[place];
        self.policy.fail(&node.node, &failure);
        let ready = node.as_open().and_then(|open| open.ready);
        if ready.is_some_and(|since| since.elapsed() >= STABLE) {
            node.fail_for(failure, Duration::ZERO);
        } else {
            node.fail(failure);
        }
    }

    /// Fails if no message can come from anywhere.
    fn check_nodes(&self) -> Result<(), Failure> {
        let failures = self.nodes.iter().map(BackgroundConnection::failure);
        // All of them have failed, or there is none.
        let all: Option<Vec<&Failure>> = failures.collect();
        match all {
            None => Ok(()),
            Some(failures) => Err(failures.first().map_or_else(
                || failure("no node to listen at is known"),
                |first| (*first).clone(),
            )),
        }
    }

    /// Sleeps until a message comes, another thread interrupts, or there is something else to do.
    fn sleep(&mut self, deadline: Instant) -> Result<(), Failure> {
        let open = || self.nodes.iter().filter_map(BackgroundConnection::as_open);
        let expected = open().map(|subscription| subscription.expected_by);
        let retries = self.nodes.iter().filter_map(BackgroundConnection::retry_at);
        let changes = open().filter_map(|subscription| subscription.connection.next_change());
        let follows = open().filter_map(Subscription::follow_at);
        let times =
            expected.chain(retries).chain(changes).chain(follows).chain(self.policy.next_look());
        let end = times.fold(deadline, Instant::min);
        let openings: Vec<&Opening> =
            self.nodes.iter().filter_map(BackgroundConnection::as_opening).collect();
        let Some(any) = open().next() else {
            sleep(&mut [], &openings, end.min(Instant::now() + LOOK));
            return Ok(());
        };
        // One is enough: to end the wait at one of them ends it at all.
        self.interrupter.watch(any.connection.awaited());
        self.check_interrupt()?;
        let alarm = self.redisson_alarm.as_ref();
        let mut sockets: Vec<PollFd<'_>> = open()
            .filter_map(|subscription| subscription.connection.poll_fd())
            .chain(alarm.map(Alarm::poll_fd))
            .collect();
        sleep(&mut sockets, &openings, end);
        Ok(())
    }
}

impl<P: WakeupPolicy> Wakeups for BackgroundWakeups<P> {
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
        self.wait(deadline).transpose()
    }

    fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }
}

fn failure(why: &'static str) -> Failure {
    let error = io::Error::new(io::ErrorKind::ConnectionAborted, why);
    Failure::io(FailureKind::Unreachable, &Arc::from("the servers"), error)
}
