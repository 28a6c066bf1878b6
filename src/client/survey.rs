//! An operator's view of the holds of all clients, and the means to end them.
//!
//! Decides what to ask which server, and whether enough have answered. A hold of this client that
//! is ended here is lost to it like any other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Cmd, FromRedisValue, cmd};

use crate::base::failure::{Failure, FailureKind};
use crate::base::holder::Holder;
use crate::error::{Error, Result};
use crate::local::shared::Shared;
use crate::local::status::{end_hold, repeat, repeat_briefly};
use crate::net::connection::Connection;
use crate::net::packed::Request;
use crate::store::hold_id::{HeldAs, HoldKind};
use crate::store::keys::{Keys, check_name};
use crate::store::request::{HolderReply, Look, ReportReply};

/// How many replies of a server are timed.
const REPLIES: usize = 10;

/// The holders of a name of any kind, and the clients that wait for it. Returned by
/// [`Survey::report`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct NameReport {
    /// The name.
    pub name: String,
    /// The key of a lock with that name.
    pub key: String,
    /// How each hold is held, and its holder: all readers of a read-write lock, or all permits of a
    /// semaphore. Empty if the name is free.
    pub holds: Vec<(HeldAs, Holder)>,
    /// The last fencing token of the name; `None` if it has no counter now. It is nearly the
    /// server's clock at that time, in microseconds since 1970.
    pub fence: Option<u64>,
    /// The [ids](crate::Client::id) of the waiting clients, in the order of the queue. Empty over
    /// [independent servers](crate::Builder::open_redlock), none of which knows all of them.
    pub waiting: Vec<String>,
}

/// The replies of all servers to a question. Returned by [`Survey::names`] and
/// [`Survey::servers`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerReplies<T> {
    /// Each server's address, and its reply.
    pub each: Vec<(String, Result<T>)>,
    /// How many must reply for locks to be reliable.
    pub required: usize,
}

impl<T> ServerReplies<T> {
    /// Returns the first error if too few servers have replied.
    #[must_use]
    pub fn too_few(&self) -> Option<&Error> {
        let replied = self.each.iter().filter(|(_, reply)| reply.is_ok()).count();
        if replied >= self.required {
            return None;
        }
        self.each.iter().find_map(|(_, reply)| reply.as_ref().err())
    }
}

/// A server's report about itself. Returned by [`Survey::servers`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServerReport {
    /// How long it took to answer.
    pub round_trip: Duration,
    /// How long the slowest of some replies took.
    pub slowest: Duration,
    /// By how many seconds the server's clock is ahead of this system's; negative if it is behind.
    /// `None` for a sentinel, which does not tell the time.
    pub clock_ahead: Option<f64>,
    /// The server's reply to INFO; `None` if the login lacks the right to ask.
    pub info: Option<String>,
    /// The reply to CLUSTER INFO of a node of a cluster; `None` if the login lacks the right.
    pub cluster_info: Option<String>,
}

/// Clients that wait for one another in a circle. Returned by [`Survey::circles`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WaitingCircle {
    /// The [ids](crate::Client::id) of the clients. Each waits for a name that the next one holds,
    /// and the last one for a name that the first one holds.
    pub clients: Vec<String>,
    /// The names for which they wait, in the order of `clients`.
    pub names: Vec<String>,
}

impl WaitingCircle {
    fn new(waits: Vec<ClientWait<'_>>) -> Self {
        let mut clients = Vec::with_capacity(waits.len());
        let mut names = Vec::with_capacity(waits.len());
        for wait in waits {
            clients.push(wait.client.to_owned());
            names.push(wait.name.to_owned());
        }
        Self { clients, names }
    }
}

/// An operator's view of all servers: who holds and waits for what, and the means to end holds.
/// Created by [`Client::survey`](crate::Client::survey). The [program
/// `leasehold`](crate::guide::program) shows what it does here.
///
/// It sees every client with the same [prefix](crate::Builder::prefix), in any process. Each method
/// blocks for the replies of servers. An answer may be outdated when it arrives: it describes the
/// moment at which the server replied. Holds are ended as
/// [`Mutex::force_unlock`](crate::Mutex::force_unlock) ends them, and a holder that does not listen
/// may not notice until its next renewal. A client [in memory](crate::Client::in_memory) has no
/// servers to scan: it reports on names, but lists none.
///
/// ```
/// use leasehold::{Client, HeldAs};
///
/// let client = Client::in_memory(); // or Client::open("redis://127.0.0.1/")?
/// let guard = client.lock("stock:42")?;
///
/// let survey = client.survey();
/// let report = survey.report("stock:42")?;
/// for (held_as, holder) in &report.holds {
///     println!("{held_as:?} of {}, {:?} left", holder.client, holder.remaining);
///     assert_eq!((*held_as, &*holder.client), (HeldAs::Lock, client.id()));
/// }
/// assert!(report.waiting.is_empty());
///
/// assert_eq!(survey.end_holds("stock:42")?, 1); // as an operator would, if its client is gone
/// assert!(guard.verify().is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Survey {
    shared: Arc<Shared>,
}

impl Survey {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone() }
    }

    /// Returns the holders of a name of any kind, and the clients that wait for it.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::is_locked`](crate::Mutex::is_locked).
    pub fn report(&self, name: &str) -> Result<NameReport> {
        let shared = &*self.shared;
        let ReportReply { holds, fence, waiting, .. } = ask_about(shared, name)?;
        let holds = holds.into_iter().map(|(held_as, holder)| (held_as, holder.into_holder()));
        let holds = holds.collect();
        let key = Keys::new(&shared.config.prefix).lock(name).into_owned();
        let fence = if fence > 0 { Some(fence) } else { None };
        Ok(NameReport { name: name.to_owned(), key, holds, fence, waiting })
    }

    /// Returns for each server the names that begin with `start` and may be held, in no order, and
    /// some perhaps twice. Scans all keys of all servers, some at a time. A server that does not
    /// answer has its own error.
    ///
    /// # Errors
    ///
    /// The same as for [`servers`](Survey::servers).
    pub fn names(&self, start: &str) -> Result<ServerReplies<Vec<String>>> {
        let prefix = &self.shared.config.prefix;
        let pattern = format!("{}{}*", escaped(prefix), escaped(start));
        self.scan(&pattern, |key| key.strip_prefix(prefix))
    }

    /// Returns the names of the keys that match a pattern, for each server.
    fn scan(
        &self,
        pattern: &str,
        name_of: impl Fn(&str) -> Option<&str>,
    ) -> Result<ServerReplies<Vec<String>>> {
        let shared = &*self.shared;
        ask_servers(shared, |connection| {
            let keys = scan(shared, connection, pattern)?;
            let names = keys.iter().filter_map(|key| {
                let name = name_of(str::from_utf8(key).ok()?)?;
                // Leaves out companions of locks, and keys that no lock can have.
                check_name(&shared.config.prefix, name).ok().map(|()| name.to_owned())
            });
            Ok(names.collect())
        })
    }

    /// Ends the current holds of a name, and no later ones. Returns how many it ended.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::force_unlock`](crate::Mutex::force_unlock).
    pub fn end_holds(&self, name: &str) -> Result<usize> {
        // Ended by their owners, so that a hold that begins after this reply is left alone.
        let holds = ask_about(&self.shared, name)?.holds;
        let of = holds.len();
        let mut ended = 0;
        for (held_as, HolderReply { owner, .. }) in holds {
            ended += usize::from(self.end(name, held_as, &owner, of)?);
        }
        Ok(ended)
    }

    /// Ends one of the holds that a report shows, and no other. Returns `false` if it was already
    /// over.
    ///
    /// # Errors
    ///
    /// The same as for [`end_holds`](Survey::end_holds).
    pub fn end_hold(
        &self,
        report: &NameReport,
        (held_as, holder): &(HeldAs, Holder),
    ) -> Result<bool> {
        self.end(&report.name, *held_as, holder.owner.as_bytes(), report.holds.len())
    }

    /// Ends the hold of an owner of a name that has `of` holds.
    fn end(&self, name: &str, held_as: HeldAs, owner: &[u8], of: usize) -> Result<bool> {
        // Waiting clients are offered at most as many permits as were taken.
        let permits = u32::try_from(of).unwrap_or(u32::MAX);
        end_hold(&self.shared, HoldKind::reported_as(held_as, permits), name, owner)
    }

    /// Ends the current holds of all names of a client that is gone, given its
    /// [id](crate::Client::id), or of all clients with a [label](crate::Builder::label). Holds of
    /// other libraries are left alone. Returns how many it ended. Scans all keys of all servers,
    /// like [`names`](Survey::names).
    ///
    /// # Errors
    ///
    /// The same as for [`end_holds`](Survey::end_holds), including when too few servers list their
    /// names. Holds that it ended before the error stay ended.
    /// [`InvalidInput`](Error::InvalidInput) if the text is empty.
    pub fn end_holds_of(&self, client: &str) -> Result<usize> {
        Error::require(!client.is_empty(), "client", "must not be empty")?;
        let mut ended = 0;
        for report in self.reports(unless_too_few(self.names("")?)?)? {
            for hold in &report.holds {
                let (held_as, holder) = hold;
                // A client that was started again has the label of the one before, and another id.
                let is_meant = holder.client == client || holder.label == client;
                if is_meant && *held_as != HeldAs::Foreign {
                    ended += usize::from(self.end_hold(&report, hold)?);
                }
            }
        }
        Ok(ended)
    }

    /// Returns circles of clients. Each client waits for a name that the next one holds, and the
    /// last one for a name that the first one holds. Every client that is in a circle is in at
    /// least one of those returned. Scans all keys of all servers for names that clients wait for,
    /// and asks twice about each name of a circle: the holds that are shown have lasted from the
    /// first reply to the second.
    ///
    /// Circles are suspicions, not proofs. Redis knows clients, not their threads: a client with
    /// one thread that waits and another that works is not part of a deadlock. A deadlock within
    /// one client is not shown, nor one through a semaphore, because any permit would do, or
    /// through a lock of another library; and none over [independent
    /// servers](crate::Builder::open_redlock). The clients themselves know more, and report what
    /// [is a deadlock](crate::Builder::deadlock_after).
    ///
    /// ```
    /// # fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::in_memory();
    /// for circle in client.survey().circles()? {
    ///     for (client, name) in circle.clients.iter().zip(&circle.names) {
    ///         println!("{client} waits for {name}, held by the next one");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`report`](Survey::report), including when too few servers list their keys.
    pub fn circles(&self) -> Result<Vec<WaitingCircle>> {
        let keys = Keys::new(&self.shared.config.prefix);
        let queues = format!("{}*", Keys::queue_start());
        let waited_for = self.scan(&queues, |queue| keys.name_of_queue(queue))?;
        let reports = self.reports(unless_too_few(waited_for)?)?;
        let circles = circles(&waits(&reports));
        // The names were read one after the other, so a circle may consist of waits that never
        // existed at the same time. Waits that are found again have lasted all along.
        let names = circles.iter().flatten().map(|wait| wait.name.to_owned()).collect();
        let reports = self.reports(names)?;
        let still = waits(&reports);
        let lasting =
            circles.into_iter().filter(|circle| circle.iter().all(|wait| still.contains(wait)));
        Ok(lasting.map(WaitingCircle::new).collect())
    }

    /// Returns reports of the names, except those that are not locks.
    fn reports(&self, names: BTreeSet<String>) -> Result<Vec<NameReport>> {
        let mut reports = Vec::new();
        for name in names {
            match self.report(&name) {
                // Another program uses the name by now.
                Err(Error::WrongType { .. }) => {}
                report => reports.push(report?),
            }
        }
        Ok(reports)
    }

    /// Returns how long a request of this client may take, by its
    /// [settings](crate::Builder::io_timeout), to compare with how long the servers take.
    ///
    /// ```
    /// let survey = leasehold::Client::in_memory().survey();
    /// for (address, report) in survey.servers()?.each {
    ///     if report?.slowest > survey.io_timeout() / 10 {
    ///         println!("{address} is slow for the io_timeout of this client");
    ///     }
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn io_timeout(&self) -> Duration {
        let config = &self.shared.config;
        config.io_timeout(config.options.lease)
    }

    /// Returns how long calls of this client wait for a lock, if its
    /// [settings](crate::Builder::wait) or its URL have a limit: for a program whose users write
    /// the URL.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let builder = leasehold::Builder::from_url("redis://127.0.0.1/?wait=5s")?;
    /// let client = builder.in_memory()?;
    /// let wait = client.survey().wait().unwrap_or(Duration::from_secs(60));
    /// let _guard = client.try_lock_for("nightly import", wait)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.shared.config.options.wait
    }

    /// Asks each server about itself. One that does not answer has its own error.
    ///
    /// # Errors
    ///
    /// The same as [`Client::ping`](crate::Client::ping), if the client cannot find out which
    /// servers there are.
    pub fn servers(&self) -> Result<ServerReplies<ServerReport>> {
        let shared = &*self.shared;
        ask_servers(shared, |connection| {
            // Opens the connection. A proxy may pass on what locks need, and little else.
            ask_if_known::<String>(shared, connection, &cmd("PING"))?;
            let info: Option<String> = ask_if_known(shared, connection, &cmd("INFO"))?;
            let is_of_cluster =
                info.as_deref().is_some_and(|info| info.contains("cluster_enabled:1"));
            let sent = Instant::now();
            let here = SystemTime::now();
            let time = ask_if_known::<(u64, u32)>(shared, connection, &cmd("TIME"))?;
            let round_trip = sent.elapsed();
            let mut slowest = round_trip;
            for _ in 1..REPLIES {
                let sent = Instant::now();
                ask_if_known::<String>(shared, connection, &cmd("PING"))?;
                slowest = slowest.max(sent.elapsed());
            }
            let here = here.duration_since(UNIX_EPOCH).unwrap_or_default() + round_trip / 2;
            let clock_ahead = time.map(|(seconds, micros)| {
                // A server may reply anything.
                let there = Duration::from_secs(seconds).as_secs_f64() + f64::from(micros) / 1e6;
                there - here.as_secs_f64()
            });
            let cluster_info = if is_of_cluster {
                ask_if_known(shared, connection, cmd("CLUSTER").arg("INFO"))?
            } else {
                None
            };
            Ok(ServerReport { round_trip, slowest, clock_ahead, info, cluster_info })
        })
    }
}

/// A client that waits for a name, and a hold that is in its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClientWait<'a> {
    client: &'a str,
    name: &'a str,
    holder: &'a str,
    owner: &'a str,
}

/// Returns which client waits for which other one.
fn waits(reports: &[NameReport]) -> BTreeSet<ClientWait<'_>> {
    let mut waits = BTreeSet::new();
    for NameReport { name, holds, waiting, .. } in reports {
        for (held_as, holder) in holds {
            // After a release the lock only stays taken, and a ticket waits for nothing.
            let is_in_use = holder.depth > 0 && !holder.detached;
            if !is_in_use || !matches!(held_as, HeldAs::Lock | HeldAs::Reader | HeldAs::Writer) {
                continue;
            }
            let Holder { client: holder, owner, .. } = holder;
            let others = waiting.iter().filter(|client| *client != holder);
            waits.extend(others.map(|client| ClientWait { client, name, holder, owner }));
        }
    }
    waits
}

/// Returns a shortest circle for each client that is in one, and each circle once.
fn circles<'a>(waits: &BTreeSet<ClientWait<'a>>) -> BTreeSet<Vec<ClientWait<'a>>> {
    let mut by_client = BTreeMap::<_, Vec<_>>::new();
    for wait in waits {
        by_client.entry(wait.client).or_default().push(wait);
    }
    let mut found = BTreeSet::new();
    for start in by_client.keys() {
        // The wait through which each client was first reached.
        let mut reached = BTreeMap::new();
        let mut next = VecDeque::from([*start]);
        while let Some(client) = next.pop_front()
            && !reached.contains_key(start)
        {
            for wait in by_client.get(client).into_iter().flatten() {
                reached.entry(wait.holder).or_insert_with(|| {
                    next.push_back(wait.holder);
                    *wait
                });
            }
        }
        let Some(mut wait) = reached.get(start).copied() else { continue };
        let mut circle = vec![wait.clone()];
        while wait.client != *start {
            wait = reached[wait.client];
            circle.push(wait.clone());
        }
        circle.reverse();
        // The same circle is found from each of its clients.
        let least = (0..circle.len()).min_by_key(|place| circle[*place].client);
        circle.rotate_left(least.unwrap_or_default());
        found.insert(circle);
    }
    found
}

/// Returns the names that the servers have listed.
///
/// # Errors
///
/// If too few have replied.
fn unless_too_few(replies: ServerReplies<Vec<String>>) -> Result<BTreeSet<String>> {
    match replies.too_few() {
        Some(error) => Err(error.clone()),
        None => {
            Ok(replies.each.into_iter().filter_map(|(_, names)| names.ok()).flatten().collect())
        }
    }
}

fn ask_about(shared: &Shared, name: &str) -> Result<ReportReply> {
    repeat(shared, "inspect", name, |deadline| shared.store.report(name, Look::All, deadline))
}

/// Escapes a text that a pattern should match literally.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(char);
    }
    escaped
}

/// Returns the keys that match a pattern, in no order and some perhaps twice.
fn scan(shared: &Shared, connection: &mut Connection, pattern: &str) -> Result<Vec<Vec<u8>>> {
    let mut cursor = "0".to_owned();
    let mut keys = Vec::new();
    loop {
        let request =
            cmd("SCAN").arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000).take();
        let (next, some): (String, Vec<Vec<u8>>) = ask(shared, connection, &request)?;
        keys.extend(some);
        if next == "0" {
            return Ok(keys);
        }
        cursor = next;
    }
}

/// Like `ask`, but returns `None` if the server refuses the command, in whatever words, or closes
/// the connection instead.
fn ask_if_known<T: FromRedisValue>(
    shared: &Shared,
    connection: &mut Connection,
    question: &Cmd,
) -> Result<Option<T>> {
    let reply = ask_with(shared, connection, question, |failure| match failure.kind {
        FailureKind::Disconnected | FailureKind::Unclear => {
            Failure { kind: FailureKind::Rejected, ..failure }
        }
        _ => failure,
    });
    match reply {
        Ok(reply) => Ok(Some(reply)),
        Err(Error::Redis { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Asks every server.
fn ask_servers<T>(
    shared: &Shared,
    mut ask: impl FnMut(&mut Connection) -> Result<T>,
) -> Result<ServerReplies<T>> {
    shared.check_process()?;
    let (mut each, required) =
        repeat_briefly(shared, "ask the servers", "", |_| shared.store.connections())?;
    let replies = each.iter_mut().map(|connection| {
        let reply = ask(connection);
        // Sentinels may have named the server only now.
        (connection.factory.label().to_string(), reply)
    });
    Ok(ServerReplies { each: replies.collect(), required })
}

/// Asks one server a question that is not about a lock.
fn ask<T: FromRedisValue>(
    shared: &Shared,
    connection: &mut Connection,
    question: &Cmd,
) -> Result<T> {
    ask_with(shared, connection, question, |failure| failure)
}

/// Like `ask`, but passes each failure through `meaning` first.
fn ask_with<T: FromRedisValue>(
    shared: &Shared,
    connection: &mut Connection,
    question: &Cmd,
    meaning: impl Fn(Failure) -> Failure,
) -> Result<T> {
    let request = Request::command(question);
    let reply = repeat_briefly(shared, "ask the server", "", |deadline| {
        connection.exchange(&request, deadline).map_err(&meaning)
    })?;
    T::from_redis_value(reply)
        .map_err(|_| connection.invalid_reply().into_error("ask the server", ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    /// A name that clients hold in this way, and for which others wait.
    fn report(name: &str, held_as: HeldAs, holders: &[&str], waiting: &[&str]) -> NameReport {
        let holder = |client: &&str| Holder {
            owner: format!("{client}:1"),
            client: (*client).to_owned(),
            label: String::new(),
            depth: 1,
            remaining: Duration::MAX,
            note: None,
            renewed: true,
            detached: false,
            may_be_kept: false,
        };
        NameReport {
            name: name.to_owned(),
            key: name.to_owned(),
            holds: holders.iter().map(|client| (held_as, holder(client))).collect(),
            fence: None,
            waiting: waiting.iter().map(ToString::to_string).collect(),
        }
    }

    fn lock(name: &str, holder: &str, waiting: &[&str]) -> NameReport {
        report(name, HeldAs::Lock, &[holder], waiting)
    }

    fn found(reports: &[NameReport]) -> Vec<String> {
        let waits = waits(reports);
        let circles = circles(&waits).into_iter().map(WaitingCircle::new);
        let text = |WaitingCircle { clients, names }| {
            let waits = iter::zip(clients, names).map(|(client, name)| client + " " + &name);
            waits.collect::<Vec<_>>().join(", ")
        };
        circles.map(text).collect()
    }

    #[test]
    fn a_chain_is_not_a_deadlock() {
        assert!(found(&[]).is_empty());
        let chain = [lock("a", "1", &["2"]), lock("b", "2", &["3", "4"]), lock("c", "3", &["4"])];
        assert!(found(&chain).is_empty());
        // Threads of one client.
        assert!(found(&[lock("a", "1", &["1"])]).is_empty());
    }

    #[test]
    fn each_client_in_a_deadlock_finds_a_shortest_circle() {
        let two = [lock("a", "1", &["2"]), lock("b", "2", &["0", "1"])];
        assert_eq!(found(&two), ["1 b, 2 a"]);
        // With a detour from 1 via 3 to 2, and another circle of 3 and 4.
        let more = [lock("c", "3", &["1", "4"]), lock("d", "4", &["3"]), lock("e", "2", &["3"])];
        assert_eq!(found(&[&two[..], &more].concat()), ["1 b, 2 a", "3 d, 4 c"]);
        assert_eq!(found(&[&two[..1], &more].concat()), ["1 c, 3 e, 2 a", "3 d, 4 c"]);
    }

    #[test]
    fn a_deadlock_needs_each_hold_to_block_the_next_call() {
        for (held_as, wanted) in [
            (HeldAs::Foreign, 0),
            (HeldAs::Lock, 1),
            (HeldAs::Permit, 0),
            (HeldAs::Reader, 1),
            (HeldAs::Writer, 1),
        ] {
            let found_with = |change: fn(&mut Holder)| {
                let mut side = report("b", held_as, &["3", "2"], &["1"]);
                change(&mut side.holds[1].1);
                found(&[lock("a", "1", &["2"]), side]).len()
            };
            assert_eq!(found_with(|_| {}), wanted, "{held_as:?}");
            // It was released and stays taken, or only a ticket is left.
            assert_eq!(found_with(|holder| holder.depth = 0), 0, "{held_as:?}");
            assert_eq!(found_with(|holder| holder.detached = true), 0, "{held_as:?}");
        }
    }
}
