//! The promises, and the events that must be possible for the promises to mean anything.

use stateright::Property;

use crate::members::client::Phase;
use crate::members::scope::Scope;
use crate::members::world::World;
use crate::network::Course;

/// No live writer beside a live guard of either side, and no more live permits than exist.
pub(crate) const EXCLUSION_BY_LEASE: &str = "exclusion by lease";

/// The token of a writer is above those of all earlier guards, and that of a reader is not below
/// them.
pub(crate) const EXCLUSION_BY_FENCE: &str = "exclusion by fence";

/// A released hold is gone, and no renewal brings one back.
pub(crate) const END: &str = "an ended hold stays ended";

/// A client does not get a place while the queue has a client that was there when it came.
pub(crate) const TURNS: &str = "first come, first served";

/// Every waiting thread gets a guard, unless its client has stopped. No path of this model is
/// endless, so it is enough to check the states in which nothing more needs to happen.
pub(crate) const SERVICE: &str = "each thread that waits is served";

pub(crate) fn all() -> Vec<Property<Scope>> {
    vec![
        Property::always(EXCLUSION_BY_LEASE, |scope: &Scope, world: &World| {
            world.is_exclusive(scope.permits)
        }),
        Property::always(EXCLUSION_BY_FENCE, |_, world: &World| !world.witness.fence_repeated),
        Property::always(END, |_, world: &World| !world.witness.revived),
        Property::always(TURNS, |_, world: &World| !world.witness.overtaken),
        Property::always(SERVICE, |scope: &Scope, world: &World| {
            !scope.is_at_rest(world) || world.is_served()
        }),
        Property::sometimes("a client is in the queue", |_, world: &World| {
            !world.server.queue.is_empty()
        }),
        Property::sometimes("a client is offered what it waits for", |_, world: &World| {
            world.server.offers.iter().any(|id| world.clients[*id].phase == Phase::Waiting)
        }),
        Property::sometimes("all are served", |_, world: &World| world.is_served()),
    ]
}
