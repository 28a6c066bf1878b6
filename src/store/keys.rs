//! The names of keys, all in one hash slot per lock.

use std::borrow::Cow;

use crate::config::{RESERVED, has_hash_tag};

/// Makes the keys of a lock from its name.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The hash with the owner and the depth: prefix and name, verbatim.
    pub(crate) fn lock<'n>(&self, name: &'n str) -> Cow<'n, str> {
        if self.prefix.is_empty() {
            Cow::Borrowed(name)
        } else {
            Cow::Owned(format!("{}{name}", self.prefix))
        }
    }

    /// The counter of fencing tokens.
    pub(crate) fn fence(&self, name: &str) -> String {
        companion("fence", &self.lock(name))
    }
}

/// A key in the slot of `lock`, which `Config::check_name` has let through.
fn companion(kind: &str, lock: &str) -> String {
    if has_hash_tag(lock) {
        format!("{RESERVED}{kind}:{lock}")
    } else {
        format!("{RESERVED}{kind}:{{{lock}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_hash_tag_is_put_into_braces() {
        let keys = Keys::new("");
        assert_eq!(keys.fence("stock"), "leasehold:fence:{stock}");
        assert_eq!(keys.fence("a{b"), "leasehold:fence:{a{b}");
        assert_eq!(keys.fence("{user}:stock"), "leasehold:fence:{user}:stock");
    }

    #[test]
    fn the_prefix_belongs_to_the_name() {
        let keys = Keys::new("shop:");
        assert_eq!(keys.lock("stock"), "shop:stock");
        assert_eq!(keys.fence("stock"), "leasehold:fence:{shop:stock}");
    }
}
