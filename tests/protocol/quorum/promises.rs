//! The promises, and the events that must be possible for the promises to mean anything.

use stateright::Property;

use crate::quorum::client::{Client, Phase};
use crate::quorum::scope::Scope;
use crate::quorum::world::World;

/// At most one live guard.
pub(crate) const EXCLUSION_BY_LEASE: &str = "exclusion by lease";

/// The fence of each guard is above those of all earlier guards.
pub(crate) const EXCLUSION_BY_FENCE: &str = "exclusion by fence";

/// When a client gets a guard, a majority of the servers has its hold, or had it before one of them
/// lost its data.
pub(crate) const A_MAJORITY_HAS_IT: &str = "a majority has it";

pub(crate) fn all() -> Vec<Property<Scope>> {
    vec![
        Property::always(EXCLUSION_BY_LEASE, |_, world: &World| {
            world.clients.iter().filter(|client| client.is_holding()).count() <= 1
        }),
        Property::always(EXCLUSION_BY_FENCE, |_, world: &World| !world.witness.fence_repeated),
        Property::always(A_MAJORITY_HAS_IT, |_, world: &World| !world.witness.unsupported),
        Property::sometimes("a hold follows another", |_, world: &World| world.witness.guards > 1),
        Property::sometimes("counters are raised", |_, world: &World| {
            world.clients.iter().any(|client| matches!(client.phase, Phase::Raising { .. }))
        }),
        Property::sometimes("a hold is undone", |_, world: &World| {
            world.witness.guards == 0 && holds_at_servers(world).any(|(_, live)| !live)
        }),
        Property::sometimes("remains of a hold do not stop the next", |_, world: &World| {
            let held = world.clients.iter().any(Client::is_holding);
            held && holds_at_servers(world).any(|(_, live)| !live)
        }),
        Property::sometimes("contenders split the servers", |_, world: &World| {
            let contenders = holds_at_servers(world).filter(|(_, live)| *live);
            let mut clients: Vec<usize> = contenders.map(|(client, _)| client).collect();
            clients.dedup();
            clients.len() > 1
        }),
    ]
}

/// Returns the clients of the holds that any server has, and whether those holds are live.
fn holds_at_servers(world: &World) -> impl Iterator<Item = (usize, bool)> {
    let entries = world.servers.iter().filter_map(|server| server.lock);
    entries.map(|entry| (entry.hold.client, world.is_live(entry.hold)))
}
