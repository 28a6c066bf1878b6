//! Where the servers of a client are, from one URL.

use std::borrow::Cow;
use std::fmt;

use crate::error::{Error, Result};
use crate::net::endpoint::is_connection_option;

/// The servers of a client, and how they work together. Each has a URL.
#[derive(Clone)]
pub(crate) enum Deployment {
    Cluster { seeds: Vec<String> },
    Redlock { urls: Vec<String> },
    Sentinel { urls: Vec<String>, master: String },
    Server { url: String },
}

/// Shows no URL, which may have a password.
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

/// The names and texts of settings.
pub(crate) type Options = Vec<(String, String)>;

/// Parses `redis[s]://…`, `unix://…`, and `redis[s]+cluster://`, `+redlock` and `+sentinel` with
/// several hosts. Returns also the settings in the query.
pub(crate) fn parse(url: &str) -> Result<(Deployment, Options)> {
    let Some((scheme, topology, rest)) = split_scheme(url) else {
        if redis::parse_redis_url(url).is_none() {
            let why = "must be redis[s]://host[:port][/db], unix:///path, or several hosts as in \
                       redis+sentinel://, redis+cluster:// or redis+redlock://";
            return Err(Error::invalid("url", why));
        }
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
    // They are the same for all hosts.
    let options = options.swap_remove(0);
    let deployment = match topology {
        "cluster" => Deployment::Cluster { seeds: urls },
        "redlock" => Deployment::Redlock { urls },
        _ => Deployment::Sentinel { urls, master },
    };
    Ok((deployment, options))
}

/// Splits `redis+cluster://rest` into the scheme of one host, the topology and the rest.
fn split_scheme(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, topology) = scheme.split_once('+')?;
    matches!(topology, "cluster" | "redlock" | "sentinel").then_some((scheme, topology, rest))
}

/// Takes the name of the master out of `/master[/database][?query][#fragment]`.
fn split_master(tail: &str) -> Result<(String, String)> {
    let path = tail.find(['?', '#']).unwrap_or(tail.len());
    let (path, rest) = tail.split_at(path);
    let path = path.strip_prefix('/').unwrap_or_default();
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    // What Redis allows.
    let is_name = |char: char| char.is_ascii_alphanumeric() || ".-_".contains(char);
    if master.is_empty() || !master.chars().all(is_name) {
        let why = "must name the master, as in redis+sentinel://host,host/master[/database]";
        return Err(Error::invalid("url", why));
    }
    Ok((master.into(), format!("/{database}{rest}")))
}

/// Takes the settings of the client out of the query of a URL. One that cannot be parsed stays as
/// it is.
fn split_options(url: &str) -> Result<(String, Options)> {
    let Some(mut parsed) = redis::parse_redis_url(url) else { return Ok((url.into(), Vec::new())) };
    match parsed.query() {
        None => return Ok((url.into(), Vec::new())),
        Some(query) if query.contains('@') => {
            // It may be the end of a password, which no error repeats.
            let why = "must have %40 for an `@` in the query, and %3F for a `?` in a password";
            return Err(Error::invalid("url", why));
        }
        Some(query) if !is_encoded(query) || parsed.query_pairs().any(is_broken) => {
            let why = "must have two hexadecimal digits after each `%` in the query, for a byte of \
                       UTF-8, and %25 for a `%`";
            return Err(Error::invalid("url", why));
        }
        Some(_) => {}
    }
    let is_own = |(name, _): &(String, String)| is_connection_option(parsed.scheme(), name);
    let (own, options): (Options, Options) = parsed.query_pairs().into_owned().partition(is_own);
    parsed.set_query(None);
    if !own.is_empty() {
        parsed.query_pairs_mut().extend_pairs(own);
    }
    Ok((parsed.into(), options))
}

/// Returns `true` if every `%` in a query is that of a byte.
fn is_encoded(query: &str) -> bool {
    let is_code = |text: &str| {
        text.get(..2).is_some_and(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    query.split('%').skip(1).all(is_code)
}

/// Returns `true` if the bytes of a name or a value were no UTF-8.
fn is_broken((name, text): (Cow<'_, str>, Cow<'_, str>)) -> bool {
    [name, text].iter().any(|text| text.contains(char::REPLACEMENT_CHARACTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> (Vec<String>, String, Options) {
        let (deployment, options) = parse(url).expect("a good URL");
        let (urls, kind) = match deployment {
            Deployment::Cluster { seeds } => (seeds, "cluster".into()),
            Deployment::Redlock { urls } => (urls, "redlock".into()),
            Deployment::Sentinel { urls, master } => (urls, master),
            Deployment::Server { url } => (vec![url], "server".into()),
        };
        (urls, kind, options)
    }

    fn assert_parsed(url: &str, urls: &[&str], kind: &str, options: &[(&str, &str)]) {
        let (found, found_kind, found_options) = parsed(url);
        assert_eq!((found, &*found_kind), (urls.iter().map(ToString::to_string).collect(), kind));
        let options = options.iter().map(|(name, text)| (name.to_string(), text.to_string()));
        assert_eq!(found_options, options.collect::<Vec<_>>());
    }

    #[test]
    fn settings_are_taken_out_of_the_query() {
        assert_parsed("redis://h", &["redis://h"], "server", &[]);
        let settings = [("lease", "20s"), ("prefix", "app:"), ("pool", "4")];
        let url = "redis://u:p%40@h:1/2?lease=20s&prefix=app:&pool=4";
        assert_parsed(url, &["redis://u:p%40@h:1/2"], "server", &settings);
        let url = "rediss://h/?client_name=a%26b&wait=1&protocol=resp3#insecure";
        let rest = "rediss://h/?client_name=a%26b&protocol=resp3#insecure";
        assert_parsed(url, &[rest], "server", &[("wait", "1")]);
        let url = "unix:///tmp/x?db=1&user=u&pass=p&wait=1";
        assert_parsed(url, &["unix:///tmp/x?db=1&user=u&pass=p"], "server", &[("wait", "1")]);
        let url = "redis://h?db=1";
        assert_parsed(url, &["redis://h"], "server", &[("db", "1")]);
    }

    #[test]
    fn several_hosts_share_the_rest_of_the_url() {
        let wait = [("wait", "1")];
        let url = "redis+cluster://u:p@a,b:7,[::1]:8/?wait=1";
        let urls = ["redis://u:p@a/", "redis://u:p@b:7/", "redis://u:p@[::1]:8/"];
        assert_parsed(url, &urls, "cluster", &wait);
        let url = "rediss+redlock://a,b/3?wait=1&client_name=x";
        let urls = ["rediss://a/3?client_name=x", "rediss://b/3?client_name=x"];
        assert_parsed(url, &urls, "redlock", &wait);
        let urls = ["redis://:p@a:1/", "redis://:p@b/"];
        assert_parsed("redis+sentinel://:p@a:1,b/shop?wait=1", &urls, "shop", &wait);
        let urls = ["redis://a/2", "redis://b/2"];
        assert_parsed("redis+sentinel://a,b/my-shop.1/2", &urls, "my-shop.1", &[]);
    }

    #[test]
    fn a_bad_url_is_not_repeated() {
        for url in [
            "redis+sentinel://:secret@a,b",
            "redis+sentinel://:secret@a,b/",
            "redis+sentinel://:secret@a,b/a%20b",
            "redis://u:1?secret=1@host",
            "redis://host?secret@host",
            "redis://host?prefix=secret%zz",
            "redis://host?prefix=secret%2",
            "redis://host?prefix=secret%",
            "redis://host?prefix=secret%ff",
            "redis://host?prefix=secret%c3%29",
        ] {
            let error = parse(url).expect_err(url).to_string();
            assert!(error.contains("url") && !error.contains("secret"), "{error}");
        }
    }
}
