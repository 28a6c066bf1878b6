//! What an operator sees of all clients' holds, and can do about them.
//!
//! Decides what is asked of which server, and whether enough have answered. Changes nothing in this
//! process.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Cmd, FromRedisValue, cmd};

use crate::error::{Error, Result};
use crate::local::shared::Shared;
use crate::local::status::{end_hold, holder_of, repeat, repeat_briefly};
use crate::net::connection::Connection;
use crate::net::request::Request;
use crate::net::transport::Transport;
use crate::report::{HeldAs, NameReport, ServerReplies, ServerReport};
use crate::store::hold::{HoldId, HoldKind};
use crate::store::request::{HoldReply, HolderReply, Release, ReportReply, ServerConnections};

/// Returns who holds a name, of whatever kind it is, and which clients wait for it.
pub(crate) fn report(shared: &Shared, name: &str) -> Result<NameReport> {
    let ReportReply { holds, fence, waiting } = ask_about(shared, name)?;
    let holds = holds.into_iter().map(|(held_as, holder)| (held_as, holder_of(holder))).collect();
    Ok(NameReport { holds, fence: (fence > 0).then_some(fence), waiting })
}

fn ask_about(shared: &Shared, name: &str) -> Result<ReportReply> {
    repeat(shared, "inspect", name, |deadline| shared.store.report(name, deadline))
}

/// Ends the holds that a name has when this looks, and no others. Returns how many these were.
pub(crate) fn end_holds(shared: &Shared, name: &str) -> Result<usize> {
    end_holds_of(shared, name, |_| true)
}

/// As `end_holds`, but only those of this client.
pub(crate) fn end_own_holds(shared: &Shared, name: &str) -> Result<usize> {
    let client = shared.identity.client().as_bytes();
    end_holds_of(shared, name, |owner| {
        owner.strip_prefix(client).is_some_and(|nonce| nonce.starts_with(b":"))
    })
}

fn end_holds_of(shared: &Shared, name: &str, is_meant: impl Fn(&[u8]) -> bool) -> Result<usize> {
    let holds = ask_about(shared, name)?.holds;
    // Clients that wait are offered no more places than were taken.
    let of = u32::try_from(holds.len()).unwrap_or(u32::MAX);
    let mut ended = 0;
    for (held_as, HolderReply { owner, .. }) in &holds {
        if !is_meant(owner) {
            continue;
        }
        let kind = match held_as {
            HeldAs::Foreign | HeldAs::Lock => HoldKind::Lock,
            HeldAs::Permit => HoldKind::Permit { of },
            HeldAs::Reader => HoldKind::Read,
            HeldAs::Writer => HoldKind::Write,
        };
        let has_ended = end_hold(shared, kind, name, |deadline| {
            if kind == HoldKind::Lock {
                return shared.store.force_release(name, owner, deadline);
            }
            let Some(hold) = hold_of(owner, kind, name) else { return Ok(false) };
            let release = Release::at_once(&hold, deadline);
            Ok(shared.store.release(release)? == HoldReply::Held)
        })?;
        ended += usize::from(has_ended);
    }
    Ok(ended)
}

/// The hold of an owner, as the client has it that holds it; `None` if no client of this library
/// does.
fn hold_of(owner: &[u8], kind: HoldKind, name: &str) -> Option<HoldId> {
    let (client, nonce) = str::from_utf8(owner).ok()?.rsplit_once(':')?;
    let nonce = u64::from_str_radix(nonce, 16).ok()?;
    Some(HoldId { kind, name: name.into(), client: client.into(), nonce })
}

/// Returns the names that begin with `start` and may be held, in order.
pub(crate) fn names(shared: &Shared, start: &str) -> Result<Vec<String>> {
    let pattern = format!("{}{}*", escaped(&shared.config.prefix), escaped(start));
    let replies = ask_servers(shared, |connection| scan(shared, connection, &pattern))?;
    if let Some(error) = replies.too_few {
        return Err(error);
    }
    let of_servers = replies.each.into_iter().filter_map(|(_, keys)| keys.ok());
    let keys: BTreeSet<Vec<u8>> = of_servers.flatten().collect();
    let names = keys.iter().filter_map(|key| {
        let name = str::from_utf8(key).ok()?.strip_prefix(&shared.config.prefix)?;
        // Neither a companion of a lock nor a key that no lock can have.
        shared.config.check_name(name).ok().map(|()| name.to_owned())
    });
    Ok(names.collect())
}

/// The part of a pattern that stands for nothing but itself.
fn escaped(text: &str) -> String {
    let is_special = |char| matches!(char, '*' | '?' | '[' | ']' | '\\');
    text.chars()
        .flat_map(|char| is_special(char).then_some('\\').into_iter().chain([char]))
        .collect()
}

/// Returns the keys that match a pattern, in no order and some perhaps twice.
fn scan(shared: &Shared, connection: &mut Connection, pattern: &str) -> Result<Vec<Vec<u8>>> {
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    loop {
        let request =
            cmd("SCAN").arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000).take();
        let (next, some): (String, Vec<Vec<u8>>) = ask(shared, connection, &request)?;
        keys.extend(some);
        if next == "0" {
            return Ok(keys);
        }
        cursor = next;
    }
}

/// Asks each server about itself.
pub(crate) fn servers(shared: &Shared) -> Result<ServerReplies<ServerReport>> {
    ask_servers(shared, |connection| {
        // Opens the connection.
        ask::<String>(shared, connection, &cmd("PING"))?;
        let (sent, here) = (Instant::now(), SystemTime::now());
        let (seconds, micros): (u64, u32) = ask(shared, connection, &cmd("TIME"))?;
        let round_trip = sent.elapsed();
        let there = Duration::new(seconds, micros.saturating_mul(1000)).as_secs_f64();
        let here = here.duration_since(UNIX_EPOCH).unwrap_or_default() + round_trip / 2;
        let info = match ask(shared, connection, &cmd("INFO")) {
            Ok(info) => Some(info),
            Err(Error::Redis { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(ServerReport { round_trip, clock_ahead: there - here.as_secs_f64(), info })
    })
}

/// Asks every server.
fn ask_servers<T>(
    shared: &Shared,
    mut ask: impl FnMut(&mut Connection) -> Result<T>,
) -> Result<ServerReplies<T>> {
    shared.identity.check_process()?;
    let ServerConnections { mut each, required } =
        repeat_briefly(shared, "ask the servers", "", |_| shared.store.connections())?;
    let reply_of = |connection: &mut Connection| {
        let reply = ask(connection);
        // Sentinels may have named the server only now.
        (connection.label().to_string(), reply)
    };
    let each: Vec<_> = each.iter_mut().map(reply_of).collect();
    let mut errors = each.iter().filter_map(|(_, reply)| reply.as_ref().err());
    let first = errors.next().cloned();
    let replied = each.len() - errors.count() - usize::from(first.is_some());
    Ok(ServerReplies { each, too_few: first.filter(|_| replied < required) })
}

/// Asks one server a question that is about no lock.
fn ask<T: FromRedisValue>(
    shared: &Shared,
    connection: &mut Connection,
    question: &Cmd,
) -> Result<T> {
    let request = Request::command(question);
    let reply = repeat_briefly(shared, "ask the server", "", |deadline| {
        connection.exchange(&request, deadline)
    })?;
    T::from_redis_value(reply)
        .map_err(|_| connection.invalid_reply().into_error("ask the server", ""))
}
