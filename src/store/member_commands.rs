//! The calls of the scripts for what several owners can hold: keys, arguments and reply of each in
//! one place.
//!
//! A read-write lock and a semaphore are the same in Redis: a sorted set of holds. They differ in
//! which holds can exist together, which `acquire_member.lua` and `serve.lua` decide.

use std::time::Duration;

use crate::net::request::{Arg, Request};
use crate::store::command::{Command, OFFER, millis};
use crate::store::decoder::{self, Decoder};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::Keys;
use crate::store::request::{Acquire, AcquireReply, HoldReply, Registration};
use crate::store::scripts::{ACQUIRE_MEMBER, COUNT_MEMBERS, RELEASE_MEMBER, RENEW_MEMBER};

/// Holds of a read-write lock or a semaphore begin.
pub(super) fn acquire(
    keys: &Keys,
    request: Acquire<'_>,
    fence_life: Arg<'static>,
    waiting_life: Duration,
    shard: Option<&str>,
) -> Command<AcquireReply> {
    let Acquire { holds, lease, registration, .. } = request;
    let HoldId { kind, name, client, .. } = &holds[0];
    let registration = match registration {
        Registration::IfMayBeKept | Registration::Kept | Registration::None => 0,
        Registration::IfHeld => 1,
        Registration::Followed
        | Registration::Last
        | Registration::Registered
        | Registration::Yielding => 2,
    };
    let members: Vec<_> = holds.iter().map(member).collect();
    let client = waiting_client(*kind, client);
    let args = [
        Arg::Text(&members[0]),
        millis(lease),
        fence_life,
        Arg::Text(&client),
        Arg::Number(registration),
        millis(waiting_life),
        millis(OFFER),
        permits(*kind),
        Arg::Text(shard.unwrap_or_default()),
    ];
    let others = members[1..].iter().map(|member| Arg::Text(member));
    let args: Vec<_> = args.into_iter().chain(others).collect();
    let lock = keys.lock(name);
    let all = [&*lock, &Keys::fence(&lock), &Keys::waiting(&lock)];
    let request = Request::call(&ACQUIRE_MEMBER, &all, &args);
    Command { request, decoder: decoder::ACQUIRE_MEMBER }
}

/// Renews a hold, or without a lease only looks for it.
pub(super) fn renew(keys: &Keys, hold: &HoldId, lease: Option<Duration>) -> Command<HoldReply> {
    let member = member(hold);
    let args: Vec<_> = [Arg::Text(&member)].into_iter().chain(lease.map(millis)).collect();
    let request = Request::call(&RENEW_MEMBER, &[&keys.lock(&hold.name)], &args);
    Command { request, decoder: decoder::HOLD_OR_GONE }
}

pub(super) fn release(keys: &Keys, hold: &HoldId, shard: Option<&str>) -> Command<HoldReply> {
    let member = member(hold);
    serving(keys, hold.kind, &hold.name, [&member, ""], shard, decoder::HOLD_OR_GONE)
}

pub(super) fn unregister(
    keys: &Keys,
    kind: HoldKind,
    name: &str,
    client: &str,
    shard: Option<&str>,
) -> Command<HoldReply> {
    let client = waiting_client(kind, client);
    serving(keys, kind, name, [&client, "queued"], shard, decoder::HOLD)
}

/// Counts the permits that are held.
pub(super) fn count(keys: &Keys, name: &str) -> Command<u32> {
    let request = Request::call(&COUNT_MEMBERS, &[&keys.lock(name)], &[]);
    Command { request, decoder: decoder::COUNT }
}

/// Calls the script that may free a place, and then offers it to a waiting client.
fn serving(
    keys: &Keys,
    kind: HoldKind,
    name: &str,
    [whose, queued]: [&str; 2],
    shard: Option<&str>,
    decoder: Decoder<HoldReply>,
) -> Command<HoldReply> {
    let shard = Arg::Text(shard.unwrap_or_default());
    let args = [Arg::Text(whose), millis(OFFER), permits(kind), Arg::Text(queued), shard];
    let lock = keys.lock(name);
    let keys = [&*lock, &Keys::waiting(&lock)];
    Command { request: Request::call(&RELEASE_MEMBER, &keys, &args), decoder }
}

/// A hold as it is written to Redis.
fn member(hold: &HoldId) -> String {
    format!("{}{}", prefix(hold.kind), hold.owner())
}

/// A client as it is written among the waiting clients.
fn waiting_client(kind: HoldKind, client: &str) -> String {
    format!("{}{client}", prefix(kind))
}

fn prefix(kind: HoldKind) -> &'static str {
    match kind {
        HoldKind::Lock => "",
        HoldKind::Permit { .. } => "p:",
        HoldKind::Read => "r:",
        HoldKind::Write => "w:",
    }
}

/// How many may hold at a time; zero for a read-write lock, where the sides decide that.
fn permits(kind: HoldKind) -> Arg<'static> {
    Arg::Number(match kind {
        HoldKind::Permit { of } => of.into(),
        HoldKind::Lock | HoldKind::Read | HoldKind::Write => 0,
    })
}
