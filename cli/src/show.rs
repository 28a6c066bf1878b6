//! `show`, `ls` and `unlock`: shows the holders of a name, of whatever kind, and the waiting
//! clients; ends the holds of a name.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Client, Error, HeldAs, Holder, NameReport, ServerReplies, Survey, WaitingCircle};
use serde_json::{Value, json};

use crate::args::{ServerArgs, Unlock};
use crate::output::{ExitError, USAGE, in_seconds, print_either, printable, say, table};
use crate::ping::{Info, NODE};

/// A hint for the user after a hold was ended.
const LATE: &str = "a holder that listens learns it at once, another at its next renewal";

pub(crate) fn show(client: &Client, name: &str, json: bool) -> Result<i32, ExitError> {
    let survey = client.survey();
    let report = survey.report(name)?;
    let circles = circles(&survey, &report);
    print_either(
        json,
        || {
            let mut value = to_json(name, &report);
            value["circles"] = circles.iter().map(circle_to_json).collect();
            value
        },
        || to_text(name, &report, &circles),
    )
}

/// Returns the circles of waiting clients that the name is in. Without a waiting client it is in
/// none, and no key is scanned.
fn circles(survey: &Survey, report: &NameReport) -> Vec<WaitingCircle> {
    if report.waiting.is_empty() || report.holds.is_empty() {
        return Vec::new();
    }
    let found = survey.circles().unwrap_or_else(|error| {
        say(&format!("did not look for circles of waiting clients: {error}"));
        Vec::new()
    });
    found.into_iter().filter(|circle| circle.names.contains(&report.name)).collect()
}

fn circle_to_json(circle: &WaitingCircle) -> Value {
    json!({ "clients": circle.clients, "names": circle.names })
}

/// Says which client waits for which.
fn describe_circle(circle: &WaitingCircle) -> String {
    let holders = circle.clients.iter().cycle().skip(1);
    let waits = circle.names.iter().zip(holders);
    let waits = waits.map(|(name, holder)| format!("waits for {name:?}, held by {holder}"));
    let waits = waits.collect::<Vec<_>>().join(", which ");
    format!("{} {waits}: perhaps a deadlock", circle.clients[0])
}

fn to_text(name: &str, report: &NameReport, circles: &[WaitingCircle]) -> String {
    let mut lines = vec![("name", name.to_owned()), ("key", report.key.clone())];
    lines.push(("kind", kind_of(report).unwrap_or("free").into()));
    lines.extend(report.fence.map(|fence| ("fence", fence.to_string())));
    let holders = report.holds.iter();
    let holders = holders.map(|(held_as, holder)| describe(*held_as, holder, report.fence));
    lines.extend(holders.map(|holder| ("holder", holder)));
    lines.extend(report.waiting.iter().map(|client| ("waiting", client.clone())));
    lines.extend(circles.iter().map(|circle| ("circle", describe_circle(circle))));
    table(lines.into_iter().map(|(name, value)| [name.to_owned(), value]).collect())
}

/// Lists the names that are held, optionally without their holders. In an outage it lists the names
/// that it could find, and then fails.
pub(crate) fn list(
    client: &Client,
    server: &ServerArgs,
    start: &str,
    names_only: bool,
    json: bool,
) -> Result<i32, ExitError> {
    let survey = client.survey();
    let (names, too_few) = found(survey.names(start)?);
    // Servers that are away would be waited for again.
    if too_few.is_none() && !server.is_cluster() && has_node(&survey) {
        say(&format!("warning: {NODE}"));
    }
    let reports = reports(&survey, names);
    let code = if names_only {
        print_either(
            json,
            || reports.iter().map(|(name, _)| name.clone()).collect(),
            || reports.iter().map(|(name, _)| printable(name) + "\n").collect(),
        )?
    } else {
        print_either(
            json,
            || reports.iter().map(|(name, report)| reply_to_json(name, report)).collect(),
            || table(reports.iter().map(|(name, report)| row(name, report)).collect()),
        )?
    };
    if reports.is_empty() && start.is_empty() && !json {
        explain_prefix(server)?;
    }
    let mut errors = reports.into_iter().filter_map(|(_, report)| report.err());
    code_unless(too_few.or_else(|| errors.next()), code)
}

/// Returns `true` if one of the servers says that it is a node of a cluster.
fn has_node(survey: &Survey) -> bool {
    let Ok(replies) = survey.servers() else { return false };
    let mut reports = replies.each.into_iter().filter_map(|(_, report)| report.ok());
    reports.any(|report| Info::new(report.info.as_deref()).is_of_node())
}

/// Explains how to list names by their beginning if `--prefix`, the prefix of keys, was probably
/// taken for that, because there are such names with the usual prefix.
fn explain_prefix(server: &ServerArgs) -> Result<(), ExitError> {
    let Some((start, server)) = server.without_prefix() else { return Ok(()) };
    let survey = server.open()?.survey();
    let (names, _) = found(survey.names(&start)?);
    if reports(&survey, names).iter().any(|(_, report)| report.is_ok()) {
        say(&format!(
            "no key of a lock begins with {start:?}; `leasehold ls {start}` lists the names that do"
        ));
    }
    Ok(())
}

/// Returns the names that servers have replied with, and the failure if too few have replied.
fn found(replies: ServerReplies<Vec<String>>) -> (BTreeSet<String>, Option<Error>) {
    let too_few = replies.too_few().cloned();
    let names = replies.each.into_iter().filter_map(|(_, names)| names.ok());
    (names.flatten().collect(), too_few)
}

/// Returns the exit status `code`, unless there was a failure.
fn code_unless(failure: Option<Error>, code: i32) -> Result<i32, ExitError> {
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
            // It is free by now, or another program's data.
            Ok(report) if report.holds.is_empty() => continue,
            Err(Error::WrongType { .. }) => continue,
            Ok(_) => {}
            Err(error) => failure = Some(error.clone()),
        }
        reports.push((name, report));
    }
    reports
}

/// Returns the kind of lock that is held under the name; `None` if the name is free.
fn kind_of(report: &NameReport) -> Option<&'static str> {
    report.holds.first().map(|(held_as, _)| kind(*held_as))
}

/// Returns the kind of lock that is held.
fn kind(held_as: HeldAs) -> &'static str {
    match held_as {
        HeldAs::Lock => "lock",
        HeldAs::Permit => "semaphore",
        HeldAs::Reader | HeldAs::Writer => "read-write lock",
        _ => "lock of another library",
    }
}

/// Returns the side of a read-write lock; `None` for other kinds.
fn side(held_as: HeldAs) -> Option<&'static str> {
    match held_as {
        HeldAs::Reader => Some("reader"),
        HeldAs::Writer => Some("writer"),
        _ => None,
    }
}

/// Returns the client. `None` for another library, whose owner would suffice to release the lock.
fn client(held_as: HeldAs, holder: &Holder) -> Option<&str> {
    if held_as == HeldAs::Foreign { None } else { Some(&holder.client) }
}

/// Returns the time until the lease ends, if it does.
fn left(holder: &Holder) -> Option<Duration> {
    if holder.remaining == Duration::MAX { None } else { Some(holder.remaining) }
}

/// Returns how long ago a token was issued: it is the server's clock at that time, in microseconds.
fn age(fence: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_micros(fence))
}

/// Returns when a hold began, in microseconds of the server's clock; `None` if unknown. The token
/// of a lock or a writer is nearly that time. A lock that may be kept has had other holds since.
pub(crate) fn begun(held_as: HeldAs, holder: &Holder, fence: Option<u64>) -> Option<u64> {
    let has_token = matches!(held_as, HeldAs::Lock | HeldAs::Writer);
    if has_token && !holder.may_be_kept { fence } else { None }
}

/// Formats a time of a server's clock in UTC, according to RFC 3339.
pub(crate) fn in_utc(micros: u64) -> String {
    let days = micros / 1_000_000 / 86_400;
    let second = micros / 1_000_000 % 86_400;
    // Counts from 0000-03-01, so that a leap day is the last of its year, in eras of 400 years.
    let era = (days + 719_468) / 146_097;
    let day = (days + 719_468) % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let hour = second / 3600;
    let minute = second / 60 % 60;
    let second = second % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn describe(held_as: HeldAs, holder: &Holder, fence: Option<u64>) -> String {
    let left = left(holder).map_or("no end".into(), |left| in_seconds(left) + " left");
    let mut parts = vec![client(held_as, holder).unwrap_or("unknown").to_owned(), left];
    parts.extend(side(held_as).map(str::to_owned));
    let begun = begun(held_as, holder, fence);
    parts.extend(begun.map(|at| format!("since {} ({} ago)", in_utc(at), in_seconds(age(at)))));
    match holder.depth {
        // Because of `hold_at_least`.
        0 => parts.push("released, stays taken until then".into()),
        1 => {}
        depth => parts.push(format!("depth {depth}")),
    }
    if holder.detached {
        parts.push("a ticket, not renewed unless adopted".into());
    } else if held_as != HeldAs::Foreign && holder.depth > 0 && !holder.may_be_kept {
        parts.push(if holder.renewed { "renewed" } else { "not renewed" }.into());
    }
    if holder.may_be_kept {
        parts.push("may be kept".into());
        parts.extend(fence.map(|fence| format!("asked for {} ago", in_seconds(age(fence)))));
    }
    parts.extend(holder.note.as_ref().map(|note| format!("note: {note}")));
    parts.join(", ")
}

fn row(name: &str, report: &Result<NameReport, Error>) -> [String; 4] {
    let Ok(report) = report else {
        return [name.into(), "unknown".into(), String::new(), String::new()];
    };
    let first = report.holds.first();
    let holder = first.map(|(held_as, holder)| describe(*held_as, holder, report.fence));
    let holder = holder.unwrap_or_default();
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
    let holds = report.holds.iter().map(|(held_as, holder)| {
        let since = begun(*held_as, holder, report.fence).map(in_utc);
        json!({
            "since": since,
            "client": client(*held_as, holder),
            "label": client(*held_as, holder).map(|_| &holder.label),
            "side": side(*held_as),
            "depth": holder.depth,
            "note": holder.note,
            "renewed": client(*held_as, holder).map(|_| holder.renewed),
            "ticket": holder.detached,
            "may_be_kept": holder.may_be_kept,
            "remaining_ms": left(holder).map(|left| u64::try_from(left.as_millis()).ok()),
        })
    });
    json!({
        "name": name,
        "key": report.key,
        "kind": kind_of(report),
        "holds": holds.collect::<Vec<_>>(),
        "fence": report.fence,
        "waiting": report.waiting,
    })
}

/// A hold, and the report that shows it.
type Shown<'a> = (&'a NameReport, &'a (HeldAs, Holder));

/// Ends or lists the holds that the command line describes. In an outage it reports those that it
/// has ended, and then fails.
pub(crate) fn unlock(client: &Client, unlock: &Unlock, json: bool) -> Result<i32, ExitError> {
    let survey = client.survey();
    if let Some(name) = unlock.whole_name() {
        return end_name(&survey, name, json);
    }
    let (reports, mut failure) = reports_for(&survey, unlock)?;
    let holds = reports.iter().flat_map(|report| report.holds.iter().map(move |it| (report, it)));
    let mut holds: Vec<Shown<'_>> = holds.filter(|hold| is_meant(unlock, *hold)).collect();
    let clients: BTreeSet<_> = holds.iter().map(|(_, (_, holder))| &*holder.client).collect();
    let clients = clients.len();
    let is_refused = clients > 1 && !unlock.all && !unlock.dry_run;
    let refused = if is_refused { unlock.label.as_ref() } else { None };
    let done = if refused.is_some() {
        "did not end"
    } else if unlock.dry_run {
        "would end"
    } else {
        failure = end(&survey, &mut holds).or(failure);
        "ended"
    };
    let is_nothing = holds.is_empty() && failure.is_none();
    let code = print_either(
        json,
        || holds.iter().map(hold_to_json).collect(),
        || {
            if is_nothing {
                describe_nothing(unlock, &reports)
            } else {
                describe_holds(done, &holds)
            }
        },
    )?;
    if let Some(label) = refused {
        let why = format!(
            "{clients} clients have the label {label:?}: name one with --client, \
             or end the holds of all with --all"
        );
        return Err(ExitError::new(USAGE, why));
    }
    code_unless(failure, code)
}

fn end_name(survey: &Survey, name: &str, json: bool) -> Result<i32, ExitError> {
    let ended = survey.end_holds(name)?;
    let shown = printable(name);
    print_either(
        json,
        || json!({ "name": name, "ended": ended }),
        || match ended {
            0 => format!("{shown} is free\n"),
            1 => format!("ended 1 hold of {shown}; {LATE}\n"),
            _ => format!("ended {ended} holds of {shown}; {LATE}\n"),
        },
    )
}

/// Returns reports of the names whose holds may be selected, and the failure if some are unknown.
fn reports_for(
    survey: &Survey,
    unlock: &Unlock,
) -> Result<(Vec<NameReport>, Option<Error>), ExitError> {
    if let Some(name) = &unlock.name {
        return Ok((vec![survey.report(name)?], None));
    }
    let start = unlock.starting.as_deref().unwrap_or_default();
    let (names, mut failure) = found(survey.names(start)?);
    let mut known = Vec::new();
    for (_, report) in reports(survey, names) {
        match report {
            Ok(report) => known.push(report),
            Err(error) => failure = Some(error),
        }
    }
    Ok((known, failure))
}

fn is_meant(unlock: &Unlock, (report, (held_as, holder)): Shown<'_>) -> bool {
    // Each lock and each writer has a new token, and the report has the last one of the name.
    let has_token = matches!(held_as, HeldAs::Lock | HeldAs::Writer);
    // An owner that another library wrote may look like a client.
    let is_ours = *held_as != HeldAs::Foreign;
    unlock.fence.is_none_or(|fence| has_token && report.fence == Some(fence))
        && unlock.client.as_ref().is_none_or(|id| is_ours && holder.client == *id)
        && unlock.label.as_ref().is_none_or(|label| is_ours && holder.label == *label)
}

/// Ends holds, and leaves in the list those that were ended. Returns the failure at which it
/// stopped.
fn end(survey: &Survey, holds: &mut Vec<Shown<'_>>) -> Option<Error> {
    let mut failure = None;
    holds.retain(|(report, hold)| {
        failure.is_none()
            && survey.end_hold(report, hold).unwrap_or_else(|error| {
                failure = Some(error);
                false
            })
    });
    failure
}

fn hold_to_json((report, (held_as, holder)): &Shown<'_>) -> Value {
    json!({
        "name": report.name,
        "kind": kind(*held_as),
        "side": side(*held_as),
        "client": client(*held_as, holder),
        "label": client(*held_as, holder).map(|_| &holder.label),
    })
}

/// One line per hold, and a hint for the user.
fn describe_holds(done: &str, holds: &[Shown<'_>]) -> String {
    let mut lines = String::new();
    for (report, (held_as, holder)) in holds {
        let client = printable(client(*held_as, holder).unwrap_or("another library"));
        let name = printable(&report.name);
        let side = side(*held_as).map_or(String::new(), |side| format!(" ({side})"));
        let kind = kind(*held_as);
        writeln!(lines, "{done} the hold of {kind} {name}{side} by {client}")
            .expect("a string takes everything");
    }
    if done == "ended" && !holds.is_empty() {
        lines.push_str(LATE);
        lines.push('\n');
    }
    lines
}

/// Why no hold matches.
fn describe_nothing(unlock: &Unlock, reports: &[NameReport]) -> String {
    let whose = unlock.client.as_ref().or(unlock.label.as_ref());
    match (&unlock.name, whose) {
        (Some(name), Some(whose)) => {
            format!("{} does not hold {}\n", printable(whose), printable(name))
        }
        (None, Some(whose)) => printable(whose) + " holds nothing\n",
        (name, None) => {
            let name = printable(name.as_deref().unwrap_or_default());
            let report = reports.first().filter(|report| !report.holds.is_empty());
            match (report, unlock.fence) {
                (Some(NameReport { fence: Some(last), .. }), Some(fence)) => {
                    format!("{name} has no hold with fence {fence}: its last fence is {last}\n")
                }
                (Some(_), Some(fence)) => format!("{name} has no hold with fence {fence}\n"),
                _ => format!("{name} is free\n"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (1_795_343_404, "2026-11-22T10:30:04Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(in_utc(seconds * 1_000_000 + 999_999), text);
        }
    }
}
