//! Replies that arrive in parts, and bytes that are no reply.

use std::io::Read;

use super::*;

/// Replies of every kind.
const REPLIES: [&[u8]; 12] = [
    b":42\r\n",
    b":-1\r\n",
    b"+OK\r\n",
    b"-ERR no \n such thing\r\n",
    b"$5\r\nab\r\nc\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*+0\r\n",
    b"*3\r\n:0\r\n*2\r\n$1\r\nx\r\n+y\r\n$-1\r\n",
    b"*2\r\n*1\r\n*0\r\n+\r\n",
];

fn read(buffer: &mut ReplyBuffer, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        buffer.fill(|into| bytes.read(into)).expect("there are bytes");
    }
}

#[test]
fn a_reply_is_taken_when_it_has_come_whole() {
    let mut buffer = ReplyBuffer::default();
    for reply in REPLIES {
        for byte in reply {
            assert!(buffer.take().is_none());
            read(&mut buffer, &[*byte]);
        }
        let value = buffer.take().expect("it is whole").expect("it is a reply");
        assert_eq!(value, parse_redis_value(reply).expect("it is a reply"));
    }
    assert!(buffer.take().is_none());
}

#[test]
fn replies_that_have_come_together_are_taken_one_by_one() {
    let mut buffer = ReplyBuffer::default();
    read(&mut buffer, &REPLIES.concat());
    for reply in REPLIES {
        let value = buffer.take().expect("it is there").expect("it is a reply");
        assert_eq!(value, parse_redis_value(reply).expect("it is a reply"));
    }
    assert!(buffer.take().is_none());
}

#[test]
fn an_error_reply_may_be_cut_within_a_character() {
    let mut buffer = ReplyBuffer::default();
    read(&mut buffer, b"-ERR unknown command, with args 'st\xc3'\r\n:1\r\n");
    match buffer.take() {
        Some(Ok(Value::ServerError(error))) => {
            assert_eq!(error.details(), Some("unknown command, with args 'st\u{fffd}'"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(buffer.take().expect("it is whole").expect("it is a reply"), Value::Int(1));
}

#[test]
fn invalid_bytes_are_an_error_at_once() {
    for bytes in [
        &b"\x15\x03\x01"[..],
        b"HTTP/1.1 400 Bad Request\r\n",
        b":one\r\n",
        b"*x\r\n",
        b"*-2\r\n",
        b"$3\r\nabcde",
        b"$16777216\r\n",
        b"$18446744073709551615\r\n",
        b"$18446744073709551616\r\n",
        &b"*1\r\n".repeat(DEPTH_MAX + 1),
    ] {
        let mut buffer = ReplyBuffer::default();
        read(&mut buffer, bytes);
        let error = buffer.take().expect("it is known to be invalid").expect_err("no reply");
        assert_eq!(error.kind(), ErrorKind::Parse, "{error}");
    }
}

/// The test would take hours if each search began at the start of the line.
#[test]
fn a_reply_without_end_is_an_error_before_it_takes_much_memory() {
    for (head, piece) in [("+", "x".repeat(USUAL)), ("*1000000000\r\n", ":1\r\n".repeat(4))] {
        let (mut buffer, mut sent) = (ReplyBuffer::default(), 0);
        read(&mut buffer, head.as_bytes());
        let error = loop {
            if let Some(reply) = buffer.take() {
                break reply.expect_err("it has no end");
            }
            read(&mut buffer, piece.as_bytes());
            sent += piece.len();
        };
        assert_eq!(error.kind(), ErrorKind::Parse, "{error}");
        assert!(sent <= LONGEST + piece.len() && buffer.bytes.len() <= LONGEST + USUAL);
    }
}

/// Returns the most memory that a reply without an end takes until it is rejected.
fn memory_of_endless(head: &[u8], parts: &[u8]) -> usize {
    let measured = allocation_counter::measure(|| {
        let mut buffer = ReplyBuffer::default();
        read(&mut buffer, head);
        let error = loop {
            if let Some(reply) = buffer.take() {
                break reply.expect_err("it is incomplete");
            }
            read(&mut buffer, parts);
        };
        assert_eq!(error.kind(), ErrorKind::Parse, "{error}");
    });
    usize::try_from(measured.bytes_max).expect("it fits into memory")
}

#[test]
fn a_reply_of_many_parts_is_an_error_before_it_takes_much_memory() {
    const READ: usize = 64 * 1024;
    let text = |len: usize| format!("${len}\r\n{}\r\n", "x".repeat(len));
    let short = [":1\r\n", "$-1\r\n", "*0\r\n", "*1\r\n:1\r\n", "$1\r\nx\r\n", "-E x\r\n"];
    for part in short.map(String::from).into_iter().chain([text(30), text(LONGEST / 5)]) {
        let head = "*2147483647\r\n".repeat(2);
        let most =
            memory_of_endless(head.as_bytes(), part.repeat(READ / part.len() + 1).as_bytes());
        assert!(most <= LARGEST + 4 * READ, "{:?}: {most}", &part[..part.len().min(20)]);
    }
}

#[test]
fn the_announced_length_of_a_reply_allocates_nothing() {
    for head in ["*2147483647\r\n:1\r\n", "$16777000\r\nx", "*1000\r\n*2147483647\r\n:1\r\n"] {
        let measured = allocation_counter::measure(|| {
            let mut buffer = ReplyBuffer::default();
            read(&mut buffer, head.as_bytes());
            assert!(buffer.take().is_none());
        });
        assert!(measured.bytes_max <= 4096, "{head:?}: {measured:?}");
    }
}

/// Invalid UTF-8 would be replaced by three times as many bytes.
#[test]
fn a_long_error_reply_is_cut() {
    let reply = [&b"-ERR "[..], &vec![0xff; LONGEST / 2], b"\r\n"].concat();
    let measured = allocation_counter::measure(|| {
        let mut buffer = ReplyBuffer::default();
        read(&mut buffer, &reply);
        let Some(Ok(Value::ServerError(error))) = buffer.take() else { panic!("an error") };
        assert!(error.details().is_some_and(|text| text.starts_with('\u{fffd}')));
    });
    assert!(measured.bytes_max <= 2 * LONGEST as u64, "{measured:?}");
}

#[test]
fn a_reply_may_be_as_long_as_any_that_a_server_sends() {
    let (mut buffer, element) = (ReplyBuffer::default(), b"$20\r\n01234567890123456789\r\n");
    for bytes in [&b"*500000\r\n"[..], &element.repeat(500_000)] {
        read(&mut buffer, bytes);
    }
    let Some(Ok(Value::Array(values))) = buffer.take() else { panic!("it is a reply") };
    assert_eq!(values.len(), 500_000);
}

#[test]
fn a_large_reply_leaves_no_large_buffer() {
    let mut buffer = ReplyBuffer::default();
    let text = "x".repeat(3 * LARGE);
    read(&mut buffer, format!("${}\r\n{text}\r\n:1\r\n", text.len()).as_bytes());
    let value = buffer.take().expect("it is whole").expect("it is a reply");
    assert_eq!(value, Value::BulkString(text.into_bytes()));
    assert_eq!(buffer.take().expect("it is whole").expect("it is a reply"), Value::Int(1));
    assert!(buffer.bytes.capacity() <= LARGE);
}

#[test]
fn the_end_of_the_connection_is_an_error() {
    let error = ReplyBuffer::default().fill(|_| Ok(0)).expect_err("nothing comes");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[cfg(unix)]
#[test]
fn written_bytes_take_no_memory_for_long() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let deadline = Instant::now() + std::time::Duration::from_secs(10);
    let mut stream =
        RespStream::new(Stream::tcp(&[address], deadline).expect("it listens"), Layer::Plain);
    let (mut peer, _) = listener.accept().expect("a connection");
    let read = std::thread::spawn(move || peer.read_exact(&mut vec![0; 100 * LARGE]));
    stream.out.resize(100 * LARGE, b'x');
    stream.write().expect("it is open");
    while stream.is_writing() {
        stream.wait_for_room(deadline).expect("it is read");
        stream.write().expect("it is open");
    }
    read.join().expect("no panic").expect("all has come");
    assert!(stream.out.capacity() <= LARGE, "{}", stream.out.capacity());
}
