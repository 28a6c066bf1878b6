//! Calls that cannot be cut short, and that may take far longer than a caller can wait: the
//! system's look-up of a host, the program's callback for credentials, and reading certificates
//! from a file system that may hang.
//!
//! Each runs on a short-lived thread of its own, and callers wait for it by their own deadlines. A
//! caller with the same argument as a call in progress waits for that call. A call that has run for
//! a long time may never return, so the next caller starts another; at most two with the same
//! argument run at a time. An answer that is too late for all callers is kept for the next one;
//! otherwise a client could never connect if a function always took longer than `connect_timeout`.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};
use parking_lot::Mutex;

use crate::base::clock;
use crate::base::sync::{receive, spawn};
use crate::config::callbacks::{Credentials, CredentialsAnswer, CredentialsCallback};

/// How long to keep an answer that no caller has taken.
const KEPT: Duration = Duration::from_secs(30);

/// How long a call may run before a later caller starts another one.
const SLOW_AFTER: Duration = Duration::from_secs(30);

/// Maximum number of concurrent calls with the same argument.
const CALLS_MAX: usize = 2;

/// A function whose calls are shared by callers with the same argument.
pub(super) struct SharedCalls<K, T> {
    /// The name of its threads.
    thread: &'static str,
    /// The name of the function in errors.
    what: &'static str,
    function: Arc<dyn Fn(&K) -> T + Send + Sync>,
    /// The calls in progress, and those whose answers no caller has taken yet, the oldest first.
    calls: Mutex<Vec<SharedCall<K, T>>>,
    slow_after: Duration,
}

/// One call. It is over once `ended` is disconnected.
#[derive(Clone)]
struct SharedCall<K, T> {
    argument: K,
    begun: Instant,
    /// The answer and its time of arrival. There is none if the call has panicked.
    answer: Arc<OnceLock<(T, Instant)>>,
    ended: Receiver<Infallible>,
}

impl<K, T> SharedCalls<K, T>
where
    K: Clone + Eq + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    pub(super) fn new(
        thread: &'static str,
        what: &'static str,
        function: impl Fn(&K) -> T + Send + Sync + 'static,
    ) -> Self {
        let function = Arc::new(function);
        Self { thread, what, function, calls: Mutex::default(), slow_after: SLOW_AFTER }
    }

    /// Returns the answer of the call in progress, or starts one. Fails if no answer arrives in
    /// time, if the call panics, or if there is no thread for it.
    pub(super) fn call(&self, argument: &K, deadline: Instant) -> io::Result<T> {
        let call = self.join(argument)?;
        // Nothing is ever sent.
        let Err(end) = receive(&call.ended, deadline);
        let answer = call.answer.get().map(|(answer, _)| answer.clone());
        if answer.is_none() && end == RecvTimeoutError::Timeout {
            let why = format!("{} took too long", self.what);
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        // The next caller starts a call of its own.
        self.calls.lock().retain(|known| !Arc::ptr_eq(&known.answer, &call.answer));
        answer.ok_or_else(|| io::Error::other(format!("{} panicked", self.what)))
    }

    fn join(&self, argument: &K) -> io::Result<SharedCall<K, T>> {
        let mut calls = self.calls.lock();
        calls
            .retain(|call| call.answer.get().is_none_or(|(_, come)| clock::elapsed(*come) <= KEPT));
        let same: Vec<_> = calls.iter().filter(|call| call.argument == *argument).collect();
        if let Some(last) = same.last() {
            let enough = same.len() >= CALLS_MAX || clock::elapsed(last.begun) < self.slow_after;
            // Threads that ask at the same time share one answer. If a call hangs, a later caller
            // starts another one.
            if let Some(over) = same.iter().find(|call| call.is_over()) {
                return Ok((*over).clone());
            } else if enough {
                return Ok((*last).clone());
            }
        }
        let (end, ended) = bounded(0);
        let call = SharedCall {
            argument: argument.clone(),
            begun: clock::now(),
            answer: Arc::default(),
            ended,
        };
        let this = call.clone();
        let function = self.function.clone();
        spawn(self.thread, move || {
            let answer = function(&this.argument);
            this.answer.get_or_init(|| (answer, clock::now()));
            // Wakes all callers at once, even if the function has panicked.
            drop(end);
        })?;
        calls.push(call.clone());
        Ok(call)
    }
}

impl<K, T> SharedCall<K, T> {
    fn is_over(&self) -> bool {
        self.ended.try_recv() == Err(TryRecvError::Disconnected)
    }
}

type Addresses = Result<Vec<SocketAddr>, Arc<io::Error>>;

/// The look-ups of one client. Clones share them.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<SharedCalls<String, Addresses>>);

impl Default for Resolver {
    fn default() -> Self {
        // Each caller has its own port.
        Self::new(|host| Ok((host, 0).to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    pub(super) fn new(
        look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let calls =
            SharedCalls::new("leasehold-lookup", "looking up the host", move |host: &String| {
                look_up(host).map_err(Arc::new)
            });
        Self(Arc::new(calls))
    }

    /// Returns the addresses of a host, which may be an IP address itself.
    pub(crate) fn resolve(
        &self,
        host: &str,
        port: u16,
        deadline: Instant,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let answer = self.0.call(&host.to_owned(), deadline)?;
        // An `io::Error` cannot be cloned: each caller gets its own, whose source is the shared
        // one.
        let mut addresses = answer.map_err(|error| io::Error::new(error.kind(), error))?;
        for address in &mut addresses {
            address.set_port(port);
        }
        Ok(addresses)
    }
}

/// Asks the program's callback. Its answer serves all waiting connections. Clones share it.
#[derive(Clone)]
pub(crate) struct CredentialsSource(Arc<SharedCalls<(), CredentialsAnswer>>);

impl CredentialsSource {
    pub(super) fn new(callback: CredentialsCallback) -> Self {
        let calls = SharedCalls::new("leasehold-login", "the credentials callback", move |()| {
            callback.call()
        });
        Self(Arc::new(calls))
    }

    /// Asks for credentials that have not expired.
    pub(super) fn ask(
        &self,
        deadline: Instant,
    ) -> Result<Credentials, Arc<dyn StdError + Send + Sync>> {
        // The first answer may be one that was kept because it came too late, and has expired
        // since.
        for _ in 0..2 {
            let answer = self.0.call(&(), deadline).unwrap_or_else(|error| Err(Arc::new(error)))?;
            if answer.valid_until.is_none_or(|end| end > clock::now()) {
                return Ok(answer);
            }
        }
        let why = "the credentials callback returned credentials that had expired";
        Err(Arc::new(io::Error::new(io::ErrorKind::InvalidData, why)))
    }
}

#[cfg(test)]
mod tests;
