//! Bytes sent by a server.

use std::fmt::Debug;
use std::io::Read;

use proptest::collection::vec;
use proptest::prelude::*;
use redis::{ErrorKind, RedisResult, Value, parse_redis_value};

use super::{cases, edited};
use crate::net::resp::ReplyBuffer;

const SEEDS: &[&[u8]] = &[
    b":42\r\n:-1\r\n+OK\r\n",
    b"-ERR no such thing\r\n$5\r\nab\r\nc\r\n",
    b"$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n",
    b"*3\r\n:0\r\n*2\r\n$1\r\nx\r\n+y\r\n$-1\r\n",
    b"*2\r\n*1\r\n*0\r\n+\r\n",
    b"*4\r\n:29999\r\n$8\r\nweb:0a:1\r\n$1\r\n1\r\n$16\r\n1763900000000000\r\n",
    b"*3\r\n$7\r\nmessage\r\n$20\r\nleasehold:wake:web:0\r\n$9\r\nlock:lock\r\n",
    b"-MOVED 3999 127.0.0.1:7001\r\n-WRONGTYPE found a hash\r\n-NOSCRIPT No\r\n",
];

const PIECES: &[&str] = &[
    "\r\n",
    "\r",
    "\n",
    "*1\r\n",
    "*+0\r\n",
    "*1000000000\r\n",
    "*9223372036854775807\r\n",
    "$16777215\r\n",
    "$18446744073709551615\r\n",
    ":9223372036854775808\r\n",
    "$+1\r\nx\r\n",
    "_\r\n",
    "%1\r\n+a\r\n:1\r\n",
    ">1\r\n+a\r\n",
    "=8\r\ntxt:abcd\r\n",
    "#t\r\n",
    ",1e400\r\n",
];

/// Reads in pieces of these sizes, and takes each reply when it is complete. Nothing follows an
/// error.
fn read(mut bytes: &[u8], sizes: &[usize]) -> Vec<RedisResult<Value>> {
    let (mut buffer, mut replies) = (ReplyBuffer::default(), Vec::new());
    let mut sizes = sizes.iter().copied().chain(std::iter::repeat(usize::MAX));
    while !bytes.is_empty() && !replies.last().is_some_and(Result::is_err) {
        let size = sizes.next().unwrap_or(usize::MAX).min(bytes.len());
        let (mut piece, rest) = bytes.split_at(size);
        while !piece.is_empty() {
            buffer.fill(|into| piece.read(into)).expect("there are bytes");
        }
        bytes = rest;
        while let Some(reply) = buffer.take() {
            let failed = reply.is_err();
            replies.push(reply);
            if failed {
                break;
            }
        }
    }
    replies
}

/// Returns a text to compare, because errors cannot be compared.
fn shown(replies: &impl Debug) -> String {
    format!("{replies:?}")
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn replies_are_the_same_in_whatever_pieces_they_arrive(
        bytes in edited(SEEDS, PIECES),
        sizes in vec(1..40_usize, 0..30),
    ) {
        let whole = read(&bytes, &[]);
        let pieces = read(&bytes, &sizes);
        prop_assert_eq!(shown(&whole), shown(&pieces));
        if let Some(Err(error)) = whole.last() {
            prop_assert_eq!(error.kind(), ErrorKind::Parse);
        }
        if let Some(Ok(first)) = whole.first() {
            match parse_redis_value(&bytes) {
                Ok(other) => prop_assert_eq!(shown(first), shown(&other)),
                // The other parser does not read an error reply that was cut within a character.
                Err(error) => {
                    let is_cut = bytes.contains(&b'-') && str::from_utf8(&bytes).is_err();
                    prop_assert!(is_cut, "{error}");
                }
            }
        }
    }

    #[test]
    fn memory_is_bounded_by_the_bytes_received(bytes in edited(SEEDS, PIECES)) {
        let used = allocation_counter::measure(|| drop(read(&bytes, &[])));
        // One buffer, and at most this much for each of the shortest parts.
        let most = 16 * 1024 + 150 * bytes.len() as u64;
        prop_assert!(used.bytes_max <= most, "{} for {} bytes", used.bytes_max, bytes.len());
    }
}
