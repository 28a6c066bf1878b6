//! The channels on which Redisson announces free locks, and which of them the threads of a client
//! wait on. Waiting threads tell the listener here.
//!
//! Redisson is waiting if its channel has more subscribers than the companion channel, to which
//! clients of this library subscribe with the same command. Redisson cannot take an offer, so it
//! gets a turn: a time in which clients of this library leave a free lock alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::RESERVED;
use crate::net::socket::Alarm;

/// How long a released lock is left to Redisson on its turn. Redisson takes two or three
/// milliseconds from the message to its attempt. If Redisson then releases the lock early, only
/// Redisson can acquire it during the rest of the turn, so turns are short. `acquire.lua` ignores
/// turns of more than 10 ms.
pub(super) const TURN_TIME: Duration = Duration::from_millis(5);

/// How long Redisson counts as waiting after it was last seen waiting. A Redisson thread that locks
/// again at once stops listening for some milliseconds in between, and does not listen at all if
/// its first attempt succeeds.
pub(super) const MEMORY: Duration = Duration::from_millis(500);

/// The channels of one client. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct RedissonChannels {
    awaited: Arc<Mutex<ChannelNames>>,
}

#[derive(Default)]
struct ChannelNames {
    /// The names of the locks that threads wait for, by channel. Names that differ only in braces
    /// may share a channel.
    names: HashMap<String, Vec<Arc<str>>>,
    /// Grows whenever a thread begins or stops waiting.
    version: u64,
    /// Wakes the listener, once there is one.
    alarm: Option<Alarm>,
}

/// The interest of a thread in Redisson's releases of a lock, until this is dropped.
pub(crate) struct RedissonWait {
    channels: RedissonChannels,
    channel: String,
    name: Arc<str>,
}

impl RedissonChannels {
    /// Returns the channel of the lock with this key. Redisson's rule for braces is not
    /// leasehold's.
    pub(crate) fn channel(lock: &str) -> String {
        let (open, close) = if lock.contains('{') { ("", "") } else { ("{", "}") };
        ["redisson_lock__channel:", open, lock, close].concat()
    }

    /// Returns the channel to which a client of leasehold subscribes along with one of Redisson's,
    /// so that the server can tell how many of the subscribers are Redisson's.
    pub(crate) fn companion(channel: &str) -> String {
        [RESERVED, channel].concat()
    }

    /// Makes the listener subscribe to the channel of a lock until the result is dropped.
    pub(crate) fn wait(&self, name: &Arc<str>, lock: &str) -> RedissonWait {
        let channel = Self::channel(lock);
        let mut awaited = self.awaited.lock();
        awaited.names.entry(channel.clone()).or_default().push(name.clone());
        // After it has subscribed, the listener wakes the call, because a release may have been
        // missed.
        awaited.change();
        RedissonWait { channels: self.clone(), channel, name: name.clone() }
    }

    /// Returns the names of the locks with this channel that threads wait for.
    pub(crate) fn names(&self, channel: &str) -> Vec<Arc<str>> {
        self.awaited.lock().names.get(channel).cloned().unwrap_or_default()
    }

    /// Returns the channels that threads wait on, each with the name of a lock.
    pub(crate) fn wanted(&self) -> Vec<(String, Arc<str>)> {
        let awaited = self.awaited.lock();
        let wanted = awaited.names.iter();
        wanted
            .filter_map(|(channel, names)| Some((channel.clone(), names.first()?.clone())))
            .collect()
    }

    /// Makes the listener check which channels are wanted.
    pub(crate) fn change(&self) {
        self.awaited.lock().change();
    }

    /// Returns a number that changes whenever the wanted channels do.
    pub(crate) fn version(&self) -> u64 {
        self.awaited.lock().version
    }

    /// Creates the listener's alarm. `None` if no file descriptor is left: the listener then checks
    /// the channels whenever it has something else to do.
    pub(crate) fn alarm(&self) -> Option<Alarm> {
        let alarm = Alarm::new().ok()?;
        self.awaited.lock().alarm = Some(alarm.clone());
        Some(alarm)
    }
}

impl ChannelNames {
    fn change(&mut self) {
        self.version += 1;
        if let Some(alarm) = &self.alarm {
            alarm.ring();
        }
    }
}

impl Drop for RedissonWait {
    fn drop(&mut self) {
        let mut awaited = self.channels.awaited.lock();
        if let Some(names) = awaited.names.get_mut(&self.channel) {
            // Another thread may wait for the same lock, so only one entry is removed.
            if let Some(place) = names.iter().position(|name| *name == self.name) {
                names.swap_remove(place);
            }
            if names.is_empty() {
                awaited.names.remove(&self.channel);
            }
        }
        awaited.change();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::socket::poll_ready;

    #[test]
    fn a_channel_has_braces_unless_the_key_has_one() {
        assert_eq!(RedissonChannels::channel("stock"), "redisson_lock__channel:{stock}");
        assert_eq!(RedissonChannels::channel("a}b"), "redisson_lock__channel:{a}b}");
        assert_eq!(RedissonChannels::channel("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(RedissonChannels::channel("{a}b"), "redisson_lock__channel:{a}b");
    }

    #[test]
    fn a_channel_is_wanted_while_a_thread_waits() {
        let channels = RedissonChannels::default();
        let (first, second) = (channels.wait(&"x".into(), "x"), channels.wait(&"x".into(), "x"));
        drop(first);
        assert_eq!(channels.wanted(), [(RedissonChannels::channel("x"), Arc::from("x"))]);
        drop(second);
        assert!(channels.wanted().is_empty() && channels.awaited.lock().names.is_empty());
    }

    #[test]
    fn names_that_differ_in_braces_share_a_channel() {
        let channels = RedissonChannels::default();
        let _waits = [channels.wait(&"x".into(), "x"), channels.wait(&"{x}".into(), "{x}")];
        assert_eq!(channels.wanted().len(), 1);
        assert_eq!(channels.names(&RedissonChannels::channel("x")).len(), 2);
    }

    #[test]
    fn the_listener_is_woken_however_often_it_does_not_look() {
        let channels = RedissonChannels::default();
        let alarm = channels.alarm().expect("files");
        for _ in 0..100_000 {
            drop(channels.wait(&"x".into(), "x"));
        }
        assert_eq!(channels.version(), 200_000);
        alarm.reset();
        let readable = |alarm: &Alarm| poll_ready(&mut [alarm.rung()], None).len() == 1;
        assert!(!readable(&alarm));
        let _wait = channels.wait(&"x".into(), "x");
        assert!(readable(&alarm));
    }
}
