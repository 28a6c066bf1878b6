//! Opening a client: the meaning of the URL, and servers that cannot be reached.

use std::fmt::Debug;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client, Error, Phase};

use crate::support::child::{self, Child};
use crate::support::errors::assert_has_its_cause;
use crate::support::proxy::Proxy;
use crate::support::{
    SOON, Server, eventually, everything, hasty, lock_key, ms, opened, stores, take, throughout,
    timed,
};
#[cfg(target_os = "linux")]
use {
    crate::support::{patient, while_held},
    rustix::net::{AddressFamily, SocketType},
    std::io::ErrorKind,
    std::process::Command,
};

stores! {
    one server:
        #[cfg(unix)] a_unix_socket_works,
        #[cfg(target_os = "linux")] a_program_that_is_started_inherits_no_socket,
        a_program_that_is_started_keeps_no_connection_open,
        #[cfg(target_os = "linux")] without_threads_no_client_is_opened,
        the_database_of_the_url_is_used_after_a_reconnect_too,
        the_client_name_of_the_url_is_set,
        a_silent_server_is_unavailable,
        a_server_behind_a_black_hole_is_unavailable,
        debug_output_has_no_secrets,
        a_refused_client_name_is_not_a_failure,
        a_service_that_replaces_the_server_is_reported_at_once,
        a_slow_handshake_has_the_whole_connect_timeout,
        a_host_with_several_addresses_is_tried_at_each;
}

#[track_caller]
fn assert_unavailable(address: &str) {
    let url = format!("redis://ali:sesame@{address}/");
    let (result, took) = timed(|| hasty().open(&url));
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(took < SOON / 2, "{took:?}");
    assert_has_its_cause(&error);
    let is_unconnected = matches!(error, Error::Unavailable { phase: Phase::Connect, .. });
    assert_eq!(everything(&error).contains("`lazy`"), is_unconnected, "{error:?}");
    assert!(!everything(&error).contains("sesame"), "{error:?}");
}

#[test]
fn a_closed_port_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    assert_unavailable(&address);
}

#[test]
#[cfg(unix)]
fn a_missing_socket_is_unavailable() {
    let error = hasty().open("redis+unix:///nonexistent/socket").unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn a_listener_that_never_answers_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_unavailable(&listener.local_addr().unwrap().to_string());
}

#[test]
#[cfg(target_os = "linux")]
fn a_port_where_connecting_hangs_is_unavailable() {
    // The backlog is full: the kernel drops further connections.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        match TcpStream::connect_timeout(&address, ms(200)) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::TimedOut);
    assert_unavailable(&address.to_string());
}

fn a_silent_server_is_unavailable(server: &Server) {
    server.stop();
    assert_unavailable(&format!("127.0.0.1:{}", server.port()));
    let (result, took) = timed(|| hasty().open(&server.admin_url()));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < SOON / 2, "{took:?}");
}

fn a_server_behind_a_black_hole_is_unavailable(server: &Server) {
    let proxy = Proxy::before(server);
    proxy.blackhole();
    let (result, took) = timed(|| hasty().open(&proxy.url()));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < SOON / 2, "{took:?}");
    proxy.heal();
    take(&opened(|| hasty().open(&proxy.url())), "a").unlock().unwrap();
}

#[cfg(target_os = "linux")]
fn a_program_that_is_started_inherits_no_socket(server: &Server) {
    for url in [server.url(), server.unix_url()] {
        Child::start(start_a_program_in_a_child, &url).finish();
    }
}

/// Runs in a process of its own, where no other test opens files.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "a child of a_program_that_is_started_inherits_no_socket"]
fn start_a_program_in_a_child() {
    let Some(url) = child::argument() else { return };
    // This process may have inherited some sockets from other tests.
    let before = inherited_sockets();
    let client = patient().open(&url).unwrap();
    let _guard = take(&client, "a");
    while_held(&client, "b", |_end| {
        // This subscribes.
        assert!(client.try_lock_for("b", ms(200)).unwrap().is_none());
        assert_eq!(inherited_sockets(), before);
    });
}

/// Returns the sockets of a program that this one starts.
#[cfg(target_os = "linux")]
fn inherited_sockets() -> Vec<String> {
    let output = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let files = String::from_utf8(output.stdout).unwrap();
    assert!(files.contains("pipe:"), "{files}");
    // Without the rest of the line, which contains the time.
    let targets = files.lines().filter_map(|file| file.split_once(" -> "));
    targets.filter(|(_, target)| target.contains("socket:")).map(|(_, it)| it.to_owned()).collect()
}

/// This also holds where programs inherit handles by default.
fn a_program_that_is_started_keeps_no_connection_open(server: &Server) {
    let client = Client::open(&format!("{}?client_name=parent", server.url())).unwrap();
    let is_connected = || server.ask::<String>(&["CLIENT", "LIST"]).contains(" name=parent ");
    take(&client, "a").unlock().unwrap();
    let mut child = Child::start(outlive_the_client_in_a_child, "");
    assert_eq!(child.next(), "runs");
    assert!(is_connected());
    drop(client);
    eventually(SOON, || !is_connected());
    child.go_on();
    child.finish();
}

#[test]
#[ignore = "a child of a_program_that_is_started_keeps_no_connection_open"]
fn outlive_the_client_in_a_child() {
    if child::argument().is_some() {
        child::report("runs");
        child::wait_for_parent();
    }
}

#[cfg(target_os = "linux")]
fn without_threads_no_client_is_opened(server: &Server) {
    // The stack needs more addresses than there are, so the system refuses to start a thread.
    let stack = [("RUST_MIN_STACK", "400000000000000".into())];
    Child::start_with(open_in_a_child_without_threads, &server.url(), &stack).finish();
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "a child of without_threads_no_client_is_opened"]
fn open_in_a_child_without_threads() {
    let Some(url) = child::argument() else { return };
    std::thread::Builder::new().spawn(|| ()).unwrap_err();
    let urls = [url.as_str()];
    let refused = [
        patient().open(&url),
        patient().on_event(|_| ()).open(&url),
        patient().open_redlock(urls),
        patient().open_cluster(urls),
        patient().open_sentinel(urls, "shop"),
        patient().in_memory(),
        patient().on_event(|_| ()).in_memory(),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(everything(&error).contains("start a thread"), "{error:?}");
    }
}

#[cfg(unix)]
fn a_unix_socket_works(server: &Server) {
    let client = Client::open(&server.unix_url()).unwrap();
    let guard = take(&client, "a");
    assert!(server.exists("a"));
    assert!(server.open(Client::builder()).try_lock("a").unwrap().is_none());
    guard.unlock().unwrap();
}

fn the_database_of_the_url_is_used_after_a_reconnect_too(server: &Server) {
    let in_database_5 = |name: &str| {
        let mut connection = server.connect();
        redis::cmd("SELECT").arg(5).exec(&mut connection).unwrap();
        let found: bool = redis::cmd("EXISTS").arg(lock_key(name)).query(&mut connection).unwrap();
        found
    };
    let client = Client::open(&format!("{}5", server.url())).unwrap();
    let guard = take(&client, "a");
    assert!(in_database_5("a") && !server.exists("a"));
    server.kill_connections();
    let after = take(&client, "b");
    assert!(in_database_5("b") && !server.exists("b"));
    drop((guard, after));
    eventually(SOON, || !in_database_5("a") && !in_database_5("b"));
    #[cfg(unix)]
    {
        let by_socket = Client::open(&format!("{}?db=5", server.unix_url())).unwrap();
        let _guard = take(&by_socket, "c");
        assert!(in_database_5("c") && !server.exists("c"));
    }
}

fn the_client_name_of_the_url_is_set(server: &Server) {
    let client = Client::open(&format!("{}?client_name=till-7", server.url())).unwrap();
    let _guard = take(&client, "a");
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    assert!(clients.contains(" name=till-7 "), "{clients}");
}

fn debug_output_has_no_secrets(server: &Server) {
    server.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"]);
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", server.port());
    let builder = Client::builder().on_event(|_| ()).lease(Duration::from_secs(20));
    let mut text = format!("{builder:?}");
    let client = builder.open(&url).unwrap();
    let guard = take(&client, "a");
    let handles = [
        format!("{client:?}"),
        format!("{:?}", client.mutex("a")),
        format!("{:?}", client.rw_lock("a")),
        format!("{:?}", client.semaphore("a", 2)),
        format!("{:?}", client.election("a")),
        format!("{guard:?}"),
        format!("{:?}", guard.lost()),
    ];
    for handle in handles {
        assert!(handle.len() < 100 && !handle.contains(client.id()), "{handle}");
        text += &handle;
    }
    assert!(!text.contains("sesame"), "{text}");
    // The owner's field would be enough to release the lock.
    let (owner, _) = server.hold("a");
    assert!(!text.contains(&owner), "{text}");
}

fn a_refused_client_name_is_not_a_failure(server: &Server) {
    server.command(&["ACL", "SETUSER", "ali", "on", "nopass", "~*", "&*", "+@all", "-client"]);
    let url = format!("redis://ali:any@127.0.0.1:{}/?client_name=till-7", server.port());
    let guard = take(&Client::open(&url).unwrap(), "a");
    guard.unlock().unwrap();
}

/// Sends the same bytes to every client, until the end of the process.
fn say_to_all(listener: TcpListener, what: &'static [u8]) {
    thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { continue };
            thread::spawn(move || {
                // Until the client is gone.
                client.write_all(what).ok();
                client.read_to_end(&mut Vec::new()).ok();
            });
        }
    });
}

/// What services send that are not Redis: replies to a request, greetings, and an alert of TLS.
const OTHERS: [&[u8]; 4] = [
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"220 mail.example ESMTP\r\n",
    b"\x15\x03\x01\x00\x02\x02\x46",
];

#[track_caller]
fn assert_foreign<T: Debug>(call: impl FnOnce() -> Result<T, Error>) {
    let (result, took) = timed(call);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Unavailable { phase: Phase::Greeting, .. }), "{error:?}");
    assert!(error.to_string().contains("does not speak Redis"), "{error}");
    assert!(!error.is_retryable(), "{error:?}");
    assert!(took < SOON / 2, "{took:?}");
}

#[test]
fn a_port_that_does_not_speak_redis_is_reported_at_once() {
    for other in OTHERS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        say_to_all(listener, other);
        assert_foreign(|| Client::open(&format!("redis://{address}/")));
        assert_foreign(|| Client::open(&format!("redis://ali:sesame@{address}/3?client_name=x")));
        let seeds = [format!("redis://{address}/")];
        let seeds: Vec<&str> = seeds.iter().map(|url| &**url).collect();
        assert_foreign(|| Client::builder().open_cluster(&seeds));
        assert_foreign(|| Client::builder().open_sentinel(&seeds, "main"));
        assert_foreign(|| Client::builder().open_redlock(&seeds));
        #[cfg(feature = "tls")]
        assert_foreign_in_tls(address, other);
    }
}

/// To a client with TLS, a service that answers in TLS is not foreign.
#[cfg(feature = "tls")]
fn assert_foreign_in_tls(address: SocketAddr, other: &[u8]) {
    if !other.starts_with(b"\x15") {
        assert_foreign(|| Client::open(&format!("rediss://localhost:{}/", address.port())));
    }
}

fn a_service_that_replaces_the_server_is_reported_at_once(server: &Server) {
    let client = server.open(Client::builder());
    let guard = take(&client, "a");
    server.kill();
    let listener = TcpListener::bind(("127.0.0.1", server.port())).unwrap();
    say_to_all(listener, OTHERS[0]);
    assert_foreign(|| client.lock("b"));
    assert_foreign(|| client.try_lock("b"));
    assert_foreign(|| client.mutex("b").holder());
    assert_foreign(|| guard.unlock());
}

/// The phase in which opening a client for that address fails.
fn phase_of(url: &str) -> Phase {
    match hasty().open(url).unwrap_err() {
        Error::Unavailable { phase, .. } => phase,
        other => panic!("{other:?} has no phase"),
    }
}

#[test]
fn an_error_says_how_far_the_attempt_got() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().map(|address| (silent, address.port()));
    let (_silent, port) = silent.unwrap();
    assert_eq!(phase_of("redis://nonexistent.invalid/"), Phase::LookUp);
    #[cfg(unix)]
    assert_eq!(phase_of("redis+unix:///nonexistent/socket"), Phase::Connect);
    assert_eq!(phase_of(&format!("redis://ali:sesame@127.0.0.1:{port}/")), Phase::Login);
    assert_eq!(phase_of(&format!("redis://127.0.0.1:{port}/")), Phase::Request);
    #[cfg(feature = "tls")]
    assert_eq!(phase_of(&format!("rediss://127.0.0.1:{port}/")), Phase::Tls);
}

fn a_host_with_several_addresses_is_tried_at_each(server: &Server) {
    // On most systems the host also has the address ::1, where this server does not listen.
    let client = Client::open(&format!("redis://localhost:{}/", server.port())).unwrap();
    let guard = take(&client, "a");
    throughout(ms(100), || server.exists("a"));
    guard.unlock().unwrap();
}

/// Listens before a server, and serves each connection only after this time. Ends with the process.
fn slow_to_serve(server: &Server, time: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, port) = (listener.local_addr().unwrap(), server.port());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || {
                thread::sleep(time);
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let ends = [&client, &server].map(|stream| stream.try_clone().unwrap());
                let [mut requests, mut onward] = ends;
                let (mut replies, mut back) = (server, client);
                thread::spawn(move || io::copy(&mut requests, &mut onward).ok());
                io::copy(&mut replies, &mut back).ok();
            });
        }
    });
    format!("redis://{address}/")
}

fn a_slow_handshake_has_the_whole_connect_timeout(server: &Server) {
    let url = slow_to_serve(server, ms(1500));
    let lazy = |builder: Builder| builder.lazy(true).open(&url).unwrap();
    let client = lazy(Client::builder());
    let error = client.try_lock_for("a", ms(0)).unwrap_err();
    assert!(error.to_string().contains("`connect_timeout`"), "{error}");
    let builder = Client::builder().connect_timeout(ms(4000));
    for wait in [ms(0), SOON] {
        let client = lazy(builder.clone());
        client.try_lock_for("a", wait).unwrap().expect("it is free").unlock().unwrap();
    }
    lazy(builder.wait(SOON)).lock("a").unwrap().unlock().unwrap();
}

#[test]
fn a_host_without_an_address_is_unavailable() {
    let builder = Client::builder().connect_timeout(ms(500));
    let (result, took) = timed(|| builder.open("redis://nonexistent.invalid/"));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < SOON, "{took:?}");
}
