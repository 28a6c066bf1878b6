//! What a server sends or is sent over one connection, one by one: requests, replies, and messages
//! of channels.

use std::str;

/// How messages of channels begin: arrays, or pushes of RESP3, of three or of four.
const MESSAGES: [&[u8]; 3] = [b"message", b"smessage", b"pmessage"];

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The beginning of a message whose end has not come.
    part: Vec<u8>,
}

impl Stream {
    /// Adds what was received. Returns what is whole.
    pub(crate) fn add(&mut self, received: &[u8]) -> Vec<Vec<u8>> {
        self.part.extend_from_slice(received);
        let mut whole = Vec::new();
        while let Some(length) = length(&self.part) {
            whole.push(self.part.drain(..length).collect());
        }
        whole
    }

    /// As `add`, without the messages of channels.
    pub(crate) fn add_replies(&mut self, received: &[u8]) -> Vec<u8> {
        self.add(received).into_iter().filter(|reply| !is_message(reply)).flatten().collect()
    }
}

/// The words that a request or a reply consists of, one after the other.
pub(crate) fn words(bytes: &[u8]) -> Vec<String> {
    let Some(line) = line(bytes) else { return Vec::new() };
    let first = String::from_utf8_lossy(&bytes[1..line - 2]).into_owned();
    match bytes[0] {
        b'*' | b'>' => {
            let (mut words, mut rest) = (Vec::new(), &bytes[line..]);
            while let Some(length) = length(rest) {
                words.extend(self::words(&rest[..length]));
                rest = &rest[length..];
            }
            words
        }
        b'$' if bytes.len() > line => {
            vec![String::from_utf8_lossy(&bytes[line..bytes.len() - 2]).into_owned()]
        }
        b'-' => vec![format!("-{first}")],
        _ => vec![first],
    }
}

/// The length of the first line.
fn line(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\r\n").map(|end| end + 2)
}

/// The length of the first request or reply; `None` if it has not come to its end.
fn length(bytes: &[u8]) -> Option<usize> {
    let line = line(bytes)?;
    // Negative for what is null.
    let number = || str::from_utf8(&bytes[1..line - 2]).ok()?.parse::<usize>().ok();
    match (bytes[0], number()) {
        (b'$', Some(bulk)) => Some(line + bulk + 2).filter(|end| *end <= bytes.len()),
        (b'*' | b'>', Some(elements)) => {
            (0..elements).try_fold(line, |end, _| Some(end + length(&bytes[end..])?))
        }
        _ => Some(line),
    }
}

fn is_message(reply: &[u8]) -> bool {
    let mut lines = reply.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let is_array = lines.next().is_some_and(|line| matches!(line, [b'*' | b'>', ..]));
    is_array && lines.nth(1).is_some_and(|kind| MESSAGES.contains(&kind))
}
