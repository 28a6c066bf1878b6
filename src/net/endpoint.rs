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
use crate::error::{Error, Phase, Result as ApiResult};
use crate::net::packed::Request;
use crate::net::resp::{Layer, RespStream};
use crate::net::shared_call::Resolver;
use crate::net::socket::Stream;
#[cfg(feature = "tls")]
use crate::net::tls::Connector;
#[cfg(feature = "tls")]
use crate::net::trust::Trust;

/// The required form of a URL that cannot be parsed, perhaps because of its password.
const FORM: &str = "must be redis[s]://host[:port][/db] or unix:///path";

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
    /// Parses `redis[s]://[user][:password@]host[:port][/db]` and
    /// `unix:///path[?db=&user=&pass=]`, each with an optional `client_name` in the query.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "all about TLS"))]
    pub(crate) fn parse(url: &str, config: &Config, events: &Events) -> ApiResult<Self> {
        let refuse = |why: &str| Err(Error::invalid("url", why));
        let refuse_form = |why: &str| refuse(&format!("{why}, {URL_HINT}"));
        let Some(mut parsed) = trimmed(url).and_then(redis::parse_redis_url) else {
            return refuse_form(FORM);
        };
        let encrypted = matches!(parsed.scheme(), "rediss" | "valkeys");
        if encrypted && cfg!(not(feature = "tls")) {
            return refuse("must not ask for TLS unless leasehold's feature `tls` is enabled");
        }
        // The parser does not know about TLS. To it, this is an address and a login like any other.
        if encrypted && parsed.set_scheme("redis").is_err() {
            return refuse_form(FORM);
        }
        if !encrypted && parsed.fragment().is_some() {
            return refuse_form("must have nothing behind a #");
        }
        let is_setting = |name: &str| !is_connection_option(parsed.scheme(), name);
        if parsed.query_pairs().any(|(name, _)| is_setting(&name)) {
            return refuse("must not have settings of the client if it is one of several");
        }
        let client_name = parsed
            .query_pairs()
            .find(|(key, _)| key == "client_name")
            .map(|(_, name)| name.into_owned());
        // The parser's own messages can quote the URL, so they are not passed on.
        let Ok(info) = parsed.clone().into_connection_info() else {
            return refuse_form("must have a host or a path, a database number if any, and UTF-8");
        };
        let (address, login) = (info.addr().clone(), info.redis_settings().clone());
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

    /// Returns another server with the same login, over TCP, and over TLS if this one is.
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

    /// Returns `true` if clients log in to both servers in the same way.
    pub(crate) fn has_login_of(&self, other: &Self) -> bool {
        let (own, others) = (&self.login, &other.login);
        own.username() == others.username()
            && own.password() == others.password()
            && own.db() == others.db()
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

    pub(super) fn greeting(&self) -> Vec<(Step, Request)> {
        let mut greeting = Vec::new();
        // A user without a password may need none.
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
        // A user who has set it up relies on it.
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
        for url in ["redis://u@localhost", "redis://u:@localhost", "unix:///tmp/x?user=u"] {
            assert_eq!(login(url), without_password, "{url}");
        }
        assert_eq!(login("unix:///tmp/x?pass=p"), "*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n");
    }

    #[test]
    fn white_space_around_a_url_is_ignored() {
        let login_of = "*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n";
        assert_eq!(login(" redis://:p@localhost\r\n"), login_of);
    }

    #[test]
    fn what_a_password_may_have_done_to_a_url_is_said() {
        for url in [
            "redis://:sec/ret@host",
            "redis://me:1#secret@host",
            "redis://secret#1@host",
            "redis://me:1/secret@host",
            "redis://:secret?@host",
            "\"redis://:secret@host\"",
            "redis://:sec\nret@host",
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
            #[cfg(not(feature = "tls"))]
            "rediss://:secret@host",
            "redis://:secret@0.0.0.0",
        ];
        for url in bad {
            let error =
                Endpoint::parse(url, &Config::default(), &Events::default()).expect_err(url);
            assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn debug_shows_the_address_only() {
        let endpoint =
            Endpoint::parse("redis://me:secret@host:7/1", &Config::default(), &Events::default())
                .expect("a good URL");
        assert_eq!(format!("{endpoint:?}"), "Endpoint(\"host:7\")");
    }
}
