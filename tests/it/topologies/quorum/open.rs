//! Sets of servers for which a client can be opened.

use leasehold::{Client, Error};

use crate::support::proxy::Proxy;
use crate::support::quorum::open_redlock;
use crate::support::quorum::{BOUND, addresses, hasty, no_quorum, take_everywhere};
use crate::support::server::Server;
use crate::support::{Quorum, SOON, patient, take, timed};

#[test]
fn invalid_node_lists_are_refused_before_anything_is_sent() {
    let refused = |urls: &[&str]| match Client::builder().open_redlock(urls) {
        Err(Error::InvalidInput(what)) => assert!(!what.contains("secret"), "{what}"),
        other => panic!("{other:?} instead of invalid input"),
    };
    // No server listens there: a connection would fail with another error.
    refused(&[]);
    refused(&["redis://127.0.0.1:1/", "redis://127.0.0.1:2/", "redis://127.0.0.1:1/"]);
    refused(&["redis://127.0.0.1:1/1", "redis://:secret@127.0.0.1:1/2"]);
    refused(&["redis://127.0.0.1:1/", "nonsense"]);
}

#[test]
fn two_urls_of_one_server_are_refused() {
    let quorum = Quorum::of(2);
    let [twice, other] = &quorum.servers[..] else { panic!("two servers") };
    let proxy = Proxy::before(twice);
    // A server that is slow to say who it is counts as one that is down.
    let builder = || patient().connect_timeout(SOON).io_timeout(SOON);
    for again in [
        // On Windows, `localhost` is ::1 first, and a refusal takes two seconds there: too slow.
        #[cfg(unix)]
        format!("redis://localhost:{}/", twice.port()),
        #[cfg(unix)]
        twice.unix_url(),
        proxy.url(),
    ] {
        let again_in_full = [again.clone(), other.url(), twice.url()];
        for urls in [&again_in_full[..], &[twice.url(), again.clone()]] {
            let error = open_redlock(builder(), urls).unwrap_err();
            let Error::InvalidInput(what) = &error else { panic!("{error:?}") };
            let again = again.split_once("://").unwrap().1.trim_end_matches('/');
            for name in [again, &format!("127.0.0.1:{}", twice.port())] {
                assert!(what.contains(name), "{what} without {name}");
            }
        }
    }
}

#[test]
fn a_server_that_was_down_at_opening_never_counts_twice() {
    let quorum = Quorum::of(2);
    let [twice, other] = &quorum.servers[..] else { panic!("two servers") };
    let again = Proxy::before(twice);
    again.refuse();
    let client = open_redlock(hasty(), &[twice.url(), again.url(), other.url()]).unwrap();
    again.heal();
    take(&client, "a").unlock().unwrap();
    other.kill();
    for _ in 0..5 {
        no_quorum(client.try_lock("a").map(drop));
    }
    other.restart();
    take(&client, "a").unlock().unwrap();
}

#[test]
fn servers_that_hide_their_id_count_as_different() {
    let quorum = Quorum::of(2);
    for server in &quorum.servers {
        server.command(&["ACL", "SETUSER", "default", "-info"]);
    }
    let client = quorum.open(hasty());
    take(&client, "a").unlock().unwrap();
}

#[test]
fn debug_output_has_no_secrets() {
    let quorum = Quorum::of(3);
    let user = ["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"];
    quorum.servers.iter().for_each(|server| drop(server.command(&user)));
    let url = |server: &Server| format!("redis://ali:sesame@127.0.0.1:{}/", server.port());
    let urls: Vec<_> = quorum.servers.iter().map(url).collect();
    let client = open_redlock(hasty(), &urls).unwrap();
    let opened = format!("{client:?}");
    let guard = take_everywhere(&quorum, &client);
    let holding = format!("{client:?} {guard:?}");
    let (owner, _) = quorum.last().hold("a");
    for secret in ["sesame", &owner] {
        let bytes = format!("{:?}", secret.as_bytes());
        for text in [&opened, &holding] {
            assert!(!text.contains(secret), "{secret} in {text}");
            assert!(!text.contains(bytes.trim_matches(['[', ']'])), "{secret} in bytes in {text}");
        }
    }
}

#[test]
fn a_client_opens_if_a_majority_answers_and_only_then() {
    let quorum = Quorum::of(4);
    quorum.servers[0].stop();
    assert!(open_redlock(hasty(), &quorum.urls()).is_ok());
    quorum.servers[1].kill();
    let (result, took) = timed(|| open_redlock(hasty(), &quorum.urls()));
    let (ok, required, failed) = no_quorum(result);
    assert_eq!((ok, required), (2, 3));
    assert_eq!(failed, addresses(&quorum.servers[..2]));
    assert!(took < BOUND, "{took:?}");
}

#[test]
fn a_wrong_password_at_a_majority_is_a_permanent_error() {
    let quorum = Quorum::of(3);
    let refused = |urls: &[String]| open_redlock(hasty(), urls).unwrap_err();
    let with_password = |server: &Server| format!("redis://:wrong@127.0.0.1:{}/", server.port());
    let mut urls = quorum.urls();
    urls[0] = with_password(&quorum.servers[0]);
    assert!(open_redlock(hasty(), &urls).is_ok());
    urls[1] = with_password(&quorum.servers[1]);
    assert!(matches!(refused(&urls), Error::Redis { .. }), "{:?}", refused(&urls));
    assert!(!format!("{:?}", refused(&urls)).contains("wrong@"));
}
