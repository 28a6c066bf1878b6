//! Wake-ups over connections that one thread keeps.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::{Failure, FailureKind};
use crate::event::Events;
use crate::net::interrupter::Interrupter;
use crate::net::resp::RespStream;
use crate::net::socket::{Alarm, PollFd};
use crate::store::background::peer::{
    BackgroundConnection, ConnectAttempt, Opening, Pauses, Peer, sleep,
};
use crate::store::background::subscription::{Channel, Received, Subscription};
use crate::store::background::{BackgroundSettings, STABLE, Wake, Wakeups};
use crate::store::keys::Keys;
use crate::store::redisson_channels::RedissonChannels;

/// Without an open connection an interrupt is looked for this often.
const LOOK: Duration = Duration::from_millis(20);

/// Which nodes are listened at, and what their messages amount to.
pub(crate) trait WakeupPolicy: fmt::Debug + Send {
    type Peer: Peer;

    /// How long a node is left alone after a failure.
    fn pauses(&self) -> Pauses;

    /// The nodes to listen at; `None` if they are the same as at the last call.
    fn changed_peers(&mut self) -> Option<Vec<Self::Peer>>;

    /// Returns `true` if that node serves the lock of this name, or may.
    fn is_home(&self, _: &Self::Peer, _: &str) -> bool {
        true
    }

    /// The hash tag of sharded channels at that node, if clients may be told over one.
    fn shard_tag(&self, _: &Self::Peer) -> Option<Arc<str>> {
        None
    }

    /// Returns `true` if the client is told that messages arrive, now that one more node is
    /// listened at.
    fn is_ready(&self, _listening: usize) -> bool {
        true
    }

    /// Receives the message of a node. Returns what the client is told at once.
    fn receive(&mut self, from: &Self::Peer, wake: Wake) -> Option<Wake>;

    /// Returns what the client is to be told by now, though no further message has come.
    fn take_due(&mut self) -> Option<Wake> {
        None
    }

    /// When to call this policy again even if no message comes.
    fn next_look(&self) -> Option<Instant> {
        None
    }

    /// Learns that messages of a node do not come.
    fn fail(&mut self, _: &Self::Peer, _: &Failure) {}
}

/// The wake-ups of one client.
#[derive(Debug)]
pub(crate) struct BackgroundWakeups<P: WakeupPolicy> {
    policy: P,
    nodes: Vec<BackgroundConnection<P::Peer, Subscription>>,
    channel: Arc<Channel>,
    /// Readable when threads have begun or ended to wait for channels of Redisson.
    redisson_alarm: Option<Alarm>,
    interrupter: Interrupter,
    events: Events,
}

impl<P: WakeupPolicy> BackgroundWakeups<P> {
    /// Sends nothing yet.
    pub(crate) fn new(
        policy: P,
        settings: &BackgroundSettings,
        client: &str,
        redisson: Option<&RedissonChannels>,
    ) -> Self {
        let BackgroundSettings { commands, wakeups_io_timeout: io_timeout, .. } = settings;
        let redisson_alarm = redisson.and_then(RedissonChannels::alarm);
        let channel = Arc::new(Channel {
            keys: commands.keys.clone(),
            name: Keys::channel(client),
            io_timeout: *io_timeout,
            redisson: redisson.cloned().zip(commands.redisson),
        });
        Self {
            policy,
            nodes: Vec::new(),
            channel,
            redisson_alarm,
            interrupter: Interrupter::new(),
            events: settings.events.clone(),
        }
    }

    fn wait(&mut self, deadline: Instant) -> Result<Option<Wake>, Failure> {
        loop {
            self.check_interrupt()?;
            self.follow_nodes();
            self.begin_openings();
            let ready = self.finish_openings();
            self.follow_channels();
            let wake = ready.or_else(|| self.read()).or_else(|| self.policy.take_due());
            if let Some(wake) = wake {
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
        let Some(nodes) = self.policy.changed_peers() else { return };
        self.nodes.retain(|known| nodes.contains(&known.peer));
        for node in nodes {
            if !self.nodes.iter().any(|known| known.peer == node) {
                self.nodes.push(BackgroundConnection::new(node, self.policy.pauses()));
            }
        }
    }

    /// Begins to connect where there is no connection or it is soon no longer valid, and to
    /// subscribe.
    fn begin_openings(&mut self) {
        for node in &mut self.nodes {
            node.open.take_if(|open| !open.connection.socket.is_open());
            let deadline = Instant::now() + self.channel.io_timeout;
            let attempt = ConnectAttempt { deadline, urgent: false };
            let channel = self.channel.clone();
            let subscribe = move |connection| Subscription::begin(connection, &channel);
            // A failure is kept in the state of the connection.
            node.begin_opening(None, attempt, subscribe).unwrap_or_default();
        }
    }

    /// Listens over the connections that have been opened.
    fn finish_openings(&mut self) -> Option<Wake> {
        let mut ready = false;
        for place in 0..self.nodes.len() {
            let replaces = self.nodes[place].open.is_some();
            match self.nodes[place].finish_opening() {
                None => {}
                Some(Err(failure)) => self.report(place, &failure),
                Some(Ok(())) => {
                    let listening = self.nodes.iter().filter(|node| node.open.is_some()).count();
                    // A message may have been on its way over a connection that was replaced.
                    ready |= replaces || self.policy.is_ready(listening);
                }
            }
        }
        ready.then_some(Wake::Ready)
    }

    /// Subscribes to the client's sharded channels, and to those of Redisson's that threads wait
    /// for.
    fn follow_channels(&mut self) {
        if let Some(alarm) = &mut self.redisson_alarm {
            alarm.reset();
        }
        for place in 0..self.nodes.len() {
            let node = self.nodes[place].peer.clone();
            let Some(subscription) = &mut self.nodes[place].open else { continue };
            if let Some(failure) = subscription.refusal.take() {
                self.policy.fail(&node, &failure);
            }
            let tag = self.policy.shard_tag(&node);
            let home = |name: &str| self.policy.is_home(&node, name);
            if let Err(failure) = subscription.follow(&self.channel, tag.as_ref(), home) {
                self.fail(place, failure);
            }
        }
    }

    /// Reads what has come, until there is something to tell the client.
    fn read(&mut self) -> Option<Wake> {
        for place in 0..self.nodes.len() {
            while let BackgroundConnection { peer, open: Some(open), .. } = &mut self.nodes[place] {
                match open.receive(&self.channel) {
                    Ok(None) => break,
                    Ok(Some(Received { wake, sharded })) => {
                        // The known slots may be out of date.
                        let told =
                            if sharded { Some(wake) } else { self.policy.receive(peer, wake) };
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

    fn report(&mut self, place: usize, failure: &Failure) {
        let (server, source) = (&failure.server, &failure.source);
        self.events.debug(|| format!("no wake-ups from {server}: {source}"));
        self.policy.fail(&self.nodes[place].peer, failure);
    }

    /// Gives up the connection to a node. One that has lasted is opened again at once.
    fn fail(&mut self, place: usize, failure: Failure) {
        self.report(place, &failure);
        let node = &mut self.nodes[place];
        if node.open.as_ref().is_some_and(|open| open.since.elapsed() >= STABLE) {
            node.fail_briefly(failure);
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
        let open = || self.nodes.iter().filter_map(|node| node.open.as_ref());
        let expected = open().map(|subscription| subscription.expected_by);
        let retries = self.nodes.iter().filter_map(BackgroundConnection::retry_at);
        let changes =
            open().filter_map(|subscription| subscription.connection.socket.next_change());
        let follows = open().filter_map(|subscription| subscription.further.follow_at);
        let times =
            expected.chain(retries).chain(changes).chain(follows).chain(self.policy.next_look());
        let end = times.fold(deadline, Instant::min);
        let openings: Vec<&Opening<_>> =
            self.nodes.iter().filter_map(|node| node.opening.as_ref()).collect();
        let Some(any) = open().next() else {
            sleep(&mut [], &openings, end.min(Instant::now() + LOOK));
            return Ok(());
        };
        // One is enough: to end the wait at one of them ends it at all.
        self.interrupter.watch(any.connection.socket.stream().map(RespStream::awaited));
        self.check_interrupt()?;
        let alarm = self.redisson_alarm.as_ref();
        let mut sockets: Vec<PollFd<'_>> = open()
            .filter_map(|subscription| subscription.connection.socket.poll_fd())
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
