//! Threads, time and chance of a simulation: all threads of all its processes are coroutines of one
//! thread, which run in turn, in virtual time, in an order that a seed decides.
//!
//! `src/base/sync.rs` and `src/base/clock.rs` ask this module in every unit test: a thread that
//! would block there gives its turn to the next one, and the clock shows the time of the
//! simulation. So does `src/net/socket.rs`, where a thread waits for bytes. Outside a simulation,
//! nothing here has any effect.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Select, TryRecvError};
use generator::{Generator, Gn};

pub(crate) use crate::base::SplitMix as Random;
use crate::event;

/// The stack size of each thread, in words.
const STACK: usize = 0x8000;

/// The real time at virtual time 0.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The virtual time at the start, so that times before it exist.
pub(crate) const START: Duration = Duration::from_secs(1_000_000);

/// More turns than any simulation needs, or any small world.
const STEPS_MAX: u64 = 3_000_000;
const STEPS_ON_COURSE_MAX: u64 = 50_000;

/// Some thread is in an endless loop.
const BUSY: &str = "threads are busy, and time stands still";

/// The deadline of a thread that waits forever.
const NEVER: Duration = Duration::from_secs(2_000_000);

/// How long a thread that is preempted by a course stays off the processor: a few round trips.
const SOON: Duration = Duration::from_millis(5);

/// How often a thread that cannot be woken tries again.
const RETRY: Duration = Duration::from_millis(1);

type Coroutine = Generator<'static, (), ()>;

/// Receives the events of clients, with the number of the process that reports each.
type Observer = fn(Process, &event::Event);

/// Opens a connection of a process to one of these addresses until the deadline. Returns the socket
/// and the address.
type Connect = fn(Process, &[SocketAddr], Instant) -> io::Result<(UnixStream, SocketAddr)>;

thread_local! {
    /// Receives all events of all clients.
    static OBSERVER: Cell<Option<Observer>> = const { Cell::new(None) };
    static NETWORK: Cell<Option<Connect>> = const { Cell::new(None) };
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static EXECUTOR: RefCell<Executor> = RefCell::default();
    /// The time by the clock of the running process, and by a server's.
    static UNINTERRUPTED: Cell<bool> = const { Cell::new(false) };
    static SKEW: Cell<i64> = const { Cell::new(0) };
    /// The time by the system's clock, if it differs from that of the process.
    static UNIX_TIME: Cell<Option<Duration>> = const { Cell::new(None) };
}

impl Random {
    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap_or(0)]
    }

    /// Returns `true` with this probability, per mille.
    pub(crate) fn permille(&mut self, chance: u64) -> bool {
        chance > 0 && self.below(1000) < chance
    }

    /// Returns a time up to `max`, evenly spread over orders of magnitude.
    pub(crate) fn time(&mut self, max: Duration) -> Duration {
        let nanos = nanos(max);
        let bits = 64 - nanos.leading_zeros();
        let shift = self.below(u64::from(bits.min(12)));
        Duration::from_nanos(self.below((nanos >> shift).max(1)))
    }
}

/// The number of a process. Its threads are paused together, and share no channels with others.
pub(crate) type Process = usize;

/// The kinds of choices, from harmless to harmful. The first three cannot make a call fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Choice {
    /// A thread continues, or lets others run first.
    Turn,
    /// A connection is free, or is not.
    Connection,
    /// A request or a message arrives soon, or late.
    Arrival,
    /// A message arrives, or is lost.
    Message,
    Request,
    Fault,
}

/// A choice with this number goes another way than usual.
pub(crate) type Deviation = (usize, usize);

/// The outcome of each choice of a run: the usual one, with these exceptions.
#[derive(Clone, Default)]
pub(crate) struct Course {
    pub(crate) deviations: Vec<Deviation>,
    /// The choices so far, each with its number of outcomes.
    pub(crate) choices: Vec<(Choice, usize)>,
    /// No further choices are made.
    pub(crate) is_over: bool,
}

#[derive(Default)]
struct Executor {
    now: Duration,
    random: Random,
    events: BinaryHeap<Event>,
    /// The pending events by number, until they happen or are cancelled.
    happenings: Vec<(u64, Option<What>)>,
    free_happenings: Vec<usize>,
    /// The number of the last event.
    last: u64,
    tasks: Vec<Task>,
    /// The numbers of the finished tasks.
    free: Vec<usize>,
    stacks: Vec<Coroutine>,
    current: Option<usize>,
    /// When each stopped process resumes.
    paused: Vec<Duration>,
    /// How far the system's clock of each process is ahead, in nanoseconds.
    ahead: Vec<i64>,
    /// The polling threads of each process.
    looking: Vec<Vec<Looking>>,
    /// The addresses at which threads wait for a signal, in order of arrival.
    awaited: Vec<(usize, usize)>,
    /// The events that wait for their process to resume, in order.
    deferred: Vec<(Process, What)>,
    /// The probability, per mille, that a thread is preempted where it can be.
    preemption: u64,
    /// How long a thread may take to wake up.
    latency: Duration,
    steps: u64,
    /// The process of new threads, if not that of the running thread.
    starts_for: Option<Process>,
    /// The course of the run, if choices are not left to chance.
    course: Option<Course>,
    /// Why the simulation has ended early.
    stopped: Option<String>,
}

struct Task {
    coroutine: Option<Coroutine>,
    process: Process,
    /// Counts the waits: an event about an earlier one is out of date.
    wait: u64,
}

/// A thread that polls for a condition.
struct Looking {
    task: usize,
    /// Returns `true` if the thread can continue. Called without resuming the thread, which would
    /// cost more.
    look: Box<dyn FnMut() -> bool>,
}

/// The time of an event, the number that orders simultaneous events, and its key in
/// `Executor::happenings`.
type Event = Reverse<(u64, u64, usize)>;

enum What {
    Act(Process, Box<dyn FnOnce()>),
    /// A process resumes.
    GoOn(Process),
    Resume(usize, u64),
}

/// A later event, which can be cancelled.
#[derive(Clone, Copy)]
pub(crate) struct Later {
    place: usize,
    number: u64,
}

impl Executor {
    /// Counts a turn of a thread, or a point at which one could have been preempted. Returns
    /// `false` once there are more than any simulation needs.
    fn count_step(&mut self) -> bool {
        self.steps += 1;
        let most = if self.course.is_some() { STEPS_ON_COURSE_MAX } else { STEPS_MAX };
        self.steps < most
    }

    fn add(&mut self, at: Duration, what: What) -> Later {
        self.last += 1;
        let number = self.last;
        let place = self.free_happenings.pop().unwrap_or(self.happenings.len());
        if place == self.happenings.len() {
            self.happenings.push((number, Some(what)));
        } else {
            self.happenings[place] = (number, Some(what));
        }
        self.events.push(Reverse((nanos(at.max(self.now)), number, place)));
        Later { place, number }
    }

    /// Removes the next event that was not cancelled, and advances the clock to it.
    fn next(&mut self) -> Option<What> {
        loop {
            let Reverse((at, _, place)) = self.events.pop()?;
            self.free_happenings.push(place);
            if let Some(what) = self.happenings[place].1.take() {
                self.now = Duration::from_nanos(at);
                return Some(what);
            }
        }
    }

    /// Returns the time until the next event, if that is soon.
    fn next_event(&self, soon: Duration) -> Option<Duration> {
        let is_live = |place: usize| match self.happenings[place].1 {
            Some(What::Resume(task, wait)) => self.tasks[task].wait == wait,
            Some(What::Act(..) | What::GoOn(_)) => true,
            None => false,
        };
        let live = self.events.iter().filter(|Reverse((.., place))| is_live(*place));
        let next = live.map(|Reverse((at, ..))| *at).min()?;
        let next = Duration::from_nanos(next).saturating_sub(self.now);
        (next < soon).then_some(next)
    }

    fn go_on(&mut self, goes_on: impl Fn(Process) -> bool) {
        for (process, what) in mem::take(&mut self.deferred) {
            if goes_on(process) {
                self.add(self.now, what);
            } else {
                self.deferred.push((process, what));
            }
        }
    }

    fn resume_later(&mut self, task: usize) {
        let latency = self.latency;
        let at = self.now + self.random.time(latency);
        let wait = self.tasks[task].wait;
        self.add(at, What::Resume(task, wait));
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn with<T>(act: impl FnOnce(&mut Executor) -> T) -> T {
    EXECUTOR.with(|executor| act(&mut executor.borrow_mut()))
}

/// Returns `true` in a simulation.
pub(crate) fn is_active() -> bool {
    ACTIVE.get()
}

/// Returns `true` for a thread of a simulation, which may block.
pub(crate) fn can_block() -> bool {
    is_active() && with(|it| it.current.is_some())
}

/// Returns the virtual time, in a simulation.
pub(crate) fn now() -> Option<Duration> {
    is_active().then(|| moved(with(|it| it.now), SKEW.get()))
}

fn moved(time: Duration, by: i64) -> Duration {
    let nanos = Duration::from_nanos(by.unsigned_abs());
    if by < 0 { time.saturating_sub(nanos) } else { time + nanos }
}

/// Returns the time by the system's clock of the process, in a simulation.
pub(crate) fn unix_time() -> Option<Duration> {
    let ahead = || with(|it| it.ahead.get(it.process()).copied().unwrap_or(0));
    now().map(|now| UNIX_TIME.get().unwrap_or_else(|| moved(now, ahead())))
}

/// Runs `act` with another time on the system's clock.
pub(crate) fn at_unix_time<T>(time: Duration, act: impl FnOnce() -> T) -> T {
    let before = UNIX_TIME.replace(Some(time));
    let result = act();
    UNIX_TIME.set(before);
    result
}

/// Sets the system's clock of a process.
pub(crate) fn set_ahead(process: Process, nanos: i64) {
    with(|it| {
        if it.ahead.len() <= process {
            it.ahead.resize(process + 1, 0);
        }
        it.ahead[process] = nanos;
    });
}

/// Returns the virtual time as an `Instant`, in a simulation.
pub(crate) fn instant() -> Option<Instant> {
    now().map(|now| *EPOCH + now)
}

/// Returns a time before that of any simulation.
pub(crate) fn epoch() -> Instant {
    *EPOCH
}

/// Returns a random number from the seed, in a simulation.
pub(crate) fn random() -> Option<u64> {
    is_active().then(|| with(|it| it.random.next()))
}

/// Returns the number of the running thread; 0 outside a simulation.
pub(crate) fn thread_number() -> u64 {
    if is_active() { with(|it| it.current.map_or(0, |task| task as u64 + 1)) } else { 0 }
}

/// Runs `act` with another time on the clock.
pub(crate) fn skewed<T>(skew: i64, act: impl FnOnce() -> T) -> T {
    let before = SKEW.replace(skew);
    let result = act();
    SKEW.set(before);
    result
}

/// Starts a thread of the given process, or of the running one.
pub(crate) fn spawn(process: Option<Process>, run: impl FnOnce() + Send + 'static) {
    with(|it| {
        let process = process.or(it.starts_for).unwrap_or_else(|| it.process());
        let coroutine = if let Some(mut stack) = it.stacks.pop() {
            stack.init_code(run);
            stack
        } else {
            Gn::new_opt(STACK, run)
        };
        let task = Task { coroutine: Some(coroutine), process, wait: 0 };
        let number = if let Some(number) = it.free.pop() {
            let wait = it.tasks[number].wait + 1;
            it.tasks[number] = Task { wait, ..task };
            number
        } else {
            it.tasks.push(task);
            it.tasks.len() - 1
        };
        it.resume_later(number);
    });
}

impl Executor {
    /// Removes a poll that has found nothing, and returns it.
    fn end_look(&mut self, task: usize) -> Option<Looking> {
        let looking = &mut self.looking[self.tasks[task].process];
        let place = looking.iter().position(|looking| looking.task == task)?;
        Some(looking.remove(place))
    }

    /// Returns the running process.
    fn process(&self) -> Process {
        let current = self.current.map(|task| self.tasks[task].process);
        current.or(self.starts_for).unwrap_or_default()
    }

    /// Starts a wait of the running thread, and returns it.
    fn begin_wait(&mut self, until: Option<Instant>) -> usize {
        let task = self.current.expect("only a thread of the simulation can wait");
        let wait = self.tasks[task].wait + 1;
        self.tasks[task].wait = wait;
        if let Some(until) = until {
            let at = until.saturating_duration_since(*EPOCH);
            if at < NEVER {
                self.add(at, What::Resume(task, wait));
            }
        }
        task
    }
}

#[expect(deprecated, reason = "the code of a thread does not know the coroutine that it is in")]
fn give_turn() {
    if thread::panicking() {
        // The destructors of a panicked thread must not continue: they might wait for this very
        // thread.
        with(|it| it.stopped.get_or_insert_with(|| "a thread has panicked".into()).len());
    }
    generator::yield_with(());
    while with(|it| it.stopped.is_some()) {
        generator::yield_with(());
    }
}

/// Ends the simulation, from one of its threads.
pub(crate) fn stop(why: String) -> ! {
    with(|it| it.stopped = Some(why));
    loop {
        give_turn();
    }
}

/// Blocks the thread until there is a signal at the address, or until the deadline.
pub(crate) fn wait(address: usize, until: Option<Instant>) {
    let task = with(|it| {
        let task = it.begin_wait(until);
        it.awaited.push((address, task));
        task
    });
    give_turn();
    with(|it| it.awaited.retain(|(_, other)| *other != task));
}

/// Blocks the thread until `look` finds what it looks for, or until the deadline. Calls it whenever
/// another thread of the process has run.
pub(crate) fn wait_for<T: 'static>(
    until: Option<Instant>,
    mut look: impl FnMut() -> Option<T> + 'static,
) -> Option<T> {
    if let Some(found) = look() {
        return Some(found);
    }
    let found = Rc::new(RefCell::new(None));
    let finds = {
        let found = found.clone();
        move || {
            let mut found = found.borrow_mut();
            *found = look();
            found.is_some()
        }
    };
    let task = with(|it| {
        let task = it.begin_wait(until);
        let process = it.tasks[task].process;
        if it.looking.len() <= process {
            it.looking.resize_with(process + 1, Vec::new);
        }
        it.looking[process].push(Looking { task, look: Box::new(finds) });
        task
    });
    give_turn();
    // A message that is there at the deadline counts.
    if let Some(mut looking) = with(|it| it.end_look(task)) {
        (looking.look)();
    }
    found.take()
}

/// Like the channel's own method, which would spin for a while even with no time left. Outside a
/// thread of the simulation, it does not wait at all.
pub(crate) fn receive<T: 'static>(
    receiver: &Receiver<T>,
    deadline: Instant,
) -> Result<T, RecvTimeoutError> {
    let look = |receiver: &Receiver<T>| match receiver.try_recv() {
        Ok(message) => Some(Ok(message)),
        Err(TryRecvError::Disconnected) => Some(Err(RecvTimeoutError::Disconnected)),
        Err(TryRecvError::Empty) => None,
    };
    let mut found = look(receiver);
    if found.is_none() && Some(deadline) > instant() && can_block() {
        let receiver = receiver.clone();
        found = wait_for(Some(deadline), move || look(&receiver));
    }
    found.unwrap_or(Err(RecvTimeoutError::Timeout))
}

/// Blocks the thread until one of `receivers` has a message or is disconnected, or until the
/// deadline.
pub(crate) fn wait_for_any<T: 'static>(receivers: Vec<Receiver<T>>, until: Instant) -> bool {
    let look = move || {
        let mut select = Select::new();
        for receiver in &receivers {
            select.recv(receiver);
        }
        select.try_ready().ok()
    };
    wait_for(Some(until), look).is_some()
}

/// Polls until the deadline.
pub(crate) fn retry_until<T>(until: Instant, attempt: impl Fn() -> Option<T>) -> Option<T> {
    loop {
        let done = attempt();
        if done.is_some() || instant() >= Some(until) {
            return done;
        }
        sleep(RETRY);
    }
}

/// Blocks the thread until there is traffic at a socket of its process, or until the deadline.
pub(crate) fn wait_for_traffic(until: Instant) {
    wait(traffic(with(|it| it.process())), Some(until));
}

/// Wakes the threads of a process that wait for traffic.
pub(crate) fn signal_traffic(process: Process) {
    signal(traffic(process), true);
}

/// Wakes the threads of the running process that wait for traffic.
pub(crate) fn signal_own_traffic() {
    if is_active() {
        signal_traffic(with(|it| it.process()));
    }
}

/// Returns the address at which the threads of a process wait for traffic.
fn traffic(process: Process) -> usize {
    usize::MAX - process
}

/// Opens a connection in the simulated network, if there is one.
pub(crate) fn connect(
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Option<io::Result<(UnixStream, SocketAddr)>> {
    let network = if can_block() { NETWORK.get() } else { None };
    network.map(|connect| connect(with(|it| it.process()), addresses, deadline))
}

/// Makes `connect` open the connections of this simulation.
pub(crate) fn use_network(connect: Connect) {
    NETWORK.set(Some(connect));
}

/// Yields to other threads.
pub(crate) fn yield_now() {
    let pause = with(|it| {
        let latency = it.latency;
        it.random.time(latency)
    });
    sleep(pause.max(Duration::from_nanos(1)));
}

pub(crate) fn sleep(time: Duration) {
    let until = instant().map(|now| now + time);
    with(|it| it.begin_wait(until));
    give_turn();
}

/// Returns the outcome of a choice with this many ways, unless it is left to chance. 0 is the usual
/// one.
pub(crate) fn choose(choice: Choice, ways: usize) -> Option<usize> {
    with(|it| {
        let course = it.course.as_mut()?;
        if course.is_over {
            return Some(0);
        }
        let number = course.choices.len();
        course.choices.push((choice, ways));
        let deviation = course.deviations.iter().find(|(at, _)| *at == number);
        Some(deviation.map_or(0, |(_, way)| *way))
    })
}

/// Returns `true` if no choice is left to chance.
pub(crate) fn follows_course() -> bool {
    with(|it| it.course.is_some())
}

/// Makes every later choice the usual one.
pub(crate) fn end_choices() {
    with(|it| it.course.iter_mut().for_each(|course| course.is_over = true));
}

/// Returns the choices of the last run, each with its number of outcomes.
pub(crate) fn choices() -> Vec<(Choice, usize)> {
    with(|it| it.course.take()).unwrap_or_default().choices
}

/// Occasionally lets other threads run first, if this thread can wait.
pub(crate) fn preempt() {
    if UNINTERRUPTED.get() || !can_block() {
        return;
    }
    if !with(Executor::count_step) {
        stop(BUSY.to_owned());
    }
    if with(|it| it.course.is_some()) {
        if let Some(next) = with(|it| it.next_event(SOON)) {
            match choose(Choice::Turn, 3) {
                Some(1) => sleep(next),
                Some(2) => sleep(SOON),
                _ => {}
            }
        }
        return;
    }
    let pause = with(|it| {
        let latency = it.latency * 2;
        let is_preempted = it.random.permille(it.preemption);
        is_preempted.then(|| it.random.time(latency))
    });
    if let Some(pause) = pause {
        sleep(pause);
    }
}

/// Runs `act` without preemption.
pub(crate) fn uninterrupted<T>(act: impl FnOnce() -> T) -> T {
    let before = UNINTERRUPTED.replace(true);
    let result = act();
    UNINTERRUPTED.set(before);
    result
}

/// Wakes one of the threads that wait for a signal at the address, or `all` of them.
pub(crate) fn signal(address: usize, all: bool) {
    if !is_active() {
        return;
    }
    with(|it| {
        let mut at = 0;
        while at < it.awaited.len() {
            let (awaited, task) = it.awaited[at];
            if awaited != address {
                at += 1;
                continue;
            }
            it.awaited.remove(at);
            it.tasks[task].wait += 1;
            it.resume_later(task);
            if !all {
                return;
            }
        }
    });
}

/// Schedules an action on behalf of a process, to run between the turns of threads.
pub(crate) fn after(process: Process, delay: Duration, act: impl FnOnce() + 'static) -> Later {
    with(|it| {
        let at = it.now + delay;
        it.add(at, What::Act(process, Box::new(act)))
    })
}

/// Cancels the event, if it has not happened yet.
pub(crate) fn cancel(later: Later) {
    with(|it| {
        let (number, what) = &mut it.happenings[later.place];
        if *number == later.number { what.take() } else { None }
    });
}

/// Stops the threads of a process for a while.
pub(crate) fn pause(process: Process, time: Duration) {
    with(|it| {
        if it.paused.len() <= process {
            it.paused.resize(process + 1, Duration::ZERO);
        }
        let until = it.now + time;
        it.paused[process] = until;
        it.add(until, What::GoOn(process));
    });
}

/// Resumes the threads of all processes.
pub(crate) fn resume_all() {
    with(|it| {
        it.paused.clear();
        it.go_on(|_| true);
    });
}

/// Passes the events of all clients of this simulation to `observer`, without delay.
pub(crate) fn observe(observer: Observer) {
    OBSERVER.set(Some(observer));
}

/// Reports an event of the process that runs to the listeners of its client and to the observer.
pub(crate) fn report(
    listeners: &[Arc<dyn event::EventListener>],
    event: impl FnOnce() -> event::Event,
) {
    let observer = OBSERVER.get();
    if listeners.is_empty() && observer.is_none() {
        return;
    }
    let event = event();
    for listener in listeners {
        listener.event(&event);
    }
    if let Some(observer) = observer {
        observer(with(|it| it.process()), &event);
    }
}

/// Makes the threads and events that `act` starts belong to a process.
pub(crate) fn of_process<T>(process: Process, act: impl FnOnce() -> T) -> T {
    let before = with(|it| it.starts_for.replace(process));
    let result = act();
    with(|it| it.starts_for = before);
    result
}

/// Returns when a stopped process resumes.
pub(crate) fn paused_until(process: Process) -> Option<Duration> {
    with(|it| it.paused.get(process).copied().filter(|until| *until > it.now))
}

/// The settings of a simulation's threads.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) course: Option<Course>,
    pub(crate) preemption: u64,
    pub(crate) latency: Duration,
}

/// How a simulation has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The number of threads left that wait without a deadline.
    pub(crate) threads: usize,
    pub(crate) steps: u64,
    pub(crate) lasted: Duration,
}

/// Runs a simulation until no event is left, or until the end of time. `step` is called after every
/// turn of a thread, with its process, and every other event.
pub(crate) fn run(
    settings: &Settings,
    end: Duration,
    begin: impl FnOnce(),
    mut step: impl FnMut(Process),
) -> Result<End, String> {
    let stacks = with(|it| mem::take(&mut it.stacks));
    with(|it| {
        *it = Executor {
            now: START,
            random: Random(settings.seed),
            preemption: settings.preemption,
            latency: settings.latency,
            course: settings.course.clone(),
            stacks,
            ..Executor::default()
        };
    });
    ACTIVE.set(true);
    // This happens even if a check fails.
    let _active = Active;
    begin();
    while let Some(what) = with(Executor::next) {
        match what {
            What::Act(process, act) => {
                if paused_until(process).is_some() {
                    with(|it| it.deferred.push((process, What::Act(process, act))));
                    continue;
                }
                act();
                look_around(process, &mut step);
            }
            What::GoOn(process) => {
                if paused_until(process).is_none() {
                    with(|it| it.go_on(|other| other == process));
                }
            }
            What::Resume(task, wait) => {
                let process =
                    with(|it| (it.tasks[task].wait == wait).then(|| it.tasks[task].process));
                let Some(process) = process else { continue };
                let is_over = with(|it| it.now >= START + end);
                assert!(!is_over, "the simulation does not come to an end");
                if paused_until(process).is_some() {
                    with(|it| it.deferred.push((process, What::Resume(task, wait))));
                    continue;
                }
                resume(task);
                look_around(process, &mut step);
            }
        }
        if let Some(why) = with(|it| it.stopped.take()) {
            return Err(why);
        }
    }
    Ok(with(|it| End {
        threads: it.tasks.iter().filter(|task| task.coroutine.is_some()).count(),
        steps: it.steps,
        lasted: it.now.saturating_sub(START),
    }))
}

/// Runs a thread and those that it starts, until all of them have ended.
pub(crate) fn run_alone(thread: impl FnOnce() + Send + 'static) {
    const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
    let settings = Settings { latency: Duration::from_micros(100), ..Settings::default() };
    let end = run(&settings, LONGEST, || spawn(None, thread), |_| {});
    let left = end.unwrap_or_else(|why| panic!("{why}")).threads;
    assert_eq!(left, 0, "threads wait for ever");
}

struct Active;

impl Drop for Active {
    fn drop(&mut self) {
        // The remaining threads are not unwound, because their destructors would run outside the
        // simulation.
        with(|it| {
            for task in &mut it.tasks {
                mem::forget(task.coroutine.take());
            }
            mem::forget(mem::take(&mut it.looking));
            it.current = None;
            mem::forget((mem::take(&mut it.happenings), mem::take(&mut it.deferred)));
        });
        ACTIVE.set(false);
        OBSERVER.set(None);
        NETWORK.set(None);
    }
}

/// Polls on behalf of the polling threads of a process. Those that are ready continue a little
/// later.
fn look_around(process: Process, step: &mut impl FnMut(Process)) {
    if with(|it| it.stopped.is_some()) {
        return;
    }
    step(process);
    let looking = |it: &mut Executor| it.looking.get_mut(process).map(mem::take);
    let Some(mut looking) = with(looking).filter(|looking| !looking.is_empty()) else { return };
    looking.retain_mut(|Looking { task, look }| {
        let finds = look();
        if finds {
            with(|it| {
                it.tasks[*task].wait += 1;
                it.resume_later(*task);
            });
        }
        !finds
    });
    with(|it| it.looking[process] = looking);
}

fn resume(task: usize) {
    let mut coroutine = with(|it| {
        it.current = Some(task);
        assert!(it.count_step(), "{BUSY}");
        it.tasks[task].coroutine.take().expect("it is not running")
    });
    coroutine.resume();
    with(|it| {
        it.current = None;
        if coroutine.is_done() {
            it.tasks[task].wait += 1;
            it.free.push(task);
            it.stacks.push(coroutine);
        } else {
            it.tasks[task].coroutine = Some(coroutine);
        }
    });
}
