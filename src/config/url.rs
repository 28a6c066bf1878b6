//! Parses the servers and the settings of a client from one URL. Settings may also come from a
//! configuration file or the environment.
//!
//! Settings have the names of the methods of [`Builder`](crate::Builder). Their values are checked
//! when the client is opened.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;
use std::{env, fmt};

use crate::config::callbacks::Credentials;
use crate::config::durability::Durability;
use crate::config::{Config, Deadlock};
use crate::error::{Error, Result};

/// Other possible reasons why a URL is malformed.
pub(crate) const URL_HINT: &str = "with %23, %2F and %3F for `#`, `/` and `?` in a password, and \
                                   without quotes and line breaks";

const NO_DURATION: &str = "must be a duration such as `500ms`, `2s`, `5m`, or plain seconds";
pub(crate) const NO_DURABILITY: &str =
    "must be `memory`, `replicas:ACKS:TIMEOUT` or `fsync:LOCAL:REPLICAS:TIMEOUT`";
const NO_LOGIN: &str = "must be a user and a password such as `user:password`";
const NO_RANGE: &str = "must be two durations such as `5ms..500ms`";
const UNKNOWN: &str = "is not a setting";

/// The servers of a client, each with its URL, and how they work together.
#[derive(Clone)]
pub(crate) enum Deployment {
    Cluster { seeds: Vec<String> },
    Redlock { urls: Vec<String> },
    Sentinel { urls: Vec<String>, master: String },
    Server { url: String },
}

/// Omits the URLs, which may contain a password.
impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster { .. } => "Cluster",
            Self::Redlock { .. } => "Redlock",
            Self::Sentinel { .. } => "Sentinel",
            Self::Server { .. } => "Server",
        })
    }
}

/// Applies the settings of a URL, and returns the location of the servers.
pub(crate) fn configure(config: &mut Config, url: &str) -> Result<Deployment> {
    let (deployment, options) = parse(url)?;
    apply(config, options)?;
    Ok(deployment)
}

/// Names and texts of settings.
type Options = Vec<(String, String)>;

/// Parses `redis[s]://…`, `unix://…`, and `redis[s]+cluster://`, `+redlock` and `+sentinel` with
/// several hosts. Also returns the settings in the query.
fn parse(url: &str) -> Result<(Deployment, Options)> {
    let why = format!(
        "must be redis[s]://host[:port][/db], unix:///path, or several hosts as in \
         redis+sentinel://, redis+cluster:// or redis+redlock://, {URL_HINT}"
    );
    let url = trimmed(url).ok_or_else(|| Error::invalid("url", &why))?;
    let parts =
        url.split_once("://").and_then(|(scheme, rest)| Some((scheme.split_once('+')?, rest)));
    let Some(((scheme, topology @ ("cluster" | "redlock" | "sentinel")), rest)) = parts else {
        Error::require(redis::parse_redis_url(url).is_some(), "url", why)?;
        let (url, options) = split_options(url)?;
        return Ok((Deployment::Server { url }, options));
    };
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(authority);
    let hosts = authority.rfind('@').map_or(0, |at| at + 1);
    let (login, hosts) = authority.split_at(hosts);
    let (master, tail) = match topology {
        "sentinel" => split_master(tail)?,
        _ => (String::new(), tail.to_owned()),
    };
    let urls =
        hosts.split(',').map(|host| split_options(&format!("{scheme}://{login}{host}{tail}")));
    let (urls, mut options): (Vec<_>, Vec<_>) =
        urls.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    // All hosts have the same settings.
    let options = options.swap_remove(0);
    let deployment = match topology {
        "cluster" => Deployment::Cluster { seeds: urls },
        "redlock" => Deployment::Redlock { urls },
        _ => Deployment::Sentinel { urls, master },
    };
    Ok((deployment, options))
}

/// Returns a URL without white space at its ends; `None` if it contains line breaks or tabs, which
/// the parser would skip.
pub(crate) fn trimmed(url: &str) -> Option<&str> {
    Some(url.trim()).filter(|url| !url.contains(char::is_control))
}

/// Splits the name of the master off `/master[/database][?query][#fragment]`.
fn split_master(tail: &str) -> Result<(String, String)> {
    let path = tail.find(['?', '#']).unwrap_or(tail.len());
    let (path, rest) = tail.split_at(path);
    let path = path.strip_prefix('/').unwrap_or_default();
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    // The characters that Redis allows.
    let is_master = !master.is_empty()
        && master.chars().all(|char| char.is_ascii_alphanumeric() || ".-_".contains(char));
    let why = "must name the master, as in redis+sentinel://host,host/master[/database]";
    Error::require(is_master, "url", format_args!("{why}, {URL_HINT}"))?;
    Ok((master.into(), format!("/{database}{rest}")))
}

/// Splits the client's settings off the query of a URL. If the URL cannot be parsed, returns it
/// unchanged.
fn split_options(url: &str) -> Result<(String, Options)> {
    let parsed = redis::parse_redis_url(url).filter(|parsed| parsed.query().is_some());
    let Some(mut parsed) = parsed else { return Ok((url.into(), Vec::new())) };
    let query = parsed.query().unwrap_or_default();
    // The supposed query may be part of a password, so no error repeats it.
    let why = "must have %40 for an `@` in the query, and %3F for a `?` in a password";
    Error::require(!query.contains('@'), "url", why)?;
    let is_encoded = is_encoded(query) && !parsed.query_pairs().any(is_broken);
    let why = "must have two hexadecimal digits after each `%` in the query, for a byte of UTF-8, \
               and %25 for a `%`";
    Error::require(is_encoded, "url", why)?;
    // The text after a password may be the rest of it.
    let mut rest = parsed.query_pairs().skip_while(|(name, _)| !is_secret(name)).skip(1);
    let is_known =
        rest.all(|(name, _)| is_connection_option(parsed.scheme(), &name) || is_setting(&name));
    let why = "must have only known settings after a password in the query, and %26 for an `&` in \
               the password";
    Error::require(is_known, "url", why)?;
    let pairs = parsed.query_pairs().into_owned();
    let (own, options): (Options, Options) =
        pairs.partition(|(name, _)| is_connection_option(parsed.scheme(), name));
    parsed.set_query(None);
    if !own.is_empty() {
        parsed.query_pairs_mut().extend_pairs(own);
    }
    Ok((parsed.into(), options))
}

/// Returns `true` for an option about the connection, which the URL of a single server may have in
/// its query.
pub(crate) fn is_connection_option(scheme: &str, name: &str) -> bool {
    match name {
        // The version of the protocol makes no difference to users of this library.
        "client_name" | "protocol" => true,
        "db" | "pass" | "user" => scheme.ends_with("unix"),
        _ => false,
    }
}

/// Returns `true` for a query option whose value contains a password.
fn is_secret(name: &str) -> bool {
    matches!(name, "master_login" | "pass")
}

fn is_setting(name: &str) -> bool {
    name == "pool" || set(&mut Config::default(), name, "") != Err(UNKNOWN.into())
}

/// Returns `true` if every `%` in a query encodes a byte.
fn is_encoded(query: &str) -> bool {
    query.split('%').skip(1).all(|text| {
        text.get(..2).is_some_and(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })
}

/// Returns `true` if the bytes of a name or a value were not UTF-8.
fn is_broken((name, text): (Cow<'_, str>, Cow<'_, str>)) -> bool {
    [name, text].iter().any(|text| text.contains(char::REPLACEMENT_CHARACTER))
}

/// A value, or the reason why the text is invalid.
type Parsed<T> = Result<T, Cow<'static, str>>;

/// Applies settings, each given at most once.
pub(crate) fn apply(
    config: &mut Config,
    options: impl IntoIterator<Item = (String, String)>,
) -> Result<()> {
    let mut known = HashSet::new();
    for (name, text) in options {
        // The short form that URLs of other programs use.
        let name = if name == "pool" { "pool_size" } else { &name };
        // Without an `=`, the name may contain a secret.
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        Error::require(is_name, "a setting", "must have a name of letters and `_`")?;
        // The text may be a secret, so it is not repeated. Nor is a name without a text: a password
        // may have been put there.
        set(config, name, &text).map_err(|why| {
            if why == UNKNOWN && text.is_empty() {
                Error::invalid("a setting", "must have a known name, and a value")
            } else {
                Error::invalid(name, why)
            }
        })?;
        Error::require(known.insert(name.to_owned()), name, "must not be set twice")?;
    }
    Ok(())
}

pub(crate) fn apply_environment(config: &mut Config) -> Result<()> {
    for (variable, name) in
        [("LEASEHOLD_CA", "ca"), ("LEASEHOLD_CERT", "cert"), ("LEASEHOLD_KEY", "key")]
    {
        let Some(text) = env::var_os(variable).filter(|text| !text.is_empty()) else { continue };
        let text = text.into_string().map_err(|_| Error::invalid(variable, "must be UTF-8"))?;
        set(config, name, &text).map_err(|why| Error::invalid(variable, why))?;
    }
    Ok(())
}

fn set(config: &mut Config, name: &str, text: &str) -> Parsed<()> {
    match name {
        "backoff" => config.backoff = range(text)?,
        "connect_timeout" => config.connect_timeout = duration(text)?,
        "deadlock" => config.deadlock = deadlock(text)?,
        "deadlock_after" => config.deadlock_after = limit(text)?,
        "durability" => config.durability = durability(text).ok_or(NO_DURABILITY)?,
        "fence_life" => config.fence_life = duration(text)?,
        "idle_timeout" => config.idle_timeout = limit(text)?,
        "io_timeout" => config.io_timeout = Some(duration(text)?),
        "keep" => config.options_mut().keep = duration(text)?,
        "label" => config.label = Some(text.into()),
        "lazy" => config.lazy = flag(text)?,
        "lease" => config.options_mut().lease = duration(text)?,
        "master_login" => config.master_login = Some(login(text)?),
        "max_hold" => config.options_mut().max_hold = limit(text)?,
        "max_lifetime" => config.max_lifetime = limit(text)?,
        "note" => config.options_mut().set_note(text),
        "pollers" => config.pollers = flag(text)?,
        "pool_size" => config.pool_size = text.parse().map_err(|_| "must be a whole number")?,
        "prefix" => config.prefix = text.into(),
        "redisson" => config.redisson = flag(text)?,
        "reentrant" => config.options_mut().reentrant = flag(text)?,
        "renew" => config.options_mut().renew = flag(text)?,
        "retry_window" => config.retry_window = duration(text)?,
        #[cfg(feature = "tls")]
        "ca" | "cert" | "key" | "server_name" => {
            config.tls.get_or_insert_default().set(name, text)?;
        }
        #[cfg(not(feature = "tls"))]
        "ca" | "cert" | "key" | "server_name" => {
            return Err("must not be set unless leasehold's feature `tls` is enabled".into());
        }
        "spin" => config.spin = duration(text)?,
        "tenure" => config.options_mut().tenure = Some(duration(text)?),
        "warn_held" => config.warn_held = limit(text)?,
        "wait" => config.options_mut().wait = limit(text)?,
        _ => return Err(UNKNOWN.into()),
    }
    Ok(())
}

fn flag(text: &str) -> Parsed<bool> {
    text.parse().map_err(|_| "must be `true` or `false`".into())
}

fn limit(text: &str) -> Parsed<Option<Duration>> {
    if text == "none" { Ok(None) } else { Ok(Some(duration(text)?)) }
}

pub(crate) fn deadlock(text: &str) -> Parsed<Deadlock> {
    match text {
        "fail" => Ok(Deadlock::Fail),
        "report" => Ok(Deadlock::Report),
        _ => Err("must be `fail` or `report`".into()),
    }
}

fn login(text: &str) -> Parsed<Credentials> {
    let (user, password) = text.split_once(':').ok_or(NO_LOGIN)?;
    Ok(Credentials::new(user, password))
}

fn range(text: &str) -> Parsed<(Duration, Duration)> {
    let (min, max) = text.split_once("..").ok_or(NO_RANGE)?;
    let both = duration(min).and_then(|min| Ok((min, duration(max)?)));
    Ok(both.map_err(|_| NO_RANGE)?)
}

pub(crate) fn durability(text: &str) -> Option<Durability> {
    match text.split(':').collect::<Vec<_>>()[..] {
        ["memory"] => Some(Durability::Memory),
        ["replicas", acks, time] => {
            Some(Durability::Replicas { acks: acks.parse().ok()?, timeout: duration(time).ok()? })
        }
        ["fsync", local, replicas, time] => Some(Durability::Fsync {
            local: local.parse().ok()?,
            replicas: replicas.parse().ok()?,
            timeout: duration(time).ok()?,
        }),
        _ => None,
    }
}

/// The units and their length in seconds.
const UNITS: [(&str, f64); 7] = [
    ("", 1.0),
    ("us", 0.000_001),
    ("ms", 0.001),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];

/// Parses a duration in the form that a [URL](crate::Builder::from_url) uses, for the command lines
/// and settings of programs: a number, with or without decimals, and `us`, `ms`, `s`, `m`, `h` or
/// `d`. Without a unit it is in seconds.
///
/// # Errors
///
/// [`InvalidInput`](crate::Error::InvalidInput) if the text is not a duration.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(leasehold::parse_duration("1.5m")?, Duration::from_secs(90));
/// assert_eq!(leasehold::parse_duration("2")?, Duration::from_secs(2));
/// assert!(leasehold::parse_duration("soon").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn parse_duration(text: &str) -> Result<Duration> {
    duration(text).map_err(|why| Error::InvalidInput(why.into_owned()))
}

fn duration(text: &str) -> Parsed<Duration> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let seconds = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, seconds)| seconds);
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: Option<f64> = if is_number { digits.parse().ok() } else { None };
    let seconds = number.zip(seconds).map(|(number, seconds)| number * seconds);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or(NO_DURATION.into())
}

#[cfg(test)]
mod tests;
