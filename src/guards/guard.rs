//! A held lock, and the methods that guards of all kinds have.

use std::marker::PhantomData;
use std::sync::MutexGuard;

use crate::guards::Held;

/// A lock, or one level of it, held by the current thread. Dropping the guard releases it.
///
/// Until then the lease is renewed in the background. Once renewal has failed long enough for
/// another client to have acquired the lock, [`is_held`](Guard::is_held) starts to return `false`
/// and [`lost`](Guard::lost) wakes the threads that wait for it. Only the [fencing
/// token](Guard::fence) protects a resource from a holder that was paused and has not noticed yet.
///
/// Dropping a guard never panics. It writes the release and does not wait for the server's reply:
/// see [What drop does](crate#what-drop-does). [`unlock`](Guard::unlock) waits, and reports errors.
///
/// A guard stays on its thread:
///
/// ```compile_fail,E0277
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("stock:42").unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// Clients and mutexes do not, so the other thread can lock for itself:
///
/// ```
/// let client = leasehold::Client::in_memory();
/// std::thread::spawn(move || drop(client.lock("stock:42").unwrap())).join().unwrap();
/// ```
///
/// A guard by [`lock_owned`](crate::Client::lock_owned) belongs to no thread, and may be sent:
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock_owned("stock:42").unwrap();
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// ```
///
/// Other threads may use it while they borrow it:
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("stock:42").unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert!(guard.is_held()));
/// });
/// ```
#[must_use = "if unused the lock is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct Guard {
    pub(super) held: Held,
    pub(super) depth: u32,
    pub(super) _not_send: BelongsToItsThreadUseLockOwned,
}

guard!(Guard with fence, wanted);

impl Guard {
    /// Returns the level of this guard: 1, or more if it is nested.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }
}

/// Makes a guard `!Send`, because the levels of a hold are counted by thread. The compiler names it
/// in its error where a guard is sent nevertheless.
pub(super) struct BelongsToItsThreadUseLockOwned(pub(super) PhantomData<MutexGuard<'static, ()>>);

/// Gives a guard around [`Held`] the methods that guards of all kinds have, and those of the others
/// that are named.
macro_rules! guard {
    (@depth $guard:ident) => {
        impl $guard {
            /// Returns 1: this guard never nests.
            #[must_use]
            pub fn depth(&self) -> u32 {
                self.held.holds[0].depth()
            }
        }
    };
    (@fence $guard:ident) => {
        impl $guard {
            /// Returns the fencing token of this hold, which is greater than that of every earlier
            /// hold of this name, and the same for nested guards.
            ///
            /// Send it along with every write to the protected resource, and let the resource
            /// reject tokens smaller than the greatest it has seen. Then a holder that has lost the
            /// lock without noticing can do no harm
            /// (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>).
            ///
            /// Tokens grow even if the server has lost their counter, provided that its clock is
            /// not behind the last token, which is either a time in microseconds or a later number,
            /// by a millisecond at most among threads that share a lock. With independent servers,
            /// the clock is that of this system.
            #[must_use]
            pub fn fence(&self) -> u64 {
                self.held.holds[0].fence()
            }
        }
    };
    (@wanted $guard:ident) => {
        impl $guard {
            /// Returns the watch on the wishes of other clients: a long job can end early, or make
            /// a pause, when another client waits for the lock. Its own threads and calls that do
            /// not wait, such as [`try_lock`](crate::Client::try_lock), do not count.
            ///
            /// The first call for a hold makes this client listen, and blocks for the server's
            /// replies to two requests, to learn also of a client that began to wait before. From
            /// then on the client is told within a network latency. A message that is lost is
            /// repeated when the other client asks again, after its
            /// [`backoff`](crate::Builder::backoff) at the latest.
            ///
            /// A client is not told of wishes for a hold that it has
            /// [adopted](crate::Client::adopt). Each call of this method asks the server then, and
            /// what it returns does not change; of several independent servers it does not learn
            /// of them.
            #[must_use]
            pub fn wanted(&self) -> $crate::guards::watches::Wanted {
                $crate::guards::watches::Wanted::new(&self.held.shared, &self.held.holds[0])
            }
        }
    };
    ($guard:ident $(with $($method:ident),+)?) => {
        impl $guard {
            /// Returns the name; those of a set are separated by commas.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.held.name
            }

            /// Returns `true` if the lease has not ended by this process's clock. Does not ask the
            /// server.
            #[must_use]
            pub fn is_held(&self) -> bool {
                self.held.is_held()
            }

            /// Returns how long the lease lasts if it is not renewed again, less a margin for clock
            /// drift of 1 % of the lease and 2 ms; zero if it is lost. Does not ask the server.
            #[must_use]
            pub fn remaining(&self) -> std::time::Duration {
                self.held.remaining()
            }

            /// Returns the watch on this hold, with which any thread can wait for the loss of the
            /// lease, or look for it.
            #[must_use]
            pub fn lost(&self) -> $crate::guards::watches::Lost {
                self.held.lost()
            }

            /// Asks the server whether this hold still exists. Blocks for the server's reply.
            ///
            /// A server that has become a replica in the meantime, without sentinels or a cluster
            /// to report it, answers from what it had as a master until a request of this client
            /// shows that it accepts no writes. While the lease is renewed that takes a third of
            /// the lease at most.
            ///
            /// # Errors
            ///
            /// - [`Lost`](crate::Error::Lost): it does not exist any more.
            /// - [`Unavailable`](crate::Error::Unavailable) or
            ///   [`NoQuorum`](crate::Error::NoQuorum): no usable answer came; see
            ///   [`Client::try_lock`](crate::Client::try_lock) for how long the call retries.
            /// - [`Redis`](crate::Error::Redis): the server refused the request.
            /// - [`Closed`](crate::Error::Closed):
            ///   [`Client::shutdown`](crate::Client::shutdown) has ended the hold.
            /// - [`Forked`](crate::Error::Forked): this process is a forked child.
            pub fn verify(&self) -> $crate::error::Result<()> {
                self.held.verify(false)
            }

            /// Renews the lease now, even if it is not renewed in the background, but not beyond
            /// [`max_hold`](crate::Builder::max_hold). Blocks for the server's reply.
            ///
            /// # Errors
            ///
            /// The same as [`verify`](Self::verify), and
            /// [`NotReplicated`](crate::Error::NotReplicated) if too few replicas or disks
            /// acknowledged it; then the lease is as long as before.
            pub fn renew(&self) -> $crate::error::Result<()> {
                self.held.verify(true)
            }

            /// Releases the hold, or this level of it, and reports errors. Unlike dropping the
            /// guard, this blocks for the server's reply. After
            /// [`Client::shutdown`](crate::Client::shutdown) there is nothing to do.
            ///
            /// # Errors
            ///
            /// - [`Lost`](crate::Error::Lost): the lease was lost before, so the work may have
            ///   overlapped with that of another holder.
            /// - [`Unavailable`](crate::Error::Unavailable) or
            ///   [`NoQuorum`](crate::Error::NoQuorum): no usable answer came. The release is
            ///   retried in the background, and the lease is no longer renewed.
            /// - [`Redis`](crate::Error::Redis): the server refused the request. If this was an
            ///   inner level, the outer guard remains valid.
            /// - [`Forked`](crate::Error::Forked): this process is a forked child, in which a guard
            ///   does nothing.
            pub fn unlock(self) -> $crate::error::Result<()> {
                self.held.unlock()
            }
        }

        impl $crate::guards::Sealed for $guard {}

        impl $crate::guards::AnyGuard for $guard {
            fn name(&self) -> &str {
                self.name()
            }

            fn fence(&self) -> Option<u64> {
                self.held.fence()
            }

            fn is_held(&self) -> bool {
                self.is_held()
            }

            fn remaining(&self) -> std::time::Duration {
                self.remaining()
            }

            fn lost(&self) -> $crate::guards::watches::Lost {
                self.lost()
            }

            fn verify(&self) -> $crate::error::Result<()> {
                self.verify()
            }

            fn renew(&self) -> $crate::error::Result<()> {
                self.renew()
            }

            fn unlock(self: Box<Self>) -> $crate::error::Result<()> {
                (*self).unlock()
            }
        }

        /// Shows nothing that would allow another client to release the hold.
        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("name", &self.name())
                    .field("fence", &self.held.fence())
                    .field("remaining", &self.remaining())
                    .finish_non_exhaustive()
            }
        }

        $($($crate::guards::guard::guard!(@$method $guard);)+)?
    };
}
pub(crate) use guard;
