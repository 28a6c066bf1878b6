//! Queries of threads to their client and the servers, which change nothing. An answer must have
//! been true at some time between question and answer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sync::executor::{self, Process, Random};
use crate::client::Client;
use crate::client::survey::NameReport;
use crate::error::Error;
use crate::local::status::HeldLock;
use crate::simulation::calls::{CallState, Held, Patience};
use crate::simulation::judge::SLACK;
use crate::simulation::world::{NAMES, Usage, World, broken, say, time_of, with};
use crate::store::hold_id::HoldId;

/// The age at which a client certainly knows of a call or a hold of its own.
const KNOWN_AFTER: Duration = Duration::from_millis(100);

/// A query of a thread.
#[derive(Clone, Copy, Debug)]
enum Question {
    Available,
    /// Not a query: the holder loses the lock.
    EndHolds,
    ForceUnlock,
    Holder,
    Holds,
    IsHeldByThread,
    IsLocked,
    Leader,
    Listen,
    Ping,
    Report,
    Waits,
    WaitingNames,
}

impl Question {
    const OF_ALL: [Self; 6] =
        [Self::Holds, Self::Listen, Self::Ping, Self::Report, Self::Waits, Self::WaitingNames];
    const OF_LOCKS: [Self; 4] = [Self::Holder, Self::IsHeldByThread, Self::IsLocked, Self::Leader];

    fn any(usage: Usage, random: &mut Random) -> Self {
        match usage {
            Usage::Lock if random.permille(500) => random.pick(&Self::OF_LOCKS),
            Usage::Semaphore(_) if random.permille(500) => Self::Available,
            _ => random.pick(&Self::OF_ALL),
        }
    }
}

#[derive(Debug)]
enum Answer {
    /// Whether a hold was ended by force.
    HasEnded(bool),
    /// Which client holds a lock.
    Client(Option<String>),
    IsLocked(bool),
    IsHeldByThread(bool),
    Available(u32),
    Report(NameReport),
    Holds(Vec<HeldLock>),
    /// How many calls wait, for any name or for one.
    Waits(usize),
    WaitsForName(usize),
    Nothing,
}

/// The state of a name on the servers since a query about it began, and the client's state at its
/// beginning.
pub(super) struct Seen {
    number: u64,
    client: Process,
    name: usize,
    begun: Instant,
    stopped: Duration,
    /// The clients with a hold, and the number of holds without and with offers.
    clients: BTreeSet<String>,
    holds: BTreeSet<usize>,
    with_offers: BTreeSet<usize>,
    /// The smallest number of servers that had the same hold.
    servers: usize,
    /// The guards of the client by index, with their creation times, and how many of its calls
    /// waited, in total and for this name.
    guards: Vec<(usize, Instant)>,
    waits: usize,
    waits_for_name: usize,
}

impl World {
    /// Records the servers' state for the queries in progress.
    pub(super) fn look_for_questions(&mut self) {
        let Self { questions, network, names, .. } = self;
        for seen in questions {
            let all = network.holds(&names[seen.name].key);
            let holds = all.iter().map(|(hold, ..)| hold).filter(|hold| hold.nonce > 0);
            let holds: Vec<&HoldId> = holds.collect();
            let servers_with = |hold: &HoldId| holds.iter().filter(|it| **it == hold).count();
            let servers = holds.iter().map(|hold| servers_with(hold)).max().unwrap_or(0);
            seen.servers = seen.servers.min(servers);
            seen.holds.insert(holds.len());
            seen.with_offers.insert(all.len());
            seen.clients.extend(holds.iter().map(|hold| hold.client.to_string()));
        }
    }

    /// Returns `true` if this thread holds a name through a valid guard of its own.
    fn is_held_by_thread(&self, name: usize) -> bool {
        let deadlocks = self.deadlocks.as_ref();
        deadlocks.is_some_and(|it| it.has(self, executor::thread_number(), name))
    }

    /// Returns how many calls of a client wait, or are about to, for any name or for this one.
    fn waiting(&self, client: Process, name: Option<usize>) -> usize {
        let calls = self.calls.values().filter(|it| it.client == client);
        calls.filter(|call| name.is_none_or(|name| call.is_about(name))).count()
    }

    /// Returns how many of them certainly wait: they have waited for long, and their client does
    /// not hold the name, so none of them can have just got it.
    fn certainly_waiting(&self, client: Process, name: Option<usize>) -> usize {
        let Some(since) = clock::now().checked_sub(KNOWN_AFTER) else { return 0 };
        let id = &self.clients[client - 1].id;
        let calls = self.calls.values().filter(|it| it.client == client && it.begun < since);
        let is_meant = |call: &&CallState| {
            // A call for several locks waits for one of them at a time.
            let is_certain = call.patience != Patience::None && !call.side.is_set();
            let had_hold = self.names[call.name].had_hold.get(id);
            is_certain
                && had_hold.is_none_or(|at| *at < since)
                && name.is_none_or(|name| call.name == name)
        };
        calls.filter(is_meant).count()
    }

    fn begin_question(&mut self, client: Process, name: usize) -> u64 {
        self.last_question += 1;
        let guards = self.guards.iter().enumerate();
        let guards = guards.filter_map(|(at, held)| Some((at, held.as_ref()?)));
        let guards = guards.filter(|(_, held)| held.client == client && held.is_of(name));
        self.questions.push(Seen {
            number: self.last_question,
            client,
            name,
            begun: clock::now(),
            stopped: self.clients[client - 1].stopped,
            clients: BTreeSet::new(),
            holds: BTreeSet::new(),
            with_offers: BTreeSet::new(),
            servers: usize::MAX,
            guards: guards.map(|(at, held)| (at, held.since)).collect(),
            waits: self.waiting(client, None),
            waits_for_name: self.waiting(client, Some(name)),
        });
        self.look_at_server();
        self.last_question
    }

    fn end_question(&mut self, number: u64) -> Seen {
        self.look_at_server();
        let at = self.questions.iter().position(|seen| seen.number == number);
        self.questions.swap_remove(at.expect("it was added"))
    }

    fn check_answer(&self, seen: &Seen, answer: &Answer) -> Result<(), String> {
        let Seen { name, begun, .. } = *seen;
        let is_right = match answer {
            Answer::Client(Some(client)) => seen.clients.contains(client),
            Answer::IsLocked(true) => !seen.clients.is_empty(),
            Answer::HasEnded(has_ended) => return self.check_ended(seen, *has_ended),
            // The servers of a quorum answer at different times, and failed ones do not count.
            Answer::Client(None) | Answer::IsLocked(false) => {
                seen.servers < self.required() || self.network.is_quorum() && !self.is_calm
            }
            Answer::IsHeldByThread(is_held) => *is_held == self.is_held_by_thread(name),
            Answer::Available(free) => {
                let Usage::Semaphore(permits) = self.names[name].usage else { return Ok(()) };
                let taken =
                    |count: &usize| permits.saturating_sub(u32::try_from(*count).unwrap_or(0));
                seen.with_offers.iter().any(|count| taken(count) == *free)
            }
            Answer::Report(report) => return self.check_report(seen, report),
            Answer::Holds(held) => return self.check_held(seen, held),
            Answer::Waits(waits) => self.is_count(seen, None, *waits),
            Answer::WaitsForName(waits) => self.is_count(seen, Some(name), *waits),
            Answer::Nothing => true,
        };
        if is_right { Ok(()) } else { Err(format!("it was never true since {}", time_of(begun))) }
    }

    /// Checks the fate of the holds that a client has ended by force.
    fn check_ended(&self, seen: &Seen, has_ended: bool) -> Result<(), String> {
        let is_shut_down = self.clients[seen.client - 1].shut_down.is_some();
        if has_ended && seen.clients.is_empty() {
            return Err("there was none".into());
        }
        let mut guards = seen.guards.iter().filter_map(|(at, since)| {
            let held = self.guards[*at].as_ref().filter(|held| held.since == *since)?;
            // The server may already have had a later hold.
            let Held { owner, begun, .. } = *held;
            let mut excuses = self.excuses_of(owner, seen.name, held.guard.fence(seen.name), begun);
            let was_forgotten = excuses.any(|it| it.from < seen.begun);
            Some(held).filter(|held| !was_forgotten && held.is_held())
        });
        // One of several permits may have been ended, and a later hold is left alone.
        let is_one = self.names[seen.name].usage == Usage::Lock;
        let is_certain = has_ended && is_one && !is_shut_down && seen.holds.last() == Some(&1);
        match guards.next().filter(|_| is_certain && seen.clients.len() == 1) {
            Some(held) => Err(format!("its own guard, {:?}, is still held", held.side)),
            None => Ok(()),
        }
    }

    fn check_report(&self, seen: &Seen, report: &NameReport) -> Result<(), String> {
        let NameReport { holds, waiting, .. } = report;
        let mut clients = holds.iter().map(|(_, holder)| &holder.client);
        if let Some(client) = clients.find(|client| !seen.clients.contains(*client)) {
            return Err(format!("{client} had no hold"));
        }
        if !self.network.is_quorum() && !seen.holds.contains(&holds.len()) {
            return Err(format!("{} holds instead of {:?}", holds.len(), seen.holds));
        }
        let had_waiter = &self.names[seen.name].had_waiter;
        let has_waited =
            |client: &&String| had_waiter.get(*client).is_some_and(|at| *at >= seen.begun);
        match waiting.iter().find(|client| !has_waited(client)) {
            Some(client) => Err(format!("{client} did not wait")),
            None => Ok(()),
        }
    }

    /// Checks the list of holds that a client reports.
    fn check_held(&self, seen: &Seen, held: &[HeldLock]) -> Result<(), String> {
        let Seen { client, name, begun, .. } = *seen;
        let state = &self.names[name];
        // The thread of a new hold may not know of it yet.
        let is_listed = |held: &&HeldLock| held.name == state.name && held.since >= KNOWN_AFTER;
        let listed = held.iter().filter(is_listed).count();
        let guards = self.guards.iter().enumerate();
        let guards = guards.filter_map(|(at, held)| Some((at, held.as_ref()?)));
        let guards = guards.filter(|(_, held)| held.client == client && held.is_of(name));
        let count = guards.clone().count();
        // A hold without a guard may be about to end, or to be adopted.
        let may_have_more = self.was_stopped(client, begun)
            || self.waiting(client, Some(name)) > 0
            || state.had_guard.get(&client).is_some_and(|at| *at >= begun)
            || self.releasing.contains(&(client, name))
            || self.left.iter().any(|left| left.name == name);
        if listed > count && !may_have_more {
            return Err(format!("{listed} holds of {:?}, and {count} guards", state.name));
        }
        let lasting = guards.filter(|(at, held)| seen.guards.contains(&(*at, held.since)));
        let is_known = |held: &Held| held.is_held() && held.since + KNOWN_AFTER < begun;
        let lasting = lasting.filter(|(_, held)| is_known(held)).count();
        // Readers share a hold.
        let least = if state.usage == Usage::ReadWrite { lasting.min(1) } else { lasting };
        if self.is_calm && listed < least {
            return Err(format!("{listed} holds of {:?} instead of {least}", state.name));
        }
        Ok(())
    }

    /// Returns `true` if this many calls of a client may wait, for any name or for one.
    fn is_count(&self, seen: &Seen, name: Option<usize>, listed: usize) -> bool {
        let before = if name.is_some() { seen.waits_for_name } else { seen.waits };
        // Others have begun since.
        let most = before + self.waiting(seen.client, name);
        let least = self.certainly_waiting(seen.client, name);
        listed <= most && (!self.is_calm || listed >= least)
    }
}

/// Occasionally asks something.
pub(super) fn ask_sometimes(client: &Client, process: Process) {
    let asked = with(|world| {
        let World { random, asks, names, is_calm, .. } = world;
        if !random.permille(*asks) {
            return None;
        }
        let name = usize::try_from(random.below(names.len() as u64)).unwrap_or(0);
        if !*is_calm && random.permille(30) {
            let is_lock = names[name].usage == Usage::Lock;
            let force = if is_lock { Question::ForceUnlock } else { Question::EndHolds };
            return Some((name, force));
        }
        Some((name, Question::any(names[name].usage, random)))
    });
    if let Some((name, question)) = asked {
        ask(client, process, name, question);
    }
}

/// Asks something, and checks the answer.
fn ask(client: &Client, process: Process, name: usize, question: Question) {
    let number = with(|world| {
        world.tally.questions += 1;
        // A client knows that it is ending a hold before the hold ends.
        let is_force = matches!(question, Question::EndHolds | Question::ForceUnlock);
        world.names[name].was_forced |= is_force;
        world.begin_question(process, name)
    });
    say(process, || format!("question {number}: {question:?} {:?}", NAMES[name]));
    let result = request(client, name, question);
    let seen = with(|world| world.end_question(number));
    say(process, || format!("question {number}: {result:?}"));
    let checked = with(|world| match &result {
        Ok(answer) => world.check_answer(&seen, answer),
        Err(error) if world.may_fail(error, process, seen.begun) => Ok(()),
        Err(_) => Err("nothing went wrong".into()),
    });
    let took = clock::elapsed(seen.begun);
    let (took, most) = with(|world| {
        let stopped = world.clients[process - 1].stopped.saturating_sub(seen.stopped);
        let most = world.retry_window + world.io_timeout * 2 + SLACK;
        (took.saturating_sub(stopped), most)
    });
    if took > most {
        broken(&format!("question {number} took {took:?}, and may take {most:?}"));
    }
    if let Err(why) = checked {
        broken(&format!("question {number} of client {process}, {question:?}: {result:?}: {why}"));
    }
}

fn request(client: &Client, name: usize, question: Question) -> Result<Answer, Error> {
    let (name, usage) = with(|world| (world.names[name].name.clone(), world.names[name].usage));
    let permits = if let Usage::Semaphore(permits) = usage { permits } else { 1 };
    let mutex = client.mutex(&name);
    Ok(match question {
        Question::Available => Answer::Available(client.semaphore(&name, permits).available()?),
        Question::EndHolds => Answer::HasEnded(client.survey().end_holds(&name)? > 0),
        Question::ForceUnlock => Answer::HasEnded(mutex.force_unlock()?),
        Question::Holder => Answer::Client(mutex.holder()?.map(|holder| holder.client)),
        Question::Holds => Answer::Holds(client.holds()),
        Question::IsHeldByThread => Answer::IsHeldByThread(mutex.is_held_by_current_thread()),
        Question::IsLocked => Answer::IsLocked(mutex.is_locked()?),
        Question::Leader => {
            Answer::Client(client.election(&name).leader()?.map(|leader| leader.client))
        }
        Question::Listen => {
            client.listen();
            Answer::Nothing
        }
        Question::Ping => {
            client.ping()?;
            Answer::Nothing
        }
        Question::Report => Answer::Report(client.survey().report(&name)?),
        Question::Waits => Answer::Waits(client.waits().len()),
        Question::WaitingNames => {
            let names = client.waiting_names();
            let waits = names.iter().find(|(waited_for, _)| *waited_for == name);
            Answer::WaitsForName(waits.map_or(0, |(_, waits)| *waits))
        }
    })
}
