//! The promises, and the events that must be possible for the promises to mean anything.

use stateright::Property;

use crate::network::Course;
use crate::tenure::client::{Client, Phase};
use crate::tenure::scope::Scope;
use crate::tenure::world::World;

/// At most one live guard, not counting guards whose tenure an operator has ended, until their
/// client is told.
pub(crate) const EXCLUSION_BY_LEASE: &str = "exclusion by lease";

/// The tokens of guards grow from thread to thread of a tenure, and from tenure to tenure in the
/// order in which these began at the server.
pub(crate) const EXCLUSION_BY_FENCE: &str = "exclusion by fence";

/// A client does not keep the lock once it was told that another one waits for it.
pub(crate) const RECALL: &str = "a lock that is wanted is not kept";

/// A hold that the server has released is gone.
pub(crate) const RELEASE: &str = "a release ends the hold";

/// A client whose tenure has ended while others were waiting does not get the lock before them,
/// unless it has become free by itself in the meantime.
pub(crate) const TURNS: &str = "clients take turns";

/// Every waiting thread gets the lock, unless its client has stopped. No path of this model is
/// endless, because each step uses up something limited: waiting threads, faults, requests, and
/// occasions to ask again. So it is enough to check the states in which nothing more needs to
/// happen.
pub(crate) const SERVICE: &str = "each thread that waits is served";

pub(crate) fn all(scope: &Scope) -> Vec<Property<Scope>> {
    let mut all = vec![
        Property::always(EXCLUSION_BY_LEASE, |_, world: &World| {
            let is_live = |client: &&Client| client.has_live_guard() && !client.forced;
            world.clients.iter().filter(is_live).count() <= 1
        }),
        Property::always(EXCLUSION_BY_FENCE, |_, world: &World| !world.witness.fence_repeated),
        Property::always(RECALL, |_, world: &World| {
            let keeps = |client: &Client| matches!(client.phase, Phase::Kept { .. });
            !world.clients.iter().any(|client| keeps(client) && client.told)
        }),
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
    ];
    if scope.keeps > 0 {
        all.extend(of_kept_locks());
    }
    all
}

fn of_kept_locks() -> [Property<Scope>; 2] {
    [
        Property::sometimes("a kept lock gets more tokens", |_, world: &World| {
            let refills =
                |client: &Client| matches!(client.phase, Phase::Refilling { granted: Some(_) });
            world.clients.iter().any(refills)
        }),
        Property::sometimes("all are served, and the lock is kept", |_, world: &World| {
            let keeps = |client: &Client| matches!(client.phase, Phase::Kept { .. });
            world.is_served() && world.clients.iter().any(keeps)
        }),
    ]
}
