//! The subscriptions to Redisson's channels at one node.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use redis::Cmd;

use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::store::background::Wake;
use crate::store::redisson_channels::RedissonChannels;

/// The pause before asking again for what the server has refused.
const PAUSE: Duration = Duration::from_secs(1);

/// The subscriptions of one connection.
#[derive(Debug)]
pub(super) struct RedissonSubscriptions {
    channels: RedissonChannels,
    /// What the names of the commands begin with.
    form: &'static str,
    /// The channels that were subscribed to, and whose subscription has not ended.
    subscribed: HashSet<String>,
    /// The requests without a reply, in their order: whether to subscribe, and the channel.
    asked: VecDeque<(bool, String)>,
    /// Which version of the wanted channels was followed last.
    version: Option<u64>,
    /// When to follow them again though they are the same.
    follow_at: Option<Instant>,
}

impl RedissonSubscriptions {
    pub(super) fn new((channels, form): (RedissonChannels, &'static str)) -> Self {
        Self {
            form,
            channels,
            subscribed: HashSet::new(),
            asked: VecDeque::new(),
            version: None,
            follow_at: None,
        }
    }

    /// Returns the requests after which the connection is subscribed to the channels that threads
    /// wait for and that are at `home` here, and to no others.
    pub(super) fn follow(&mut self, home: impl Fn(&str) -> bool) -> Vec<Cmd> {
        if self.follow_at.is_some_and(|at| Instant::now() >= at) {
            // Another node may serve the channel now.
            self.channels.change();
            self.follow_at = None;
        }
        let version = self.channels.version();
        if self.version == Some(version) {
            return Vec::new();
        }
        self.version = Some(version);
        let wanted: HashSet<String> = self
            .channels
            .wanted()
            .into_iter()
            .filter_map(|(channel, name)| home(&name).then_some(channel))
            .collect();
        let ended = self.subscribed.difference(&wanted).map(|channel| (false, channel.clone()));
        let begun = wanted.difference(&self.subscribed).map(|channel| (true, channel.clone()));
        let requests: Vec<(bool, String)> = ended.chain(begun).collect();
        self.subscribed = wanted;
        let command = |(begins, channel): &(bool, String)| {
            let name = if *begins { "subscribe" } else { "unsubscribe" };
            let companion = RedissonChannels::companion(channel);
            redis::cmd(&format!("{}{name}", self.form)).arg(channel).arg(companion).take()
        };
        let commands = requests.iter().map(command).collect();
        self.asked.extend(requests);
        commands
    }

    /// Reads a message or a reply about one of the channels.
    pub(super) fn receive(&mut self, kind: &str, channel: &str, content: &str) -> Option<Wake> {
        match kind.strip_prefix(self.form)? {
            // A release before the subscription may have been missed.
            "subscribe" if self.answers(channel) => {}
            "unsubscribe" => {
                if !self.answers(channel) && self.subscribed.remove(channel) {
                    // Another node serves the channel now.
                    self.follow_at = Some(end_of(PAUSE));
                }
                return None;
            }
            "message" if content == "0" => {}
            _ => return None,
        }
        let names = self.channels.names(channel);
        (!names.is_empty()).then_some(Wake::Unlocked(names))
    }

    /// Returns `true` if the first request without a reply is about this channel, and takes it for
    /// answered.
    fn answers(&mut self, channel: &str) -> bool {
        let answers = self.asked.front().is_some_and(|(_, asked)| asked == channel);
        if answers {
            self.asked.pop_front();
        }
        answers
    }

    /// Takes an error reply. Returns `false` if it is not the reply to one of these requests.
    pub(super) fn refuse(&mut self, failure: &Failure) -> bool {
        let Some((_, channel)) = self.asked.pop_front() else { return false };
        self.subscribed.remove(&channel);
        let pause = if self.form == "s" && failure.code == "ERR" {
            // Redis 6.2 has no sharded channels, and Redisson then uses others.
            self.form = "";
            Duration::ZERO
        } else {
            PAUSE
        };
        self.follow_at = Some(end_of(pause));
        true
    }

    /// Returns `true` if there is a request without a reply.
    pub(super) fn is_asking(&self) -> bool {
        !self.asked.is_empty()
    }

    /// When to follow the channels again.
    pub(super) fn follow_at(&self) -> Option<Instant> {
        self.follow_at
    }
}
