//! Identities of holds and of clients.

use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::base::fnv;
use crate::config::check_label;
use crate::error::{Error, Result};

/// The kind of a hold in a [`NameReport`](crate::NameReport).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeldAs {
    /// A lock of another library: a string with a TTL, as `SET NX PX` makes it.
    Foreign,
    /// A lock.
    Lock,
    /// A permit of a semaphore.
    Permit,
    /// The side of a read-write lock that readers share.
    Reader,
    /// The side of a read-write lock that one writer has.
    Writer,
}

/// A kind of lock, and the side of it that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldKind {
    /// A lock, which one owner can hold.
    Lock,
    /// One of the permits of a semaphore.
    Permit { of: u32 },
    /// A read-write lock, along with other readers.
    Read,
    /// A read-write lock, alone.
    Write,
}

/// The properties of a kind of hold.
pub(crate) struct KindRow {
    /// How such holds are reported.
    pub(crate) held_as: HeldAs,
    /// The data type of a name in Redis. A name has one at a time.
    pub(crate) form: &'static str,
    /// Prefix of owners and waiting clients in Redis.
    pub(crate) prefix: &'static str,
    /// Whether a client can have several holds of a name at the same time.
    pub(crate) is_several: bool,
    /// Whether several calls can use a hold at the same time.
    pub(crate) is_shared: bool,
    /// Whether a hold has a fencing token.
    pub(crate) has_fence: bool,
}

impl HoldKind {
    pub(crate) fn row(self) -> KindRow {
        match self {
            Self::Lock => KindRow {
                held_as: HeldAs::Lock,
                form: "a lock",
                prefix: "",
                is_several: false,
                is_shared: false,
                has_fence: true,
            },
            Self::Permit { .. } => KindRow {
                held_as: HeldAs::Permit,
                form: "a semaphore",
                prefix: "p:",
                is_several: true,
                is_shared: false,
                has_fence: false,
            },
            Self::Read => KindRow {
                held_as: HeldAs::Reader,
                form: "a read-write lock",
                prefix: "r:",
                is_several: false,
                is_shared: true,
                has_fence: true,
            },
            Self::Write => KindRow {
                held_as: HeldAs::Writer,
                form: "a read-write lock",
                prefix: "w:",
                is_several: false,
                is_shared: false,
                has_fence: true,
            },
        }
    }

    /// Returns the noun for a name of this kind.
    pub(crate) fn noun(self) -> &'static str {
        let form = self.row().form;
        form.strip_prefix("a ").unwrap_or(form)
    }

    /// Returns the kind that is reported as `held_as`; a semaphore has `permits`.
    pub(crate) fn reported_as(held_as: HeldAs, permits: u32) -> Self {
        match held_as {
            HeldAs::Foreign | HeldAs::Lock => Self::Lock,
            HeldAs::Permit => Self::Permit { of: permits },
            HeldAs::Reader => Self::Read,
            HeldAs::Writer => Self::Write,
        }
    }

    /// Returns `true` for a lock, which has one owner and may be kept. Holds of other kinds are
    /// members of a set.
    pub(crate) fn is_lock(self) -> bool {
        matches!(self, Self::Lock)
    }

    /// Returns `true` if one hold excludes all others. Each has a token of its own.
    pub(crate) fn is_exclusive(self) -> bool {
        let row = self.row();
        !row.is_several && !row.is_shared
    }

    /// Returns the maximum number of concurrent holds; zero for a read-write lock, which has no
    /// such limit.
    pub(crate) fn permits(self) -> u32 {
        if let Self::Permit { of } = self { of } else { 0 }
    }

    /// Returns `true` if both kinds have the same data type in Redis.
    pub(crate) fn has_form_of(self, other: Self) -> bool {
        self.row().form == other.row().form
    }

    /// Returns `true` if holds of the two kinds may exist at the same time.
    pub(crate) fn shares_with(self, other: Self) -> bool {
        self.waits_with(other) && !self.is_exclusive()
    }

    /// Returns `true` if the threads of one client that wait for either kind share one place in the
    /// queue.
    pub(crate) fn waits_with(self, other: Self) -> bool {
        mem::discriminant(&self) == mem::discriminant(&other)
    }
}

/// The identity of one hold of one lock. No other hold ever has the same id.
#[derive(Clone)]
pub(crate) struct HoldId {
    pub(crate) kind: HoldKind,
    pub(crate) name: Arc<str>,
    pub(crate) client: Arc<str>,
    /// Unique in the client, except for [`MAY_BE_KEPT`], [`NOT_RENEWED`], [`STAYS_TAKEN`] and
    /// [`HAS_NOTE`], which show other clients how the client treats the hold.
    pub(crate) nonce: u64,
}

/// Returns the id of a new client: the label, if any, and 128 random bits.
pub(crate) fn new_client_id(label: &str) -> Result<Arc<str>> {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if let Some(random) = crate::base::sync::executor::random() {
        return Ok(format!("{label}:{random:032x}").into());
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| Error::system("read random bytes", error))?;
    let id = u128::from_ne_bytes(random);
    let client = if label.is_empty() { format!("{id:032x}") } else { format!("{label}:{id:032x}") };
    Ok(client.into())
}

/// The client of an owner, and the client's label.
pub(crate) fn client_of(owner: &str) -> (&str, &str) {
    match owner.rsplit_once(':') {
        Some((client, nonce)) if nonce.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            (client, client.rsplit_once(':').map_or("", |(label, _)| label))
        }
        _ => ("", ""),
    }
}

pub(crate) fn is_client_id(id: &str) -> bool {
    let (label, random) = id.rsplit_once(':').unwrap_or(("", id));
    random.len() == 32
        && random.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && check_label(label).is_ok()
}

/// The bit of a nonce that tells other clients that the lock may be kept, and must be asked for.
/// The nonce then has 16 hexadecimal digits, the first of them 8 to f.
const MAY_BE_KEPT: u64 = 1 << 63;

/// The bit of a nonce that tells operators that the client does not renew the hold by itself.
const NOT_RENEWED: u64 = 1 << 62;

/// The bits of a nonce that tell other clients how long the lock stays taken at most after an early
/// release: the exponent of a power of two, in milliseconds. The TTL of its key would be too long
/// if the server's clock was set back.
const STAYS_TAKEN: u64 = 0x3f << TAKEN_SHIFT;
const TAKEN_SHIFT: u32 = 56;

/// The bit of a nonce of a hold with a note. It shows every client that renews or ends the hold,
/// with its ticket or by force, that there is a note. Requests about other holds need not touch
/// notes.
const HAS_NOTE: u64 = 1 << 55;

impl HoldId {
    /// Returns a seed for the random pauses of the call that wants this hold. Other calls, of this
    /// client and of others, get other seeds.
    pub(crate) fn seed(&self) -> u64 {
        fnv(self.client.bytes()).wrapping_add(self.nonce)
    }

    /// Parses an owner as stored in Redis; `None` if no client of this library wrote it.
    pub(crate) fn of_owner(owner: &[u8], kind: HoldKind, name: &str) -> Option<Self> {
        let (client, nonce) = str::from_utf8(owner).ok()?.rsplit_once(':')?;
        let nonce = u64::from_str_radix(nonce, 16).ok()?;
        Some(Self { kind, name: name.into(), client: client.into(), nonce })
    }

    /// Returns the id of a hold that its client may keep afterwards.
    pub(crate) fn that_may_be_kept(self) -> Self {
        Self { nonce: self.nonce | MAY_BE_KEPT, ..self }
    }

    pub(crate) fn may_be_kept(&self) -> bool {
        self.nonce & MAY_BE_KEPT != 0
    }

    /// Returns the id of a hold that its client does not renew by itself.
    pub(crate) fn that_is_not_renewed(self) -> Self {
        Self { nonce: self.nonce | NOT_RENEWED, ..self }
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.nonce & NOT_RENEWED == 0
    }

    /// Returns the id of a hold whose lock stays taken for that long, however early it is released.
    pub(crate) fn that_stays_taken(self, time: Duration) -> Self {
        let millis = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX / 2);
        let exponent = u64::from(millis.max(2).next_power_of_two().ilog2());
        Self { nonce: self.nonce & !STAYS_TAKEN | exponent << TAKEN_SHIFT, ..self }
    }

    /// Returns how long the lock stays taken at most after an early release, if the id says so.
    pub(crate) fn longest_taken(&self) -> Option<Duration> {
        let exponent = (self.nonce & STAYS_TAKEN) >> TAKEN_SHIFT;
        if exponent > 0 { Some(Duration::from_millis(1 << exponent)) } else { None }
    }

    /// Returns the id of a hold with a note.
    pub(crate) fn that_has_a_note(self) -> Self {
        Self { nonce: self.nonce | HAS_NOTE, ..self }
    }

    /// Returns `true` if the hold was begun with a note, even if the server refused to store it.
    pub(crate) fn has_note(&self) -> bool {
        self.nonce & HAS_NOTE != 0
    }

    /// Returns the number of the hold among those of its client. Later holds have greater numbers.
    pub(crate) fn number(&self) -> u64 {
        self.nonce & !(MAY_BE_KEPT | NOT_RENEWED | STAYS_TAKEN | HAS_NOTE)
    }

    /// Returns the owner as written to Redis.
    pub(crate) fn owner(&self) -> String {
        let mut owner = String::with_capacity(self.client.len() + 17);
        owner.push_str(&self.client);
        write!(owner, ":{:x}", self.nonce).expect("a string takes whatever is written");
        owner
    }

    /// Like `owner`, with the prefix of the kind.
    pub(crate) fn member(&self) -> String {
        match self.kind {
            HoldKind::Lock => self.owner(),
            kind => [kind.row().prefix, &self.owner()].concat(),
        }
    }
}

/// Ids with the same owner are equal, because an owner has one hold.
impl PartialEq for HoldId {
    fn eq(&self, other: &Self) -> bool {
        self.nonce == other.nonce && self.client == other.client
    }
}

impl Eq for HoldId {}

impl Hash for HoldId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.nonce, &self.client).hash(state);
    }
}

/// Omits the nonce, which is all that another client needs to release the lock.
impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldId").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_in_an_owner_leave_the_number_of_its_hold_unchanged() {
        let id = HoldId { kind: HoldKind::Lock, name: "x".into(), client: "c".into(), nonce: 7 };
        let kept = id.clone().that_may_be_kept();
        assert_eq!((id.number(), kept.number()), (7, 7));
        assert_eq!((id.owner().as_str(), kept.owner().as_str()), ("c:7", "c:8000000000000007"));
        let read = HoldId::of_owner(kept.owner().as_bytes(), HoldKind::Lock, "x").expect("owner");
        assert!(read == kept && read.may_be_kept() && !id.may_be_kept());
        let not_renewed = id.clone().that_is_not_renewed();
        assert_eq!((not_renewed.number(), not_renewed.owner().as_str()), (7, "c:4000000000000007"));
        assert!(!not_renewed.is_renewed() && !not_renewed.may_be_kept() && kept.is_renewed());
        let noted = id.clone().that_stays_taken(Duration::from_secs(3600)).that_has_a_note();
        assert_eq!(noted.number(), 7);
        assert!(noted.has_note() && !kept.has_note() && !not_renewed.has_note());
        assert!(noted.longest_taken() >= Some(Duration::from_secs(3600)));
    }

    #[test]
    fn an_owner_names_its_client_and_label() {
        assert_eq!(client_of("web:1:0a1b:7"), ("web:1:0a1b", "web:1"));
        assert_eq!(client_of("0a1b:7"), ("0a1b", ""));
        assert_eq!(client_of("a token"), ("", ""));
        assert_eq!(client_of("a:secret"), ("", ""));
    }

    #[test]
    fn clients_have_different_ids() {
        let (a, b) = (new_client_id("").expect("random"), new_client_id("web").expect("random"));
        assert_ne!(a, b);
        assert!(b.starts_with("web:"));
        assert_eq!(a.len(), 32);
        assert!(is_client_id(&a) && is_client_id(&b));
    }
}
