//! Users and passwords from a callback, which is called at each connect, and connections that are
//! replaced before they expire.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use leasehold::{Builder, Client, Credentials, Error};
use parking_lot::Mutex;

use crate::support::errors::assert_has_its_cause;
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SOON, Server, Store, assert_rejected, eventually, everything, hasty, ms, patient,
    server, sleepy, soon, stores, take, throughout, timed, unlock, while_held,
};

stores! {
    every store:
        a_hold_outlives_its_credentials;
    every server:
        wake_ups_outlive_their_credentials,
        passwords_can_be_rotated;
    one server:
        credentials_win_over_those_of_the_url,
        an_error_of_the_callback_is_the_source_of_the_error,
        a_panic_of_the_callback_is_an_error,
        a_callback_that_hangs_delays_no_call_beyond_its_deadline,
        connections_that_are_opened_together_share_an_answer,
        refused_credentials_are_asked_for_once_more,
        a_callback_that_fails_for_a_while_delays_no_renewal;
}

/// The life of a token that is replaced during a test.
const LIFE: Duration = ms(1000);

/// The user of a test. Tests may share a server.
fn unique_user() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("ali{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The servers of a store that are up.
fn servers(store: &Store) -> Vec<&server::Server> {
    let all: &[server::Server] = match store {
        Store::Cluster(cluster, _) => cluster.nodes(),
        Store::Memory(_) => &[],
        Store::Quorum(quorum) => &quorum.servers,
        Store::Server(server) => std::slice::from_ref(server),
    };
    all.iter().filter(|server| server.try_command(&["PING"])).collect()
}

/// Issues passwords of one user. The servers accept the last two.
struct Issuer {
    user: String,
    /// The servers' addresses.
    urls: Vec<String>,
    /// The life of a password.
    life: Option<Duration>,
    /// The number of the last password. Locked while one is issued.
    last: Mutex<usize>,
    asked: AtomicUsize,
    fails: AtomicBool,
}

impl Issuer {
    fn new(servers: &[&server::Server], life: Option<Duration>) -> Arc<Self> {
        let issuer = Self {
            user: unique_user(),
            urls: servers.iter().map(|server| server.admin_url()).collect(),
            life,
            last: Mutex::new(0),
            asked: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
        };
        issuer.issue(&mut issuer.last.lock());
        Arc::new(issuer)
    }

    fn issue(&self, last: &mut usize) {
        *last += 1;
        let passwords = [format!(">sesame{last}"), format!(">sesame{}", *last - 1)];
        let rule = ["ACL", "SETUSER", &self.user, "on", "~*", "&*", "+@all", "resetpass"];
        self.order(&[&rule[..], &[&passwords[0], &passwords[1]]].concat());
    }

    /// Makes only a new password valid, and closes the connections that used another one.
    fn rotate(&self) {
        let mut last = self.last.lock();
        self.issue(&mut last);
        self.order(&["ACL", "SETUSER", &self.user, &format!("<sesame{}", *last - 1)]);
        self.order(&["CLIENT", "KILL", "USER", &self.user]);
    }

    fn order(&self, words: &[&str]) {
        for url in &self.urls {
            let mut connection = redis::Client::open(&**url).unwrap().get_connection().unwrap();
            redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
        }
    }

    /// Returns a builder whose callback provides credentials: new ones each time if they expire.
    fn logs_in(self: &Arc<Self>, builder: Builder) -> Builder {
        let issuer = self.clone();
        builder.credentials(move || {
            issuer.asked.fetch_add(1, Ordering::SeqCst);
            if issuer.fails.load(Ordering::SeqCst) {
                return Err(Refused.into());
            }
            let mut last = issuer.last.lock();
            let Some(life) = issuer.life else {
                return Ok(Credentials::new(&issuer.user, format!("sesame{last}")));
            };
            issuer.issue(&mut last);
            let credentials = Credentials::new(&issuer.user, format!("sesame{last}"));
            Ok(credentials.valid_until(Instant::now() + life))
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Returns the user's connections by id, and how many seconds each was idle.
    fn connections(&self, server: &server::Server, kind: &str) -> BTreeMap<u64, u64> {
        let list: String = server.ask(&["CLIENT", "LIST", "TYPE", kind]);
        let field = |line: &str, name: &str| {
            let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
            fields.find_map(|(key, value)| (key == name).then(|| value.to_owned()))
        };
        let own = list.lines().filter(|line| field(line, "user").as_ref() == Some(&self.user));
        let number = |line, name| field(line, name).unwrap().parse().unwrap();
        own.map(|line| (number(line, "id"), number(line, "idle"))).collect()
    }
}

/// The error of an issuer.
#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no token today")
    }
}

impl std::error::Error for Refused {}

#[track_caller]
fn assert_refused<T: fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert_has_its_cause(&error);
    let Error::Unavailable { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.downcast_ref().is_some_and(|Refused| true), "{error:?}");
}

fn a_hold_outlives_its_credentials(store: &Store) {
    let servers = servers(store);
    let (issuer, events) = (Issuer::new(&servers, Some(LIFE)), Recorder::default());
    let builder = issuer.logs_in(patient().lease(LEASE)).on_event(events.listener());
    let client = store.open(builder);
    let guard = take(&client, "a");
    let before: Vec<_> =
        servers.iter().map(|server| issuer.connections(server, "normal")).collect();
    throughout(LEASE * 2, || guard.is_held());
    guard.verify().unwrap();
    assert_eq!(events.count("renewal failing a"), 0);
    if servers.is_empty() {
        assert_eq!(issuer.asked(), 0, "no effect in memory");
        return;
    }
    for (server, before) in servers.iter().zip(before) {
        // Old connections of an unused pool stay until the pool is used again.
        let is_used = |(id, idle): (u64, u64)| before.contains_key(&id) && idle < 2;
        assert!(!issuer.connections(server, "normal").into_iter().any(is_used));
    }
    // At every server, the renewer and the calls have a connection, each for most of a life.
    let most = servers.len() * 2 * 3 * (LEASE * 2).as_millis() as usize / LIFE.as_millis() as usize;
    assert!((4..=most).contains(&issuer.asked()), "{}", issuer.asked());
    guard.unlock().unwrap();
}

fn wake_ups_outlive_their_credentials(server: &Server) {
    check_wake_ups(&[server], &|builder| server.open(builder));
}

#[test]
fn wake_ups_outlive_their_credentials_on_a_cluster() {
    let store = Store::cluster();
    check_wake_ups(&servers(&store), &|builder| store.open(builder));
}

#[test]
fn wake_ups_outlive_their_credentials_on_a_quorum() {
    let store = Store::quorum();
    check_wake_ups(&servers(&store), &|builder| store.open(builder));
}

fn check_wake_ups(servers: &[&server::Server], open: &dyn Fn(Builder) -> Client) {
    // A new connection has a fifth of a life to replace an old one.
    let issuer = Issuer::new(servers, Some(LIFE * 5));
    let open = || open(issuer.logs_in(sleepy()));
    let (holder, waiter) = (open(), open());
    while_held(&holder, "a", |end| {
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(unlock));
            let listen = || servers.iter().all(|server| server.listeners(&waiter) > 0);
            let ids = |server: &&server::Server| issuer.connections(server, "pubsub");
            eventually(SOON, listen);
            for _ in 0..2 {
                let before: Vec<_> = servers.iter().map(ids).collect();
                eventually(SOON, || {
                    assert!(listen(), "the new ones come first");
                    let mut now = servers.iter().map(ids).zip(&before);
                    now.all(|(now, before)| !now.keys().any(|id| before.contains_key(id)))
                });
            }
            drop(end);
            soon(|| waits.join().unwrap().unwrap());
        });
    });
    for server in servers {
        eventually(SOON, || server.listeners(&waiter) == 1);
    }
}

fn passwords_can_be_rotated(server: &Server) {
    check_rotation(&[server], &|builder| server.open(builder));
}

#[test]
fn passwords_can_be_rotated_on_a_cluster() {
    let store = Store::cluster();
    check_rotation(&servers(&store), &|builder| store.open(builder));
}

#[test]
fn passwords_can_be_rotated_on_a_quorum() {
    let store = Store::quorum();
    check_rotation(&servers(&store), &|builder| store.open(builder));
}

fn check_rotation(servers: &[&server::Server], open: &dyn Fn(Builder) -> Client) {
    const ROTATIONS: usize = 8;
    let (issuer, events) = (Issuer::new(servers, None), Recorder::default());
    let builder = || issuer.logs_in(patient().lease(LEASE));
    let clients = [open(builder().on_event(events.listener())), open(builder())];
    let guard = take(&clients[0], "held");
    let (done, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let users = [0, 1, 0, 1].map(|number| {
            let (client, done, count) = (&clients[number], &done, &count);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    client.lock("passed on").map(drop)?;
                    count.fetch_add(1, Ordering::SeqCst);
                }
                Ok::<(), Error>(())
            })
        });
        // On a thread of its own, because the users must end even if this fails.
        let rotations = scope.spawn(|| {
            for _ in 0..ROTATIONS {
                issuer.rotate();
                let before = count.load(Ordering::SeqCst);
                throughout(ms(1000), || guard.is_held());
                assert!(count.load(Ordering::SeqCst) > before, "the others go on");
            }
        });
        let rotated = rotations.join();
        done.store(true, Ordering::SeqCst);
        for user in users {
            user.join().unwrap().unwrap();
        }
        rotated.unwrap();
    });
    guard.verify().unwrap();
    assert_eq!(events.count("lost held"), 0);
    // Each of two clients has few connections to a server, and those that are opened together share
    // an answer.
    let most = servers.len() * clients.len() * 10 * (ROTATIONS + 1);
    assert!((ROTATIONS..=most).contains(&issuer.asked()), "{}", issuer.asked());
    guard.unlock().unwrap();
}

fn credentials_win_over_those_of_the_url(server: &Server) {
    let issuer = Issuer::new(&[server], None);
    let url = format!("redis://nobody:mellon@127.0.0.1:{}/2", server.port());
    let client = issuer.logs_in(patient().pool_size(1)).open(&url).unwrap();
    take(&client, "a").unlock().unwrap();
    assert_eq!(issuer.asked(), 1, "once for one connection");
    assert_eq!(issuer.connections(server, "normal").len(), 1);
    server.kill_connections();
    take(&client, "a").unlock().unwrap();
    assert_eq!(issuer.asked(), 2, "and for the next");
}

fn an_error_of_the_callback_is_the_source_of_the_error(server: &Server) {
    let issuer = Issuer::new(&[server], None);
    issuer.fails.store(true, Ordering::SeqCst);
    let open = |builder: Builder| issuer.logs_in(builder).open(&server.url());
    assert_refused(open(hasty()));
    let client = open(hasty().lazy(true)).unwrap();
    assert_refused(client.try_lock("a"));
    assert_refused(client.try_lock_for("a", ms(50)));
    issuer.fails.store(false, Ordering::SeqCst);
    take(&client, "a").unlock().unwrap();
}

fn a_panic_of_the_callback_is_an_error(server: &Server) {
    let panics = Arc::new(AtomicBool::new(true));
    let callback = panics.clone();
    let builder = patient().lazy(true).credentials(move || {
        assert!(!callback.load(Ordering::SeqCst), "an intended panic");
        Ok(Credentials::new("", "ignored"))
    });
    server.set_config("requirepass", "ignored");
    let client = builder.open(&server.url()).unwrap();
    let error = client.try_lock("a").unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(everything(&error).contains("the credentials callback panicked"), "{error:?}");
    panics.store(false, Ordering::SeqCst);
    take(&client, "a").unlock().unwrap();
}

/// A callback that waits for the test, and the number of its calls.
fn gated(issuer: &Arc<Issuer>, gate: Receiver<()>) -> (Builder, Arc<AtomicUsize>) {
    let (asked, issuer) = (Arc::<AtomicUsize>::default(), issuer.clone());
    let count = asked.clone();
    let builder = hasty().lazy(true).credentials(move || {
        count.fetch_add(1, Ordering::SeqCst);
        gate.recv().unwrap_or_default();
        Ok(Credentials::new(&issuer.user, format!("sesame{}", issuer.last.lock())))
    });
    (builder, asked)
}

fn a_callback_that_hangs_delays_no_call_beyond_its_deadline(server: &Server) {
    let (open_gate, gate) = unbounded();
    let (builder, asked) = gated(&Issuer::new(&[server], None), gate);
    let client = builder.open(&server.url()).unwrap();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let (result, took) = timed(|| client.try_lock_for("a", ms(100)));
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
                assert!(took < SOON / 2, "{took:?}");
            });
        }
    });
    assert_eq!(asked.load(Ordering::SeqCst), 1, "all wait for one answer");
    open_gate.send(()).unwrap();
    take(&client, "a").unlock().unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1, "which is kept for those who come later");
}

fn connections_that_are_opened_together_share_an_answer(server: &Server) {
    const THREADS: usize = 8;
    let (open_gate, gate) = unbounded();
    let (builder, asked) = gated(&Issuer::new(&[server], None), gate);
    let client = builder.connect_timeout(SOON).open(&server.url()).unwrap();
    thread::scope(|scope| {
        let before = server.connections();
        for number in 0..THREADS {
            let client = &client;
            scope.spawn(move || drop(client.try_lock_for(&number.to_string(), SOON).unwrap()));
        }
        // Each question is also a connection.
        let mut questions = 0;
        eventually(SOON, || {
            questions += 1;
            server.connections() >= before + questions + THREADS as u64
        });
        // A thread may have connected and not asked yet. If it is too late, it asks again.
        for _ in 0..THREADS {
            open_gate.send(()).unwrap();
        }
    });
    let asked = asked.load(Ordering::SeqCst);
    assert!((1..THREADS / 2).contains(&asked), "{asked} questions");
}

fn refused_credentials_are_asked_for_once_more(server: &Server) {
    let issuer = Issuer::new(&[server], None);
    let asked = Arc::<AtomicUsize>::default();
    let (user, count) = (issuer.user.clone(), asked.clone());
    let builder = hasty().credentials(move || {
        let right = count.fetch_add(1, Ordering::SeqCst) % 2 == 1;
        Ok(Credentials::new(&user, if right { "sesame1" } else { "mellon" }))
    });
    let client = builder.clone().open(&server.url()).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2, "the password may just have changed");
    take(&client, "a").unlock().unwrap();
    issuer.rotate();
    let (result, took) = timed(|| client.try_lock("a"));
    let text = everything(result.as_ref().unwrap_err());
    assert!(!text.contains("sesame") && !text.contains("mellon"), "{text}");
    assert_rejected(result, "WRONGPASS");
    // The clean-up after requests over the closed connection may ask, too.
    let asked = asked.load(Ordering::SeqCst);
    assert!((4..=6).contains(&asked), "{asked} times");
    assert!(took < SOON / 2, "trying again does not help: {took:?}");
}

fn a_callback_that_fails_for_a_while_delays_no_renewal(server: &Server) {
    // There are 1.6 seconds to replace a connection, in which four renewals are due.
    let (issuer, events) = (Issuer::new(&[server], Some(LIFE * 8)), Recorder::default());
    let builder = issuer.logs_in(patient().lease(ms(1200))).on_event(events.listener());
    let client = builder.open(&server.url()).unwrap();
    let guard = take(&client, "a");
    events.wait_for("renewed");
    let before = issuer.connections(server, "normal");
    issuer.fails.store(true, Ordering::SeqCst);
    let asked = issuer.asked();
    eventually(SOON, || issuer.asked() > asked);
    issuer.fails.store(false, Ordering::SeqCst);
    eventually(SOON, || {
        issuer.connections(server, "normal").keys().any(|id| !before.contains_key(id))
    });
    assert!(guard.is_held());
    assert_eq!(events.count("renewal failing a"), 0);
}
