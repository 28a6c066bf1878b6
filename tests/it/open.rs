//! Opening a client: what the URL means, and servers that cannot be reached.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use leasehold::{Client, Error};
use rustix::net::{AddressFamily, SocketType};

use crate::support::child::{self, Child};
use crate::support::proxy::Proxy;
use crate::support::{
    SOON, Server, everything, hasty, lock_key, ms, patient, stores, take, throughout, timed,
    while_held,
};

stores! {
    one server:
        a_unix_socket_works,
        a_program_that_is_started_inherits_no_socket,
        without_threads_no_client_is_opened,
        the_database_of_the_url_is_used_after_a_reconnect_too,
        the_client_name_of_the_url_is_set,
        a_silent_server_is_unavailable,
        a_server_behind_a_black_hole_is_unavailable,
        debug_output_has_no_secrets,
        a_host_with_several_addresses_is_tried_at_each;
}

#[track_caller]
fn assert_unavailable(address: &str) {
    let url = format!("redis://ali:sesame@{address}/");
    let (result, took) = timed(|| hasty().open(&url));
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(took < ms(2500), "{took:?}");
    assert!(error.source().is_some(), "the cause is given: {error:?}");
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
    let (result, took) = timed(|| hasty().open(&server.unix_url()));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < ms(2500), "{took:?}");
}

fn a_server_behind_a_black_hole_is_unavailable(server: &Server) {
    let proxy = Proxy::before(server);
    proxy.blackhole();
    let (result, took) = timed(|| hasty().open(&proxy.url()));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < ms(2500), "{took:?}");
    proxy.heal();
    take(&hasty().open(&proxy.url()).unwrap(), "a").unlock().unwrap();
}

fn a_program_that_is_started_inherits_no_socket(server: &Server) {
    if cfg!(target_os = "linux") {
        for url in [server.url(), server.unix_url()] {
            Child::start(start_a_program_in_a_child, &url).finish();
        }
    }
}

/// In a process of its own, where no other test opens files.
#[test]
#[ignore = "a child of a_program_that_is_started_inherits_no_socket"]
fn start_a_program_in_a_child() {
    let Some(url) = child::argument() else { return };
    // This process may have inherited some from other tests.
    let before = inherited_sockets();
    let client = patient().open(&url).unwrap();
    let _guard = take(&client, "a");
    while_held(&client, "b", |_end| {
        // Which subscribes.
        assert!(client.try_lock_for("b", ms(200)).unwrap().is_none());
        assert_eq!(inherited_sockets(), before);
    });
}

/// The sockets of a program that this one starts.
fn inherited_sockets() -> Vec<String> {
    let output = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let files = String::from_utf8(output.stdout).unwrap();
    assert!(files.contains("pipe:"), "{files}");
    files.lines().filter(|file| file.contains("socket:")).map(str::to_owned).collect()
}

fn without_threads_no_client_is_opened(server: &Server) {
    if cfg!(target_os = "linux") {
        // More than there are addresses: the system gives no thread such a stack.
        let stack = [("RUST_MIN_STACK", "400000000000000".into())];
        Child::start_with(open_in_a_child_without_threads, &server.url(), &stack).finish();
    }
}

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
    assert!(!in_database_5("a") && !in_database_5("b"));

    let by_socket = Client::open(&format!("{}?db=5", server.unix_url())).unwrap();
    let _guard = take(&by_socket, "c");
    assert!(in_database_5("c") && !server.exists("c"));
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
    let mutex = client.mutex("a");
    write!(text, "{client:?} {mutex:?} {guard:?}").unwrap();
    assert!(!text.contains("sesame"), "{text}");
    // The field of the owner would be enough to release the lock.
    let (owner, _) = server.hold("a");
    assert!(!text.contains(&owner), "{text}");
}

fn a_host_with_several_addresses_is_tried_at_each(server: &Server) {
    // On most systems the host also has the address ::1, where this server does not listen.
    let client = Client::open(&format!("redis://localhost:{}/", server.port())).unwrap();
    let guard = take(&client, "a");
    throughout(ms(100), || server.exists("a"));
    guard.unlock().unwrap();
}

#[test]
fn a_host_without_an_address_is_unavailable() {
    let builder = Client::builder().connect_timeout(ms(500));
    let (result, took) = timed(|| builder.open("redis://nonexistent.invalid/"));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < SOON, "{took:?}");
}
