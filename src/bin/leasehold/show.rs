//! `show`, `ls` and `unlock`: who holds a name, of whatever kind, who waits for it, and how to end
//! its holds.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{
    Client, Error, HeldAs, Holder, NameReport, ServerReplies, ServerReport, Survey, printable,
};
use serde_json::{Value, json};

use crate::args::{ServerArgs, Unlock};
use crate::output::{ExitError, in_seconds, print_either, say, table};
use crate::ping::{Info, NODE};

/// What the user should know after a hold was ended.
const LATE: &str = "a holder that listens is told at once, another learns it at its next renewal";

pub(crate) fn show(client: &Client, name: &str, json: bool) -> Result<u8, ExitError> {
    let report = client.survey().report(name)?;
    print_either(json, || to_json(name, &report), || to_text(name, &report))
}

fn to_text(name: &str, report: &NameReport) -> String {
    let mut lines = vec![("name", name.to_owned()), ("key", report.key.clone())];
    lines.push(("kind", kind_of(report).unwrap_or("free").into()));
    lines.extend(report.fence.map(|fence| ("fence", fence.to_string())));
    let holders = report.holds.iter();
    let holders = holders.map(|(held_as, holder)| describe(*held_as, holder, report.fence));
    lines.extend(holders.map(|holder| ("holder", holder)));
    lines.extend(report.waiting.iter().map(|client| ("waiting", client.clone())));
    table(lines.into_iter().map(|(name, value)| [name.to_owned(), value]).collect())
}

/// Lists the names that are held. In an outage it lists the ones it could find, and then fails.
pub(crate) fn list(
    client: &Client,
    server: &ServerArgs,
    start: &str,
    json: bool,
) -> Result<u8, ExitError> {
    let survey = client.survey();
    let servers = survey.servers().into_iter().flat_map(|replies| replies.each);
    let is_of_node = |report: ServerReport| Info::new(report.info.as_deref()).is_of_node();
    if !server.is_cluster() && servers.filter_map(|(_, report)| report.ok()).any(is_of_node) {
        say(&format!("warning: {NODE}"));
    }
    let (names, too_few) = found(survey.names(start)?);
    let reports = reports(&survey, names);
    let value = || reports.iter().map(|(name, report)| reply_to_json(name, report)).collect();
    let text = || table(reports.iter().map(|(name, report)| row(name, report)).collect());
    let code = print_either(json, value, text)?;
    let mut errors = reports.into_iter().filter_map(|(_, report)| report.err());
    code_unless(too_few.or_else(|| errors.next()), code)
}

/// Lists the names that may be held, without asking who holds them. Fails in an outage like `list`.
pub(crate) fn names(client: &Client, start: &str, json: bool) -> Result<u8, ExitError> {
    let (names, too_few) = found(client.survey().names(start)?);
    let text = || names.iter().map(|name| printable(name) + "\n").collect();
    let code = print_either(json, || json!(names), text)?;
    code_unless(too_few, code)
}

/// The names that servers have replied with, and the failure if too few of them have.
fn found(replies: ServerReplies<Vec<String>>) -> (BTreeSet<String>, Option<Error>) {
    let too_few = replies.too_few().cloned();
    let names = replies.each.into_iter().filter_map(|(_, names)| names.ok());
    (names.flatten().collect(), too_few)
}

/// The exit status `code`, unless there was a failure.
fn code_unless(failure: Option<Error>, code: u8) -> Result<u8, ExitError> {
    failure.map_or(Ok(code), |error| Err(error.into()))
}

/// Returns reports of the names that are not free. After the first failure, no server is asked
/// again.
fn reports(survey: &Survey, names: BTreeSet<String>) -> Vec<(String, Result<NameReport, Error>)> {
    let mut failure = None;
    let mut reports = Vec::new();
    for name in names {
        let report = failure.clone().map_or_else(|| survey.report(&name), Err);
        match &report {
            // Free by now, or another program's data.
            Ok(report) if report.holds.is_empty() => continue,
            Err(Error::WrongType { .. }) => continue,
            Ok(_) => {}
            Err(error) => failure = Some(error.clone()),
        }
        reports.push((name, report));
    }
    reports
}

/// The kind of lock that the name is; `None` if it is free.
fn kind_of(report: &NameReport) -> Option<&'static str> {
    report.holds.first().map(|(held_as, _)| kind(*held_as))
}

/// The kind of lock that is held.
fn kind(held_as: HeldAs) -> &'static str {
    match held_as {
        HeldAs::Lock => "lock",
        HeldAs::Permit => "semaphore",
        HeldAs::Reader | HeldAs::Writer => "read-write lock",
        _ => "lock of another library",
    }
}

/// The side of a read-write lock; `None` for other kinds.
fn side(held_as: HeldAs) -> Option<&'static str> {
    match held_as {
        HeldAs::Reader => Some("reader"),
        HeldAs::Writer => Some("writer"),
        _ => None,
    }
}

/// The client. `None` for another library, whose owner would suffice to release the lock.
fn client(held_as: HeldAs, holder: &Holder) -> Option<&str> {
    (held_as != HeldAs::Foreign).then_some(&*holder.client)
}

/// The time until the lease ends, if it does.
fn left(holder: &Holder) -> Option<Duration> {
    (holder.remaining < Duration::MAX).then_some(holder.remaining)
}

/// How long ago a token was given out: it is the server's clock at that time, in microseconds.
fn age(fence: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_micros(fence))
}

fn describe(held_as: HeldAs, holder: &Holder, fence: Option<u64>) -> String {
    let left = left(holder).map_or("no end".into(), |left| in_seconds(left) + " left");
    let mut parts = vec![client(held_as, holder).unwrap_or("unknown").to_owned(), left];
    parts.extend(side(held_as).map(str::to_owned));
    match holder.depth {
        // By `hold_at_least`.
        0 => parts.push("released, stays taken".into()),
        1 => {}
        depth => parts.push(format!("depth {depth}")),
    }
    if holder.may_be_kept {
        parts.push("may be kept".into());
        parts.extend(fence.map(|fence| format!("asked for {} ago", in_seconds(age(fence)))));
    }
    parts.join(", ")
}

fn row(name: &str, report: &Result<NameReport, Error>) -> [String; 4] {
    let Ok(report) = report else {
        return [name.into(), "unknown".into(), String::new(), String::new()];
    };
    let first = report.holds.first();
    let describe = |(held_as, holder): &_| describe(*held_as, holder, report.fence);
    let holder = first.map(describe).unwrap_or_default();
    let others = match report.holds.len() {
        0 | 1 => String::new(),
        holds => format!(" and {} more", holds - 1),
    };
    let waiting = match report.waiting.len() {
        0 => String::new(),
        waiting => format!("{waiting} waiting"),
    };
    [name.into(), kind_of(report).unwrap_or_default().into(), holder + &others, waiting]
}

fn reply_to_json(name: &str, report: &Result<NameReport, Error>) -> Value {
    match report {
        Ok(report) => to_json(name, report),
        Err(error) => json!({
            "name": name,
            "error": ExitError::from(error.clone()).message,
        }),
    }
}

fn to_json(name: &str, report: &NameReport) -> Value {
    let hold = |(held_as, holder): &(HeldAs, Holder)| {
        json!({
            "client": client(*held_as, holder),
            "label": client(*held_as, holder).map(|_| &holder.label),
            "side": side(*held_as),
            "depth": holder.depth,
            "may_be_kept": holder.may_be_kept,
            "remaining_ms": left(holder).map(|left| u64::try_from(left.as_millis()).ok()),
        })
    };
    json!({
        "name": name,
        "key": report.key,
        "kind": kind_of(report),
        "holds": report.holds.iter().map(hold).collect::<Vec<_>>(),
        "fence": report.fence,
        "waiting": report.waiting,
    })
}

/// Ends the holds that the command line names.
pub(crate) fn unlock(client: &Client, unlock: &Unlock, json: bool) -> Result<u8, ExitError> {
    let start = unlock.name.as_deref().unwrap_or_default();
    match (&unlock.client, &unlock.label) {
        (None, None) => end_name(client, start, json),
        (Some(id), _) => end_clients(client, start, id, |holder| holder.client == *id, json),
        (None, Some(label)) => {
            end_clients(client, start, label, |holder| holder.label == *label, json)
        }
    }
}

fn end_name(client: &Client, name: &str, json: bool) -> Result<u8, ExitError> {
    let ended = client.survey().end_holds(name)?;
    let shown = printable(name);
    let text = || match ended {
        0 => format!("{shown} is free\n"),
        1 => format!("ended 1 hold of {shown}; {LATE}\n"),
        _ => format!("ended {ended} holds of {shown}; {LATE}\n"),
    };
    print_either(json, || json!({ "name": name, "ended": ended }), text)
}

/// Ends the holds of the clients that are meant, of all names that begin with `start`. In an outage
/// it says which ones it has ended, and then fails.
fn end_clients(
    client: &Client,
    start: &str,
    whose: &str,
    is_meant: impl Fn(&Holder) -> bool,
    json: bool,
) -> Result<u8, ExitError> {
    let survey = client.survey();
    let (names, mut failure) = found(survey.names(start)?);
    let mut all = Vec::new();
    for name in names {
        // What another library wrote may look like a client.
        let is_meant = |held_as, holder: &Holder| held_as != HeldAs::Foreign && is_meant(holder);
        let mut ended = Vec::new();
        let outcome = survey.end_holds_if(&name, is_meant, &mut ended);
        all.extend(ended.into_iter().map(|(held_as, holder)| (name.clone(), held_as, holder)));
        match outcome {
            // Another program's data.
            Ok(()) | Err(Error::WrongType { .. }) => {}
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let text = || {
        let nothing = all.is_empty() && failure.is_none();
        if nothing { printable(whose) + " holds nothing\n" } else { describe_ends(&all) }
    };
    let code = print_either(json, || all.iter().map(end_to_json).collect(), text)?;
    code_unless(failure, code)
}

fn end_to_json((name, held_as, holder): &(String, HeldAs, Holder)) -> Value {
    json!({
        "name": name,
        "kind": kind(*held_as),
        "side": side(*held_as),
        "client": holder.client,
        "label": holder.label,
    })
}

/// One line per hold, and what the user should know.
fn describe_ends(ended: &[(String, HeldAs, Holder)]) -> String {
    let line = |(name, held_as, holder): &(String, HeldAs, Holder)| {
        let (name, client) = (printable(name), printable(&holder.client));
        let side = side(*held_as).map_or(String::new(), |side| format!(" ({side})"));
        format!("ended the hold of {kind} {name}{side} by {client}\n", kind = kind(*held_as))
    };
    let mut lines: String = ended.iter().map(line).collect();
    if !ended.is_empty() {
        lines.push_str(LATE);
        lines.push('\n');
    }
    lines
}
