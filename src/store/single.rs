//! Locks on one Redis server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::config::Config;
use crate::store::arguments::{acquire_args, queue_life, transfer_args};
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

    /// Runs a script whose answer another thread may wait for.
    fn begin<T>(
        &self,
        pack: impl Fn(Form, &mut Vec<u8>) + Send + 'static,
        until: Instant,
        read: impl Fn(&Value) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        let pending = self.server.begin(until, |out| pack(Form::Hash, out));
        let server = self.server.clone();
        Box::new(move || server.finish(pending.wait(), until, |out| pack(Form::Body, out), read))
    }

    /// Writes the request for a hold.
    fn pack_acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        queue: Queue,
        form: Form,
        out: &mut Vec<u8>,
    ) {
        let name = &hold.name;
        let keys: &[&str] =
            &[&self.keys.lock(name), &self.keys.fence(name), &self.keys.queue(name)];
        let owner = hold.owner();
        let args = &acquire_args(&owner, &hold.client, lease, queue, self.queue_life);
        Call { script: &ACQUIRE, keys, args }.pack(form, out);
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
        let pack = |form, out: &mut Vec<u8>| self.pack_acquire(hold, lease, queue, form, out);
        self.ask_durably(pack, until, bid)
    }

    fn begin_acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        queue: Queue,
        until: Instant,
    ) -> Option<Answer<Bid>> {
        if self.demand.is_some() {
            return None;
        }
        let (single, hold) = (self.clone(), hold.clone());
        let pack = move |form, out: &mut Vec<u8>| {
            single.pack_acquire(&hold, lease, queue, form, out);
        };
        Some(self.begin(pack, until, bid))
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
        self.begin(pack, until, handover)
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
