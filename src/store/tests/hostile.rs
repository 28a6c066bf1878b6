//! A server that replies with arbitrary bytes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::fuzz::{cases, edited};

const SEEDS: &[&[u8]] = &[
    b":1\r\n",
    b":1763900000000000\r\n",
    b"*2\r\n:0\r\n:29999\r\n",
    b"*0\r\n",
    b"*4\r\n:29999\r\n$8\r\nweb:0a:1\r\n$1\r\n1\r\n$16\r\n1763900000000000\r\n",
    b"+OK\r\n+PONG\r\n",
    b"-MOVED 3999 127.0.0.1:1\r\n",
    b"-NOSCRIPT No matching script\r\n",
    b"-NOAUTH Authentication required.\r\n",
    b"*3\r\n*0\r\n$1\r\n0\r\n*0\r\n",
];

const PIECES: &[&str] =
    &["\r\n", "*1\r\n", "$-1\r\n", "-", ":", "+", "ASK", "ERR ", "\0", "$99\r\n"];

/// A server on a port of its own. Each connection is sent the current reply, whatever the request.
struct Hostile {
    port: u16,
    reply: Arc<Mutex<Vec<u8>>>,
}

impl Hostile {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let reply = Arc::<Mutex<Vec<u8>>>::default();
        let replies = reply.clone();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (mut connection, replies) = (connection.expect("a client"), replies.clone());
                thread::spawn(move || {
                    let mut request = [0; 4096];
                    while connection.read(&mut request).is_ok_and(|read| read > 0) {
                        let reply = replies.lock().expect("no panic").clone();
                        if connection.write_all(&reply).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { port, reply }
    }
}

/// The time limit of a request.
const TIME: Duration = Duration::from_millis(40);

#[test]
fn every_request_ends_in_time_whatever_the_server_replies() {
    let server = Hostile::new();
    let config = Config { connect_timeout: TIME, ..Config::default() };
    let outcome = TestRunner::new(cases(100)).run(
        &(edited(SEEDS, PIECES), any::<bool>()),
        |(reply, login)| {
            *server.reply.lock().expect("no panic") = reply;
            let login = if login { "ada:sesame@" } else { "" };
            let store = single_at(&format!("redis://{login}127.0.0.1:{}/", server.port), &config);
            let begin = Instant::now();
            let deadline = || end_of(TIME);
            let holds = [hold(1)];
            let registration = Registration::IfHeld;
            let acquired = store.acquire(Acquire {
                holds: &holds,
                lease: LEASE,
                note: None,
                registration,
                echo: false,
                deadline: deadline(),
            });
            if let Ok(AcquireReply::Acquired { fence, .. }) = acquired {
                prop_assert!(fence > 1);
            }
            let changes = [Change::Check, Change::Renew { lease: LEASE.into() }, Change::RELEASE];
            let requests =
                changes.map(|change| HoldRequest { hold: &holds[0], change, deadline: deadline() });
            prop_assert_eq!(ask_all(&store, &requests).len(), changes.len());
            let _replies = (
                store.inspect("lock", deadline()),
                store.report("lock", Look::All, deadline()).map(drop),
                store.force_release(lock_of(b"client:1"), deadline()),
                store.report("lock", Look::Permits, deadline()),
                store.ping(&holds[0], deadline()),
            );
            let took = begin.elapsed();
            prop_assert!(took < TIME * 8 + Duration::from_secs(5), "{:?}", took);
            Ok(())
        },
    );
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
