//! The location of a server and the login there, from a URL.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, io};

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use crate::base::event_thread::Events;
use crate::base::{printable, with_port};
use crate::config::Config;
use crate::config::callbacks::Credentials;
use crate::config::url::{URL_HINT, is_connection_option, trimmed};
use crate::error::{Error, LASTING, Phase, Result as ApiResult};
use crate::net::packed::Request;
use crate::net::resp::{Layer, RespStream};
use crate::net::shared_call::Resolver;
use crate::net::socket::Stream;
#[cfg(feature = "tls")]
use crate::net::tls::Connector;
#[cfg(feature = "tls")]
use crate::net::trust::Trust;
use crate::net::wait::WaitFor;

/// The required form of a URL that cannot be parsed, perhaps because of its password.
const FORM: &str = "must be redis[s]://host[:port][/db] or unix:///path";

/// The first bytes of a server's messages in TLS.
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;

/// The shortest first message of a TLS 1.2 client: a record with a `ClientHello` of 41 bytes (the
/// version, 32 random bytes, no session, one cipher suite and no compression). Every server with
/// TLS answers it, if only to refuse it.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03\
    leasehold asks: do you use TLS? \
    \x00\x00\x02\xc0\x2f\x01\x00";

/// The error for a host such as 0.0.0.0, which stands for all addresses.
const EVERYWHERE: &str = "must not have the host 0.0.0.0 or [::], at which servers listen for \
                          connections to any of their addresses: use one of these, or 127.0.0.1";

#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(super) address: ConnectionAddr,
    /// The address as shown to users, without user and password.
    pub(crate) label: Arc<str>,
    login: RedisConnectionInfo,
    client_name: Option<String>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Connector>,
}

/// Omits user and password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.label).finish()
    }
}

impl Endpoint {
    /// Parses `redis[s]://[user][:password@]host[:port][/db]` and `unix:///path[?db=&user=&pass=]`,
    /// each with an optional `client_name` in the query. A `protocol` is accepted and ignored.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "all about TLS"))]
    pub(crate) fn parse(url: &str, config: &Config, events: &Events) -> ApiResult<Self> {
        let Some(mut parsed) = trimmed(url).and_then(redis::parse_redis_url) else {
            return refuse_form(FORM);
        };
        let encrypted = matches!(parsed.scheme(), "rediss" | "valkeys");
        if encrypted && cfg!(not(feature = "tls")) {
            return refuse("must not ask for TLS unless leasehold's feature `tls` is enabled");
        }
        // The parser is built without TLS. It needs only the address and the login.
        if encrypted && parsed.set_scheme("redis").is_err() {
            return refuse_form(FORM);
        }
        if cfg!(windows) && parsed.scheme().ends_with("unix") {
            return refuse("must not be that of a Unix socket on Windows: use TCP, or TLS");
        }
        if !encrypted && parsed.fragment().is_some() {
            return refuse_form("must have nothing behind a #");
        }
        if parsed.query_pairs().any(|(name, _)| !is_connection_option(parsed.scheme(), &name)) {
            return refuse("must not have settings of the client if it is one of several");
        }
        if matches!(parsed.host_str(), Some("0.0.0.0" | "[::]")) {
            return refuse(EVERYWHERE);
        }
        if parsed.host_str().is_some_and(|host| host.contains('%')) {
            // An international name. The parser converts such names to DNS form only in URLs of the
            // web.
            let converted = parsed.join(&format!("http://{}/", parsed.host_str().unwrap_or("")));
            let host = converted.as_ref().ok().and_then(|converted| converted.host_str());
            if host.is_none() || parsed.set_host(host).is_err() {
                return refuse("must have a host that can be in the DNS, or an address");
            }
        }
        let names_unknown_protocol = parsed.query_pairs().any(|(name, value)| {
            name == "protocol" && !matches!(&*value, "2" | "3" | "resp2" | "resp3")
        });
        if names_unknown_protocol {
            return refuse("must have the `protocol` resp2 or resp3 if any, which is all the same");
        }
        let client_name = parsed
            .query_pairs()
            .find(|(key, _)| key == "client_name")
            .map(|(_, name)| name.into_owned());
        // The parser's own messages can quote the URL, so they are not passed on.
        let Ok(info) = parsed.clone().into_connection_info() else {
            return refuse_form("must have a host or a path, a database number if any, and UTF-8");
        };
        let address = info.addr().clone();
        let login = info.redis_settings().clone();
        if login.db() < 0 {
            return refuse("must not have a negative database number");
        }
        Ok(Self {
            label: label_of(&address).into(),
            #[cfg(feature = "tls")]
            tls: connector(encrypted, &address, parsed.fragment(), config, events)?,
            address,
            login,
            client_name,
        })
    }

    /// Returns another TCP server with the same login, over TLS if this one uses TLS.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let address = ConnectionAddr::Tcp(host.into(), port);
        Self {
            label: with_port(&printable(host), port).into(),
            address,
            #[cfg(feature = "tls")]
            tls: self.tls.as_ref().map(|connector| connector.to(host)),
            ..self.clone()
        }
    }

    /// Returns the host; a Unix socket has none.
    pub(crate) fn host(&self) -> Option<&str> {
        match &self.address {
            ConnectionAddr::Tcp(host, _) => Some(host),
            _ => None,
        }
    }

    pub(crate) fn database(&self) -> i64 {
        self.login.db()
    }

    /// Returns the same server without a database and a client name, which sentinels do not have.
    pub(crate) fn without_database(&self) -> Self {
        let login = self.login.clone().set_db(0);
        Self { login, client_name: None, ..self.clone() }
    }

    pub(crate) fn without_login(&self) -> Self {
        let login = RedisConnectionInfo::default().set_db(self.login.db());
        Self { login, ..self.clone() }
    }

    pub(crate) fn with_login(&self, Credentials { user, password, .. }: &Credentials) -> Self {
        let login = RedisConnectionInfo::default().set_db(self.login.db()).set_password(password);
        let login = if user.is_empty() { login } else { login.set_username(user) };
        Self { login, ..self.clone() }
    }

    pub(crate) fn has_login_of(&self, other: &Self) -> bool {
        self.login.username() == other.login.username()
            && self.login.password() == other.login.password()
            && self.login.db() == other.login.db()
            && self.client_name == other.client_name
    }

    /// Looks up the addresses of the host; a Unix socket has none.
    pub(super) fn look_up(
        &self,
        resolver: &Resolver,
        deadline: Instant,
    ) -> io::Result<Vec<SocketAddr>> {
        match &self.address {
            ConnectionAddr::Tcp(host, port) => resolver.resolve(host, *port, deadline),
            _ => Ok(Vec::new()),
        }
    }

    /// Opens a socket at one of the addresses from the look-up. An error comes with the phase it
    /// occurred in.
    pub(super) fn connect(
        &self,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> Result<RespStream, (Phase, io::Error)> {
        let connected = match &self.address {
            ConnectionAddr::Tcp(..) => Stream::tcp(addresses, deadline),
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Stream::unix(path, deadline),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        let stream = connected.map_err(|error| (Phase::Connect, error))?;
        #[cfg(feature = "tls")]
        if let Some(connector) = &self.tls {
            let session = Box::new(connector.connect(&stream, deadline)?.into());
            return Ok(RespStream::new(stream, Layer::Tls(session)));
        }
        Ok(RespStream::new(stream, Layer::Plain))
    }

    /// Tries a server in plain text if the client uses TLS, and with TLS if it does not. If the
    /// server answers, returns how to correct the URL.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_self, reason = "it has no TLS"))]
    pub(super) fn mismatch(
        &self,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> Option<(Phase, io::Error)> {
        #[cfg(feature = "tls")]
        let encrypts = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let encrypts = false;
        let stream = Stream::tcp(addresses, deadline).ok()?;
        stream.send(if encrypts { b"PING\r\n" } else { CLIENT_HELLO }).ok()?;
        let mut first = [0];
        let len = stream.read(&mut first, WaitFor::Reply { deadline }, None).ok()?;
        match first[..len] {
            [b'+' | b'-'] if encrypts => {
                let why = "the server there does not use TLS: begin the URL with redis";
                Some((Phase::Tls, io::Error::new(LASTING, why)))
            }
            [ALERT | HANDSHAKE] if !encrypts => {
                let why = "the server there uses TLS: begin the URL with rediss";
                Some((Phase::Greeting, io::Error::new(io::ErrorKind::InvalidData, why)))
            }
            _ => None,
        }
    }

    pub(super) fn greeting(&self) -> Vec<(Step, Request)> {
        let mut greeting = Vec::new();
        // A user whose login has no password may not need one.
        let password = self.login.password().or(self.login.username().map(|_| ""));
        if let Some(password) = password {
            let auth = redis::cmd("AUTH").arg(self.login.username()).arg(password).take();
            greeting.push((Step::Login, Request::command(&auth)));
        }
        if self.login.db() != 0 {
            let select = redis::cmd("SELECT").arg(self.login.db()).take();
            greeting.push((Step::Login, Request::command(&select)));
        }
        // With TLS 1.3, only the first reply shows that the server has accepted our certificate.
        #[cfg(feature = "tls")]
        if self.tls.is_some() && greeting.is_empty() {
            greeting.push((Step::Login, Request::command(&redis::cmd("PING"))));
        }
        if let Some(name) = &self.client_name {
            let set_name = redis::cmd("CLIENT").arg("SETNAME").arg(name).take();
            greeting.push((Step::Name, Request::command(&set_name)));
        }
        greeting
    }
}

/// The purpose of a request at the start of a connection.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Login,
    Name,
    /// Asks whether the server is a master.
    Role,
}

fn refuse<T>(why: &str) -> ApiResult<T> {
    Err(Error::invalid("url", why))
}

/// Refuses a malformed URL, and says how to write one.
fn refuse_form<T>(why: &str) -> ApiResult<T> {
    refuse(&format!("{why}, {URL_HINT}"))
}

/// Returns the name of a server as shown to users.
fn label_of(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) => with_port(host, *port),
        address => address.to_string(),
    }
}

/// Makes the connector for TLS if the URL asks for it.
#[cfg(feature = "tls")]
fn connector(
    encrypted: bool,
    address: &ConnectionAddr,
    fragment: Option<&str>,
    config: &Config,
    events: &Events,
) -> ApiResult<Option<Connector>> {
    match address {
        ConnectionAddr::Tcp(host, _) if encrypted => {
            let settings = config.tls.clone().unwrap_or_default();
            let trust = Trust::from_fragment(fragment)?;
            Connector::new(host, trust, &settings, events).map(Some)
        }
        // A user who has configured a certificate relies on it.
        _ if config.tls.is_some() => Err(Error::invalid(
            "url",
            "must begin with rediss:// if `tls`, `ca`, `cert`, `key`, `server_name`, \
             LEASEHOLD_CA, LEASEHOLD_CERT or LEASEHOLD_KEY is set",
        )),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(url: &str) -> String {
        let endpoint =
            Endpoint::parse(url, &Config::default(), &Events::default()).expect("a good URL");
        let requests = endpoint.greeting().into_iter();
        let bytes: Vec<_> = requests.flat_map(|(_, request)| request.bytes).collect();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn a_url_has_user_password_database_and_client_name() {
        assert_eq!(login("redis://localhost"), "");
        assert_eq!(
            login("redis://u:p%40ss@localhost:1/3?client_name=app"),
            "*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$4\r\np@ss\r\n\
             *2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n\
             *3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$3\r\napp\r\n"
        );
        assert_eq!(login("redis://:p@localhost"), "*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n");
        let without_password = "*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$0\r\n\r\n";
        for url in ["redis://u@localhost", "redis://u:@localhost"] {
            assert_eq!(login(url), without_password, "{url}");
        }
        #[cfg(unix)]
        {
            assert_eq!(login("unix:///tmp/x?user=u"), without_password);
            assert_eq!(login("unix:///tmp/x?pass=p"), "*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n");
        }
    }

    #[cfg(windows)]
    #[test]
    fn the_url_of_a_unix_socket_is_refused() {
        for url in ["unix:///tmp/x", "redis+unix:///tmp/x?pass=secret"] {
            assert!(refusal(url).contains("Unix socket"), "{}", refusal(url));
        }
    }

    #[test]
    fn white_space_around_a_url_is_ignored() {
        let login_of = "*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n";
        assert_eq!(login(" redis://:p@localhost\r\n"), login_of);
    }

    #[test]
    fn a_url_that_a_password_has_broken_is_explained() {
        for url in [
            "redis://:sec/ret@host",
            "redis://me:1#secret@host",
            "redis://secret#1@host",
            "redis://me:1/secret@host",
            "redis://:secret?@host",
            "\"redis://:secret@host\"",
            "redis://:sec\nret@host",
            #[cfg(unix)]
            "unix:///secret#x",
            #[cfg(feature = "tls")]
            "rediss://me:1#secret@host",
        ] {
            let error =
                Endpoint::parse(url, &Config::default(), &Events::default()).expect_err(url);
            let text = error.to_string();
            assert!(text.contains("%23") && !text.contains("secret"), "{url:?}: {text}");
        }
    }

    #[test]
    fn a_bad_url_is_rejected_without_being_repeated() {
        let bad = [
            "",
            "nonsense",
            "http://host",
            "redis://",
            "redis://:secret@host/x",
            "redis://:secret@host/-1",
            "rediss://:secret@host/#nonsense",
            "redis://:secret@0.0.0.0",
        ];
        for url in bad {
            let error =
                Endpoint::parse(url, &Config::default(), &Events::default()).expect_err(url);
            assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    fn refusal(url: &str) -> String {
        let parsed = Endpoint::parse(url, &Config::default(), &Events::default());
        parsed.expect_err(url).to_string()
    }

    #[test]
    fn a_wildcard_address_is_refused_with_the_reason() {
        for url in ["redis://0.0.0.0", "redis://:p@0.0.0.0:7/3", "redis://[::]:7/"] {
            assert!(refusal(url).contains("127.0.0.1"), "{}", refusal(url));
        }
    }

    #[test]
    fn an_international_host_is_converted_to_its_dns_form() {
        for url in ["redis://b\u{fc}cher.example:7/", "valkey://B%C3%BCcher.example:7/"] {
            let endpoint = Endpoint::parse(url, &Config::default(), &Events::default());
            assert_eq!(&*endpoint.expect("a good URL").label, "xn--bcher-kva.example:7");
        }
        assert!(refusal("redis://a%20b/").contains("DNS"));
    }

    #[test]
    fn a_version_of_the_protocol_changes_nothing() {
        for url in [
            "redis://localhost/?protocol=resp3",
            #[cfg(unix)]
            "unix:///tmp/x?protocol=2",
        ] {
            assert_eq!(login(url), "");
        }
        assert!(refusal("redis://localhost/?protocol=secret").contains("resp3"));
    }

    #[test]
    fn debug_shows_the_address_only() {
        let endpoint =
            Endpoint::parse("redis://me:secret@host:7/1", &Config::default(), &Events::default())
                .expect("a good URL");
        assert_eq!(format!("{endpoint:?}"), "Endpoint(\"host:7\")");
    }
}
