//! `rediss://`: the trusted servers, the reasons for refusing others, and time limits that hold as
//! without TLS.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client, Error, Tls};

use crate::support::authority::{Authority, Credentials};
use crate::support::child::{self, Child};
use crate::support::cluster::add_slots;
use crate::support::sentinel::MASTER;
use crate::support::server::{Server, redis_binary};
use crate::support::wire::Wire;
use crate::support::{
    LEASE, SOON, assert_lost, elsewhere, eventually, hasty, is_busy, ms, opened, patient, take,
    throughout, timed,
};

/// Both versions of the protocol. They differ in the end of the handshake and in tickets.
const VERSIONS: [&str; 2] = ["TLSv1.2", "TLSv1.3"];

/// Much longer than two attempts of a `hasty` client, for a busy machine.
const BOUND: Duration = ms(5000);

/// Settings of a server that demands no certificates.
const OPEN: [&str; 2] = ["--tls-auth-clients", "no"];

/// A server with a valid certificate, and the authority that issued it.
fn good_server() -> (Server, Authority) {
    let authority = Authority::new("good");
    (authority.start(&authority.certify("localhost"), &OPEN), authority)
}

/// Checks that a call failed for this reason, in time.
#[track_caller]
fn assert_unavailable<T: std::fmt::Debug>(call: impl FnOnce() -> Result<T, Error>, reason: &str) {
    let (result, took) = timed(call);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains(reason), "{error} instead of {reason:?}");
    assert!(took < BOUND, "{took:?}");
}

/// Checks that a builder is refused for this reason before it connects.
#[track_caller]
fn assert_refused(builder: Builder, scheme: &str, fragment: &str, reason: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error = builder.open(&format!("{scheme}://{address}/{fragment}")).unwrap_err();
    assert!(matches!(&error, Error::InvalidInput(text) if text.contains(reason)), "{error:?}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "no client has connected");
    format!("{error:?} {error}")
}

#[test]
fn a_lock_passes_from_one_client_to_another() {
    for version in VERSIONS {
        let authority = Authority::new("good");
        let credentials = authority.certify("localhost");
        let server = authority.start(&credentials, &[OPEN, ["--tls-protocols", version]].concat());
        for spin in [ms(0), ms(1)] {
            // It makes no attempt by itself within the test, so that only a wake-up can end a wait.
            let sleepy = || {
                let builder = patient().backoff(ms(30_000), ms(30_000)).spin(spin);
                builder.tls(authority.trusted()).open(&server.tls_url()).unwrap()
            };
            let (holder, waiter) = (sleepy(), sleepy());
            let guard = take(&holder, "a");
            let inner = take(&holder, "a");
            assert_eq!(inner.depth(), 2);
            inner.unlock().unwrap();
            thread::scope(|scope| {
                let waits = scope.spawn(|| waiter.lock("a").unwrap().fence());
                eventually(SOON, || server.listeners(&waiter) == 1);
                eventually(SOON, || server.queue("a") == [waiter.id()]);
                let fence = guard.fence();
                guard.unlock().unwrap();
                assert!(waits.join().unwrap() > fence);
            });
            eventually(SOON, || !server.exists("a"));
        }
    }
}

#[test]
fn a_lease_is_renewed() {
    let (server, authority) = good_server();
    let builder = patient().lease(LEASE).tls(authority.trusted());
    let client = builder.open(&server.tls_url()).unwrap();
    let guard = take(&client, "a");
    throughout(LEASE + LEASE / 3, || guard.is_held() && server.exists("a"));
    guard.unlock().unwrap();
}

#[test]
fn a_request_of_many_records_arrives() {
    let (server, authority) = good_server();
    let client = patient().tls(authority.trusted()).open(&server.tls_url()).unwrap();
    let name = "x".repeat(64 * 1024);
    let guard = take(&client, &name);
    assert!(server.exists(&name));
    guard.unlock().unwrap();
    assert!(!server.exists(&name));
}

#[test]
fn many_threads_share_a_pool() {
    let (server, authority) = good_server();
    let builder = patient().pool_size(2).tls(authority.trusted());
    let client = builder.open(&server.tls_url()).unwrap();
    thread::scope(|scope| {
        for thread in 0..8 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("lock {}", (thread + round) % 4);
                    client.lock(&name).unwrap().unlock().unwrap();
                }
            });
        }
    });
    eventually(SOON, || server.hashes().is_empty());
}

#[test]
fn a_broken_connection_is_replaced() {
    let (server, authority) = good_server();
    let client = patient().tls(authority.trusted()).open(&server.tls_url()).unwrap();
    take(&client, "a").unlock().unwrap();
    server.kill_connections();
    take(&client, "a").unlock().unwrap();
    let guard = take(&client, "b");
    // The tickets of earlier sessions are no longer valid.
    server.restart();
    take(&client, "a").unlock().unwrap();
    assert_lost(guard.verify(), "b");
}

#[test]
fn the_wait_for_wake_ups_ends_with_the_client() {
    let (server, authority) = good_server();
    let open = || patient().tls(authority.trusted()).open(&server.tls_url()).unwrap();
    let (holder, waiter) = (open(), open());
    let guard = take(&holder, "a");
    assert!(waiter.try_lock_for("a", ms(100)).unwrap().is_none());
    eventually(SOON, || server.listeners(&waiter) == 1);
    let id = waiter.id().to_owned();
    let ((), took) = timed(|| {
        drop(waiter);
        eventually(SOON, || server.subscribers(&id) == 0);
    });
    assert!(took < ms(5000), "the next PING is 10 s away: {took:?}");
    guard.unlock().unwrap();
}

#[test]
fn a_login_works_and_is_not_shown() {
    let (server, authority) = good_server();
    server.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"]);
    let url = format!("rediss://ali:sesame@localhost:{}/3?client_name=till", server.port());
    let client = patient().tls(authority.trusted()).open(&url).unwrap();
    let guard = take(&client, "a");
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    assert!(clients.contains("user=ali") && clients.contains(" name=till "), "{clients}");
    let error = hasty().tls(Authority::new("bad").trusted()).open(&url).unwrap_err();
    let text = format!("{client:?} {guard:?} {error} {error:?}");
    assert!(!text.contains("sesame"), "{text}");
}

#[test]
fn a_refused_certificate_is_explained() {
    let (good, bad) = (Authority::new("good"), Authority::new("bad"));
    let cases = [
        (bad.certify("localhost"), "UnknownIssuer"),
        (good.certify_for_the_past("localhost"), "expired"),
        (good.certify("elsewhere"), "not valid for name"),
        // An address is not the name of the host.
        (good.certify("127.0.0.1"), "not valid for name"),
        (good.version_1(), "it is of an old version of X.509"),
    ];
    for (credentials, reason) in cases {
        let server = good.start(&credentials, &OPEN);
        let wire = Wire::before(&server);
        let open = || hasty().tls(good.trusted()).open(&wire.tls_url());
        assert_unavailable(open, "the server's certificate is not accepted");
        assert_unavailable(open, reason);
        assert_eq!(wire.connections(), 2, "neither tries again");
        let waits = hasty().lazy(true).wait(4 * SOON).tls(good.trusted());
        let client = waits.open(&wire.tls_url()).unwrap();
        assert_unavailable(|| client.lock("a"), reason);
        assert!(!client.lock("a").unwrap_err().is_retryable());
    }
}

#[test]
fn a_self_signed_certificate_in_the_settings_is_accepted() {
    let authority = Authority::new("good");
    for version in VERSIONS {
        let own = authority.self_signed("localhost");
        let server = authority.start(&own, &[OPEN, ["--tls-protocols", version]].concat());
        let trusting = |pem: &str| hasty().tls(Tls::new().ca_pem(pem));
        let both = format!("{}{}", authority.pem(), own.certificate);
        for pem in [&own.certificate, &both] {
            let client = opened(|| trusting(pem).open(&server.tls_url()));
            take(&client, "a").unlock().unwrap();
        }
        let other = authority.self_signed("localhost").certificate;
        for pem in [&other, &authority.pem()] {
            assert_unavailable(
                || trusting(pem).open(&server.tls_url()),
                "it is that of an authority",
            );
        }
        let elsewhere = authority.self_signed("elsewhere");
        server.change_credentials(&elsewhere);
        let open = || trusting(&elsewhere.certificate).open(&server.tls_url());
        assert_unavailable(open, "not valid for name localhost, but for elsewhere");
    }
}

#[test]
fn a_server_may_have_another_name_than_its_host() {
    let authority = Authority::new("good");
    let server = authority.start(&authority.certify("redis.example"), &OPEN);
    let named = |name: &str| hasty().tls(authority.trusted().server_name(name));
    let client = named("redis.example").open(&server.tls_url()).unwrap();
    take(&client, "a").unlock().unwrap();
    assert_unavailable(|| named("elsewhere").open(&server.tls_url()), "not valid for name");
    assert_refused(named("not a name"), "rediss", "", "server_name");
    let url = format!("{}?server_name=redis.example", server.tls_url());
    let client = opened(|| hasty().tls(authority.trusted()).open(&url));
    take(&client, "a").unlock().unwrap();
    assert_refused(hasty(), "redis", "?server_name=redis.example", "rediss");
}

#[test]
fn an_address_can_be_certified() {
    let authority = Authority::new("good");
    let server = authority.start(&authority.certify("127.0.0.1"), &OPEN);
    let url = format!("rediss://127.0.0.1:{}/", server.port());
    take(&opened(|| hasty().tls(authority.trusted()).open(&url)), "a").unlock().unwrap();
}

#[test]
fn a_server_may_demand_certificates_of_its_clients() {
    for version in VERSIONS {
        let (authority, stranger) = (Authority::new("good"), Authority::new("bad"));
        let credentials = authority.certify("localhost");
        let server = authority.start(&credentials, &["--tls-protocols", version]);
        let with = |client: &Credentials| {
            let tls = authority.trusted();
            tls.client_cert_pem(client.certificate.as_str(), client.key.as_str())
        };
        let builder = hasty().tls(with(&authority.certify("client")));
        take(&builder.open(&server.tls_url()).unwrap(), "a").unlock().unwrap();

        let alert = if version == "TLSv1.3" { "CertificateRequired" } else { "HandshakeFailure" };
        let reason = "the client has no certificate, which the server may demand";
        let alert = format!("{reason}: it has sent the alert {alert}");
        assert_unavailable(|| hasty().tls(authority.trusted()).open(&server.tls_url()), &alert);
        for (credentials, alert) in [
            (stranger.certify("client"), "UnknownCA"),
            (authority.certify_for_the_past("client"), "CertificateExpired"),
        ] {
            let builder = hasty().tls(with(&credentials));
            let reason = "the server does not accept the client's certificate";
            let reason = format!("{reason}: it has sent the alert {alert}");
            assert_unavailable(|| builder.open(&server.tls_url()), &reason);
        }
    }
}

#[test]
fn a_server_that_becomes_untrusted_is_not_flooded_with_connects() {
    let (server, authority) = good_server();
    let wire = Wire::before(&server);
    let client = Client::builder().wait(ms(1500)).tls(authority.trusted());
    let client = client.open(&wire.tls_url()).unwrap();
    server.change_credentials(&Authority::new("bad").certify("localhost"));
    server.kill_connections();
    let before = wire.connections();
    assert_unavailable(|| client.try_lock("a"), "UnknownIssuer");
    assert_unavailable(|| client.lock("a"), "UnknownIssuer");
    let tries = wire.connections() - before;
    // The connection of the first call was found broken.
    assert!(tries <= 3, "{tries} connections");
    server.change_credentials(&authority.certify("localhost"));
    take(&client, "a").unlock().unwrap();
}

#[test]
fn a_plain_server_is_unavailable() {
    let plain = Server::redis();
    let tls = Authority::new("good").trusted();
    let client = hasty().lazy(true).tls(tls).open(&plain.tls_url()).unwrap();
    assert_unavailable(|| client.try_lock_for("a", ms(0)), "as at a port without TLS");
}

#[test]
fn a_plain_client_gets_nothing_from_a_server_with_tls() {
    let (server, _authority) = good_server();
    assert_unavailable(|| hasty().open(&server.url()), "the server there uses TLS");
}

/// Waiting changes nothing.
#[test]
fn a_url_with_the_wrong_scheme_ends_a_wait() {
    let (server, authority) = good_server();
    let plain = Server::redis();
    for (url, reason) in [
        (
            server.url(),
            "does not speak Redis: the server there uses TLS: begin the URL with rediss",
        ),
        (plain.tls_url(), "the server there does not use TLS: begin the URL with redis"),
    ] {
        let builder = hasty().lazy(true).wait(4 * SOON);
        let encrypted = url.starts_with("rediss");
        let builder = if encrypted { builder.tls(authority.trusted()) } else { builder };
        let client = builder.open(&url).unwrap();
        for _ in 0..2 {
            assert_unavailable(|| client.lock("a"), reason);
        }
        assert!(!client.try_lock("a").unwrap_err().is_retryable());
    }
}

/// Names the server at this port as a master.
fn monitor(sentinel: &Server, port: u16) {
    sentinel.command(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port.to_string(), "1"]);
}

/// Checks that a call ends at once, for this reason, although it may wait.
#[track_caller]
fn assert_hopeless(open: impl FnOnce(Builder) -> Result<Client, Error>, reason: &str) {
    let client = open(hasty().lazy(true).wait(4 * SOON)).unwrap();
    assert_unavailable(|| client.lock("a"), reason);
    assert!(!client.lock("a").unwrap_err().is_retryable());
}

/// A failover changes nothing: the next master is reached with the same settings.
#[test]
fn a_master_that_does_not_fit_the_settings_of_its_sentinels_ends_a_wait() {
    let (good, bad) = (Authority::new("good"), Authority::new("bad"));
    let sentinel = || good.start_sentinel(&good.certify("localhost"));
    let untrusted = good.start(&bad.certify("127.0.0.1"), &OPEN);
    let misnamed = good.start(&good.certify("elsewhere"), &OPEN);
    let (plain, before_plain) = (Server::redis(), sentinel());
    let before_tls = Server::sentinel(redis_binary(), &[]);
    for (sentinel, master, reason) in [
        (&sentinel(), &untrusted, "UnknownIssuer"),
        (&sentinel(), &misnamed, "not valid for name"),
        (&before_plain, &plain, "does not use TLS: begin the URL with redis"),
        (&before_tls, &misnamed, "the server there uses TLS: begin the URL with rediss"),
    ] {
        monitor(sentinel, master.port());
        let is_plain = std::ptr::eq(sentinel, &raw const before_tls);
        let url = if is_plain { sentinel.url() } else { sentinel.tls_url() };
        let trusting = |builder: Builder| {
            let builder = if is_plain { builder } else { builder.tls(good.trusted()) };
            builder.open_sentinel([&url], MASTER)
        };
        assert_hopeless(trusting, reason);
    }
    let stranger = good.start_sentinel(&bad.certify("localhost"));
    monitor(&stranger, plain.port());
    let open =
        |builder: Builder| builder.tls(good.trusted()).open_sentinel([stranger.tls_url()], MASTER);
    assert_hopeless(open, "UnknownIssuer");
}

#[test]
fn a_node_that_does_not_fit_the_settings_of_its_cluster_ends_a_wait() {
    let (good, bad) = (Authority::new("good"), Authority::new("bad"));
    let node = |credentials: &Credentials| {
        let announced = ["--cluster-announce-ip", "127.0.0.1"];
        let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
        let node = good.start(credentials, &[&OPEN[..], &cluster, &announced].concat());
        add_slots(&node, 0..16384);
        node
    };
    // The node is found under its name, but announces itself by its address.
    let misnamed = node(&good.certify("localhost"));
    let untrusted = node(&bad.certify("localhost"));
    for (node, reason) in [(misnamed, "not valid for name"), (untrusted, "UnknownIssuer")] {
        let trusting =
            |builder: Builder| builder.tls(good.trusted()).open_cluster([node.tls_url()]);
        assert_hopeless(trusting, reason);
    }
}

#[test]
fn a_majority_that_does_not_fit_the_settings_of_its_quorum_ends_a_wait() {
    let (good, bad) = (Authority::new("good"), Authority::new("bad"));
    let servers = [&good, &bad, &bad].map(|by| good.start(&by.certify("localhost"), &OPEN));
    let urls = servers.each_ref().map(Server::tls_url);
    let trusting = |builder: Builder| builder.tls(good.trusted()).open_redlock(&urls);
    assert_hopeless(trusting, "UnknownIssuer");
}

#[test]
fn a_listener_that_never_shakes_hands_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://localhost:{}/", listener.local_addr().unwrap().port());
    let tls = Authority::new("good").trusted();
    assert_unavailable(|| hasty().tls(tls).open(&url), "in the TLS handshake");
}

#[test]
fn a_silent_server_is_unavailable() {
    let (server, authority) = good_server();
    let client = opened(|| hasty().tls(authority.trusted()).open(&server.tls_url()));
    let guard = take(&client, "a");
    server.stop();
    assert_unavailable(|| client.try_lock("b"), "");
    assert_unavailable(|| guard.unlock(), "");
    server.cont();
    eventually(SOON, || server.hashes().is_empty());
}

#[test]
fn a_handshake_that_drips_in_does_not_stretch_the_call() {
    let (server, authority) = good_server();
    let wire = Wire::before(&server);
    wire.drip(ms(20));
    let open = || hasty().tls(authority.trusted()).open(&wire.tls_url());
    assert_unavailable(open, "in the TLS handshake");
}

#[test]
fn a_reply_that_drips_in_does_not_stretch_the_call() {
    let (server, authority) = good_server();
    let wire = Wire::before(&server);
    let client = opened(|| hasty().tls(authority.trusted()).open(&wire.tls_url()));
    wire.drip(ms(50));
    assert_unavailable(|| client.try_lock("a"), "");
    wire.drip(ms(0));
    eventually(SOON, || !server.exists("a"));
    take(&client, "a").unlock().unwrap();
}

#[test]
fn a_slow_connection_costs_only_time() {
    let (server, authority) = good_server();
    let wire = Wire::before(&server);
    wire.drip(Duration::from_micros(200));
    let builder = patient().connect_timeout(SOON).io_timeout(ms(5000)).tls(authority.trusted());
    let client = builder.open(&wire.tls_url()).unwrap();
    let guard = take(&client, "a");
    assert!(is_busy(&client, "a"));
    let other = elsewhere(|| take(&client, "b").fence());
    assert!(other > 0 && guard.is_held());
    guard.unlock().unwrap();
}

/// Encodes each character that may have a meaning in a URL.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    text.bytes().map(encode).collect()
}

/// Returns the settings of a client that a server trusts: the files, and their contents.
fn trusted_settings(authority: &Authority) -> [[String; 3]; 2] {
    let Credentials { certificate, key, certificate_file, key_file } = authority.certify("client");
    let ca = authority.file().to_str().expect("a path in UTF-8").to_owned();
    [[ca, certificate_file, key_file], [authority.pem(), certificate, key]]
}

#[test]
fn a_url_may_have_the_certificates_and_the_key() {
    let authority = Authority::new("good");
    let server = authority.start(&authority.certify("localhost"), &[]);
    for settings in trusted_settings(&authority) {
        let [ca, cert, key] = settings.each_ref().map(|text| encoded(text));
        let url = format!("{}?ca={ca}&cert={cert}&key={key}", server.tls_url());
        let client = opened(|| hasty().open(&url));
        take(&client, "a").unlock().unwrap();
        let shown = format!("{client:?} {:?}", Builder::from_url(&url));
        assert!(!shown.contains("PRIVATE"), "{shown}");
        let url = format!("{}?ca={ca}", server.tls_url());
        assert_unavailable(|| hasty().open(&url), "the client has no certificate");
        let url = format!("{}?cert={cert}&key={key}", server.tls_url());
        let builder = hasty().tls(authority.trusted());
        take(&opened(|| builder.clone().open(&url)), "a").unlock().unwrap();
    }
}

#[test]
#[cfg(feature = "serde")]
fn a_configuration_file_may_have_the_certificates_and_the_key() {
    let authority = Authority::new("good");
    let server = authority.start(&authority.certify("localhost"), &[]);
    for [ca, cert, key] in trusted_settings(&authority) {
        let file = serde_json::json!({
            "url": server.tls_url(),
            "ca": ca,
            "cert": cert,
            "key": key,
        });
        let builder: Builder = serde_json::from_value(file).unwrap();
        take(&opened(|| builder.clone().build()), "a").unlock().unwrap();
    }
}

#[test]
fn the_environment_may_have_the_certificates_and_the_key() {
    let authority = Authority::new("good");
    let server = authority.start(&authority.certify("localhost"), &[]);
    let names = ["LEASEHOLD_CA", "LEASEHOLD_CERT", "LEASEHOLD_KEY"];
    let in_child = |url: String, settings: &[String; 3], expected: &str| {
        let settings = names.into_iter().zip(settings.iter().map(OsString::from));
        let variables: Vec<_> = settings.chain([("REDIS_URL", url.into())]).collect();
        Child::start_with(use_certificates_of_the_environment, expected, &variables).finish();
    };
    let [files, texts] = trusted_settings(&authority);
    in_child(server.tls_url(), &files, "good");
    in_child(server.tls_url(), &texts, "good");
    let empty = [const { String::new() }; 3];
    let [ca, cert, key] = files.each_ref().map(|text| encoded(text));
    in_child(format!("{}?ca={ca}&cert={cert}&key={key}", server.tls_url()), &empty, "good");
    let missing = [files[0].clone(), "/nowhere/secret".into(), files[2].clone()];
    in_child(server.tls_url(), &missing, "LEASEHOLD_CERT: must be a file that can be read");
    in_child(server.tls_url(), &[files[0].clone(), String::new(), files[2].clone()], "key: must");
    in_child(server.url(), &files, "LEASEHOLD_CA");
    // The URL takes precedence.
    let nowhere = ["/nowhere", "/nowhere", "/nowhere"].map(str::to_owned);
    in_child(server.tls_url(), &nowhere, "LEASEHOLD_CA");
    let stranger = Authority::new("bad");
    let url = format!("{}?ca={ca}&cert={cert}&key={key}", server.tls_url());
    let [strange, _] = trusted_settings(&stranger);
    in_child(url, &strange, "good");
}

#[test]
#[ignore = "a child of the_environment_may_have_the_certificates_and_the_key"]
fn use_certificates_of_the_environment() {
    let Some(expected) = child::argument() else { return };
    let built = Builder::from_env().and_then(|builder| builder.wait(SOON).build());
    if expected == "good" {
        take(&built.unwrap(), "a").unlock().unwrap();
    } else {
        let error = built.unwrap_err();
        let Error::InvalidInput(text) = &error else { panic!("{error:?}") };
        assert!(text.contains(&expected) && !text.contains("secret"), "{text}");
    }
}

#[test]
fn an_error_about_a_certificate_of_a_url_names_the_setting() {
    let authority = Authority::new("good");
    let [[ca, cert, key], [.., text]] = trusted_settings(&authority);
    let protected = authority.file().with_file_name("protected.pem");
    let old = text.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\n\n");
    let mut with_plus = text.clone();
    let inside = text.find("KEY-----\n").expect("a head") + 20;
    with_plus.replace_range(inside..=inside, "+");
    let folder = authority.file().parent().expect("a folder").to_str().unwrap().to_owned();
    for (settings, reason) in [
        ("ca=/nowhere/secret".into(), "ca: must be a file that can be read"),
        (format!("ca={folder}"), "ca: must be a file that can be read"),
        ("ca=".into(), "ca: must be a file that can be read"),
        (format!("ca={key}"), "ca: must be a certificate in PEM"),
        (format!("ca={ca}&cert={cert}"), "cert: must come with its `key`"),
        (format!("ca={ca}&key={key}"), "key: must come with a `cert`"),
        (format!("ca={ca}&cert={key}&key={key}"), "cert: must be a certificate in PEM"),
        (format!("ca={ca}&cert={cert}&key={cert}"), "key: needs one private key in PEM"),
        (format!("ca={ca}&cert={cert}&key={}", encoded(&old)), "key: needs a private key without"),
        (
            format!("ca={ca}&cert={cert}&key={}", protected.display()),
            "key: needs a private key without a password",
        ),
        // In a query, a `+` is a space.
        (format!("ca={ca}&cert={cert}&key={}", with_plus.replace('\n', "%0a")), "key"),
    ] {
        fs::write(&protected, text.replace("PRIVATE", "ENCRYPTED PRIVATE")).unwrap();
        let shown = assert_refused(hasty(), "rediss", &format!("?{settings}"), reason);
        assert!(!shown.contains("secret") && !shown.contains("-----"), "{shown}");
    }
    assert_refused(hasty(), "redis", &format!("?ca={ca}"), "must begin with rediss://");
}

#[test]
fn bad_pem_is_refused_before_a_connection_is_made() {
    let authority = Authority::new("good");
    let (one, two) = (authority.certify("one"), authority.certify("two"));
    let old = authority.version_1();
    let with = |certificate: &str, key: &str| Tls::new().client_cert_pem(certificate, key);
    let broken = authority.pem().replace("MII", "???");
    let cases = [
        ("ca_pem", Tls::new().ca_pem("")),
        ("ca_pem", Tls::new().ca_pem("nonsense")),
        ("ca_pem", Tls::new().ca_pem(broken)),
        ("ca_pem", Tls::new().ca_pem(one.key.as_str())),
        (
            "ca_pem: has a certificate that cannot be used: it is malformed",
            Tls::new().ca_pem(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ),
        ("client_cert_pem", with("", &one.key).ca_pem(authority.pem())),
        ("client_cert_pem", with(&one.certificate, "").ca_pem(authority.pem())),
        ("client_cert_pem", with(&one.key, &one.certificate).ca_pem(authority.pem())),
        (
            "client_cert_pem: must come with the private key of the certificate",
            with(&one.certificate, &two.key).ca_pem(authority.pem()),
        ),
        (
            "client_cert_pem: has a certificate that cannot be used: it is of an old version",
            with(&old.certificate, &old.key).ca_pem(authority.pem()),
        ),
    ];
    for (argument, tls) in cases {
        assert_refused(hasty().tls(tls), "rediss", "", argument);
    }
}

#[test]
fn a_private_key_is_not_shown() {
    let authority = Authority::new("good");
    let Credentials { certificate, key, .. } = authority.certify("client");
    // It could come from an environment variable that has lost its line ends. The parser's error
    // quotes it.
    let flat = key.replace('\n', "");
    let secret = key.lines().nth(1).expect("the key itself");
    let tls = authority.trusted().client_cert_pem(certificate, flat);
    let mut text = format!("{tls:?} {:?}", hasty().tls(tls.clone()));
    text += &assert_refused(hasty().tls(tls), "rediss", "", "client_cert_pem");
    assert!(!text.contains(secret), "{text}");
    let bytes = format!("{:?}", secret.as_bytes());
    assert!(!text.contains(bytes.trim_matches(['[', ']'])), "{text}");
}

#[test]
fn tls_settings_without_tls_are_refused() {
    let tls = Authority::new("good").trusted();
    assert_refused(hasty().tls(tls), "redis", "", "rediss://");
}

#[test]
#[cfg(feature = "tls-insecure")]
fn an_insecure_connection_ignores_the_certificate() {
    for version in VERSIONS {
        let authority = Authority::new("bad");
        let credentials = authority.certify_for_the_past("elsewhere");
        let server = authority.start(&credentials, &[OPEN, ["--tls-protocols", version]].concat());
        let client = opened(|| hasty().open(&format!("{}#insecure", server.tls_url())));
        take(&client, "a").unlock().unwrap();
        let tls = Authority::new("good").trusted();
        assert_unavailable(|| hasty().tls(tls).open(&server.tls_url()), "expired");
    }
}

#[test]
fn the_system_decides_which_issuers_to_trust() {
    let (server, authority) = good_server();
    let trusting = |file: &Path| {
        [("SSL_CERT_FILE", file.as_os_str().to_owned()), ("SSL_CERT_DIR", OsString::new())]
    };
    let url = server.tls_url();
    let variables = trusting(&authority.file());
    Child::start_with(trust_the_system_in_a_child, &url, &variables).finish();
    let variables = trusting(Path::new("/dev/null"));
    Child::start_with(distrust_the_system_in_a_child, &url, &variables).finish();
}

#[test]
#[ignore = "a child of the_system_decides_which_issuers_to_trust"]
fn trust_the_system_in_a_child() {
    let Some(url) = child::argument() else { return };
    take(&Client::open(&url).unwrap(), "a").unlock().unwrap();
}

#[test]
#[ignore = "a child of the_system_decides_which_issuers_to_trust"]
fn distrust_the_system_in_a_child() {
    if child::argument().is_some() {
        assert_refused(hasty(), "rediss", "", "ca_pem");
    }
}
