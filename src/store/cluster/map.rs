//! Which node serves which slot, as far as is known.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use crate::store::cluster::node::ClusterNode;
use crate::store::cluster::slot::SLOTS;

/// The nodes by slot.
#[derive(Debug)]
pub(super) struct Map {
    owners: Vec<Option<Arc<ClusterNode>>>,
    /// By address.
    masters: HashMap<Arc<str>, Arc<ClusterNode>>,
    version: u64,
}

impl Default for Map {
    fn default() -> Self {
        Self { owners: vec![None; SLOTS], masters: HashMap::new(), version: 0 }
    }
}

impl Map {
    pub(super) fn owner(&self, slot: usize) -> Option<&Arc<ClusterNode>> {
        self.owners[slot].as_ref()
    }

    pub(super) fn master(&self, address: &str) -> Option<&Arc<ClusterNode>> {
        self.masters.get(address)
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.masters.values()
    }

    /// Grows with every change of `masters`.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Sets the owner of one slot.
    pub(super) fn set(&mut self, slot: usize, node: &Arc<ClusterNode>) {
        self.owners[slot] = Some(node.clone());
        let before = self.masters.insert(node.label().clone(), node.clone());
        if before.is_none_or(|before| !Arc::ptr_eq(&before, node)) {
            self.version += 1;
        }
    }

    /// Sets the owners of all slots, and returns the map until now.
    pub(super) fn replace(&mut self, owners: Vec<Option<Arc<ClusterNode>>>) -> Self {
        let masters: HashMap<_, _> =
            owners.iter().flatten().map(|node| (node.label().clone(), node.clone())).collect();
        let known = |(label, node): (&Arc<str>, &Arc<ClusterNode>)| {
            self.masters.get(label).is_some_and(|before| Arc::ptr_eq(before, node))
        };
        let same = masters.len() == self.masters.len() && masters.iter().all(known);
        let version = if same { self.version } else { self.version + 1 };
        mem::replace(self, Self { owners, masters, version })
    }
}
