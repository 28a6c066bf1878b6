//! The ticket that passes a hold from one guard to another, perhaps in another process, and its
//! text.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{LEASE_MAX, LEASE_MIN, check_note};
use crate::error::{Error, Result};
use crate::local::adoption::DetachedHold;
use crate::local::shared::Shared;
use crate::store::hold_id::{HoldId, HoldKind, is_client_id};
use crate::store::keys::check_name;

/// The start of every ticket. The version says how to read the rest.
const START: &str = "leasehold:1";

/// The greatest integer up to which a double represents every integer exactly.
const FENCE_MAX: u64 = (1 << 53) - 1;

/// A hold that a guard has left to be adopted. Created by
/// [`OwnedGuard::detach`](crate::OwnedGuard::detach), for [`Client::adopt`](crate::Client::adopt).
///
/// Its text is one line of ASCII without spaces, for a queue, a header, a column or a command line.
/// This version of the library and all later ones can parse it.
///
/// Any program that has the ticket can renew and release the lock, so treat the text as a secret
/// where clients do not trust each other. `Debug` does not show it.
///
/// With the feature `serde` it is serialized as its text.
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use = "the lock stays held until its lease ends, unless the ticket is adopted"]
pub struct Ticket {
    /// The prefix of the client.
    pub(crate) prefix: Arc<str>,
    pub(crate) hold: DetachedHold,
}

impl Ticket {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hold.id.name
    }

    /// Returns the fencing token of the hold, which stays the same when it is adopted. See
    /// [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.hold.fence
    }

    /// Returns the hold, for a client with the same prefix.
    pub(crate) fn hold_for(&self, shared: &Shared) -> Result<&DetachedHold> {
        let is_ours = *self.prefix == *shared.config.prefix;
        Error::require(is_ours, "ticket", "must come from a client with the same prefix")?;
        Ok(&self.hold)
    }

    /// Parses the text of a ticket. Also accepts numbers and names that `Display` would write
    /// differently.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix(START)?.strip_prefix(':')?.split(':');
        let prefix = decoded(fields.next()?)?;
        let name = decoded(fields.next()?)?;
        let client = decoded(fields.next()?)?;
        let nonce = u64::from_str_radix(fields.next()?, 16).ok()?;
        let fence = fields.next()?.parse().ok()?;
        let lease = Duration::from_nanos(fields.next()?.parse().ok()?);
        let taken_for = Duration::from_nanos(fields.next()?.parse().ok()?);
        let may_begin = fields.next()? == "1";
        let note = match fields.next() {
            None => None,
            Some(note) => Some(decoded(note)?),
        };
        let is_valid = check_name(&prefix, &name).is_ok()
            && is_client_id(&client)
            && nonce > 0
            && (1..=FENCE_MAX).contains(&fence)
            && (LEASE_MIN..=LEASE_MAX).contains(&lease)
            && taken_for <= LEASE_MAX
            && note.as_deref().is_none_or(|note| check_note(note).is_ok());
        let id = HoldId { kind: HoldKind::Lock, name: name.into(), client: client.into(), nonce };
        let note: Option<Arc<str>> = note.map(Arc::from);
        if !is_valid || id.has_note() != note.is_some() {
            return None;
        }
        let hold = DetachedHold { id, fence, lease, taken_for, may_begin, note };
        Some(Self { prefix: prefix.into(), hold })
    }
}

/// Omits everything that would allow another client to release the lock.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DetachedHold { id, fence, lease, taken_for, may_begin, note } = &self.hold;
        f.write_str(START)?;
        for text in [&self.prefix, &id.name, &id.client] {
            f.write_char(':')?;
            write_encoded(f, text)?;
        }
        let lease = lease.as_nanos();
        let taken_for = taken_for.as_nanos();
        write!(f, ":{:x}:{fence}:{lease}:{taken_for}:{}", id.nonce, u8::from(*may_begin))?;
        let Some(note) = note else { return Ok(()) };
        f.write_char(':')?;
        write_encoded(f, note)
    }
}

impl FromStr for Ticket {
    type Err = Error;

    /// Parses a ticket.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](Error::InvalidInput) if this is not exactly the text of a ticket. The error
    /// does not repeat the text.
    fn from_str(text: &str) -> Result<Self> {
        // Each ticket has only one text.
        let ticket = Self::parse(text).filter(|ticket| ticket.to_string() == text);
        ticket.ok_or_else(|| {
            Error::invalid("ticket", "must be the text of a ticket of this version of leasehold")
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Ticket {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Ticket {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Percent-encodes a text: letters, digits and `-._~` stay, any other byte becomes `%` and two
/// digits.
fn write_encoded(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.bytes().try_for_each(|byte| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
            f.write_char(char::from(byte))
        }
        _ => write!(f, "%{byte:02X}"),
    })
}

fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(prefix: &str, name: &str, label: &str) -> Ticket {
        let id = HoldId {
            kind: HoldKind::Lock,
            name: name.into(),
            client: format!("{label}{}", "0a".repeat(16)).into(),
            nonce: 26,
        };
        let (lease, taken_for) = (Duration::from_secs(30), Duration::ZERO);
        let (fence, may_begin, note) = (7, false, None);
        let hold = DetachedHold { id, fence, lease, taken_for, may_begin, note };
        Ticket { prefix: prefix.into(), hold }
    }

    #[test]
    fn a_ticket_is_a_line_of_ascii_without_spaces_and_can_be_read_again() {
        for (prefix, name, label) in [
            ("lock:", "stock:42", ""),
            ("", "a b\tc\nd\u{7f}\0", "web 1:x:"),
            ("{app}", "🐉 % %41", "é:"),
        ] {
            for may_begin in [false, true] {
                let mut ticket = ticket(prefix, name, label);
                ticket.hold.may_begin = may_begin;
                ticket.hold.taken_for = Duration::from_nanos(1_500_000_001);
                let text = ticket.to_string();
                assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
                let read: Ticket = text.parse().expect("a ticket");
                assert!(read == ticket, "{text}");
                assert_eq!((read.name(), read.fence()), (name, 7));
            }
        }
    }

    #[test]
    fn a_ticket_carries_the_note_of_its_hold() {
        let mut ticket = ticket("lock:", "stock:42", "");
        ticket.hold.id = ticket.hold.id.that_has_a_note();
        assert!(ticket.to_string().parse::<Ticket>().is_err(), "its id shows a note");
        ticket.hold.note = Some("deploy: 4711, ü".into());
        let text = ticket.to_string();
        let read: Ticket = text.parse().expect("a ticket");
        assert!(read == ticket && text.is_ascii() && !text.contains(' '), "{text}");
        let long = "%61".repeat(257);
        assert!(text.replace("deploy", &long).parse::<Ticket>().is_err());
    }

    #[test]
    fn the_first_version_is_read_forever() {
        let owner = "web%3A0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a:1a";
        let text = format!("leasehold:1:lock%3A:a:{owner}:7:30000000000:0:0");
        assert!(text.parse::<Ticket>().expect("a ticket") == ticket("lock:", "a", "web:"));
    }

    #[test]
    fn invalid_tickets_are_refused_and_not_repeated() {
        let good = ticket("lock:", "a", "").to_string();
        let id = "0a".repeat(16);
        let refuse = |text: &str| {
            let error = text.parse::<Ticket>().expect_err(text);
            assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
            assert!(!error.to_string().contains("0a0a"), "{error}");
        };
        for end in 0..good.len() {
            refuse(&good[..end]);
        }
        for (part, other) in [
            ("leasehold:1", "leasehold:2"),
            ("leasehold:1", "Leasehold:1"),
            ("%3A", ":"),
            ("%3A", "%3a"),
            ("%3A", "%FF"),
            ("%3A", "%3"),
            ("%3A", "%+1"),
            (":a:", "::"),
            (":a:", ":%61:"),
            (":a:", ":é:"),
            (":a:", ":a :"),
            (":1a:", ":01a:"),
            (":1a:", ":1A:"),
            (":1a:", ":0:"),
            (":1a:", ":+1a:"),
            (":1a:", ":1ffffffffffffffff:"),
            (":7:", ":0:"),
            (":7:", ":9007199254740992:"),
            (":30000000000:", ":1:"),
            (":30000000000:", ":30s:"),
            (":0:0", ":0:2"),
            (":0:0", ":0:0:0"),
            (":0:0", ":0:0\n"),
            (&id, ""),
            (&id, &id[1..]),
            (&id, &"0A".repeat(16)),
            (&id, &format!("web{id}")),
            (&id, &format!("%7B%3A{id}")),
        ] {
            assert!(good.contains(part), "{part}");
            refuse(&good.replacen(part, other, 1));
        }
        for text in ["", " ", "stock:42", "leasehold:1", &"%".repeat(9), &format!(" {good}")] {
            refuse(text);
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_ticket_is_serialized_as_its_text() {
        let ticket = ticket("lock:", "a", "");
        let json = serde_json::to_string(&ticket).expect("a text");
        assert_eq!(json, format!("\"{ticket}\""));
        assert!(serde_json::from_str::<Ticket>(&json).expect("a ticket") == ticket);
        let error = serde_json::from_str::<Ticket>(&json.replace(":7:", ":x:")).expect_err("no");
        assert!(!error.to_string().contains("0a0a"), "{error}");
    }

    #[test]
    fn debug_shows_no_owner() {
        let shown = format!("{:?}", ticket("lock:", "a", "web:"));
        assert_eq!(shown, "Ticket { name: \"a\", fence: 7, .. }");
    }
}
