//! What is promised, and what must be possible for the promises to mean anything.

use stateright::Property;

use crate::single::store::Request;
use crate::single::world::{Besides, Message, Scope, World};

/// At most one live guard.
pub(crate) const EXCLUSION_BY_LEASE: &str = "exclusion by lease";

/// The fence of each guard is above those of all guards before it.
pub(crate) const EXCLUSION_BY_FENCE: &str = "exclusion by fence";

/// A guard that was lost stays lost.
pub(crate) const LOST_IS_FINAL: &str = "lost is final";

/// What was lost or released does not stand in the store, unless it is being cleaned up.
pub(crate) const REMAINS_ARE_CLEANED_UP: &str = "unknown outcomes are cleaned up";

/// No request frees or extends a hold that it does not name.
pub(crate) const OTHERS_ARE_LEFT_ALONE: &str = "idempotence: others are left alone";

/// The depth in the store is one that the thread was at.
pub(crate) const DEPTH_IS_SET: &str = "idempotence: depth is set, not counted";

pub(crate) fn all() -> Vec<Property<Scope>> {
    vec![
        Property::always(EXCLUSION_BY_LEASE, |_, world: &World| {
            world.clients.iter().filter(|client| client.guard().is_some()).count() <= 1
        }),
        Property::always(EXCLUSION_BY_FENCE, |_, world: &World| !world.witness.fence_repeated),
        Property::always(LOST_IS_FINAL, |_, world: &World| !world.witness.revived),
        Property::always(REMAINS_ARE_CLEANED_UP, |_, World { store, clients, .. }: &World| {
            store.lock.is_none_or(|entry| {
                clients.iter().all(|client| !client.over.contains(&entry.owner))
            })
        }),
        Property::always(OTHERS_ARE_LEFT_ALONE, |_, world: &World| !world.witness.meddled),
        Property::always(DEPTH_IS_SET, |scope: &Scope, World { store, .. }: &World| {
            let deepest = if scope.has(Besides::Nesting) { 2 } else { 1 };
            store.lock.is_none_or(|entry| (1..=deepest).contains(&entry.depth))
        }),
        Property::sometimes("the lock is got again", |_, World { clients, .. }: &World| {
            clients[0].over.len() == 1 && clients.iter().any(|client| client.guard().is_some())
        }),
        Property::sometimes("a request is late", |_, World { network, clients, .. }: &World| {
            network.iter().any(|message| match message {
                Message::Request(Request { hold, .. }) => clients[hold.client].over.contains(hold),
                Message::Reply(..) => false,
            })
        }),
        Property::sometimes("a clean-up has something to do", |_, world: &World| {
            let World { store, clients, .. } = world;
            let orphans = || clients.iter().flat_map(|client| &client.orphans);
            store.lock.is_some_and(|entry| orphans().any(|orphan| orphan.hold == entry.owner))
        }),
        Property::sometimes("a guard is lost before its lease in the store", |_, world: &World| {
            let held = world.store.lock.map(|entry| entry.owner);
            held.is_some() && world.clients.iter().any(|client| client.lost() == held)
        }),
    ]
}
