//! A worker process: threads that take locks, change the resource under the locks, and record every
//! call.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Client, MultiGuard, Stats};

use crate::harness::Result;
use crate::harness::guard::{AnyGuard, HoldKind, Primitive, Wait};
use crate::harness::history::{self, Action, Outcome, Recorder, now};
use crate::harness::kept_use::KeptUse;
use crate::harness::locks;
use crate::harness::options::{Options, Role};
use crate::harness::outcomes::{dropped, expected, promise, settled, unlocked};
use crate::harness::random::Random;
use crate::harness::register::Register;

const LEVELS: u32 = 3;
/// One in this many holds of a read-write lock is a writer's.
const WRITERS: u32 = 3;
/// One in this many holds of a lock also takes the next lock.
const SETS: u32 = 8;
/// One in this many guards is unlocked. The others are dropped.
const UNLOCKS: u32 = 3;
/// The longest time for which most holders work. It is most of a lock's time, so that a fault of a
/// worker usually hits a holder.
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

    /// Takes a lock, sometimes nested, or another kind of hold, works under it and releases it.
    fn hold(&mut self, name: u32) -> Result<()> {
        let next = (name + 1) % self.options.names;
        let is_lock = |name| self.options.primitive(name) == Primitive::Lock;
        let kind = match self.options.primitive(name) {
            Primitive::Lock if next != name && is_lock(next) && self.random.one_in(SETS) => {
                return self.hold_both([name, next]);
            }
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

    /// Takes two locks together, works under both and releases them. A thread of a history has one
    /// hold at a time, so the second one belongs to another thread there.
    fn hold_both(&mut self, names: [u32; 2]) -> Result<()> {
        let at = [(self.number, names[0]), (self.number + self.options.threads, names[1])];
        let (keys, wait) = (names.map(lock_name), self.wait());
        let set = self.client.multi_mutex(&keys);
        let left = |set: &MultiGuard| promise(|| set.is_held().then(|| set.remaining()));
        let taken = self.record_both(at, Action::Lock { level: 1 }, || {
            let taken = match wait {
                Wait::Default => set.lock().map(Some),
                Wait::For(time) => set.try_lock_for(time),
                Wait::No => set.try_lock(),
            };
            match taken {
                Ok(Some(set)) => {
                    let until = left(&set).unwrap_or_default();
                    let fences = keys.each_ref().map(|key| set.fence(key).expect("its name"));
                    let outcomes = fences.map(|fence| Outcome::Granted { fence, depth: 1, until });
                    (Ok(Some((set, fences))), outcomes)
                }
                Ok(None) => (Ok(None), [Outcome::Busy; 2]),
                Err(error) => {
                    let (result, outcome) = expected(error);
                    (result.map(|()| None), [outcome; 2])
                }
            }
        });
        let Some((set, fences)) = taken? else { return Ok(()) };
        let read = [self.read(at[0], fences[0])?, self.read(at[1], fences[1])?];
        thread::sleep(self.random.tenths(WORK, (0, 10)));
        self.record_both(at, Action::Check { levels: 1 }, || {
            ((), [left(&set).map_or(Outcome::Lost, |until| Outcome::Held { until }); 2])
        });
        for (at, (fence, read)) in at.into_iter().zip(fences.into_iter().zip(read)) {
            if !self.options.careful || set.is_held() {
                self.write_next(at, fence, read)?;
            }
        }
        let unlocks = self.random.one_in(UNLOCKS);
        self.record_both(at, Action::Unlock { levels: 1 }, || {
            let (result, outcome) = if unlocks { unlocked(set.unlock()) } else { dropped(set) };
            (result, [outcome; 2])
        })
    }

    /// Returns one of the three ways to wait.
    fn wait(&mut self) -> Wait {
        let (way, time) = (self.random.below(3), self.random.tenths(self.options.lease, (0, 10)));
        [Wait::Default, Wait::No, Wait::For(time)][way as usize]
    }

    fn take(&mut self, name: u32, kind: HoldKind, level: u32) -> Result<Option<AnyGuard>> {
        let (key, wait) = (lock_name(name), self.wait());
        self.record(name, kind.action(level), || {
            match AnyGuard::acquire(&self.client, kind, &key, wait) {
                Ok(Some(guard)) => {
                    let (fence, depth) = (guard.fence(), guard.depth());
                    let until = promise(|| guard.left()).unwrap_or_default();
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
    /// first check that the lock is still held. Under a permit there is no fence to do so with.
    fn work(&mut self, name: u32, kind: HoldKind, guards: &[AnyGuard]) -> Result<()> {
        if kind == HoldKind::Permit {
            self.take_time(name, guards);
            return Ok(self.register.count(name)?);
        }
        let (fence, at) = (guards[0].fence(), (self.number, name));
        let read = self.read(at, fence)?;
        self.take_time(name, guards);
        let stops = self.options.careful && guards[0].left().is_none();
        if kind == HoldKind::Read || stops {
            return Ok(());
        }
        self.write_next(at, fence, read)
    }

    fn read(&mut self, at: (u32, u32), fence: u64) -> Result<Outcome> {
        let read = || settled(self.register.read(at.1, fence));
        self.recorder.record(at, Action::Read { fence }, read)
    }

    /// Writes the number after the one that was read.
    fn write_next(&mut self, at: (u32, u32), fence: u64, read: Outcome) -> Result<()> {
        let Outcome::Value { value } = read else { return Ok(()) };
        let value = value + 1;
        let write = || settled(self.register.write(at.1, fence, value));
        self.recorder.record(at, Action::Write { fence, value }, write).map(|_| ())
    }

    /// Takes some time, occasionally so long that the lease must be renewed.
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
            let until = promise(|| guards[0].left());
            ((), until.map_or(Outcome::Lost, |until| Outcome::Held { until }))
        });
    }

    /// Unlocks or drops any of the guards. Only a drop hands the lock off to the next thread.
    fn unlock(&mut self, name: u32, guards: &mut Vec<AnyGuard>) -> Result<()> {
        let levels = count(guards);
        let guard = guards.swap_remove(self.random.below(levels) as usize);
        let drops = !self.random.one_in(UNLOCKS);
        self.record(name, Action::Unlock { levels }, || {
            if drops { dropped(guard) } else { unlocked(guard.unlock()) }
        })
    }

    fn record<T>(&self, name: u32, action: Action, call: impl FnOnce() -> (T, Outcome)) -> T {
        self.recorder.record((self.number, name), action, call)
    }

    /// Makes one call about two names.
    fn record_both<T>(
        &self,
        [first, second]: [(u32, u32); 2],
        action: Action,
        call: impl FnOnce() -> (T, [Outcome; 2]),
    ) -> T {
        self.recorder.record(first, action, || {
            self.recorder.record(second, action, || {
                let (value, [first, second]) = call();
                ((value, first), second)
            })
        })
    }
}

fn lock_name(name: u32) -> String {
    format!("torture:{name}")
}

fn count(guards: &[AnyGuard]) -> u32 {
    u32::try_from(guards.len()).expect("few guards")
}
