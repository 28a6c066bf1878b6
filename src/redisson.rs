//! The channels on which Redisson's locks are reported free.

/// The channels of one client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RedissonChannels {
    sharded: bool,
}

impl RedissonChannels {
    /// Those of a cluster.
    pub(crate) fn sharded(mut self) -> Self {
        self.sharded = true;
        self
    }

    /// What the names of the commands for these channels begin with.
    pub(crate) fn form(self) -> &'static str {
        if self.sharded { "s" } else { "" }
    }

    /// The channel of the lock with this key. Redisson's rule for braces is not leasehold's.
    pub(crate) fn channel(lock: &str) -> String {
        let (open, close) = if lock.contains('{') { ("", "") } else { ("{", "}") };
        ["redisson_lock__channel:", open, lock, close].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_braces_unless_the_key_has_one() {
        assert_eq!(RedissonChannels::channel("stock"), "redisson_lock__channel:{stock}");
        assert_eq!(RedissonChannels::channel("a}b"), "redisson_lock__channel:{a}b}");
        assert_eq!(RedissonChannels::channel("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(RedissonChannels::channel("{a}b"), "redisson_lock__channel:{a}b");
    }
}
