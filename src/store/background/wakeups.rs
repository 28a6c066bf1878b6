//! Wake-ups over connections that one thread keeps.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::{self, end_of};
use crate::base::event_thread::Events;
use crate::base::failure::{Failure, FailureKind};
use crate::error::Phase;
use crate::net::resp::RespStream;
use crate::net::socket::{Alarm, PollFd};
use crate::net::wait::Interrupter;
use crate::store::background::peer::{BackgroundConnection, sleep};
use crate::store::background::subscription::{Channel, Subscription};
use crate::store::background::{BackgroundSettings, Wake, WakeupPolicy, Wakeups};
use crate::store::keys::Keys;
use crate::store::redisson_channels::RedissonChannels;

/// How often to check for an interrupt while no connection is open.
const LOOK: Duration = Duration::from_millis(20);

/// How often to check for nodes that have moved or were replaced, because no message reports it.
const NODES_LOOK: Duration = Duration::from_secs(1);

/// The shortest pause after a node has rejected the subscription.
pub(crate) const REJECTED_PAUSE: Duration = Duration::from_secs(30);

/// The wake-ups of one client.
pub(crate) struct BackgroundWakeups<P: WakeupPolicy> {
    policy: P,
    nodes: Vec<BackgroundConnection<P::Peer, Subscription>>,
    channel: Arc<Channel>,
    /// Becomes readable when threads begin or stop waiting for Redisson's channels.
    redisson_alarm: Option<Alarm>,
    interrupter: Interrupter,
    events: Events,
    /// The last report to the client on whether messages arrive from everywhere.
    is_complete: Option<bool>,
}

impl<P: WakeupPolicy> BackgroundWakeups<P> {
    pub(crate) fn new(
        policy: P,
        settings: &BackgroundSettings,
        client: &str,
        redisson: Option<&RedissonChannels>,
    ) -> Self {
        let BackgroundSettings { commands, io_timeout, .. } = settings;
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
            is_complete: None,
        }
    }

    fn wait(&mut self, deadline: Instant) -> Result<Option<Wake>, Failure> {
        loop {
            self.check_interrupt()?;
            let peers = self.policy.peers();
            // In a cluster, nodes come and go. Dropping a node closes its connection.
            self.nodes.retain(|known| peers.contains(&known.peer));
            for peer in peers {
                if !self.nodes.iter().any(|known| known.peer == peer) {
                    self.nodes.push(BackgroundConnection::new(peer, self.policy.pause()));
                }
            }
            if let Some(alarm) = &self.redisson_alarm {
                // Reset before the channels are read: a later change rings it again.
                alarm.reset();
            }
            let mut ready = false;
            for place in 0..self.nodes.len() {
                ready |= self.follow(place);
            }
            if ready {
                return Ok(Some(Wake::Ready));
            }
            if let Some(wake) = self.read() {
                return Ok(Some(wake));
            }
            // Messages come first, because they may complete what the policy has gathered.
            if let Some(wake) = self.policy.take_due() {
                return Ok(Some(wake));
            }
            self.check_nodes().inspect_err(|_| self.is_complete = Some(false))?;
            if let Some(wake) = self.note_complete() {
                return Ok(Some(wake));
            }
            if clock::now() >= deadline {
                return Ok(None);
            }
            self.sleep(deadline)?;
        }
    }

    /// Returns what to tell the client if the subscriptions have become complete or incomplete. At
    /// the start this is unknown until each node has been tried once.
    fn note_complete(&mut self) -> Option<Wake> {
        let listening = self.nodes.iter().filter(|node| node.open.is_some()).count();
        let is_complete = listening > 0 && self.policy.is_complete(listening);
        let is_known = is_complete
            || self.is_complete.is_some()
            || self.nodes.iter().all(|node| node.open.is_some() || node.failure().is_some());
        // At the start, connects in progress must not look like an outage, which releases kept
        // locks.
        if !is_known || self.is_complete == Some(is_complete) {
            return None;
        }
        self.is_complete = Some(is_complete);
        Some(Wake::Complete(is_complete))
    }

    fn check_interrupt(&self) -> Result<(), Failure> {
        if self.interrupter.is_interrupted() { Err(failure("interrupted")) } else { Ok(()) }
    }

    /// Connects to a node without a connection, or with one that expires soon, and subscribes,
    /// without waiting. Returns `true` if messages begin to arrive.
    fn follow(&mut self, place: usize) -> bool {
        let node = &mut self.nodes[place];
        node.open.take_if(|open| !open.connection.is_open());
        let channel = self.channel.clone();
        let deadline = end_of(self.channel.io_timeout);
        let begun = node.begin_opening(None, deadline, false, |connection| {
            Subscription::begin(connection, channel)
        });
        // The failure is kept in `node`.
        begun.unwrap_or_default();
        let replaces = node.open.is_some();
        let ready = match node.finish_opening() {
            None => false,
            Some(Err(failure)) => {
                // A rejected login may soon succeed: passwords and credentials change.
                if failure.kind == FailureKind::Rejected && failure.phase != Phase::Login {
                    node.rest(REJECTED_PAUSE);
                }
                self.report(place, &failure);
                false
            }
            Some(Ok(())) => {
                let listening = self.nodes.iter().filter(|node| node.open.is_some()).count();
                // A message may have been lost along with the replaced connection.
                replaces || self.policy.is_ready(listening)
            }
        };
        let BackgroundConnection { peer, open: Some(open), .. } = &mut self.nodes[place] else {
            return ready;
        };
        // If a sharded channel is refused, wake-ups come over the client's own channel, from all
        // nodes.
        if let Some(failure) = open.refusal.take() {
            self.policy.fail(peer, &failure);
        }
        let tag = self.policy.shard_tag(peer);
        if let Err(failure) = open.follow(&tag, |name| self.policy.is_home(peer, name)) {
            self.fail(place, failure);
        }
        ready
    }

    /// Reads what has arrived, up to the first message for the client.
    fn read(&mut self) -> Option<Wake> {
        for place in 0..self.nodes.len() {
            while let BackgroundConnection { peer, open: Some(open), .. } = &mut self.nodes[place] {
                match open.receive() {
                    Ok(None) => break,
                    // The known slots may be out of date.
                    Ok(Some((wake, true))) => return Some(wake),
                    Ok(Some((wake, false))) => {
                        let told = self.policy.receive(peer, wake);
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
        let Failure { server, source, .. } = failure;
        self.events.log(log::Level::Debug, || format!("no wake-ups from {server}: {source}"));
        self.policy.fail(&self.nodes[place].peer, failure);
    }

    /// Closes the connection to a node.
    fn fail(&mut self, place: usize, failure: Failure) {
        self.report(place, &failure);
        self.nodes[place].fail(failure);
    }

    /// Fails if no message can come from anywhere.
    fn check_nodes(&self) -> Result<(), Failure> {
        let failures = self.nodes.iter().map(BackgroundConnection::failure);
        // Either all nodes have failed, or there are none.
        let Some(all) = failures.collect::<Option<Vec<_>>>() else { return Ok(()) };
        match all.first() {
            Some(first) => Err((*first).clone()),
            None => Err(failure("no node to listen at is known")),
        }
    }

    fn subscriptions(&self) -> impl Iterator<Item = &Subscription> {
        self.nodes.iter().filter_map(|node| node.open.as_ref())
    }

    /// Sleeps until a message arrives, another thread interrupts, or other work is due.
    fn sleep(&mut self, deadline: Instant) -> Result<(), Failure> {
        let retries = self.nodes.iter().filter_map(BackgroundConnection::retry_at);
        let looks = self.subscriptions().map(Subscription::next_look);
        let looks = looks.chain(self.policy.next_look());
        let end = retries.chain(looks).fold(deadline.min(end_of(NODES_LOOK)), Instant::min);
        let openings: Vec<_> = self.nodes.iter().filter_map(|node| node.opening.as_ref()).collect();
        let Some(any) = self.subscriptions().next() else {
            sleep(&mut [], &openings, end.min(clock::now() + LOOK));
            return Ok(());
        };
        // One socket is enough: closing it ends the whole wait.
        self.interrupter.watch(any.connection.stream().map(RespStream::awaited));
        // An interrupt that came before had no socket to close.
        self.check_interrupt()?;
        let alarm = self.redisson_alarm.as_ref();
        let mut sockets: Vec<PollFd<'_>> = self
            .subscriptions()
            .filter_map(|subscription| Some(subscription.connection.stream()?.poll_fd()))
            .chain(alarm.map(Alarm::rung))
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

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    use crate::config::Config;
    use crate::net::server::ServerFactory;
    use crate::store::background::peer::tests::One;
    use crate::store::commands::Commands;
    use crate::store::tests::process::Server;

    /// Masters that come and go.
    #[derive(Clone, Default)]
    struct Masters(Arc<Mutex<Vec<One>>>);

    impl WakeupPolicy for Masters {
        type Peer = One;

        fn pause(&self) -> Duration {
            Duration::ZERO
        }

        fn peers(&self) -> Vec<One> {
            self.0.lock().clone()
        }

        fn receive(&mut self, _: &One, wake: Wake) -> Option<Wake> {
            Some(wake)
        }
    }

    #[test]
    fn a_client_that_has_left_a_node_hears_everything_from_the_others() {
        let (servers, config) = ([(); 2].map(|()| Server::redis()), Config::default());
        let factory = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let masters = Masters::default();
        for server in &servers {
            let endpoint = factory.endpoint(&server.url()).expect("a good URL");
            masters.0.lock().push(One(Arc::new(factory.connections(endpoint))));
        }
        let settings = BackgroundSettings::new(&Commands::new(&config), &factory);
        let mut wakeups = BackgroundWakeups::new(masters.clone(), &settings, "a", None);
        let mut next = |time| wakeups.next(end_of(time)).map(|next| next.expect("it listens"));
        while next(Duration::from_secs(5)).expect("in time") != Wake::Complete(true) {}
        masters.0.lock().pop();
        assert_eq!(next(Duration::ZERO), None, "it need not hear the one that is gone");
    }
}
