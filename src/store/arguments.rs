//! What the scripts that take a lock are told.

use std::time::Duration;

use crate::config::Config;
use crate::store::Queue;
use crate::store::script::Arg;

/// A counter of fencing tokens lives at least this long after the last hold of its name, so that
/// names do not fill the server's memory.
const FENCE_LIFE_MIN: Duration = DAY;

/// A queue that nobody has joined and nobody in it has confirmed for this long is not needed any
/// more. At least; longer where clients ask less often.
const QUEUE_LIFE_MIN: Duration = Duration::from_secs(60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a queue lasts that nobody joins any more.
pub(super) fn queue_life(config: &Config) -> Duration {
    let (_, longest_pause) = config.backoff;
    longest_pause.saturating_mul(2).clamp(QUEUE_LIFE_MIN, DAY)
}

pub(super) fn fence_life(lease: Duration) -> Arg<'static> {
    Arg::millis(FENCE_LIFE_MIN.max(lease * 2))
}

/// The arguments of `acquire.lua`.
pub(super) fn acquire_args<'a>(
    owner: &'a str,
    client: &'a str,
    lease: Duration,
    queue: Queue,
    queue_life: Duration,
) -> [Arg<'a>; 6] {
    [
        Arg::Text(owner),
        Arg::millis(lease),
        fence_life(lease),
        Arg::Text(client),
        place(queue),
        Arg::millis(queue_life),
    ]
}

/// The arguments of `transfer.lua`.
pub(super) fn transfer_args<'a>(
    from: &'a str,
    to: &'a str,
    lease: Duration,
    yields: bool,
) -> [Arg<'a>; 5] {
    let yields = Arg::Number(yields.into());
    [Arg::Text(from), Arg::Text(to), Arg::millis(lease), fence_life(lease), yields]
}

fn place(queue: Queue) -> Arg<'static> {
    Arg::Number(match queue {
        Queue::Out => 0,
        Queue::Join => 1,
        Queue::Waits => 2,
        Queue::Yields => 3,
    })
}
