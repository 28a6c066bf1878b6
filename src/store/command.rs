//! One call of a script: what is sent, and how the reply is read.

use std::time::Duration;

use crate::net::request::{Arg, Request};
use crate::store::decoder::Decoder;

/// How long a released lock is offered to the client that has waited longest. Long enough for a
/// client that is far away or short of processor time: only one that has stopped loses its offer.
/// The servers of a quorum may offer it to different clients, if these have come at nearly the same
/// time. Unless a majority agrees, each of the clients gets too few votes, and they try again after
/// pauses at random.
pub(super) const OFFER: Duration = Duration::from_millis(200);

/// A request and the decoder of its reply.
#[derive(Clone, Debug)]
pub(crate) struct Command<T> {
    pub(crate) request: Request,
    pub(crate) decoder: Decoder<T>,
}

/// A time in milliseconds, rounded up: zero would delete the key.
pub(super) fn millis(time: Duration) -> Arg<'static> {
    let millis = time.as_nanos().div_ceil(1_000_000);
    Arg::Number(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_to_whole_milliseconds() {
        let millis = |time| match millis(time) {
            Arg::Number(number) => number,
            Arg::Bytes(_) | Arg::Text(_) => panic!("a time is a number"),
        };
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(10)), 10);
        assert_eq!(millis(Duration::from_micros(10_001)), 11);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
