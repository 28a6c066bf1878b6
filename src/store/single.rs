//! Locks on one Redis server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::config::Config;
use crate::store::durable::Demand;
use crate::store::failure::{Failure, Trouble};
use crate::store::keys::Keys;
use crate::store::lane::Reply;
use crate::store::pipeline::Pipeline;
use crate::store::reply::{Inspected, bid, handover, inspected, standing};
use crate::store::script::{
    ACQUIRE, Arg, Call, FORCE, Form, INSPECT, LEAVE, NEST, RELEASE, TRANSFER,
};
use crate::store::server::Server;
use crate::store::subscription::Subscription;
use crate::store::{
    Answer, Bid, Handover, HoldId, Holder, Queue, Recall, Standing, Store, Then, Upkeep, Wakeups,
};

/// A counter of fencing tokens lives at least this long after the last hold of its name, so that
/// names do not fill the server's memory.
const FENCE_LIFE_MIN: Duration = DAY;

/// A queue that nobody has joined and nobody in it has confirmed for this long is not needed any
/// more. At least; longer where clients ask less often.
const QUEUE_LIFE_MIN: Duration = Duration::from_secs(60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// One server.
#[derive(Clone, Debug)]
pub(crate) struct Single {
    server: Server,
    /// What new holds and levels must meet besides.
    demand: Option<Demand>,
    keys: Keys,
    /// Whether the server knows the script that releases, as far as we know.
    releases: Arc<AtomicBool>,
    io_timeout: Duration,
    /// The same where no lease is at stake.
    patience: Duration,
    queue_life: Duration,
}

impl Single {
    pub(crate) fn new(server: Server, config: &Config) -> Self {
        Self {
            server,
            demand: Demand::new(config.durability),
            keys: Keys::new(&config.prefix),
            releases: Arc::default(),
            io_timeout: config.io_timeout(config.terms.span()),
            patience: config.io_timeout(Duration::MAX),
            queue_life: queue_life(config),
        }
    }

    /// The same locks on a node that is about to get their slot: it serves only what is preceded by
    /// ASKING.
    pub(crate) fn asking(&self) -> Self {
        Self { server: self.server.asking(), ..self.clone() }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// A way to care for many holds at once.
    pub(crate) fn pipeline(&self) -> Pipeline {
        Pipeline::new(self.server.connection(), self.keys.clone(), self.io_timeout)
    }

    /// The messages to a client that come over this server.
    pub(crate) fn subscription(&self, client: &str) -> Subscription {
        let (connection, keys) = (self.server.connection(), self.keys.clone());
        Subscription::new(connection, keys, client, self.patience)
    }

    /// Runs a script whose answer counts, if it has done something, only once that is as durable as
    /// demanded.
    fn ask_durably<T>(
        &self,
        pack: impl Fn(Form, &mut Vec<u8>),
        until: Instant,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        if let Some(demand) = &self.demand {
            return self.server.ask_durably(demand, pack, until, read);
        }
        let first = self.server.exchange(until, |out| pack(Form::Hash, out));
        self.server.finish(first, until, |out| pack(Form::Body, out), read)
    }

    fn with_release<T>(&self, hold: &HoldId, send: impl FnOnce(&Call<'_>) -> T) -> T {
        let (key, queue) = (self.keys.lock(&hold.name), self.keys.queue(&hold.name));
        let owner = hold.owner();
        send(&Call { script: &RELEASE, keys: &[&key, &queue], args: &[Arg::Text(&owner)] })
    }

    fn set_depth(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        send: impl FnOnce(&Call<'_>) -> Result<Standing, Failure>,
    ) -> Result<Standing, Failure> {
        let (key, owner) = (self.keys.lock(&hold.name), hold.owner());
        let args = &[Arg::Text(&owner), Arg::Number(depth.into()), Arg::millis(lease)];
        or_gone(send(&Call { script: &NEST, keys: &[&key], args }))
    }
}

impl Store for Single {
    fn acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        queue: Queue,
        until: Instant,
    ) -> Result<Bid, Failure> {
        let name = &hold.name;
        let keys: &[&str] =
            &[&self.keys.lock(name), &self.keys.fence(name), &self.keys.queue(name)];
        let owner = hold.owner();
        let args = &acquire_args(&owner, &hold.client, lease, queue, self.queue_life);
        let call = Call { script: &ACQUIRE, keys, args };
        self.ask_durably(|form, out| call.pack(form, out), until, bid)
    }

    fn nest(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure> {
        self.set_depth(hold, depth, lease, |call| self.server.ask(call, until, standing))
    }

    fn deepen(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure> {
        self.set_depth(hold, depth, lease, |call| {
            self.ask_durably(|form, out| call.pack(form, out), until, standing)
        })
    }

    fn release(&self, hold: &HoldId, until: Instant) -> Result<Standing, Failure> {
        let answer =
            self.with_release(hold, |call| or_gone(self.server.ask(call, until, standing)));
        if answer.is_ok() && !self.releases.load(Ordering::Relaxed) {
            self.releases.store(true, Ordering::Relaxed);
        }
        answer
    }

    fn post_release(&self, hold: &HoldId, until: Instant, then: Then<Standing>) -> Option<Recall> {
        // There is nobody to send the whole script if it is not known.
        if !self.releases.load(Ordering::Relaxed) {
            return None;
        }
        let single = self.clone();
        let read = Box::new(move |reply: Reply| {
            if matches!(&reply, Err(failure) if failure.code == "NOSCRIPT") {
                single.releases.store(false, Ordering::Relaxed);
            }
            then(or_gone(reply.and_then(|reply| single.server.understand(&reply, standing))));
        });
        let posted = self.with_release(hold, |call| {
            self.server.post(until, |out| call.pack(Form::Hash, out), read)
        })?;
        Some(Box::new(|| posted.recall()))
    }

    fn transfer(
        &self,
        from: &HoldId,
        to: &HoldId,
        lease: Duration,
        yields: bool,
        until: Instant,
    ) -> Answer<Handover> {
        let (keys, name, from, to) = (self.keys.clone(), to.name.clone(), from.owner(), to.owner());
        let pack = move |form, out: &mut Vec<u8>| {
            let keys: &[&str] = &[&keys.lock(&name), &keys.fence(&name), &keys.queue(&name)];
            let args = &transfer_args(&from, &to, lease, yields);
            Call { script: &TRANSFER, keys, args }.pack(form, out);
        };
        if self.demand.is_some() {
            // Not left to whoever wants the answer: until it is sent, the lock is held.
            let answer = self.ask_durably(pack, until, handover);
            return Box::new(|| answer);
        }
        let pending = self.server.begin(until, |out| pack(Form::Hash, out));
        let server = self.server.clone();
        Box::new(move || {
            server.finish(pending.wait(), until, |out| pack(Form::Body, out), handover)
        })
    }

    fn inspect(&self, name: &str, until: Instant) -> Result<Option<Holder>, Failure> {
        let call = Call { script: &INSPECT, keys: &[&self.keys.lock(name)], args: &[] };
        self.server.ask(&call, until, inspected).map(|Inspected(holder)| holder)
    }

    fn force(&self, name: &str, until: Instant) -> Result<bool, Failure> {
        let (key, queue) = (self.keys.lock(name), self.keys.queue(name));
        let call = Call { script: &FORCE, keys: &[&key, &queue], args: &[] };
        self.server.ask(&call, until, |reply| Some(standing(reply)? == Standing::Ours))
    }

    fn leave(&self, name: &str, client: &str, until: Instant) -> Result<(), Failure> {
        let (key, queue) = (self.keys.lock(name), self.keys.queue(name));
        let call = Call { script: &LEAVE, keys: &[&key, &queue], args: &[Arg::Text(client)] };
        self.server.ask(&call, until, standing).map(drop)
    }

    fn wakeups(&self, client: &str) -> Option<Box<dyn Wakeups>> {
        Some(Box::new(self.subscription(client)))
    }

    fn upkeep(&self) -> Box<dyn Upkeep> {
        Box::new(self.pipeline())
    }
}

/// Takes a hold for gone if somebody has put another thing in the lock's place.
fn or_gone(reply: Result<Standing, Failure>) -> Result<Standing, Failure> {
    match reply {
        Err(failure) if failure.trouble == Trouble::WrongType => Ok(Standing::Gone),
        other => other,
    }
}

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
