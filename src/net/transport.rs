//! What a pipeline and the threads that share a connection need of it.

use std::ops::DerefMut;
use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::net::owed::{OwedReplies, PostedRequest};
use crate::net::request::{Reply, Request};

/// How to wait for a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitFor {
    /// Not at all, and without a system call: only what was read along with earlier replies counts.
    Buffered,
    /// Not at all: only what has come already is read.
    Nothing,
    /// Asleep, because it may take long.
    Reply { deadline: Instant },
    /// Spinning first, if that pays, because it is expected soon.
    SoonReply { deadline: Instant },
}

/// A connection over which requests are sent, and replies received in the same order.
pub(crate) trait Transport {
    /// Returns `true` if [`connect`](Transport::connect) has nothing to do.
    fn is_ready(&self) -> bool;

    /// Returns `true` if replies can still come.
    fn is_connected(&self) -> bool;

    /// Opens the connection unless it is open, and makes sure that it leads to the right server.
    fn connect(&mut self, deadline: Instant) -> Result<(), Failure>;

    /// Sends one request, connecting first if need be and in full if the server does not know its
    /// script, and reads the reply. If none comes in time, the connection is given up.
    fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply;

    /// Writes what `pack` appends over the open connection, as far as there is room, without
    /// waiting. `receive` and `collect` go on with the rest as room comes.
    fn send(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure>;

    /// Blocks until everything is written. If there is no room for it in time, that is a failure,
    /// and the connection is as before.
    fn flush(&mut self, deadline: Instant) -> Result<(), Failure>;

    /// Reads the next reply; `None` if it has not come by then, so that it can be read later. What
    /// is owed in front of it is read too.
    fn receive(&mut self, wait: WaitFor) -> Option<Reply>;

    /// The replies to requests that no thread waits for.
    fn owed(&self) -> &OwedReplies;

    /// Returns `true` if a request can be written over the open connection that no thread waits
    /// for, as far as is known without waiting.
    fn can_post(&mut self, now: Instant) -> bool;

    /// Has a request that no thread waits for written along with the next write. Until that is
    /// done, no reply but owed ones may be awaited.
    fn owe(&mut self, posted: PostedRequest);

    /// As `owe`, for what must be sent again. Returns `true` if there is anything to write.
    fn owe_again(&mut self) -> bool;

    /// Reads what is owed, until that is all or no more has come by then. Without a wait it ends
    /// soon, even if more has come.
    fn collect(&mut self, wait: WaitFor);

    /// Reads all that is owed, or gives up the connection if it has not come by then.
    fn read_owed(&mut self, deadline: Instant) -> Result<(), Failure> {
        while !self.owed().is_empty() {
            self.owe_again();
            self.send(|_| {})?;
            self.collect(WaitFor::SoonReply { deadline });
            if self.owed().is_next() {
                return Err(self.time_out());
            }
        }
        Ok(())
    }

    /// Gives up the connection, and with it whatever is in flight.
    fn poison(&mut self);

    /// Gives up a connection over which no reply has come in time.
    fn time_out(&mut self) -> Failure;
}

/// Why a pool has no connection for a thread.
#[derive(Debug)]
pub(crate) enum NoConnection {
    /// All are in use.
    InUse,
    /// None was made in time. Until now it was in use for other threads.
    Late,
}

/// Where free connections come from, and go back to when they are dropped.
pub(crate) trait ConnectionSource: Send + Sync + 'static {
    type Connection: Transport + Send;

    /// Returns a connection unless all are in use. Blocks for no longer than it takes to make one,
    /// without opening it.
    fn try_get(&self, deadline: Instant) -> Result<Self::Connection, NoConnection>;

    /// Runs `work` after a delay on a thread for which it must not block.
    fn run_later(&self, delay: Duration, work: impl FnOnce() + Send + 'static);

    /// Counts a request that has to wait for a connection.
    fn count_wait(&self);

    /// The failure of a request for which no connection was free in time.
    fn all_in_use(&self) -> Failure;

    /// The failure of a request that was not answered in time.
    fn no_reply(&self) -> Failure;
}

/// A connection that goes back to its pool when it is dropped.
impl<P> Transport for P
where
    P: DerefMut<Target: Transport>,
{
    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn is_connected(&self) -> bool {
        (**self).is_connected()
    }

    fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        (**self).connect(deadline)
    }

    fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        (**self).exchange(request, deadline)
    }

    fn send(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        (**self).send(pack)
    }

    fn flush(&mut self, deadline: Instant) -> Result<(), Failure> {
        (**self).flush(deadline)
    }

    fn receive(&mut self, wait: WaitFor) -> Option<Reply> {
        (**self).receive(wait)
    }

    fn owed(&self) -> &OwedReplies {
        (**self).owed()
    }

    fn can_post(&mut self, now: Instant) -> bool {
        (**self).can_post(now)
    }

    fn owe(&mut self, posted: PostedRequest) {
        (**self).owe(posted);
    }

    fn owe_again(&mut self) -> bool {
        (**self).owe_again()
    }

    fn collect(&mut self, wait: WaitFor) {
        (**self).collect(wait);
    }

    fn poison(&mut self) {
        (**self).poison();
    }

    fn time_out(&mut self) -> Failure {
        (**self).time_out()
    }
}
