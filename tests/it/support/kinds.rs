//! The kinds of hold that belong to no thread, as a table: what is true of one must be true of all.

use std::time::Duration;

use leasehold::{AnyGuard, Canceller, Client, Error};

/// A hold of any kind that may be sent.
pub(crate) type Hold = dyn AnyGuard + Send + Sync;

/// A kind of hold that a thread can ask for. The semaphores have one permit, and the sets two
/// names: the given one, and one derived from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Owned,
    Permit,
    Read,
    Set,
    Term,
    Write,
}

/// How a call waits, and the options of its lock.
#[derive(Clone, Copy, Default)]
pub(crate) struct Call<'a> {
    pub(crate) how: How,
    pub(crate) canceller: Option<&'a Canceller>,
    /// If set, the lease is not renewed.
    pub(crate) lease: Option<Duration>,
    pub(crate) wait: Option<Duration>,
}

#[derive(Clone, Copy, Default)]
pub(crate) enum How {
    Tries,
    TriesFor(Duration),
    #[default]
    Waits,
}

/// Makes the call of one kind, either a waiting or a trying one.
macro_rules! ask {
    ($call:ident, $lock:expr, $waits:ident, $tries:ident, $tries_for:ident) => {{
        let mut lock = $lock;
        if let Some(time) = $call.wait {
            lock = lock.wait(time);
        }
        if let Some(time) = $call.lease {
            lock = lock.lease(time).renew(false);
        }
        if let Some(canceller) = $call.canceller {
            lock = lock.cancelled_by(canceller);
        }
        let hold = match $call.how {
            How::Tries => lock.$tries()?,
            How::TriesFor(time) => lock.$tries_for(time)?,
            How::Waits => Some(lock.$waits()?),
        };
        Ok(hold.map(|hold| Box::new(hold) as Box<Hold>))
    }};
}

impl Kind {
    /// The kinds that a quorum has too.
    pub(crate) const LOCKS: [Self; 3] = [Self::Owned, Self::Set, Self::Term];

    /// The kinds that have queues of their own: a set waits for the locks of its names.
    pub(crate) const IN_LINE: [Self; 4] = [Self::Owned, Self::Permit, Self::Read, Self::Write];

    pub(crate) const ALL: [Self; 6] =
        [Self::Owned, Self::Set, Self::Term, Self::Permit, Self::Read, Self::Write];

    pub(crate) fn call(
        self,
        client: &Client,
        name: &str,
        call: Call<'_>,
    ) -> Result<Option<Box<Hold>>, Error> {
        match self {
            Self::Owned => {
                ask!(call, client.mutex(name), lock_owned, try_lock_owned, try_lock_owned_for)
            }
            Self::Permit => {
                ask!(call, client.semaphore(name, 1), acquire, try_acquire, try_acquire_for)
            }
            Self::Read => ask!(call, client.rw_lock(name), read, try_read, try_read_for),
            Self::Set => {
                let names = [name.to_owned(), format!("{name}'")];
                ask!(call, client.multi_mutex(&names), lock, try_lock, try_lock_for)
            }
            Self::Term => {
                ask!(call, client.election(name), campaign, try_campaign, try_campaign_for)
            }
            Self::Write => ask!(call, client.rw_lock(name), write, try_write, try_write_for),
        }
    }

    pub(crate) fn acquire(self, client: &Client, name: &str) -> Result<Box<Hold>, Error> {
        self.call(client, name, Call::default()).map(|hold| hold.expect("it waited for it"))
    }

    pub(crate) fn acquire_until(
        self,
        client: &Client,
        name: &str,
        canceller: &Canceller,
    ) -> Result<Box<Hold>, Error> {
        let call = Call { canceller: Some(canceller), ..Call::default() };
        self.call(client, name, call).map(|hold| hold.expect("it waited for it"))
    }

    /// Tries for at most that time, or only once if there is none.
    #[track_caller]
    pub(crate) fn try_acquire(
        self,
        client: &Client,
        name: &str,
        time: Option<Duration>,
    ) -> Option<Box<Hold>> {
        let how = time.map_or(How::Tries, How::TriesFor);
        self.call(client, name, Call { how, ..Call::default() }).expect("the server answers")
    }

    /// Returns a kind of hold that excludes this one.
    pub(crate) fn rival(self) -> Self {
        if self == Self::Read { Self::Write } else { self }
    }

    /// Acquires a hold that a call for this kind has to wait for.
    #[track_caller]
    pub(crate) fn block(self, client: &Client, name: &str) -> Box<Hold> {
        self.rival().acquire(client, name).expect("it is free")
    }

    /// Returns the name in errors and events.
    pub(crate) fn shown(self, name: &str) -> String {
        if self == Self::Set { format!("{name}, {name}'") } else { name.to_owned() }
    }

    /// Returns a client as it is written among the waiting clients.
    pub(crate) fn entry(self, client: &Client) -> String {
        match self {
            Self::Owned | Self::Set | Self::Term => client.id().to_owned(),
            Self::Permit => format!("p:{}", client.id()),
            Self::Read => format!("r:{}", client.id()),
            Self::Write => format!("w:{}", client.id()),
        }
    }
}
