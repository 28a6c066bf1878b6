//! Where a server is and how to log in there, from a URL.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{RecvTimeoutError, bounded};
use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use scheduled_thread_pool::ScheduledThreadPool;

use crate::error::{Error, Result};
use crate::store::socket::Socket;

/// One server's address and the login there.
pub(crate) struct Endpoint {
    address: ConnectionAddr,
    /// The address as users are shown it, without user and password.
    pub(crate) label: Arc<str>,
    login: RedisConnectionInfo,
    client_name: Option<String>,
}

/// Shows no user and no password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.label).finish()
    }
}

impl Endpoint {
    /// Understands `redis://[user][:password@]host[:port][/db]` and
    /// `unix:///path[?db=&user=&pass=]`, each with an optional `client_name` in the query.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let refuse = |why: &str| Err(Error::invalid("url", why));
        let Some(parsed) = redis::parse_redis_url(url) else {
            return refuse("must be redis://host[:port][/db] or unix:///path");
        };
        if matches!(parsed.scheme(), "rediss" | "valkeys") {
            return refuse("must not ask for TLS, which this version cannot do");
        }
        let client_name = parsed
            .query_pairs()
            .find(|(key, _)| key == "client_name")
            .map(|(_, name)| name.into_owned());
        // The parser's own messages can quote the URL, so they are not passed on.
        let Ok(info) = parsed.into_connection_info() else {
            return refuse("must have a host or a path, a database number if any, and valid UTF-8");
        };
        let login = info.redis_settings().clone();
        if login.db() < 0 {
            return refuse("must not have a negative database number");
        }
        let address = info.addr().clone();
        Ok(Self { label: address.to_string().into(), address, login, client_name })
    }

    /// Understands the URLs of several servers, all different.
    pub(crate) fn parse_all(urls: &[&str]) -> Result<Vec<Self>> {
        if urls.is_empty() {
            return Err(Error::invalid("urls", "must not be empty"));
        }
        let endpoints = urls.iter().map(|url| Self::parse(url)).collect::<Result<Vec<_>>>()?;
        for (number, endpoint) in endpoints.iter().enumerate() {
            if endpoints[..number].iter().any(|other| other.label == endpoint.label) {
                let twice = format_args!("must not name {} twice", endpoint.label);
                return Err(Error::invalid("urls", twice));
            }
        }
        Ok(endpoints)
    }

    /// Opens a socket. Names are looked up on one of `threads`, because looking up cannot be cut
    /// short.
    pub(crate) fn connect(
        &self,
        threads: &ScheduledThreadPool,
        until: Instant,
    ) -> io::Result<Socket> {
        match &self.address {
            ConnectionAddr::Tcp(host, port) => {
                let addresses = match host.parse::<IpAddr>() {
                    Ok(address) => vec![SocketAddr::new(address, *port)],
                    Err(_) => look_up(host, *port, threads, until)?,
                };
                Socket::tcp(&addresses, until)
            }
            ConnectionAddr::Unix(path) => Socket::unix(path, until),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Appends the requests that a new connection begins with, and tells how many there are.
    pub(crate) fn greet(&self, out: &mut Vec<u8>) -> usize {
        let mut requests = Vec::new();
        if let Some(password) = self.login.password() {
            let mut auth = redis::cmd("AUTH");
            auth.arg(self.login.username()).arg(password);
            requests.push(auth);
        }
        if self.login.db() != 0 {
            requests.push(redis::cmd("SELECT").arg(self.login.db()).take());
        }
        if let Some(name) = &self.client_name {
            requests.push(redis::cmd("CLIENT").arg("SETNAME").arg(name).take());
        }
        for request in &requests {
            request.write_packed_command(out);
        }
        requests.len()
    }
}

fn look_up(
    host: &str,
    port: u16,
    threads: &ScheduledThreadPool,
    until: Instant,
) -> io::Result<Vec<SocketAddr>> {
    let (answer, answers) = bounded(1);
    let host = host.to_owned();
    threads.execute(move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // Nobody waits any more if the time was over; then the answer is not wanted.
        drop(answer.send(found));
    });
    answers.recv_deadline(until).unwrap_or_else(|error| {
        Err(match error {
            RecvTimeoutError::Timeout => {
                io::Error::new(io::ErrorKind::TimedOut, "looking up the host took too long")
            }
            RecvTimeoutError::Disconnected => io::Error::other("looking up the host failed"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(url: &str) -> String {
        let mut out = Vec::new();
        Endpoint::parse(url).expect("a good URL").greet(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_url_tells_user_password_database_and_client_name() {
        assert_eq!(greeting("redis://localhost"), "");
        assert_eq!(
            greeting("redis://u:p%40ss@localhost:1/3?client_name=app"),
            "*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$4\r\np@ss\r\n\
             *2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n\
             *3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$3\r\napp\r\n"
        );
        assert_eq!(greeting("redis://:p@localhost"), "*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n");
        assert_eq!(greeting("unix:///tmp/x?pass=p"), "*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n");
    }

    #[test]
    fn a_bad_url_is_refused_without_being_repeated() {
        let bad = [
            "",
            "nonsense",
            "http://host",
            "redis://",
            "redis://:secret@host/x",
            "redis://:secret@host/-1",
            "rediss://:secret@host",
            "redis://:secret@0.0.0.0",
        ];
        for url in bad {
            let error = Endpoint::parse(url).expect_err(url);
            assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn debug_shows_the_address_only() {
        let endpoint = Endpoint::parse("redis://me:secret@host:7/1").expect("a good URL");
        assert_eq!(format!("{endpoint:?}"), "Endpoint(\"host:7\")");
    }
}
