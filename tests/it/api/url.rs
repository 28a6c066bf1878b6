//! Clients that are configured by one URL, with servers and settings.

use std::ffi::OsString;
use std::net::TcpListener;

use leasehold::{Builder, Client, Error};

use crate::support::address::{Address, Way};
use crate::support::child::{self, Child};
use crate::support::sentinel::MASTER;
use crate::support::{
    Cluster, Quorum, SOON, Server, eventually, ms, stores, take, timed, while_held,
};

stores! {
    one server:
        settings_in_a_url_are_applied,
        later_settings_win,
        the_url_of_the_environment_is_used,
        #[cfg(unix)] a_unix_socket_may_have_settings_too,
        white_space_around_a_url_is_ignored,
        a_user_without_a_password_is_not_the_default_user;
}

fn settings_in_a_url_are_applied(server: &Server) {
    let port = server.port();
    let settings = "lease=20s&prefix=app%3A&pool=4&wait=50ms&label=worker&client_name=x";
    let client = Client::open(&format!("redis://127.0.0.1:{port}/2?{settings}")).unwrap();
    assert!(client.id().starts_with("worker"));
    while_held(&client, "a", |_| {
        let [key]: [String; 1] = server.ask(&["EVAL", KEYS, "0"]);
        assert_eq!(key, "app:a");
        let (result, took) = timed(|| client.lock("a"));
        assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
        assert!(took < SOON / 2, "{took:?}");
    });
    let guard = take(&client, "a");
    assert!(guard.remaining() > ms(15_000) && guard.remaining() <= ms(20_000));
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    assert!(clients.contains("name=x"), "{clients}");
}

/// The locks in the third database.
const KEYS: &str = "redis.call('SELECT', 2) return redis.call('KEYS', 'app:*')";

fn later_settings_win(server: &Server) {
    let url = format!("{}?prefix=url:", server.url());
    let key_of = |client: &Client| {
        let guard = take(client, "a");
        let keys: Vec<String> = server.ask(&["KEYS", "*:a"]);
        guard.unlock().unwrap();
        keys.concat()
    };
    let by_url = |builder: Builder| builder.prefix("code:").open(&url).unwrap();
    assert_eq!(key_of(&by_url(Client::builder())), "url:a");
    let by_code = Builder::from_url(&url).unwrap().prefix("code:").build().unwrap();
    assert_eq!(key_of(&by_code), "code:a");
}

#[cfg(unix)]
fn a_unix_socket_may_have_settings_too(server: &Server) {
    server.set_config("requirepass", "sesame");
    let url = format!("{}?pass=sesame&db=0&lease=20s", server.unix_url());
    let guard = Client::open(&url).unwrap().lock("a").unwrap();
    assert!(guard.remaining() <= ms(20_000));
}

fn white_space_around_a_url_is_ignored(server: &Server) {
    let urls = server.url().replace("redis://", "redis+redlock://");
    for url in [server.url(), server.admin_url(), urls] {
        take(&Client::open(&format!(" {url}\n")).unwrap(), "a").unlock().unwrap();
    }
}

fn a_user_without_a_password_is_not_the_default_user(server: &Server) {
    server.command(&["ACL", "SETUSER", "ali", "on", "nopass", "~*", "&*", "+@all"]);
    server.command(&["ACL", "SETUSER", "ben", "on", ">sesame", "~*", "&*", "+@all"]);
    let of = |user: &str| format!("redis://{user}@127.0.0.1:{}/", server.port());
    let _client = Client::open(&of("ali")).unwrap();
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    assert!(clients.contains("user=ali"), "{clients}");
    match Client::open(&of("ben")) {
        Err(Error::Redis { code, .. }) => assert_eq!(code, "WRONGPASS"),
        other => panic!("{other:?}"),
    }
}

fn the_url_of_the_environment_is_used(server: &Server) {
    let before = server.calls("ping");
    for (url, expected) in [
        (server.url().into(), "good"),
        ("redis+cluster://:secret@127.0.0.1?lease=soon".into(), "lease"),
        // This counts as no value.
        (not_unicode(), "REDIS_URL"),
    ] {
        Child::start_with(use_the_environment, expected, &[("REDIS_URL", url)]).finish();
    }
    assert_eq!(server.calls("ping"), before + 1);
}

fn not_unicode() -> OsString {
    #[cfg(unix)]
    return std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
    #[cfg(windows)]
    return std::os::windows::ffi::OsStringExt::from_wide(&[0xd800]);
}

#[test]
#[ignore = "a child of the_url_of_the_environment_is_used"]
fn use_the_environment() {
    let Some(expected) = child::argument() else { return };
    let builder = Builder::from_env();
    if expected == "good" {
        builder.unwrap().build().unwrap();
    } else {
        assert_refused(builder.map(drop), &expected);
    }
}

#[track_caller]
fn assert_refused(result: Result<(), Error>, what: &str) {
    let error = result.unwrap_err();
    let Error::InvalidInput(text) = &error else { panic!("{error:?}") };
    assert!(text.contains(what), "{text:?} does not name {what}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn a_builder_needs_a_url_to_build() {
    assert_refused(Client::builder().build().map(drop), "url");
}

#[test]
fn bad_settings_are_refused_before_a_connection_is_made() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for (settings, named) in [
        ("lease=secret", "lease"),
        ("lease=20s&lease=20s", "lease"),
        ("pool=4&pool_size=4", "pool_size"),
        ("lease=1ms", "lease"),
        ("pool=0", "pool_size"),
        ("colour=secret", "colour"),
        ("db=1", "db"),
        ("protocol=secret", "protocol"),
        ("backoff=2s..1s", "backoff"),
        ("durability=replicas:0:1s", "durability"),
        ("wait=", "wait"),
        ("se=cret@host", "url"),
    ] {
        for url in [
            format!("redis://u:secret@{address}/?{settings}"),
            format!("redis+redlock://u:secret@{address}/?{settings}"),
            format!("redis+cluster://u:secret@{address}/?{settings}"),
            format!("redis+sentinel://u:secret@{address}/shop?{settings}"),
        ] {
            assert_refused(Client::open(&url).map(drop), named);
        }
    }
    let url = format!("redis+sentinel://u:secret@{address}?lease=20s");
    assert_refused(Client::open(&url).map(drop), "master");
    let url = format!("redis+redlock://u:secret@{address},{address}");
    assert_refused(Client::open(&url).map(drop), "twice");
    for url in ["redis+cluster://", "redis+redlock://a,,b", "redis+other://a", "memory://"] {
        assert_refused(Client::open(url).map(drop), "url");
    }
    for url in [
        format!("redis://{address}/?master_login=ali:secret"),
        format!("redis+redlock://{address}/?master_login=ali:secret"),
        format!("redis+cluster://{address}/?master_login=ali:secret"),
    ] {
        assert_refused(Client::open(&url).map(drop), "master_login");
    }
    for url in [
        format!("redis://{address}/#secret"),
        format!("redis+redlock://{address}/#secret"),
        format!("redis+cluster://{address}#secret"),
        format!("redis+sentinel://{address}/shop#secret"),
        format!("redis://127.0.0.1:{}#secret@nowhere/", address.port()),
    ] {
        assert_refused(Client::open(&url).map(drop), "%23");
    }
    let one_of_several = [format!("redis://{address}/?lease=20s")];
    assert_refused(Client::builder().open_cluster(&one_of_several).map(drop), "settings");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "no client has connected");
}

#[test]
fn debug_output_has_no_password() {
    let url = "redis+sentinel://u:secret@a,b/shop?master_login=me:secret";
    let text = format!("{:?}", Builder::from_url(url).unwrap());
    assert!(!text.contains("secret"), "{text}");
}

/// Returns the hosts and ports of servers, separated by commas.
fn hosts(urls: &[String]) -> String {
    let host = |url: &String| url.trim_start_matches("redis://").trim_end_matches('/').to_owned();
    urls.iter().map(host).collect::<Vec<_>>().join(",")
}

#[test]
fn sentinels_can_be_one_url() {
    let server = Server::watched();
    let Address { way: Way::Sentinels(urls), .. } = Address::parse(&server.address()) else {
        panic!("they have URLs");
    };
    server.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"]);
    let url =
        format!("redis+sentinel://{}/{MASTER}/0?master_login=ali:sesame&wait=9", hosts(&urls));
    let client = Client::open(&url).unwrap();
    let guard = take(&client, "a");
    assert!(server.exists("a"));
    guard.unlock().unwrap();
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    assert!(clients.contains("user=ali"), "{clients}");
}

#[test]
fn a_cluster_can_be_one_url() {
    let cluster = Cluster::shared();
    let url = format!("redis+cluster://{}?prefix=by one url: ", hosts(&cluster.urls()));
    let client = Client::open(&url).unwrap();
    for number in 0..20 {
        take(&client, &number.to_string()).unlock().unwrap();
    }
}

#[test]
fn a_quorum_can_be_one_url() {
    let quorum = Quorum::of(3);
    let url = format!("redis+redlock://{}/?lease=20s", hosts(&quorum.urls()));
    let client = Client::open(&url).unwrap();
    let guard = take(&client, "a");
    eventually(SOON, || quorum.count("a") == 3);
    assert!(guard.remaining() <= ms(20_000));
    guard.unlock().unwrap();
}
