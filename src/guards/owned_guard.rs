//! A held lock that belongs to no thread, and the ticket that passes it to another process.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{LEASE_MAX, LEASE_MIN, check_note};
use crate::error::{Error, Result};
use crate::guards::watches::{Lost, Wanted};
use crate::guards::{GuardInner, any_guard};
use crate::local::adoption::{self, DetachedHold};
use crate::local::shared::Shared;
use crate::store::hold_id::{HoldId, HoldKind, is_client_id};
use crate::store::keys::check_name;

/// The start of every ticket. The version says how to read the rest.
const START: &str = "leasehold:1";

/// The greatest integer up to which a double represents every integer exactly.
const FENCE_MAX: u64 = (1 << 53) - 1;

/// A lock that belongs to no thread: any thread may keep, send or drop it. Dropping it releases the
/// lock. Created by [`Client::lock_owned`](crate::Client::lock_owned).
///
/// It is a hold of its own. A thread that has one and locks the same name again waits for itself.
/// [`lock_owned`](crate::Client::lock_owned) by a thread that holds the lock through a
/// [`Guard`](crate::Guard) waits for that guard, or is refused with
/// [`reentrant(false)`](crate::Builder::reentrant). Otherwise it is like a `Guard`: it is renewed
/// until it is dropped, even if the thread that acquired it has ended.
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock_owned("stock:42")?;
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// assert!(client.try_lock("stock:42")?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the lock is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct OwnedGuard {
    pub(super) inner: GuardInner,
}

impl OwnedGuard {
    #[track_caller]
    pub(crate) fn adopt(shared: &Arc<Shared>, ticket: &Ticket) -> Result<Self> {
        let hold = adoption::adopt(shared, ticket.hold_for(shared)?)?;
        Ok(Self { inner: GuardInner { shared: shared.clone(), holds: [hold], released: false } })
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the fencing token of this hold. It is greater than that of every earlier hold of
    /// this name. Nested guards share it.
    ///
    /// Send it with every write to the protected resource, and let the resource reject tokens
    /// smaller than the greatest it has seen. Then a holder that has lost the lock without noticing
    /// can do no harm
    /// (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>).
    ///
    /// Tokens grow even if the server has lost their counter, provided that its clock is not behind
    /// the last token. A token is the clock's microseconds or, if that is not greater than the last
    /// token, the next number; among threads that share a lock it is ahead of the clock by a
    /// millisecond at most. With independent servers, the clock is that of this system.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.inner.holds[0].fence()
    }

    /// Returns 1: this guard never nests.
    #[must_use]
    pub fn depth(&self) -> u32 {
        1
    }

    /// Returns `true` if the lease has not ended by this process's clock. Does not ask the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Returns how long the lease lasts unless it is renewed, less a margin of 1 % of the lease and
    /// 2 ms for clock drift. Zero if it is lost. Does not ask the server.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Returns a watch with which any thread can check whether the lease was lost, or wait for the
    /// hold to end.
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.inner.lost()
    }

    /// Returns a watch that reports when another client waits for the lock, so that a long job can
    /// end early or take a break. Waiting threads of this client do not count, nor do calls that do
    /// not wait, such as [`try_lock`](crate::Client::try_lock).
    ///
    /// The first call for a hold makes this client listen for messages, and blocks for the server's
    /// reply to a request that also finds a client that is already waiting. From then on a message
    /// arrives within a network latency. The next renewal makes up for a lost message, and for a
    /// failed request.
    ///
    /// No messages arrive for a hold that was [adopted](crate::Client::adopt): the watch learns of
    /// other clients from renewals, and each call of this method asks the server.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted::new(&self.inner.shared, &self.inner.holds[0])
    }

    /// Asks the server whether this hold still exists. Blocks for the server's reply.
    ///
    /// If the server has become a replica, and neither sentinels nor a cluster report it, it
    /// replies from its old data until a request of this client shows that it accepts no writes.
    /// While the lease is renewed, that takes a third of the lease at most.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the hold no longer exists.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; see [`Client::try_lock`](crate::Client::try_lock) for how long the
    ///   call retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): [`Client::shutdown`](crate::Client::shutdown) has ended
    ///   the hold, or the client was closed while this call paused after a failure.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn verify(&self) -> Result<()> {
        self.inner.verify(false)
    }

    /// Renews the lease now, also with `renew(false)`, but not beyond
    /// [`max_hold`](crate::Builder::max_hold). Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`verify`](Self::verify), and [`NotReplicated`](crate::Error::NotReplicated) if
    /// too few replicas or disks acknowledged it; then the lease is unchanged.
    pub fn renew(&self) -> Result<()> {
        self.inner.verify(true)
    }

    /// Releases what this guard holds, and reports errors. Unlike dropping the guard, this blocks
    /// for the server's reply. Does nothing after [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the lease was lost before, so the work may have overlapped
    ///   with that of another holder.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came. The release is retried in the background, and the lease is no longer
    ///   renewed. If the client is closed while this call pauses after a failure, the call ends at
    ///   once with this.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child, where guards do nothing.
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }

    /// Renews the lease once more, and leaves the hold to be adopted, by this process or another
    /// one, with [`Client::adopt`](crate::Client::adopt) before that lease ends. Blocks for the
    /// server's reply.
    ///
    /// For example, a web server acquires a lock and puts the ticket into a queue, and a worker
    /// releases the lock. In between, the lock is neither released nor renewed. If no guard adopts
    /// the hold, it ends with its lease. Neither dropping this client nor
    /// [`shutdown`](crate::Client::shutdown) ends it earlier. Choose a
    /// [`lease`](crate::Mutex::lease) longer than a ticket may take to arrive.
    ///
    /// For this client the hold is over: [`lost`](OwnedGuard::lost) and
    /// [`Event::Released`](crate::Event::Released) report a release.
    ///
    /// [`max_hold`](crate::Builder::max_hold) limits how long each guard has the lock. The lease
    /// that is left here also ends by then, and a guard that adopts the hold starts counting again.
    /// A lock with [`hold_at_least`](crate::Mutex::hold_at_least) stays taken for the rest of that
    /// time, counted from the adoption.
    ///
    /// # Errors
    ///
    /// The same as [`renew`](OwnedGuard::renew). On an error the lock is released, as by a drop.
    ///
    /// ```
    /// use leasehold::Ticket;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock_owned("order:7")?;
    /// let fence = guard.fence();
    /// let text = guard.detach()?.to_string(); // put it into a queue, with the order
    /// assert!(client.try_lock("order:7")?.is_none());
    ///
    /// let ticket: Ticket = text.parse()?; // in the worker
    /// let guard = client.adopt(&ticket)?; // renewed in the background from here on
    /// assert_eq!(guard.fence(), fence);
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn detach(mut self) -> Result<Ticket> {
        let GuardInner { shared, holds: [hold], .. } = &self.inner;
        let prefix = shared.config.prefix.as_str().into();
        let hold = adoption::detach(shared, hold)?;
        self.inner.released = true;
        Ok(Ticket { prefix, hold })
    }
}

any_guard!(OwnedGuard);

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
        let in_doubt = fields.next()? == "1";
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
        let hold = DetachedHold { id, fence, lease, taken_for, in_doubt, note };
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
        let DetachedHold { id, fence, lease, taken_for, in_doubt, note } = &self.hold;
        f.write_str(START)?;
        for text in [&self.prefix, &id.name, &id.client] {
            f.write_char(':')?;
            write_encoded(f, text)?;
        }
        let lease = lease.as_nanos();
        let taken_for = taken_for.as_nanos();
        write!(f, ":{:x}:{fence}:{lease}:{taken_for}:{}", id.nonce, u8::from(*in_doubt))?;
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
        let (fence, in_doubt, note) = (7, false, None);
        let hold = DetachedHold { id, fence, lease, taken_for, in_doubt, note };
        Ticket { prefix: prefix.into(), hold }
    }

    #[test]
    fn a_ticket_is_a_line_of_ascii_without_spaces_and_can_be_read_again() {
        for (prefix, name, label) in [
            ("lock:", "stock:42", ""),
            ("", "a b\tc\nd\u{7f}\0", "web 1:x:"),
            ("{app}", "🐉 % %41", "é:"),
        ] {
            for in_doubt in [false, true] {
                let mut ticket = ticket(prefix, name, label);
                ticket.hold.in_doubt = in_doubt;
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
