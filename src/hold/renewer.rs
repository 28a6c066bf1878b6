//! The one thread of a client that keeps its leases alive, and removes what requests with an
//! unknown outcome may have left behind.
//!
//! Taking a lock does not wake it: the new lease goes into a channel that is emptied when the
//! thread is awake anyway, and the thread is woken only for a lease that is due before then.

use std::collections::{BinaryHeap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{cmp, mem, thread};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::clock::Moment;
use crate::event::{Event, Events};
use crate::hold::lease::{Duty, Lease};
use crate::store::{Care, Failure, HoldId, Outcome, Standing, Task, Upkeep};

/// So many leases may wait in the channel before the thread is woken to empty it. Nearly all of
/// them have ended by then.
const CHANNEL_FULL: usize = 1024;

/// At most so many tasks are sent together.
const BATCH: usize = 512;

/// While replies are awaited the thread looks this often for leases that are due.
const LOOK: Duration = Duration::from_millis(5);

/// A lease that is due within this part of its length is renewed along with others.
const TOGETHER: u32 = 64;

/// A renewal that failed is tried again after this part of the lease.
const RETRY: u32 = 20;

/// The first pause between two tries to clean up.
const CLEAN_PAUSE: Duration = Duration::from_millis(10);

/// Something to care for.
#[derive(Clone, Debug)]
enum Charge {
    Lease(Arc<Lease>),
    Orphan(Box<Orphan>),
}

/// What a request with an unknown outcome may have left behind, or may yet leave.
#[derive(Clone, Debug)]
pub(crate) struct Orphan {
    pub(crate) hold: HoldId,
    /// After this it is gone by itself.
    pub(crate) until: Moment,
    /// How long one request may take.
    pub(crate) io_timeout: Duration,
    /// Whether the first answer settles it: nothing that would create it can come after.
    pub(crate) settles: bool,
    pause: Duration,
    longest_pause: Duration,
}

impl Orphan {
    pub(crate) fn new(hold: HoldId, until: Moment, io_timeout: Duration, settles: bool) -> Self {
        let longest_pause = (until.since(Moment::now()) / RETRY).max(CLEAN_PAUSE);
        Self { hold, until, io_timeout, settles, pause: CLEAN_PAUSE, longest_pause }
    }
}

/// The client's end of the channel. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Renewer {
    charges: Sender<Charge>,
    waiting: Arc<AtomicUsize>,
    bell: Sender<()>,
    /// When the thread will wake by itself; [`Moment::FIRST`] while it is awake.
    wakes: Arc<AtomicU64>,
}

impl Renewer {
    /// Starts the thread.
    pub(crate) fn start(
        upkeep: Box<dyn Upkeep>,
        io_timeout: Duration,
        events: Events,
    ) -> std::io::Result<Self> {
        let (charges, incoming) = unbounded();
        let (bell, rung) = bounded(1);
        let waiting = Arc::new(AtomicUsize::new(0));
        let wakes = Arc::new(AtomicU64::new(Moment::FIRST.raw()));
        let mut work = Work {
            incoming,
            waiting: waiting.clone(),
            rung,
            wakes: wakes.clone(),
            agenda: BinaryHeap::new(),
            flying: HashMap::new(),
            tasks: 0,
            upkeep,
            io_timeout,
            events,
        };
        thread::Builder::new().name("leasehold-renew".into()).spawn(move || work.run())?;
        Ok(Self { charges, waiting, bell, wakes })
    }

    /// Hands over a lease that was just taken.
    pub(crate) fn keep(&self, lease: &Arc<Lease>) {
        let now = Moment::now();
        let due = match lease.duty(now) {
            Duty::Look(then) => then,
            Duty::None | Duty::Renew => now,
        };
        self.hand_over(Charge::Lease(lease.clone()), due);
    }

    /// Hands over what has to be cleaned up.
    pub(crate) fn clean(&self, orphan: Orphan) {
        self.hand_over(Charge::Orphan(Box::new(orphan)), Moment::FIRST);
    }

    fn hand_over(&self, charge: Charge, due: Moment) {
        // The thread ends only after `self`.
        drop(self.charges.send(charge));
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        if due.raw() < self.wakes.load(Ordering::SeqCst) || waiting == CHANNEL_FULL {
            // A bell that rings already need not be rung.
            self.bell.try_send(()).unwrap_or_default();
        }
    }
}

/// The thread's own state.
struct Work {
    incoming: Receiver<Charge>,
    waiting: Arc<AtomicUsize>,
    rung: Receiver<()>,
    wakes: Arc<AtomicU64>,
    agenda: BinaryHeap<Entry>,
    /// What was sent, by task number.
    flying: HashMap<u64, Flying>,
    tasks: u64,
    upkeep: Box<dyn Upkeep>,
    io_timeout: Duration,
    events: Events,
}

/// A charge and when to look at it.
struct Entry {
    due: Moment,
    /// How much earlier it may be dealt with if that saves a wake-up.
    slack: Duration,
    charge: Charge,
}

struct Flying {
    charge: Charge,
    sent: Moment,
    span: Duration,
}

impl Work {
    fn run(&mut self) {
        loop {
            // A bug here, or a panic of the program's logger, must not end all renewal.
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => self.recover(),
            }
        }
        self.finish();
    }

    /// Does what is due, then waits. `false` when the client is gone.
    fn turn(&mut self) -> bool {
        self.take_in();
        self.send_due();
        if self.flying.is_empty() {
            return self.sleep();
        }
        self.collect(Instant::now() + LOOK);
        true
    }

    fn take_in(&mut self) {
        let mut taken = 0;
        while let Ok(charge) = self.incoming.try_recv() {
            taken += 1;
            self.schedule(charge);
        }
        self.waiting.fetch_sub(taken, Ordering::SeqCst);
    }

    /// Notes a charge for when it is due, unless there is nothing to do for it any more.
    fn schedule(&mut self, charge: Charge) {
        let now = Moment::now();
        let (due, slack) = match &charge {
            Charge::Orphan(_) => (now, Duration::ZERO),
            Charge::Lease(lease) => match lease.duty(now) {
                Duty::None => return,
                Duty::Look(then) => (then, lease.length() / TOGETHER),
                Duty::Renew => (now, Duration::ZERO),
            },
        };
        self.agenda.push(Entry { due, slack, charge });
    }

    fn send_due(&mut self) {
        let now = Moment::now();
        let mut end = Instant::now() + self.io_timeout;
        let mut batch = Vec::new();
        let mut early = Vec::new();
        while batch.len() < BATCH
            && let Some(entry) = self.agenda.peek()
            && entry.due <= now.after(entry.slack)
            && let Some(Entry { due, slack, charge }) = self.agenda.pop()
        {
            let time;
            let flying = match &charge {
                Charge::Orphan(orphan) => {
                    time = orphan.io_timeout;
                    Flying { charge: charge.clone(), sent: now, span: Duration::ZERO }
                }
                Charge::Lease(lease) => {
                    if lease.expire(&self.events) {
                        self.clean_up_after(lease);
                    }
                    match lease.duty(now.after(slack)) {
                        Duty::None => continue,
                        Duty::Look(then) => {
                            early.push(Entry { due: then.max(due), slack: Duration::ZERO, charge });
                            continue;
                        }
                        Duty::Renew => {}
                    }
                    time = (lease.length() / 3).min(lease.remaining());
                    Flying { charge: charge.clone(), sent: now, span: lease.span(now) }
                }
            };
            end = end.min(Instant::now() + time);
            batch.push(self.launch(flying));
        }
        self.agenda.extend(early);
        if !batch.is_empty() {
            self.with_upkeep(|upkeep, done| upkeep.send(batch, end, done));
        }
    }

    /// Numbers a task and notes it as sent.
    fn launch(&mut self, flying: Flying) -> Task {
        self.tasks += 1;
        let id = self.tasks;
        let task = match &flying.charge {
            Charge::Orphan(orphan) => Task { id, hold: orphan.hold.clone(), care: Care::Release },
            Charge::Lease(lease) => {
                Task { id, hold: lease.id.clone(), care: Care::Renew { lease: flying.span } }
            }
        };
        self.flying.insert(id, flying);
        task
    }

    fn collect(&mut self, until: Instant) {
        self.with_upkeep(|upkeep, done| upkeep.collect(until, done));
    }

    /// Lets the upkeep work and deals with what it reports.
    fn with_upkeep(&mut self, work: impl FnOnce(&mut dyn Upkeep, &mut dyn FnMut(u64, Outcome))) {
        let mut outcomes = Vec::new();
        work(self.upkeep.as_mut(), &mut |id, outcome| outcomes.push((id, outcome)));
        let mut renewed = 0;
        for (id, outcome) in outcomes {
            let Some(Flying { charge, sent, span }) = self.flying.remove(&id) else { continue };
            match charge {
                Charge::Lease(lease) => {
                    renewed += usize::from(self.renewal(lease, sent, span, outcome));
                }
                Charge::Orphan(orphan) => self.cleaned(orphan, &outcome),
            }
        }
        if renewed > 0 {
            self.events.emit(|| Event::Renewed { count: renewed });
            log::trace!(target: "leasehold", "renewed {renewed} leases");
        }
    }

    /// Deals with the outcome of a renewal. `true` if it was one.
    fn renewal(
        &mut self,
        lease: Arc<Lease>,
        sent: Moment,
        span: Duration,
        outcome: Outcome,
    ) -> bool {
        match outcome {
            Ok(Standing::Ours) => {
                lease.extend(sent, span);
                self.schedule(Charge::Lease(lease));
                true
            }
            Ok(Standing::Gone) => {
                lease.lose(&self.events);
                false
            }
            Err(failure) => {
                let due = Moment::now().after(lease.length() / RETRY);
                let charge = Charge::Lease(lease.clone());
                self.agenda.push(Entry { due, slack: Duration::ZERO, charge });
                self.tell_failing(&lease, &failure);
                false
            }
        }
    }

    fn tell_failing(&self, lease: &Lease, failure: &Failure) {
        let remaining = lease.remaining();
        if remaining.is_zero() {
            return;
        }
        let (name, source) = (lease.name(), &failure.source);
        self.events.emit(|| Event::RenewalFailing {
            name: name.to_string(),
            remaining,
            reason: source.to_string(),
        });
        log::warn!(
            target: "leasehold",
            "renewing lock {name:?} on {} fails, {remaining:?} left: {source}", failure.server
        );
    }

    fn cleaned(&mut self, mut orphan: Box<Orphan>, outcome: &Outcome) {
        let now = Moment::now();
        let settled = orphan.settles && outcome.is_ok();
        if !settled && now < orphan.until {
            let due = now.after(orphan.pause);
            orphan.pause = (orphan.pause * 2).min(orphan.longest_pause);
            self.agenda.push(Entry { due, slack: Duration::ZERO, charge: Charge::Orphan(orphan) });
        }
    }

    /// A lease that ran out unconfirmed may still stand in Redis; nobody needs it there.
    fn clean_up_after(&mut self, lease: &Lease) {
        let until = Moment::now().after(lease.length());
        let orphan = Orphan::new(lease.id.clone(), until, self.io_timeout, true);
        self.schedule(Charge::Orphan(Box::new(orphan)));
    }

    /// Waits until something is due or the bell rings. `false` when the client is gone.
    fn sleep(&mut self) -> bool {
        let due = self.agenda.peek().map_or(Moment::NEVER, |entry| entry.due);
        self.wakes.store(due.raw(), Ordering::SeqCst);
        // A charge handed over before the line above rang no bell.
        let mut goes_on = true;
        if self.incoming.is_empty() {
            let time = due.since(Moment::now()).min(Duration::from_secs(24 * 60 * 60));
            goes_on = self.rung.recv_timeout(time) != Err(RecvTimeoutError::Disconnected);
        }
        self.wakes.store(Moment::FIRST.raw(), Ordering::SeqCst);
        goes_on
    }

    /// Starts over after a panic, with nothing forgotten.
    fn recover(&mut self) {
        let told =
            catch_unwind(|| log::error!(target: "leasehold", "the renewer panicked; going on"));
        drop(told);
        self.upkeep.abandon(&mut |_, _| {});
        for (_, Flying { charge, .. }) in mem::take(&mut self.flying) {
            self.schedule(charge);
        }
        // Should the cause persist, it must not take a whole core.
        thread::sleep(CLEAN_PAUSE);
    }

    /// The last thing: one more try at what is left to clean up.
    fn finish(&mut self) {
        self.take_in();
        let end = Instant::now() + self.io_timeout;
        let entries = mem::take(&mut self.agenda);
        let orphans = entries.into_iter().filter(|entry| matches!(entry.charge, Charge::Orphan(_)));
        let tasks: Vec<_> = orphans
            .map(|Entry { due, charge, .. }| {
                self.launch(Flying { charge, sent: due, span: Duration::ZERO })
            })
            .collect();
        self.upkeep.send(tasks, end, &mut |_, _| {});
        self.upkeep.collect(end, &mut |_, _| {});
    }
}

/// The earliest entry is the greatest, as `BinaryHeap` gives out the greatest first.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        other.due.cmp(&self.due)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Entry {}
