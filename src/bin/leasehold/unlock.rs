//! `unlock`: ends the holds of a name, or of a client that is gone.

use std::collections::BTreeSet;

use leasehold::{Client, Error, HeldAs, Holder, printable};
use serde_json::json;

use crate::args::Unlock;
use crate::output::{ExitError, print, print_json};
use crate::show::{kind, side};

/// What the user should know about a hold that was ended.
const LATE: &str = "a holder that works on learns it at its next renewal";

/// Ends what the command line names.
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

/// Ends the holds that a name has.
fn end_name(client: &Client, name: &str, json: bool) -> Result<u8, ExitError> {
    let ended = client.survey().end_holds(name)?;
    if json {
        return print_json(&json!({ "name": name, "ended": ended }));
    }
    let name = printable(name);
    print(&match ended {
        0 => format!("{name} is free\n"),
        1 => format!("ended 1 hold of {name}; {LATE}\n"),
        _ => format!("ended {ended} holds of {name}; {LATE}\n"),
    })
}

/// A hold that was ended.
struct EndedHold {
    name: String,
    held_as: HeldAs,
    holder: Holder,
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
    let replies = survey.names(start)?;
    let mut failure = replies.too_few().cloned();
    let names = replies.each.into_iter().filter_map(|(_, names)| names.ok()).flatten();
    let mut all = Vec::new();
    for name in names.collect::<BTreeSet<_>>() {
        // What another library wrote may look like a client.
        let is_meant = |held_as, holder: &Holder| held_as != HeldAs::Foreign && is_meant(holder);
        let mut ended = Vec::new();
        let outcome = survey.end_holds_if(&name, is_meant, &mut ended);
        all.extend(ended.into_iter().map(|(held_as, holder)| {
            let name = name.clone();
            EndedHold { name, held_as, holder }
        }));
        match outcome {
            // Another program's data.
            Ok(()) | Err(Error::WrongType { .. }) => {}
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let code = if json {
        print_json(&all.iter().map(to_json).collect())
    } else if all.is_empty() && failure.is_none() {
        print(&format!("{} holds nothing\n", printable(whose)))
    } else {
        print(&describe(&all))
    }?;
    failure.map_or(Ok(code), |error| Err(error.into()))
}

fn to_json(EndedHold { name, held_as, holder }: &EndedHold) -> serde_json::Value {
    json!({
        "name": name,
        "kind": kind(*held_as),
        "side": side(*held_as),
        "client": holder.client,
        "label": holder.label,
    })
}

/// A line for each hold, and what to know about them.
fn describe(ended: &[EndedHold]) -> String {
    let line = |EndedHold { name, held_as, holder }: &EndedHold| {
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
