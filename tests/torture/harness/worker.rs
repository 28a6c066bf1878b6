//! A worker process: threads that take locks, change what the locks protect, and write down every
//! call.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Client, Error, Stats};
use redis::RedisResult;

use crate::harness::Result;
use crate::harness::guard::{AnyGuard, HoldKind, Primitive, Wait};
use crate::harness::history::{self, Action, Outcome, Recorder, nanos, now};
use crate::harness::kept_use::KeptUse;
use crate::harness::locks;
use crate::harness::options::{Options, Role};
use crate::harness::random::Random;
use crate::harness::register::Register;

const LEVELS: u32 = 3;
/// One in this many holds of a read-write lock is a writer's.
const WRITERS: u32 = 3;
/// One in this many guards is unlocked, the others are dropped.
const UNLOCKS: u32 = 3;
/// The longest time for which most holders work. It is the greater part of a lock's time, so that a
/// fault of a worker is mostly one of a holder.
const WORK: Duration = Duration::from_millis(10);
/// The longest pause of a thread between two holds.
const REST: Duration = Duration::from_millis(4);

/// Works until the parent process closes this one's input, or ends.
pub(crate) fn run(options: &Options, role: &Role) -> Result<()> {
    let ended = AtomicBool::new(false);
    let recorder = Recorder::create(&history::path(&role.dir, role.number))?;
    thread::scope(|scope| {
        let ended = &ended;
        scope.spawn(move || {
            // An error ends the input too.
            io::copy(&mut io::stdin(), &mut io::sink()).ok();
            ended.store(true, Ordering::Relaxed);
        });
        let Some(client) = open(options, role, ended)? else { return Ok(()) };
        let threads: Vec<_> = (0..options.threads)
            .map(|number| {
                let worker = Worker {
                    client: client.clone(),
                    register: Register::open(&role.register, options.fenced)?,
                    recorder: &recorder,
                    random: Random::new(options.seed, role.number * 1000 + u64::from(number)),
                    options,
                    number,
                };
                Ok(scope.spawn(move || worker.run(ended)))
            })
            .collect::<Result<_>>()?;
        let mut threads = threads.into_iter();
        threads.try_for_each(|thread| thread.join().expect("a thread does not panic"))?;
        let Stats { relocks, recalls, .. } = client.stats();
        Ok(KeptUse { relocks, recalls }.write(&role.dir, role.number)?)
    })
}

/// Opens the client; `None` if the run ends before the server can be reached.
fn open(options: &Options, role: &Role, ended: &AtomicBool) -> Result<Option<Client>> {
    while !ended.load(Ordering::Relaxed) {
        match locks::open(options, role) {
            Ok(client) => return Ok(Some(client)),
            Err(error) if error.is_retryable() => thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

struct Worker<'run> {
    client: Client,
    register: Register,
    recorder: &'run Recorder,
    random: Random,
    options: &'run Options,
    number: u32,
}

impl Worker<'_> {
    fn run(mut self, ended: &AtomicBool) -> Result<()> {
        while !ended.load(Ordering::Relaxed) {
            let name = self.random.below(self.options.names);
            self.hold(name)?;
            thread::sleep(self.random.tenths(REST, (0, 10)));
        }
        Ok(())
    }

    /// Takes a lock, sometimes nested, or what else the name has, works under it and releases it.
    fn hold(&mut self, name: u32) -> Result<()> {
        let kind = match self.options.primitive(name) {
            Primitive::Lock => HoldKind::Lock,
            Primitive::RwLock if self.random.one_in(WRITERS) => HoldKind::Write,
            Primitive::RwLock => HoldKind::Read,
            Primitive::Semaphore => HoldKind::Permit,
        };
        let Some(outer) = self.take(name, kind, 1)? else { return Ok(()) };
        let mut guards = vec![outer];
        while kind == HoldKind::Lock && count(&guards) < LEVELS && self.random.one_in(4) {
            guards.extend(self.take(name, kind, count(&guards) + 1)?);
        }
        self.work(name, kind, &guards)?;
        while !guards.is_empty() {
            self.unlock(name, &mut guards)?;
            if !guards.is_empty() {
                self.check(name, &guards);
            }
        }
        if kind != HoldKind::Lock {
            return Ok(());
        }
        let held = || self.client.mutex(&lock_name(name)).is_held_by_current_thread();
        self.record(name, Action::Check { levels: 0 }, || {
            ((), if held() { Outcome::Held { until: now() } } else { Outcome::Free })
        });
        Ok(())
    }

    /// Takes it in one of the three ways that there are.
    fn take(&mut self, name: u32, kind: HoldKind, level: u32) -> Result<Option<AnyGuard>> {
        let (way, time) = (self.random.below(3), self.random.tenths(self.options.lease, (0, 10)));
        let wait = [Wait::Default, Wait::No, Wait::For(time)][way as usize];
        let key = lock_name(name);
        self.record(name, kind.action(level), || {
            match AnyGuard::acquire(&self.client, kind, &key, wait) {
                Ok(Some(guard)) => {
                    let (fence, depth) = (guard.fence(), guard.depth());
                    let until = promise(&guard).unwrap_or_default();
                    (Ok(Some(guard)), Outcome::Granted { fence, depth, until })
                }
                Ok(None) => (Ok(None), Outcome::Busy),
                Err(error) => {
                    let (result, outcome) = expected(error);
                    (result.map(|()| None), outcome)
                }
            }
        })
    }

    /// Reads a number and, unless others read it too, writes the next one. Only careful workers
    /// check before that the lock is still held. Under a permit there is no fence to do so with.
    fn work(&mut self, name: u32, kind: HoldKind, guards: &[AnyGuard]) -> Result<()> {
        if kind == HoldKind::Permit {
            self.take_time(name, guards);
            return Ok(self.register.count(name)?);
        }
        let (fence, at) = (guards[0].fence(), (self.number, name));
        let read = || settled(self.register.read(name, fence));
        let read = self.recorder.record(at, Action::Read { fence }, read)?;
        self.take_time(name, guards);
        let stops = self.options.careful && !guards[0].is_held();
        if let Outcome::Value { value } = read
            && kind != HoldKind::Read
            && !stops
        {
            let value = value + 1;
            let write = || settled(self.register.write(name, fence, value));
            self.recorder.record(at, Action::Write { fence, value }, write)?;
        }
        Ok(())
    }

    /// Takes some time, now and then so long that the lease has to be renewed.
    fn take_time(&mut self, name: u32, guards: &[AnyGuard]) {
        let long = self.random.one_in(400);
        let (parts, part) = if long {
            (5 + self.random.below(40), self.options.lease / 10)
        } else {
            (1, self.random.tenths(WORK, (0, 10)))
        };
        for _ in 0..parts {
            thread::sleep(part);
            self.check(name, guards);
        }
    }

    fn check(&self, name: u32, guards: &[AnyGuard]) {
        let levels = count(guards);
        self.record(name, Action::Check { levels }, || {
            ((), promise(&guards[0]).map_or(Outcome::Lost, |until| Outcome::Held { until }))
        });
    }

    /// Unlocks or drops any of the guards. Only a drop hands the lock on to the next thread.
    fn unlock(&mut self, name: u32, guards: &mut Vec<AnyGuard>) -> Result<()> {
        let levels = count(guards);
        let guard = guards.swap_remove(self.random.below(levels) as usize);
        let drops = !self.random.one_in(UNLOCKS);
        self.record(name, Action::Unlock { levels }, || {
            if drops {
                drop(guard);
                return (Ok(()), Outcome::Dropped);
            }
            match guard.unlock() {
                Ok(()) => (Ok(()), Outcome::Done),
                Err(error) => expected(error),
            }
        })
    }

    fn record<T>(&self, name: u32, action: Action, call: impl FnOnce() -> (T, Outcome)) -> T {
        self.recorder.record((self.number, name), action, call)
    }
}

/// The time until which a guard is sure to be held without a renewal. The clock is read first, so
/// that a pause of the thread cannot make this time too late.
fn promise(guard: &AnyGuard) -> Option<u64> {
    let now = now();
    guard.is_held().then(|| now + nanos(guard.remaining()))
}

/// The outcome of an error of a lock, or the error itself if it must not happen here.
fn expected(error: Error) -> (Result<()>, Outcome) {
    match error {
        Error::Timeout { .. } => (Ok(()), Outcome::Busy),
        Error::Lost { .. } => (Ok(()), Outcome::Lost),
        // Too few replicas is a refusal, but the servers may learn of it later.
        Error::NoQuorum { .. } | Error::NotReplicated { .. } | Error::Unavailable { .. } => {
            (Ok(()), Outcome::Unknown)
        }
        other => (Err(other.into()), Outcome::Unknown),
    }
}

/// The same for the register, where no call may fail.
fn settled(answer: RedisResult<Outcome>) -> (Result<Outcome>, Outcome) {
    match answer {
        Ok(outcome) => (Ok(outcome), outcome),
        Err(error) => (Err(error.into()), Outcome::Unknown),
    }
}

fn lock_name(name: u32) -> String {
    format!("torture:{name}")
}

fn count(guards: &[AnyGuard]) -> u32 {
    u32::try_from(guards.len()).expect("few guards")
}
