//! The steps of a case.

use std::collections::BTreeSet;
use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

pub(super) const HOUR: Duration = Duration::from_secs(60 * 60);
const KINDS: [HoldKind; 4] =
    [HoldKind::Lock, HoldKind::Read, HoldKind::Write, HoldKind::Permit { of: 2 }];
const READ: usize = 1;
const WRITE: usize = 2;
pub(super) const CLIENTS: [&str; 3] = ["anna", "ben", "cleo"];
/// The end of every client's id.
pub(super) const NUMBER: &str = "0123456789abcdef0123456789abcdef";
/// Two are for locks, so that sets overlap, and one for each other kind.
const NAMES: usize = 4;

/// A hold of a case. Each of its parts is an index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Who {
    pub(super) name: usize,
    kind: usize,
    client: usize,
    number: u64,
    /// How many more permits it assumes than others do.
    more: u32,
}

impl Who {
    pub(super) fn kind(self) -> HoldKind {
        match KINDS[self.kind] {
            HoldKind::Permit { of } => HoldKind::Permit { of: of + self.more },
            kind => kind,
        }
    }

    /// Returns the writer whose hold this change ends.
    pub(super) fn writer_ended_by(self, change: Change) -> Option<Self> {
        match (change, self.kind()) {
            (Change::Downgrade { .. }, HoldKind::Read)
            | (Change::Release { .. }, HoldKind::Write) => Some(Self { kind: WRITE, ..self }),
            _ => None,
        }
    }

    /// No two holds have the same nonce, whatever else they share, except a writer and the reader
    /// that it becomes.
    fn nonce(self) -> u64 {
        let kind = if self.kind() == HoldKind::Write { READ } else { self.kind };
        let place = (self.name * KINDS.len() + kind) * CLIENTS.len() + self.client;
        1 + place as u64 * 8 + self.number
    }

    /// All holds of two of the clients have notes.
    pub(super) fn note(self) -> Option<&'static str> {
        [None, Some("deploy 4711"), Some("cleo's, the 2nd")][self.client]
    }

    pub(super) fn id(self, case: u64) -> HoldId {
        let hold = HoldId {
            kind: self.kind(),
            name: name(case, self.name),
            client: client(CLIENTS[self.client]),
            nonce: self.nonce(),
        };
        let hold = if self.note().is_some() { hold.that_has_a_note() } else { hold };
        if hold.kind == HoldKind::Lock && self.number == 1 { hold.that_may_be_kept() } else { hold }
    }
}

impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, client, number, .. } = *self;
        write!(f, "{}'s {:?} {number} of name {name}", CLIENTS[client], self.kind())
    }
}

pub(super) fn client(label: &str) -> Arc<str> {
    format!("{label}:{NUMBER}").into()
}

/// Each case has its own names, so no other case finds its remains.
pub(super) fn name(case: u64, index: usize) -> Arc<str> {
    format!("{case}:{index}").into()
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Acquire {
        holds: Vec<Who>,
        hours: u32,
        registration: Registration,
    },
    Change {
        changes: Vec<(Who, Change)>,
        by_jobs: bool,
    },
    Count {
        name: usize,
    },
    /// The offers of a name to clients that wait for it end.
    EndOffers {
        name: usize,
    },
    /// The lease of a hold ends, or the time for which a lock is kept.
    Expire {
        hold: Who,
    },
    ForceRelease {
        hold: Who,
    },
}

impl Step {
    pub(super) fn holds(&self) -> Vec<Who> {
        match self {
            Self::ForceRelease { hold } | Self::Expire { hold } => vec![*hold],
            Self::Acquire { holds, .. } => holds.clone(),
            Self::Change { changes, .. } => changes.iter().map(|(hold, _)| *hold).collect(),
            Self::Count { .. } | Self::EndOffers { .. } => Vec::new(),
        }
    }

    pub(super) fn names(&self) -> BTreeSet<usize> {
        match self {
            Self::Count { name } | Self::EndOffers { name } => BTreeSet::from([*name]),
            step => step.holds().iter().map(|hold| hold.name).collect(),
        }
    }
}

/// The kind of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scene {
    /// No client waits.
    Alone,
    /// Clients wait, get offers, and leave.
    Waiting,
}

/// Mostly for this name, so that clients meet there, and of the kind that the name is used for.
fn who(meets: usize) -> impl Strategy<Value = Who> {
    let names = prop_oneof![2 => Just(meets), 1 => 0..NAMES];
    let usual = (names, any::<bool>()).prop_map(|(name, writes)| {
        let kind = match name {
            0 | 1 => 0,
            2 => 1 + usize::from(writes),
            _ => 3,
        };
        (name, kind)
    });
    let any_kind = (0..NAMES, 0..KINDS.len());
    let kind = prop_oneof![9 => usual, 1 => any_kind];
    (kind, 0..CLIENTS.len(), 0..2_u64).prop_map(move |((name, kind), client, number)| {
        // Callers may disagree about the number of permits.
        let more = u32::from(kind == 3 && client == 2);
        Who { name, kind, client, number, more }
    })
}

/// A lock of each of the names, in some order.
fn set() -> impl Strategy<Value = Vec<Who>> {
    let orders = vec![vec![0, 1], vec![1, 0], vec![0, 1, 2]];
    (select(orders), 0..CLIENTS.len(), 0..2_u64).prop_map(|(names, client, number)| {
        names.into_iter().map(|name| Who { name, kind: 0, client, number, more: 0 }).collect()
    })
}

/// Permits of a name that one request of a client asks for.
fn sharers() -> impl Strategy<Value = Vec<Who>> {
    let numbers = subsequence(vec![0, 1, 2], 2..=3).prop_shuffle();
    (0..CLIENTS.len(), numbers).prop_map(|(client, numbers)| {
        let (name, kind, more) = (3, 3, u32::from(client == 2));
        numbers.into_iter().map(|number| Who { name, kind, client, number, more }).collect()
    })
}

fn change_of(hold: Who, scene: Scene) -> impl Strategy<Value = (Who, Change)> {
    let (is_lock, waits) = (hold.kind() == HoldKind::Lock, u32::from(scene == Scene::Waiting));
    let reads = u32::from(hold.kind() == HoldKind::Read);
    // For a writer, how many tokens it has used, and how many have become superfluous since.
    let unused = (1..=3_u64, prop_oneof![3 => Just(0_u64), 1 => Just(1_u64)])
        .prop_map(|(before, last)| Unused { before, last });
    let unused = prop::option::of(unused).boxed();
    let of_writer = unused.clone();
    // Some are the remains of a longer one.
    let lease = |hours: u32| NextLease { duration: HOUR * hours, whole: HOUR * hours.max(2) };
    let taken_until = Moment::now().after(HOUR / 2);
    let later = Change::Release { taken_until, unused: None };
    let ended = prop_oneof![
        2 => unused.prop_map(|unused| Change::Release { taken_until: Moment::FIRST, unused }),
        // A hold that its client may keep is never left to expire.
        u32::from(is_lock && hold.number == 0) => Just(later),
    ];
    let depth = (1..4_u32, prop::option::of(1..4_u32)).prop_map(move |(depth, hours)| {
        let depth = if is_lock { depth } else { 1 };
        Change::SetDepth { depth, lease: hours.map(lease), durable: false }
    });
    prop_oneof![
        4 => ended,
        1 => Just(Change::Check),
        2 => (1..4_u32).prop_map(move |hours| Change::Renew { lease: lease(hours) }),
        2 => depth,
        2 * reads => (1..4_u32, of_writer)
            .prop_map(move |(hours, unused)| Change::Downgrade { lease: lease(hours), unused }),
        3 * u32::from(is_lock) => prop::option::of(1..4_u32)
            .prop_map(move |hours| Change::Watch { lease: hours.map(lease) }),
        4 * waits => Just(Change::Unregister),
    ]
    .prop_map(move |change| (hold, change))
}

fn registration(scene: Scene) -> impl Strategy<Value = Registration> {
    let waits = u32::from(scene == Scene::Waiting);
    prop_oneof![
        3 - 2 * waits => Just(Registration::None),
        2 * waits => Just(Registration::IfHeld),
        2 * waits => Just(Registration::Registered),
        waits => Just(Registration::Followed),
        waits => Just(Registration::Yielding),
        waits => Just(Registration::Returning),
        waits => Just(Registration::IfMayBeKept),
        waits => Just(Registration::Kept),
        waits => Just(Registration::Last),
        waits => Just(Registration::Recall),
    ]
}

fn step(scene: Scene, meets: usize) -> impl Strategy<Value = Step> {
    let change = who(meets).prop_flat_map(move |hold| change_of(hold, scene));
    let one_or_more = prop_oneof![2 => who(meets).prop_map(|hold| vec![hold]), 1 => sharers()];
    prop_oneof![
        8 => (one_or_more, 1..4_u32, registration(scene))
            .prop_map(|(holds, hours, registration)| {
                // Only a tenure of a lock has tokens for more holds.
                let is_of_locks =
                    matches!(registration, Registration::Kept | Registration::Recall);
                let none = is_of_locks && holds[0].kind() != HoldKind::Lock;
                let registration = if none { Registration::None } else { registration };
                Step::Acquire { holds, hours, registration }
            }),
        2 => (set(), 1..4_u32).prop_map(|(holds, hours)| {
            Step::Acquire { holds, hours, registration: Registration::None }
        }),
        6 => (vec(change, 1..4), any::<bool>())
            .prop_map(|(changes, by_jobs)| Step::Change { changes, by_jobs }),
        1 => who(meets).prop_map(|hold| Step::ForceRelease { hold }),
        1 => (0..NAMES).prop_map(|name| Step::Count { name }),
        2 * u32::from(scene == Scene::Waiting) => (0..NAMES)
            .prop_map(|name| Step::EndOffers { name }),
        3 => who(meets).prop_map(|hold| Step::Expire { hold }),
    ]
}

pub(super) fn steps(scene: Scene) -> impl Strategy<Value = Vec<Step>> {
    (0..NAMES).prop_flat_map(move |meets| vec(step(scene, meets), 1..30))
}
