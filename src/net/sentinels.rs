//! Asks the sentinels of one master where it is, and decides which of their answers counts.
//!
//! One sentinel is enough, as long as the server that it names is a master and accepts connections.
//! A sentinel that is cut off from the others may name a dead server forever. So most of them must
//! agree the first time, and all of them are asked if no connection could be opened to the address.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::base::clock::{self, Moment};
use crate::base::failure::{Failure, FailureKind};
use crate::config::callbacks::AddressMap;
use crate::error::{Phase, Result as ApiResult};
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::packed::Request;
use crate::net::route::{Address, Route, sentinels_label, unanswered};
use crate::net::server::ServerFactory;
use crate::net::wait::Spin;

/// After this many failures to connect in a row, the address that most sentinels name is abandoned
/// for one that any of them names. Fewer failures do not outweigh the majority.
const REJECTIONS_MAX: u32 = 3;

/// The port of a sentinel whose URL has none.
const PORT: u16 = 26379;

struct Sentinels {
    master: Arc<str>,
    address_map: AddressMap,
    /// The sentinel whose answer last counted is the first.
    connections: VecDeque<Connection>,
    /// Whether an answer has counted before.
    has_counted: bool,
    rejections: u32,
}

/// Parses the URLs of sentinels, no two of which may be the same.
pub(crate) fn parse(
    urls: impl IntoIterator<Item: AsRef<str>>,
    servers: &ServerFactory,
) -> ApiResult<Vec<Endpoint>> {
    let urls = urls.into_iter().map(|url| with_port(url.as_ref()));
    servers.endpoints("sentinels", urls)
}

fn with_port(url: &str) -> String {
    match redis::parse_redis_url(url) {
        Some(mut parsed) if parsed.has_host() && parsed.port().is_none() => {
            // This fails for a URL that cannot have a port, which is rejected later.
            parsed.set_port(Some(PORT)).unwrap_or_default();
            parsed.into()
        }
        _ => url.into(),
    }
}

/// Creates a route to the master of these sentinels.
pub(crate) fn route(sentinels: &[Endpoint], master: &str, servers: &ServerFactory) -> Route {
    let connections = sentinels.iter().map(|endpoint| {
        let mut factory = servers.connections(endpoint.without_database());
        // Sentinels are asked too rarely to spin for.
        factory.spin = Spin::new(Duration::ZERO);
        // The credentials are the master's.
        factory.credentials = None;
        Connection::new(Arc::new(factory))
    });
    let mut sentinels = Sentinels {
        master: master.into(),
        address_map: servers.config.address_map.clone(),
        connections: connections.collect(),
        has_counted: false,
        rejections: 0,
    };
    Route::new(
        master,
        &servers.events,
        Box::new(move |rejected, deadline| sentinels.ask(rejected, deadline)),
    )
}

impl Sentinels {
    /// Asks one sentinel after another, each for its share of the time, until one answers. The
    /// first time, asks until most of them agree; if an address was rejected, asks all of them. The
    /// sentinel whose answer counts is the first to be asked the next time.
    fn ask(
        &mut self,
        rejected: Option<&Address>,
        deadline: Instant,
    ) -> Result<(Address, Moment), Failure> {
        self.rejections = rejected.map_or(0, |_| self.rejections.saturating_add(1));
        let mut answers = Vec::new();
        let mut failure = None::<Failure>;
        for place in 0..self.connections.len() {
            // The master may move while the answer is on its way, so the answer is as old as the
            // question.
            let asked = Moment::now();
            let now = clock::now();
            let left = u32::try_from(self.connections.len() - place).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(now) / left;
            match self.ask_one(place, now + share) {
                Ok(address) => answers.push((address, (asked, place))),
                Err(next) => {
                    if failure.as_ref().is_none_or(|one| !one.outweighs(&next)) {
                        failure = Some(next);
                    }
                }
            }
            let is_enough = rejected.is_none() && self.is_enough(&answers);
            if is_enough {
                break;
            }
        }
        let Some(best) = choose(&answers, rejected, self.rejections) else {
            return Err(unanswered(&self.master, failure));
        };
        let (address, (asked, place)) = answers.swap_remove(best);
        self.has_counted = true;
        self.connections.rotate_left(place);
        Ok((address, asked))
    }

    fn is_enough<T>(&self, answers: &[(Address, T)]) -> bool {
        let votes = answers.iter().map(|(address, _)| votes(address, answers)).max();
        votes.is_some_and(|votes| self.has_counted || votes > self.connections.len() / 2)
    }

    fn ask_one(&mut self, place: usize, deadline: Instant) -> Result<Address, Failure> {
        let sentinel = &mut self.connections[place];
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let reply = sentinel.exchange(&Request::command(&question), deadline);
        let reply = reply.map_err(with_hint)?;
        if reply == Value::Nil {
            let why = io::Error::new(io::ErrorKind::NotFound, "a sentinel knows no such master");
            let failure = Failure::io(FailureKind::Rejected, &sentinels_label(&self.master), why);
            return Err(Failure { code: "NOMASTER".into(), ..failure });
        }
        let Address { host, port } = address(&reply).ok_or_else(|| sentinel.invalid_reply())?;
        let (host, port) = self.address_map.reachable(&host, port);
        Ok(Address { host, port })
    }
}

/// Adds a hint to a failed login: sentinels often have a different login than their master, or
/// none.
fn with_hint(failure: Failure) -> Failure {
    if failure.kind != FailureKind::Rejected || failure.phase != Phase::Login {
        return failure;
    }
    let hint = "the login in the URL is for the sentinels too, `master_login` for the master only";
    let source = io::Error::other(format!("{}; {hint}", failure.source));
    Failure { source: Arc::new(source), ..failure }
}

fn choose<T>(
    answers: &[(Address, T)],
    rejected: Option<&Address>,
    rejections: u32,
) -> Option<usize> {
    (0..answers.len()).max_by_key(|number| {
        let address = &answers[*number].0;
        let is_other = rejected != Some(address);
        (is_other && rejections >= REJECTIONS_MAX, votes(address, answers), is_other)
    })
}

/// Returns how many sentinels have named an address.
fn votes<T>(address: &Address, answers: &[(Address, T)]) -> usize {
    answers.iter().filter(|(one, _)| one == address).count()
}

/// Parses a host and a port; `None` if the reply is something else.
fn address(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = &parts[..] else { return None };
    let host = str::from_utf8(host).ok()?.to_owned();
    Some(Address { host, port: str::from_utf8(port).ok()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use crate::base::clock::end_of;
    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::net::route::VALID_FOR;
    use crate::net::server::ServerFactory;

    /// Starts a sentinel that names a master after a delay, or never. Returns its URL.
    fn sentinel(delay: Option<Duration>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            while client.read(&mut [0; 1000]).is_ok_and(|bytes| bytes > 0) {
                let Some(delay) = delay else { continue };
                thread::sleep(delay);
                client.write_all(b"*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n").unwrap_or_default();
            }
        });
        format!("redis://127.0.0.1:{port}/")
    }

    fn refreshed(sentinels: &[String], time: Duration) -> Route {
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let sentinels = parse(sentinels, &servers).expect("good URLs");
        let route = route(&sentinels, "shop", &servers);
        route.refresh(end_of(time));
        assert_eq!(route.address().expect("an answer").port, 6379);
        route
    }

    #[test]
    fn the_host_that_a_sentinel_names_is_shown_on_one_line() {
        let route = refreshed(&[sentinel(Some(Duration::ZERO))], VALID_FOR * 8);
        let address = Address { host: "a\n\u{1b}[2J".into(), port: 1 };
        route.record(Ok(address.clone()), false);
        assert_eq!(&*route.label(), r#"a\n\u{1b}[2J:1 (master "shop")"#);
        assert_eq!(address.to_string(), r"a\n\u{1b}[2J:1", "in the log");
        let endpoint = Endpoint::parse("redis://b", &Config::default(), &Events::default())
            .expect("a good URL");
        assert_eq!(&*endpoint.at(&address.host, 1).label, r"a\n\u{1b}[2J:1", "of a cluster's node");
    }

    #[test]
    fn an_answer_is_as_old_as_its_question() {
        let slow = sentinel(Some(VALID_FOR));
        assert!(!refreshed(&[slow], VALID_FOR * 8).is_current());
    }

    #[test]
    fn the_wait_for_a_silent_sentinel_makes_no_answer_older() {
        // The machine may pause.
        let is_current = || {
            let sentinels = [sentinel(None), sentinel(Some(Duration::ZERO))];
            refreshed(&sentinels, VALID_FOR * 3).is_current()
        };
        assert!((0..3).any(|_| is_current()));
    }

    fn answer(port: u16) -> (Address, ()) {
        (Address { host: "h".into(), port }, ())
    }

    /// Returns the port that counts after `rejected` was rejected this many times.
    fn chosen(ports: &[u16], rejected: u16, rejections: u32) -> Option<u16> {
        let answers: Vec<_> = ports.iter().map(|port| answer(*port)).collect();
        let best = choose(&answers, Some(&answer(rejected).0), rejections)?;
        Some(answers[best].0.port)
    }

    #[test]
    fn the_master_of_most_sentinels_counts_until_it_keeps_failing() {
        assert_eq!(chosen(&[1, 2, 2], 1, 1), Some(2));
        assert_eq!(chosen(&[1, 2], 1, 1), Some(2), "the other one");
        assert_eq!(chosen(&[1, 1, 2], 1, 1), Some(1));
        assert_eq!(chosen(&[1, 1, 2], 1, REJECTIONS_MAX), Some(2));
        assert_eq!(chosen(&[1, 1], 1, REJECTIONS_MAX), Some(1), "there is no other");
        assert_eq!(chosen(&[2, 3, 3], 1, 1), Some(3));
        assert_eq!(chosen(&[], 1, 1), None);
    }
}
