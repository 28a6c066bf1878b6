//! The requests that a quorum is asked: as for a single server, except that tokens are proposed.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::store::arguments::{acquire_args, fence_life, transfer_args};
use crate::store::durable::Demand;
use crate::store::keys::Keys;
use crate::store::quorum::flight::{Effect, Request};
use crate::store::script::{
    ACQUIRE_PROPOSED, Arg, FORCE, INSPECT, LEAVE, NEST, RAISE, RELEASE, Script, TRANSFER_PROPOSED,
    WITHDRAW,
};
use crate::store::{HoldId, Queue};

/// Makes requests.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) keys: Keys,
    pub(super) queue_life: Duration,
    /// What each server must meet for a new hold or level, besides.
    pub(super) demand: Option<Demand>,
}

impl Requests {
    /// A request that a server counts as having done only once that is as durable as demanded.
    pub(super) fn durable(&self, request: Request, until: Instant) -> Request {
        Request { demand: self.demand.map(|demand| (demand, until)), ..request }
    }

    pub(super) fn acquire(&self, hold: &HoldId, lease: Duration, queue: Queue) -> Request {
        let owner = hold.owner();
        let args = acquire_args(&owner, &hold.client, lease, queue, self.queue_life);
        let (keys, effect) = (self.all_keys(&hold.name), Effect::Begins(hold.clone()));
        request(&ACQUIRE_PROPOSED, keys, args.into_iter().chain([proposal()]), effect)
    }

    /// Counts up to the token of a hold.
    pub(super) fn raise(&self, hold: &HoldId, fence: u64, lease: Duration) -> Request {
        let keys = [self.lock(&hold.name), self.keys.fence(&hold.name)];
        let owner = hold.owner();
        let args = [Arg::Text(&owner), Arg::Number(fence), fence_life(lease)];
        request(&RAISE, keys, args, Effect::Nothing)
    }

    /// Takes back a hold that has not come about.
    pub(super) fn withdraw(&self, hold: &HoldId) -> Request {
        let effect = Effect::Ends(hold.clone());
        request(&WITHDRAW, [self.lock(&hold.name)], [Arg::Text(&hold.owner())], effect)
    }

    pub(super) fn nest(&self, hold: &HoldId, depth: u32, lease: Duration) -> Request {
        let owner = hold.owner();
        let args = [Arg::Text(&owner), Arg::Number(depth.into()), Arg::millis(lease)];
        request(&NEST, [self.lock(&hold.name)], args, Effect::Nothing)
    }

    pub(super) fn release(&self, hold: &HoldId) -> Request {
        let keys = self.lock_and_queue(&hold.name);
        request(&RELEASE, keys, [Arg::Text(&hold.owner())], Effect::Ends(hold.clone()))
    }

    pub(super) fn transfer(
        &self,
        from: &HoldId,
        to: &HoldId,
        lease: Duration,
        yields: bool,
    ) -> Request {
        let (old, new) = (from.owner(), to.owner());
        let args = transfer_args(&old, &new, lease, yields).into_iter().chain([proposal()]);
        let effect = Effect::Replaces { from: from.clone(), to: to.clone() };
        request(&TRANSFER_PROPOSED, self.all_keys(&to.name), args, effect)
    }

    pub(super) fn inspect(&self, name: &str) -> Request {
        request(&INSPECT, [self.lock(name)], [], Effect::Nothing)
    }

    pub(super) fn force(&self, name: &str) -> Request {
        request(&FORCE, self.lock_and_queue(name), [], Effect::Nothing)
    }

    pub(super) fn leave(&self, name: &str, client: &str) -> Request {
        request(&LEAVE, self.lock_and_queue(name), [Arg::Text(client)], Effect::Nothing)
    }

    fn lock(&self, name: &str) -> String {
        self.keys.lock(name).into_owned()
    }

    fn lock_and_queue(&self, name: &str) -> [String; 2] {
        [self.lock(name), self.keys.queue(name)]
    }

    fn all_keys(&self, name: &str) -> [String; 3] {
        [self.lock(name), self.keys.fence(name), self.keys.queue(name)]
    }
}

fn request<'a, const K: usize>(
    script: &'static Script,
    keys: [String; K],
    args: impl IntoIterator<Item = Arg<'a>>,
    effect: Effect,
) -> Request {
    let args = args.into_iter().map(Into::into).collect();
    Request { script, keys: keys.into(), args, effect, demand: None }
}

/// The token that all servers are to give: this system's clock in microseconds.
fn proposal() -> Arg<'static> {
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    Arg::Number(u64::try_from(micros).unwrap_or(u64::MAX))
}
