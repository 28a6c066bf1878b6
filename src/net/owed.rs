//! Requests that no thread waits for, and the replies that are owed to them.
//!
//! A dropped guard writes its release and goes on. The reply is *owed* on that connection: the
//! thread that uses the connection next reads it in front of its own, or else a sweep does.
//!
//! | reply | what becomes of the request |
//! |---|---|
//! | none yet | it is owed, until its deadline |
//! | script unknown | it is sent again in full when no other reply is awaited any more |
//! | any other | it goes to the callback |
//! | the connection is given up | the callback gets that failure |
//!
//! A request that makes the server wait before it reads on, and whose reply no call needs any more,
//! is owed a reply as well. Until it comes the connection is *blocked*, and no thread uses it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use std::{fmt, mem};

use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::net::request::{Reply, Request, Script};

/// The most bytes of requests that may be owed replies on one connection. Redis reads that much at
/// a time, and can lose what is behind it if the connection is closed before the replies are read.
pub(super) const OWED_MAX: usize = 16 * 1024;

/// How long a thread that must not block waits nevertheless: a healthy server replies within that
/// time.
const MOMENT: Duration = Duration::from_millis(50);

/// Called with the reply to a posted request by the thread that reads it. Must not take long.
pub(crate) type OnReply = Box<dyn FnOnce(Reply) + Send>;

/// A request whose reply goes to a callback.
pub(crate) struct PostedRequest {
    request: Request,
    /// How many replies are still to come before the one that counts.
    preludes: usize,
    posted: Instant,
    /// Whether the server reads nothing that comes after it until it has replied.
    blocks: bool,
    /// Without a reply by then, there is none.
    pub(super) deadline: Instant,
    /// Until then the thread that posts it may wait for a connection to be opened, or for room.
    pub(super) write_by: Instant,
    on_reply: OnReply,
}

impl fmt::Debug for PostedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostedRequest").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl PostedRequest {
    pub(crate) fn new(request: Request, deadline: Instant, on_reply: OnReply) -> Self {
        let (preludes, posted) = (request.preludes(), Instant::now());
        Self { request, preludes, posted, blocks: false, deadline, write_by: deadline, on_reply }
    }

    /// As it is, for a thread that waits no longer than a moment.
    pub(crate) fn at_once(self) -> Self {
        Self { write_by: self.deadline.min(end_of(MOMENT)), ..self }
    }

    /// A request that was written already and makes the server wait, perhaps until the deadline,
    /// and whose reply no call needs.
    pub(super) fn blocking(request: Request, deadline: Instant) -> Self {
        Self { blocks: true, ..Self::new(request, deadline, Box::new(drop)) }
    }

    /// Has the whole script sent unless it was before: without the reply, nothing is sent again if
    /// the program ends.
    pub(super) fn make_known(&mut self, known: &mut Vec<&'static Script>) {
        let Some(script) = self.request.script() else { return };
        if !known.iter().any(|known| self.request.calls(known)) {
            known.push(script);
            self.request = self.request.in_full();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.request.bytes().len()
    }

    pub(super) fn answer(self, reply: Reply) {
        // The thread that reads it has other replies to pass on.
        drop(catch_unwind(AssertUnwindSafe(|| (self.on_reply)(reply))));
    }
}

/// What is owed on one connection.
#[derive(Debug, Default)]
pub(crate) struct OwedReplies {
    /// In the order of the replies.
    in_flight: VecDeque<PostedRequest>,
    /// What the server did not know the script of.
    again: Vec<PostedRequest>,
    bytes: usize,
}

impl OwedReplies {
    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.again.is_empty()
    }

    /// Returns `true` if the next reply is owed.
    pub(super) fn is_next(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Returns `true` if the server reads nothing more until it has replied.
    pub(super) fn is_blocked(&self) -> bool {
        // Nothing is sent behind such a request.
        self.in_flight.back().is_some_and(|posted| posted.blocks)
    }

    /// Returns `true` if there is room for a request of `len` bytes.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.is_empty() || self.bytes + len <= OWED_MAX
    }

    /// Returns `true` if more is owed than may be, because one request is too long.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > OWED_MAX
    }

    /// When the request was posted whose reply has been owed for longest.
    pub(super) fn since(&self) -> Option<Instant> {
        self.in_flight.front().map(|posted| posted.posted)
    }

    /// Returns `true` if a reply should have come by now.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.in_flight.front().is_some_and(|posted| posted.deadline <= now)
    }

    /// Records a request before it is written, and appends its bytes to `out`.
    pub(super) fn push(&mut self, posted: PostedRequest, out: &mut Vec<u8>) {
        out.extend_from_slice(posted.request.bytes());
        self.bytes += posted.len();
        self.in_flight.push_back(posted);
    }

    /// Returns what has to be sent again.
    pub(super) fn take_again(&mut self) -> Vec<PostedRequest> {
        mem::take(&mut self.again)
    }

    /// Gives the next reply to the request that it belongs to.
    pub(super) fn answer(&mut self, reply: Reply) {
        let Some(mut posted) = self.in_flight.pop_front() else { return };
        if posted.preludes > 0 {
            posted.preludes -= 1;
            return self.in_flight.push_front(posted);
        }
        self.bytes -= posted.len();
        if let Some(request) = posted.request.again_after(&reply) {
            let preludes = request.preludes();
            self.again.push(PostedRequest { request, preludes, ..posted });
        } else {
            posted.answer(reply);
        }
    }

    /// Ends everything that is owed with this failure.
    pub(super) fn fail(&mut self, failure: &Failure) {
        let Self { in_flight, again, .. } = mem::take(self);
        for posted in in_flight.into_iter().chain(again) {
            posted.answer(Err(failure.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::failure::FailureKind;
    use parking_lot::Mutex;
    use redis::Value;
    use std::sync::{Arc, LazyLock};

    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));

    type Replies = Arc<Mutex<Vec<(u64, bool)>>>;

    /// A request with a number, whose reply is recorded.
    fn posted(number: u64, replies: &Replies) -> PostedRequest {
        let (request, replies) = (Request::call(&SCRIPT, &[], &[]), replies.clone());
        let on_reply = Box::new(move |reply: Reply| replies.lock().push((number, reply.is_ok())));
        PostedRequest::new(request, Instant::now(), on_reply)
    }

    fn failure(code: &str) -> Failure {
        let error = std::io::Error::other("test");
        let failure = Failure::io(FailureKind::Rejected, &Arc::from("here"), error);
        Failure { code: code.into(), ..failure }
    }

    #[test]
    fn replies_go_to_the_requests_in_their_order() {
        let (mut owed, replies, mut out) = (OwedReplies::default(), Replies::default(), Vec::new());
        (1..=3).for_each(|number| owed.push(posted(number, &replies), &mut out));
        assert_eq!(out, posted(0, &replies).request.bytes().repeat(3));
        owed.answer(Ok(Value::Int(1)));
        owed.answer(Err(failure("READONLY")));
        assert!(owed.is_next());
        owed.fail(&failure(""));
        assert_eq!(*replies.lock(), [(1, true), (2, false), (3, false)]);
        assert!(owed.is_empty() && owed.has_room(OWED_MAX) && owed.since().is_none());
    }

    #[test]
    fn what_the_server_does_not_know_is_sent_again_in_full() {
        let (mut owed, replies, mut out) = (OwedReplies::default(), Replies::default(), Vec::new());
        owed.push(posted(1, &replies), &mut out);
        owed.answer(Err(failure("NOSCRIPT")));
        assert!(!owed.is_next() && !owed.is_empty() && replies.lock().is_empty());
        out.clear();
        owed.take_again().into_iter().for_each(|posted| owed.push(posted, &mut out));
        assert!(String::from_utf8(out).expect("text").contains("EVAL\r\n"));
        owed.answer(Err(failure("NOSCRIPT")));
        assert_eq!(*replies.lock(), [(1, false)], "not for ever");
    }

    #[test]
    fn no_more_is_owed_than_redis_reads_at_a_time() {
        let (mut owed, replies, mut out) = (OwedReplies::default(), Replies::default(), Vec::new());
        assert!(owed.has_room(OWED_MAX + 1), "one request may be longer");
        while owed.has_room(posted(0, &replies).len()) {
            owed.push(posted(1, &replies), &mut out);
        }
        assert!(out.len() <= OWED_MAX && out.len() > OWED_MAX / 2);
        assert!(!owed.is_full());
    }
}
