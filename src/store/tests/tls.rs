//! Behaviour of TLS peers that no server shows on demand.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::{env, fs, process, thread};

use crossbeam_channel::{Receiver, Sender, bounded};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use redis::{RedisResult, Value};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::base::event_thread::Events;
use crate::config::certificates::Tls;
use crate::error::Phase;
use crate::net::resp::{Layer, RespStream};
use crate::net::socket::Stream;
use crate::net::tls::Connector;
use crate::net::trust::Trust;
use crate::net::wait::{Spin, WaitFor};

/// How long to wait for something that must not arrive.
const BRIEF: Duration = Duration::from_millis(100);

type Peer = StreamOwned<ServerConnection, TcpStream>;

/// The configuration of a peer, and its certificate in PEM.
fn credentials() -> (Arc<ServerConfig>, String) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".into()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("a good certificate");
    (Arc::new(config), cert.pem())
}

fn connector(pem: String) -> Connector {
    let tls = Tls::new().ca_pem(pem);
    Connector::new("localhost", Trust::Certified, &tls, &Events::default())
        .expect("a good certificate")
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn accept(listener: &TcpListener, config: Arc<ServerConfig>) -> io::Result<Peer> {
    let (stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let connection = ServerConnection::new(config).expect("a connection");
    let mut peer = StreamOwned::new(connection, stream);
    while peer.conn.is_handshaking() {
        peer.conn.complete_io(&mut peer.sock)?;
    }
    Ok(peer)
}

fn connect(address: SocketAddr, connector: &Connector) -> Result<RespStream, (Phase, io::Error)> {
    let stream = Stream::tcp(&[address], soon()).expect("it listens");
    let session = connector.connect(&stream, soon())?;
    Ok(RespStream::new(stream, Layer::Tls(Box::new(session.into()))))
}

/// Runs `client` with a connection to `server`, which runs on another thread.
fn connected(server: impl FnOnce(Peer) + Send, client: impl FnOnce(RespStream)) {
    let (config, pem) = credentials();
    let (listener, address) = listen();
    thread::scope(|scope| {
        scope.spawn(move || server(accept(&listener, config).expect("a handshake")));
        client(connect(address, &connector(pem)).expect("a handshake"));
    });
}

fn request(peer: &mut Peer) {
    let mut request = [0; 1];
    peer.read_exact(&mut request).expect("a request");
}

fn reply(peer: &mut Peer) {
    peer.write_all(b"+OK\r\n").expect("a reply");
    peer.flush().expect("a reply");
}

fn send(socket: &mut RespStream, bytes: &[u8], deadline: Instant) -> io::Result<()> {
    socket.out.extend_from_slice(bytes);
    socket.write()?;
    flush(socket, deadline)
}

fn flush(socket: &mut RespStream, deadline: Instant) -> io::Result<()> {
    while socket.is_writing() {
        socket.wait_for_room(deadline)?;
        socket.write()?;
    }
    Ok(())
}

fn assert_ok(socket: &mut RespStream) {
    assert_eq!(receive(socket, soon()).expect("a reply"), Value::Okay);
}

fn receive(socket: &mut RespStream, deadline: Instant) -> RedisResult<Value> {
    socket.receive(WaitFor::Reply { deadline }, &Spin::new(BRIEF))
}

#[test]
fn new_keys_are_accepted() {
    let server = |mut peer: Peer| {
        for _ in 0..3 {
            request(&mut peer);
            peer.conn.refresh_traffic_keys().expect("new keys");
            reply(&mut peer);
        }
    };
    connected(server, move |mut socket| {
        for _ in 0..3 {
            send(&mut socket, b"1", soon()).expect("to be sent");
            assert_ok(&mut socket);
        }
    });
}

#[test]
fn reading_goes_on_in_the_middle_of_a_reply() {
    let (half, rest): (Sender<()>, Receiver<()>) = bounded(0);
    let server = move |mut peer: Peer| {
        request(&mut peer);
        let mut record = Vec::new();
        peer.conn.writer().write_all(b"+OK\r\n").expect("room");
        while peer.conn.wants_write() {
            peer.conn.write_tls(&mut record).expect("room");
        }
        let (start, end) = record.split_at(record.len() / 2);
        peer.sock.write_all(start).expect("to be sent");
        rest.recv().expect("the client has waited");
        peer.sock.write_all(end).expect("to be sent");
        request(&mut peer);
    };
    connected(server, move |mut socket| {
        send(&mut socket, b"1", soon()).expect("to be sent");
        let (deadline, spin) = (end_of(BRIEF), Spin::new(BRIEF));
        for wait in [WaitFor::Reply { deadline }, WaitFor::SoonReply { deadline }] {
            let error = socket.receive(wait, &spin).expect_err("half a reply");
            assert!(error.is_timeout(), "{error}");
        }
        half.send(()).expect("the server waits");
        assert_ok(&mut socket);
        send(&mut socket, b"2", soon()).expect("to be sent");
    });
}

#[test]
fn two_replies_in_one_record_are_two() {
    // Together they exceed what the parser reads at once, so that a part stays with `rustls`.
    let long = "x".repeat(7000);
    let answer = format!("$7000\r\n{long}\r\n").repeat(2);
    let server = move |mut peer: Peer| {
        peer.write_all(answer.as_bytes()).expect("replies");
        peer.flush().expect("replies");
        request(&mut peer);
    };
    connected(server, move |mut socket| {
        for _ in 0..2 {
            let reply = receive(&mut socket, soon()).expect("a reply");
            assert_eq!(reply, Value::BulkString(long.clone().into_bytes()));
        }
        send(&mut socket, b"1", soon()).expect("to be sent");
    });
}

#[test]
fn a_write_to_a_peer_that_reads_nothing_ends_in_time() {
    let (done, over): (Sender<()>, Receiver<()>) = bounded(0);
    let server = move |_peer: Peer| over.recv().expect("the client has given up");
    connected(server, move |mut socket| {
        let start = Instant::now();
        let error = send(&mut socket, &vec![0; 32 << 20], end_of(BRIEF)).expect_err("too much");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        done.send(()).expect("the server waits");
    });
}

#[test]
fn a_slow_peer_gets_everything() {
    let sent: Vec<u8> = (0..=250).cycle().take(16 << 20).collect();
    let expected = sent.clone();
    let server = move |mut peer: Peer| {
        thread::sleep(BRIEF);
        let mut received = vec![0; expected.len()];
        peer.read_exact(&mut received).expect("everything");
        assert!(received == expected, "something else has arrived");
        reply(&mut peer);
        request(&mut peer);
    };
    connected(server, move |mut socket| {
        send(&mut socket, &sent, end_of(10 * LEASE)).expect("to be sent");
        assert_eq!(receive(&mut socket, end_of(10 * LEASE)).expect("a reply"), Value::Okay);
        send(&mut socket, b"1", soon()).expect("to be sent");
    });
}

/// A server whose output buffer is full does so: it reads no further requests until then.
#[test]
fn a_peer_that_reads_nothing_until_its_replies_are_read_gets_everything() {
    const SIZE: usize = 8 << 20;
    let server = move |mut peer: Peer| {
        let answer = format!("${SIZE}\r\n{}\r\n", "x".repeat(SIZE));
        peer.write_all(answer.as_bytes()).expect("a reply");
        peer.flush().expect("a reply");
        peer.read_exact(&mut vec![0; SIZE]).expect("everything");
        reply(&mut peer);
        request(&mut peer);
    };
    for flushes in [false, true] {
        connected(server, move |mut socket| {
            socket.out.extend_from_slice(&vec![0; SIZE]);
            socket.write().expect("an open connection");
            if flushes {
                flush(&mut socket, end_of(10 * LEASE)).expect("to be sent");
            }
            let long = receive(&mut socket, end_of(10 * LEASE)).expect("a reply");
            assert!(matches!(long, Value::BulkString(bytes) if bytes.len() == SIZE));
            assert_ok(&mut socket);
            send(&mut socket, b"1", soon()).expect("to be sent");
        });
    }
}

#[test]
fn a_close_notify_ends_a_connection() {
    let (done, over): (Sender<()>, Receiver<()>) = bounded(0);
    let server = move |mut peer: Peer| {
        peer.conn.send_close_notify();
        peer.conn.complete_io(&mut peer.sock).expect("a close_notify");
        over.recv().expect("the client has understood");
    };
    connected(server, move |mut socket| {
        let error = receive(&mut socket, soon()).expect_err("no reply");
        assert!(error.is_connection_dropped() && !error.is_timeout(), "{error}");
        done.send(()).expect("the server waits");
    });
}

#[test]
fn an_unread_close_notify_ends_a_write() {
    // How much is left to read when the write fails varies.
    for _ in 0..10 {
        let server = |mut peer: Peer| {
            peer.conn.send_close_notify();
            peer.conn.complete_io(&mut peer.sock).expect("a close_notify");
        };
        connected(server, |mut socket| {
            let end = soon();
            let error = loop {
                match send(&mut socket, b"1", end) {
                    Ok(()) => assert!(Instant::now() < end, "the peer has closed"),
                    Err(error) => break error,
                }
            };
            assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        });
    }
}

#[test]
fn an_untrusted_peer_receives_an_alert() {
    let ((config, _), (_, other)) = (credentials(), credentials());
    let (listener, address) = listen();
    thread::scope(|scope| {
        scope.spawn(move || {
            let error = accept(&listener, config).expect_err("no handshake");
            assert!(error.to_string().contains("received fatal alert"), "{error}");
        });
        connect(address, &connector(other)).map(drop).expect_err("no handshake");
    });
}

#[test]
fn a_peer_without_tls_is_reported() {
    let (listener, address) = listen();
    let (_, pem) = credentials();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.write_all(b"-ERR unknown command\r\n").expect("to be sent");
            // This lasts until the client is gone, in whatever way.
            stream.read_to_end(&mut Vec::new()).ok();
        });
        let error = connect(address, &connector(pem)).map(drop).expect_err("no handshake");
        assert_eq!(error.0, Phase::Greeting, "{error:?}");
    });
}

#[test]
fn a_file_of_authorities_is_read_again_for_a_new_connection() {
    let ((first, pem), (second, other)) = (credentials(), credentials());
    let path = env::temp_dir().join(format!("leasehold-authorities-{}.pem", process::id()));
    fs::write(&path, pem).expect("a file");
    let mut tls = Tls::new();
    tls.set("ca", path.to_str().expect("text")).expect("a good certificate");
    let events = Events::default();
    let connector =
        Connector::new("localhost", Trust::Certified, &tls, &events).expect("a good certificate");
    let (listener, address) = listen();
    let connects = |config: &Arc<ServerConfig>| {
        thread::scope(|scope| {
            let peer = scope.spawn(|| accept(&listener, config.clone()).is_ok());
            let connected = connect(address, &connector.to("localhost")).is_ok();
            connected & peer.join().expect("no panic")
        })
    };
    assert!(connects(&first) && !connects(&second));
    fs::write(&path, "half of a certificate").expect("a file");
    assert!(connects(&first), "unusable certificates do not replace usable ones");
    fs::write(&path, other).expect("a file");
    assert!(connects(&second) && !connects(&first));
    fs::remove_file(&path).expect("a file");
    assert!(connects(&second));
}

/// A FIFO behaves like a file on a network file system whose server is away.
#[cfg(unix)]
#[test]
fn a_file_of_authorities_that_hangs_does_not_keep_a_client_from_connecting() {
    let ((first, pem), (second, other)) = (credentials(), credentials());
    let path = env::temp_dir().join(format!("leasehold-hangs-{}.pem", process::id()));
    fs::write(&path, pem).expect("a file");
    let mut tls = Tls::new();
    tls.set("ca", path.to_str().expect("text")).expect("a good certificate");
    let events = Events::default();
    let connector =
        Connector::new("localhost", Trust::Certified, &tls, &events).expect("a good certificate");
    fs::remove_file(&path).expect("a file");
    let made = process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
    assert!(made.success());
    let (listener, address) = listen();
    let connects = |config: &Arc<ServerConfig>| {
        thread::scope(|scope| {
            let peer = scope.spawn(|| accept(&listener, config.clone()).is_ok());
            let connected = connect(address, &connector).is_ok();
            connected & peer.join().expect("no panic")
        })
    };
    for _ in 0..3 {
        let begun = Instant::now();
        assert!(connects(&first), "the known certificates are used");
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }
    // The thread that reads the file continues.
    fs::write(&path, other).expect("it is being read");
    eventually(|| connects(&second));
    fs::remove_file(&path).expect("a file");
}
