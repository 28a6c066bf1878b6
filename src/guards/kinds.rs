//! The kinds of handles and guards. Each is the parameter of one public name, such as
//! `Mutex = LockHandle<Exclusive>`, and has what only this kind needs.

#![expect(unnameable_types, reason = "users write the public names")]

use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};

/// A kind of handle or guard.
pub trait Kind {
    /// The public name, which `Debug` shows.
    const NAME: &'static str;
}

/// A handle to a lock with one holder.
#[derive(Clone, Debug)]
pub struct Exclusive;

impl Kind for Exclusive {
    const NAME: &'static str = "Mutex";
}

/// A guard that stays on its thread.
#[derive(Debug)]
pub struct ThisThread {
    pub(super) depth: u32,
    pub(super) _not_send: BelongsToItsThreadUseLockOwned,
}

/// Makes a guard `!Send`, because the levels of a hold are counted per thread. The compiler shows
/// this name in its error when a guard is sent to another thread.
#[derive(Debug, Default)]
pub(super) struct BelongsToItsThreadUseLockOwned(PhantomData<MutexGuard<'static, ()>>);

impl Kind for ThisThread {
    const NAME: &'static str = "Guard";
}

/// A guard that any thread may have.
#[derive(Debug)]
pub struct AnyThread;

impl Kind for AnyThread {
    const NAME: &'static str = "OwnedGuard";
}

/// A handle to a lock for readers and writers.
#[derive(Clone, Debug)]
pub struct ReadWrite;

impl Kind for ReadWrite {
    const NAME: &'static str = "RwLock";
}

/// A guard for reading.
#[derive(Debug)]
pub struct Reader;

impl Kind for Reader {
    const NAME: &'static str = "ReadGuard";
}

/// A guard for writing.
#[derive(Debug)]
pub struct Writer;

impl Kind for Writer {
    const NAME: &'static str = "WriteGuard";
}

/// A handle to a semaphore with this many permits.
#[derive(Clone, Debug)]
pub struct Permits(pub(crate) u32);

impl Kind for Permits {
    const NAME: &'static str = "Semaphore";
}

/// A guard for a permit.
#[derive(Debug)]
pub struct OnePermit;

impl Kind for OnePermit {
    const NAME: &'static str = "Permit";
}

/// A handle to an election.
#[derive(Clone, Debug)]
pub struct Candidacy;

impl Kind for Candidacy {
    const NAME: &'static str = "Election";
}

/// A guard for the term of a leader.
#[derive(Debug)]
pub struct Leadership;

impl Kind for Leadership {
    const NAME: &'static str = "Term";
}

/// A handle to the locks with these names.
#[derive(Clone, Debug)]
pub struct LockNames(pub(crate) Arc<[Arc<str>]>);

impl Kind for LockNames {
    const NAME: &'static str = "MultiMutex";
}

/// A guard for the locks with these names.
#[derive(Debug)]
pub struct SeveralLocks(pub(super) Vec<String>);

impl Kind for SeveralLocks {
    const NAME: &'static str = "MultiGuard";
}
