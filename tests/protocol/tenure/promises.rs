//! The promises, and what must be possible for the promises to mean anything.

use stateright::Property;

use crate::tenure::client::{Client, Phase};
use crate::tenure::scope::Scope;
use crate::tenure::world::World;

/// At most one live guard, as long as no operator has ended a hold.
pub(crate) const EXCLUSION_BY_LEASE: &str = "exclusion by lease";

/// The tokens of guards grow from thread to thread of a tenure, and from tenure to tenure in the
/// order in which these have begun at the server.
pub(crate) const EXCLUSION_BY_FENCE: &str = "exclusion by fence";

/// A hold that the server has released is gone.
pub(crate) const RELEASE: &str = "a release ends the hold";

/// A client whose tenure has ended while others were waiting does not get the lock before these,
/// unless it has become free by itself in the meantime.
pub(crate) const TURNS: &str = "clients take turns";

/// Every thread that waits gets the lock, unless its client has stopped. No path of this model is
/// endless, because each step uses up what there is a limited number of: threads that wait, faults,
/// requests, and occasions to ask again. So it is enough to look at the states in which nothing
/// more needs to happen.
pub(crate) const SERVICE: &str = "each thread that waits is served";

pub(crate) fn all() -> Vec<Property<Scope>> {
    vec![
        Property::always(EXCLUSION_BY_LEASE, |_, world: &World| {
            let live = world.clients.iter().filter(|client| client.has_live_guard()).count();
            live <= 1 || world.forced
        }),
        Property::always(EXCLUSION_BY_FENCE, |_, world: &World| !world.witness.fence_repeated),
        Property::always(RELEASE, |_, world: &World| !world.witness.unreleased),
        Property::always(TURNS, |_, world: &World| !world.witness.overtaken),
        Property::always(SERVICE, |scope: &Scope, world: &World| {
            !scope.is_at_rest(world) || world.is_served()
        }),
        Property::sometimes("a tenure is handed off", |scope: &Scope, world: &World| {
            let clients = world.clients.iter().zip(&scope.threads);
            clients.into_iter().any(|(client, threads)| threads - client.waiting > client.nonce)
        }),
        Property::sometimes("a client gets the lock again", |_, world: &World| {
            world.clients.iter().any(|client| client.nonce > 1 && client.has_live_guard())
        }),
        Property::sometimes("two clients wait for an offer", |_, world: &World| {
            let waits = |client: &&Client| client.phase == Phase::Waiting;
            world.server.offer.is_some() && world.clients.iter().filter(waits).count() > 1
        }),
        Property::sometimes("all are served", |_, world: &World| world.is_served()),
    ]
}
