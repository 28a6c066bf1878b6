//! What is promised, and what must be possible for the promises to mean anything.

use stateright::Property;

use crate::quorum::client::{Client, Phase};
use crate::quorum::scope::Scope;
use crate::quorum::world::World;

/// At most one live guard.
pub(crate) const EXCLUSION_BY_LEASE: &str = "exclusion by lease";

/// The fence of each guard is above those of all guards before it.
pub(crate) const EXCLUSION_BY_FENCE: &str = "exclusion by fence";

/// When a guard is handed out, its hold stands in a majority of the servers; but one that forgets may
/// have granted it before.
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
        Property::sometimes("a hold is taken back", |_, world: &World| {
            world.witness.guards == 0 && holds_that_stand(world).any(|(_, lives)| !lives)
        }),
        Property::sometimes("remains of a hold do not stop the next", |_, world: &World| {
            let anybody = world.clients.iter().any(Client::is_holding);
            anybody && holds_that_stand(world).any(|(_, lives)| !lives)
        }),
        Property::sometimes("contenders split the servers", |_, world: &World| {
            let contenders = holds_that_stand(world).filter(|(_, lives)| *lives);
            let mut clients: Vec<usize> = contenders.map(|(client, _)| client).collect();
            clients.dedup();
            clients.len() > 1
        }),
    ]
}

/// Whose holds stand anywhere, and whether they live.
fn holds_that_stand(world: &World) -> impl Iterator<Item = (usize, bool)> {
    let entries = world.servers.iter().filter_map(|server| server.lock);
    entries.map(|entry| (entry.hold.client, world.lives(entry.hold)))
}
