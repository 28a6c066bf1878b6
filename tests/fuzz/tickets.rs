//! The text of tickets, which come from queues, columns and command lines.

use std::time::Duration;

use super::*;
use crate::client::Client;
use crate::config::LEASE_MAX;
use crate::error::Error;
use crate::local::adoption::DetachedHold;
use crate::store::hold_id::is_client_id;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::check_name;
use crate::ticket::Ticket;

const TICKETS: &[&[u8]] = &[
    b"leasehold:1:lock%3A:stock%3A42:0a0a0a0a0a0a0a0a0a0a0a0a5ec2e7ff:1a:7:30000000000:0:0",
    b"leasehold:1::a:web%201%3A0a0a0a0a0a0a0a0a0a0a0a0a5ec2e7ff:ffffffffffffffff:1:10000000:9:1",
    b"leasehold:1:%7Bapp%7D:%F0%9F%90%89%20%25:\
        0a0a0a0a0a0a0a0a0a0a0a0a5ec2e7ff:1:2:60000000000:0:0",
];

const TICKET_PIECES: &[&str] = &[
    ":",
    "%",
    "%00",
    "%FF",
    "%3a",
    "%7D",
    "%2",
    "+",
    "-",
    "0",
    "18446744073709551616",
    "9007199254740992",
    "leasehold:1:",
    "\u{1f409}",
    "\n",
    " ",
];

#[cfg(feature = "serde")]
const FILES: &[&[u8]] = &[
    br#""leasehold:1:lock%3A:a:0a0a0a0a0a0a0a0a0a0a0a0a5ec2e7ff:1a:7:30000000000:0:0""#,
    br#""leasehold:1:lock%3A:\u0061:0a0a0a0a0a0a0a0a0a0a0a0a5ec2e7ff:1a:7:30000000000:0:1""#,
];

#[cfg(feature = "serde")]
const FILE_PIECES: &[&str] =
    &["\"", "\\", "\\u0000", "\\ud800", "null", "[", "{", "1", ":", "%", "\\n"];

/// The part of a ticket that a reader needs to release its lock.
const SECRET: &str = "5ec2e7ff";

fn is_in_order(ticket: &Ticket) -> bool {
    let DetachedHold { id, fence, lease, taken_for, .. } = &ticket.hold;
    check_name(&ticket.prefix, &id.name).is_ok()
        && is_client_id(&id.client)
        && id.nonce > 0
        && *fence > 0
        && !lease.is_zero()
        && (*lease).max(*taken_for) <= LEASE_MAX
        && !format!("{ticket:?}").contains(SECRET)
}

prop_compose! {
    /// The parts of a ticket, not all of which make a valid one.
    fn parts()(
        prefix in prop_oneof![Just(String::new()), Just("lock:".into()), any::<String>()],
        name: String,
        label: String,
        nonce: u64,
        fence: u64,
        (lease, taken_for) in (any::<Duration>(), any::<Duration>()),
        may_begin: bool,
        note: String,
    ) -> Ticket {
        let random = "0a".repeat(16);
        let client = if label.is_empty() { random } else { format!("{label}:{random}") };
        let (name, client) = (name.into(), client.into());
        let id = HoldId { kind: HoldKind::Lock, name, client, nonce };
        // Most of the possible durations are longer than any lease.
        let (lease, taken_for) = (lease / (1 << 31), taken_for / (1 << 31));
        let (note, fence) = (id.has_note().then(|| note.into()), fence >> 10);
        let hold = DetachedHold { id, fence, lease, taken_for, may_begin, note };
        Ticket { prefix: prefix.into(), hold }
    }
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn a_ticket_prints_as_its_text_or_is_refused_in_one_line_without_showing_it(
        text in edited_text(TICKETS, TICKET_PIECES)
    ) {
        match text.parse::<Ticket>() {
            Ok(ticket) => {
                prop_assert_eq!(ticket.to_string(), text);
                prop_assert!(is_in_order(&ticket), "{:?}", ticket);
            }
            Err(error) => {
                let shown = error.to_string();
                prop_assert!(matches!(error, Error::InvalidInput(_)), "{}", shown);
                prop_assert!(!shown.contains(SECRET) && !shown.contains('\n'), "{}", shown);
            }
        }
    }

    #[test]
    fn a_ticket_takes_memory_only_for_its_text(text in edited_text(TICKETS, TICKET_PIECES)) {
        let used = allocation_counter::measure(|| drop(text.parse::<Ticket>()));
        let most = 512 + 8 * text.len() as u64;
        prop_assert!(used.bytes_max <= most, "{} for {}", used.bytes_max, text.len());
    }

    #[test]
    fn the_ticket_of_every_possible_hold_is_read_as_it_was_written(ticket in parts()) {
        let text = ticket.to_string();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{}", text);
        match text.parse::<Ticket>() {
            Ok(read) => prop_assert!(read == ticket, "{}", text),
            Err(_) => prop_assert!(!is_in_order(&ticket) || ticket.hold.lease.as_millis() < 10
                || ticket.fence() >= 1 << 53, "{}", text),
        }
    }

    #[test]
    fn a_forged_ticket_belongs_to_no_hold(text in edited_text(TICKETS, TICKET_PIECES)) {
        let Ok(ticket) = text.parse::<Ticket>() else { return Ok(()) };
        let client = Client::builder().prefix(&ticket.prefix).in_memory();
        let Ok(client) = client else { return Ok(()) };
        match client.adopt(&ticket) {
            Err(Error::Lost { name, .. }) => prop_assert_eq!(&*name, ticket.name()),
            // The lease is too short for a request.
            Err(Error::InvalidInput(_)) => prop_assert!(ticket.hold.lease < Duration::from_secs(1)),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[cfg(feature = "serde")]
proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn a_deserialized_ticket_is_that_of_its_text_or_refused_without_showing_it(
        file in edited(FILES, FILE_PIECES)
    ) {
        let text = serde_json::from_slice::<String>(&file).ok();
        match serde_json::from_slice::<Ticket>(&file) {
            Ok(ticket) => prop_assert_eq!(Some(ticket.to_string()), text),
            Err(error) => {
                let is_right = text.is_none_or(|text| text.parse::<Ticket>().is_err());
                prop_assert!(is_right, "{}", error);
                prop_assert!(!error.to_string().contains(SECRET), "{}", error);
            }
        }
    }
}
