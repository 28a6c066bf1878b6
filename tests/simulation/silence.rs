//! How long waiting calls are silent, which reveals a client that is wrongly taken for a listening
//! one, or that gets no messages.

use std::time::{Duration, Instant};

use crate::base::sync::executor;
use crate::simulation::calls::{CallState, Patience};
use crate::simulation::judge::{LOOK, SLACK};
use crate::simulation::world::{World, time_of};
use crate::store::request::OFFER;

/// A call that knows when to ask again waits no longer than this.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// The longest pause after a failure.
const RETRY: Duration = Duration::from_millis(500);

/// How long a client may take to find out why it lost a hold. Calls behind it wait for as long.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Returns a call that has been silent for too long, if there is one. A call asks by the backoff
/// until an echo has reached its client since that began to listen.
pub(super) fn check(world: &mut World, now: Instant) -> Option<String> {
    note_asked(world, now);
    if world.network.is_quorum() {
        return None;
    }
    let on_the_way = SLACK + world.network.latency * 60;
    let slack = world.io_timeout * 3 + LOOK_UP + on_the_way;
    let free_for = world.backoff_max + OFFER * 2 + LOOK + on_the_way;
    for (number, call) in &world.calls {
        let CallState { client, name, begun, side, patience, .. } = *call;
        let (state, link) = (&world.clients[client - 1], &world.network.links[client - 1]);
        let text = &world.names[name].name;
        let is_over = state.closed.is_some() || state.is_dead;
        if side.is_set() || is_over || patience == Patience::None {
            continue;
        }
        let pause = if link.echoes.contains(text) { SILENCE } else { world.backoff_max };
        let asked = link.asked.get(text).copied().unwrap_or(begun);
        let since = begun.max(asked).max(link.unheard_since);
        if now > since + pause.max(RETRY) + slack {
            let since = time_of(since);
            return Some(format!("call {number} has not asked for {text:?} since {since}"));
        }
        let is_disturbed = now < state.disturbed + free_for;
        let waits = now > begun + free_for && !is_disturbed;
        if world.is_mild && !world.is_healed && waits && world.is_free_for(name, free_for) {
            return Some(format!(
                "call {number} waits, though {text:?} is free and others are notified"
            ));
        }
    }
    None
}

/// A client with a hold does not have to ask, and a stopped one cannot.
fn note_asked(world: &mut World, now: Instant) {
    let World { clients, guards, releasing, names, network, .. } = world;
    for process in 1..=clients.len() {
        let is_stopped = executor::paused_until(process).is_some();
        for (at, name) in names.iter().enumerate() {
            let mut guards = guards.iter().flatten();
            let has_guard = guards.any(|held| held.client == process && held.is_of(at));
            if is_stopped || has_guard || releasing.contains(&(process, at)) {
                network.links[process - 1].asked.insert(name.name.clone(), now);
            }
        }
    }
}
