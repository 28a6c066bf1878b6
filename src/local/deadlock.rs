//! Deadlocks: threads that hold locks and wait for each other in a circle, perhaps in several
//! processes.
//!
//! Decides whether a call that has waited for long waits for itself, which is called a *look*. A
//! *probe* goes from the call to the hold that is in its way, to the call for which the thread of
//! that hold waits, and so on (edge chasing: Chandy, Misra and Haas 1983). Within the process it
//! follows the table of the calls that have waited for long. To another client it travels in a
//! message that names the hold, sent to the holder by the server with the lock. If it comes back to
//! where it began, there may be a circle, but calls that it has passed may have ended since. So a
//! second probe must find the same calls. Each call waits for one lock, and a thread that waits
//! keeps what it holds: so what both probes have found existed at one moment, between the return of
//! the first and the start of the second. A message that is late, lost or doubled can only hide a
//! circle.
//!
//! Only holds that belong to a thread pass a probe on. A chain ends at a thread that has not waited
//! for long, and at a hold that any thread can release, such as one of an owned guard.
//!
//! The thread of a call sends the messages, as its parker tells it to.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::maps::RandomState;
use crate::config::check_note;
use crate::error::Error;
use crate::local::names::Names;
use crate::local::parker::{Parker, Signal};
use crate::protocol::hold::Hold;
use crate::store::hold_id::{HoldKind, is_client_id};
use crate::store::request::Telling;

/// The most calls in a chain, and the most bytes of a message. Longer chains end.
const CALLS_MAX: usize = 100;
const MESSAGE_MAX: usize = 64 * 1024;

/// The maximum number of calls of other clients whose probes a call remembers.
const SENDERS_MAX: usize = 64;

/// How many circles are remembered, so that none is reported twice.
const CIRCLES_MAX: usize = 1024;

/// A call that has waited for long, as all clients know it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CircleCall {
    pub(super) client: String,
    /// Its number among those of the client, the same however often it begins to wait.
    pub(super) number: u64,
    /// When it began, by its own system's clock: microseconds since 1970.
    pub(super) began: u64,
    /// Whether it may fail to break a circle, by the setting of its client.
    pub(super) may_fail: bool,
    /// The name of the lock.
    pub(super) name: String,
    /// The notes of the holds of its thread; empty if there are none.
    pub(super) note: String,
}

impl CircleCall {
    /// All clients of a circle agree on this order, and so on the call that fails.
    fn order(&self) -> (u64, &str, u64) {
        (self.began, &self.client, self.number)
    }
}

/// A message that is passed along a chain of calls.
#[derive(Debug, PartialEq, Eq)]
struct Probe {
    /// Its number, greater than those of the earlier probes of the client.
    number: u64,
    /// The calls up to here, each of which waits for the thread of the next one.
    path: Vec<CircleCall>,
}

/// Calls, each of which waits for a lock that the thread of the next one holds, and the last for a
/// lock of the first. The first is the one that began last, in whatever order a client has found
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Circle(Vec<CircleCall>);

/// The calls of a client that have waited for long, and what is known of circles.
#[derive(Default)]
pub(crate) struct Deadlocks(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// The number of the last probe.
    last: u64,
    waits: HashMap<u64, LongWait, RandomState>,
    /// Hashes of the circles that were reported.
    reported: VecDeque<u64>,
}

struct LongWait {
    call: CircleCall,
    /// Where the program has made the call.
    site: String,
    parker: Arc<Parker>,
    /// The holds of its thread. A hold that has another fence meanwhile belongs to another thread.
    holds: Vec<(Arc<Hold>, u64)>,
    /// The number of its last probe.
    probe: u64,
    /// The circle that the first probe of a look has found.
    found: Option<Vec<CircleCall>>,
    /// The last probe of other calls that was passed on, by client and number of the call. With
    /// several servers, each message arrives more than once.
    passed: HashMap<(String, u64), u64, RandomState>,
}

impl Deadlocks {
    /// Adds a call that has waited for long, and whose thread has these holds.
    pub(super) fn add(
        &self,
        call: CircleCall,
        site: String,
        parker: &Arc<Parker>,
        holds: impl IntoIterator<Item = Arc<Hold>>,
    ) {
        let number = call.number;
        let mut with_fences = Vec::new();
        for hold in holds {
            // A kept lock goes from call to call, each with a token of its own.
            let fence = hold.fence();
            with_fences.push((hold, fence));
        }
        let wait = LongWait {
            call,
            site,
            parker: parker.clone(),
            holds: with_fences,
            probe: 0,
            found: None,
            passed: HashMap::default(),
        };
        self.0.lock().waits.insert(number, wait);
    }

    pub(super) fn remove(&self, number: u64) {
        self.0.lock().waits.remove(&number);
    }

    /// Begins a look. Returns the circle if the whole of it is in this process.
    pub(super) fn look(&self, names: &Names, number: u64) -> Option<Circle> {
        let mut table = self.0.lock();
        // A late probe of an earlier look has another number, and does not count.
        let probe = table.next_probe();
        let wait = table.waits.get_mut(&number)?;
        wait.probe = probe;
        // The findings of an earlier look may be out of date.
        wait.found = None;
        table.follow(names, number, Probe { number: probe, path: Vec::new() })
    }

    /// Receives a message of another client about the hold with this nonce, or with 0 about a
    /// circle that the other has found. Returns a circle to report.
    pub(super) fn receive(
        &self,
        names: &Names,
        client: &str,
        nonce: u64,
        message: &str,
    ) -> Option<Circle> {
        let probe = Probe::decode(message)?;
        if nonce == 0 {
            // No probe, but a circle that another client has found.
            let is_in_it = probe.path.iter().any(|call| call.client == client);
            return if is_in_it { Some(Circle::new(probe.path)) } else { None };
        }
        let mut table = self.0.lock();
        let at = table.blocked(|hold| hold.id.nonce == nonce)?;
        table.follow(names, at, probe)
    }

    /// Describes where the program of this client has made its calls of a circle.
    pub(super) fn sites(&self, circle: &Circle, client: &str) -> String {
        let table = self.0.lock();
        let own = circle.0.iter().filter(|call| call.client == client);
        let waits = own.filter_map(|call| table.waits.get(&call.number));
        let sites = waits.map(|wait| format!("; lock {:?} {}", wait.call.name, wait.site));
        sites.collect()
    }

    /// Ends the call that must fail for the circle to be broken, if it is one of this client.
    /// Returns `true` if the circle has not been reported yet, and notes that it is now.
    pub(super) fn resolve(&self, circle: &Circle, client: &str) -> bool {
        let mut table = self.0.lock();
        if let Some(fails) = circle.fails().filter(|it| it.client == client)
            && let Some(wait) = table.waits.get(&fails.number)
        {
            wait.parker.send(Signal::Ended(circle.error()));
        }
        // Every client in the circle may find it, and notifies all others.
        let hash = circle.hash_of_calls();
        if table.reported.contains(&hash) {
            return false;
        }
        if table.reported.len() == CIRCLES_MAX {
            // At worst, a circle is reported again much later.
            table.reported.pop_front();
        }
        table.reported.push_back(hash);
        true
    }
}

impl Table {
    fn next_probe(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Continues a probe from a call whose thread is in its way, as far as possible within this
    /// process. Returns the circle if this is the second one in succession to come back.
    fn follow(&mut self, names: &Names, mut at: u64, mut probe: Probe) -> Option<Circle> {
        loop {
            let next = self.next_probe();
            let wait = self.waits.get_mut(&at)?;
            if probe.path.first() == Some(&wait.call) {
                // This is a slow probe of an earlier look.
                if probe.number != wait.probe {
                    return None;
                }
                wait.probe = next;
                probe.number = next;
                match wait.found.take() {
                    // The probe has met the calls one after the other, so they may not all have
                    // waited at the same time. Those that it meets again have been waiting all the
                    // time.
                    None => wait.found = Some(mem::take(&mut probe.path)),
                    Some(found) if found == probe.path => {
                        let circle = Circle::new(found);
                        // Before the call can fail.
                        if let Some(telling) = circle.to_others(&wait.call.client) {
                            wait.send(telling);
                        }
                        return Some(circle);
                    }
                    Some(_) => return None,
                }
            } else if probe.path.contains(&wait.call) || !wait.passes(&probe) {
                // The circle does not include the first call.
                return None;
            }
            probe.path.push(wait.call.clone());
            let Some(held) = names.holder(HoldKind::Lock, &wait.call.name) else {
                // Another client has the lock, and Redis knows which.
                wait.send(Telling { clients: Vec::new(), message: probe.encode() });
                return None;
            };
            at = self.blocked(|hold| Arc::ptr_eq(hold, &held))?;
        }
    }

    /// Returns the number of the call whose thread has this hold.
    fn blocked(&self, is_it: impl Fn(&Arc<Hold>) -> bool) -> Option<u64> {
        let now = Moment::now();
        for (number, wait) in &self.waits {
            // If its token has changed, the hold no longer belongs to the waiting thread.
            let has_it = wait
                .holds
                .iter()
                .any(|(hold, fence)| is_it(hold) && hold.fence() == *fence && hold.is_valid(now));
            if has_it {
                return Some(*number);
            }
        }
        None
    }
}

impl LongWait {
    /// Returns `true` if a probe of another call has not come here before.
    fn passes(&mut self, probe: &Probe) -> bool {
        let Some(first) = probe.path.first() else { return true };
        let sender = (first.client.clone(), first.number);
        if self.passed.len() >= SENDERS_MAX && !self.passed.contains_key(&sender) {
            // At worst, some probes go round once more.
            self.passed.clear();
        }
        let last = self.passed.entry(sender).or_default();
        mem::replace(last, probe.number.max(*last)) < probe.number
    }

    /// Makes the thread send a message.
    fn send(&self, telling: Telling) {
        if telling.message.len() <= MESSAGE_MAX {
            self.parker.send(Signal::Tell(Box::new(telling)));
        }
    }
}

impl Probe {
    fn encode(&self) -> String {
        let mut text = format!("{:x};", self.number);
        for CircleCall { client, number, began, may_fail, name, note } in &self.path {
            let may_fail = u8::from(*may_fail);
            let [client_len, name_len, note_len] = [client, name, note].map(String::len);
            let hop = write!(
                text,
                "{number:x},{began:x},{may_fail},{client_len},{name_len},{note_len},\
                 {client}{name}{note}"
            );
            hop.expect("a string takes whatever is written");
        }
        text
    }

    /// Reads what another client has sent; `None` if it is not what `encode` writes.
    fn decode(text: &str) -> Option<Self> {
        let (number, mut rest) = text.split_once(';')?;
        let mut probe = Self { number: hex(number)?, path: Vec::new() };
        while !rest.is_empty() {
            let fields: Vec<_> = rest.splitn(7, ',').collect();
            let [number, began, may_fail, client_len, name_len, note_len, texts] = fields[..]
            else {
                return None;
            };
            let (client, texts) = texts.split_at_checked(client_len.parse().ok()?)?;
            let (name, texts) = texts.split_at_checked(name_len.parse().ok()?)?;
            let (note, after) = texts.split_at_checked(note_len.parse().ok()?)?;
            check_note(note).ok()?;
            probe.path.push(CircleCall {
                client: Some(client).filter(|client| is_client_id(client))?.into(),
                number: hex(number)?,
                began: hex(began)?,
                may_fail: may_fail == "1",
                name: name.into(),
                note: note.into(),
            });
            rest = after;
        }
        if (1..CALLS_MAX).contains(&probe.path.len()) { Some(probe) } else { None }
    }
}

impl Circle {
    fn new(mut calls: Vec<CircleCall>) -> Self {
        let last = (0..calls.len()).max_by_key(|place| calls[*place].order());
        calls.rotate_left(last.unwrap_or_default());
        Self(calls)
    }

    /// Returns the call that fails: of those that may, the one that began last.
    pub(super) fn fails(&self) -> Option<&CircleCall> {
        self.0.iter().filter(|call| call.may_fail).max_by_key(|call| call.order())
    }

    /// Returns a hash of the calls. One for several locks may wait for another of them when the
    /// circle is found again.
    fn hash_of_calls(&self) -> u64 {
        let mut calls: Vec<_> = self.0.iter().map(|call| (&call.client, call.number)).collect();
        calls.sort_unstable();
        let mut hasher = DefaultHasher::new();
        calls.hash(&mut hasher);
        hasher.finish()
    }

    /// The names of the locks for which the calls wait, in their order.
    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|call| call.name.clone()).collect()
    }

    /// The clients of the calls, in their order.
    pub(super) fn clients(&self) -> Vec<String> {
        self.0.iter().map(|call| call.client.clone()).collect()
    }

    fn error(&self) -> Error {
        Error::Deadlock { names: self.names(), clients: self.clients(), reason: self.to_line() }
    }

    /// Notifies the other clients of the circle, if there are any.
    fn to_others(&self, client: &str) -> Option<Telling> {
        let mut clients = self.clients();
        clients.sort_unstable();
        clients.dedup();
        clients.retain(|other| other != client);
        if clients.is_empty() {
            return None;
        }
        let message = Probe { number: 0, path: self.0.clone() }.encode();
        Some(Telling { clients, message })
    }

    /// Describes which client waits for which.
    pub(super) fn to_line(&self) -> String {
        let calls = &self.0;
        let holders = calls.iter().skip(1).chain(calls.first());
        let mut line = format!("deadlock: {}", short(&calls[0].client));
        for (place, (call, holder)) in iter::zip(calls, holders).enumerate() {
            let and = if place == 0 { "" } else { ", which" };
            let name = &call.name;
            let note = &holder.note;
            let holder = short(&holder.client);
            let part = write!(line, "{and} waits for lock {name:?}, held by {holder}");
            part.expect("a string takes whatever is written");
            if !note.is_empty() {
                write!(line, " ({note})").expect("a string takes whatever is written");
            }
        }
        line
    }
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

/// The label of a client, and enough of its id to find it.
fn short(client: &str) -> &str {
    let random = client.rfind(':').map_or(0, |colon| colon + 1);
    client.get(..random + 8).unwrap_or(client)
}

#[cfg(test)]
mod tests;
