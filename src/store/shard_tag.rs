//! The hash tag of sharded channels at one node of a cluster.

use std::sync::Arc;

use parking_lot::RwLock;

/// The tag, if one is known. It changes when slots move. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardTag(Arc<RwLock<Option<Arc<str>>>>);

impl ShardTag {
    pub(crate) fn get(&self) -> Option<Arc<str>> {
        self.0.read().clone()
    }

    pub(crate) fn set(&self, tag: &str) {
        *self.0.write() = Some(tag.into());
    }
}
