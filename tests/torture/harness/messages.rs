//! Splits one direction of a connection into its requests, replies, and messages of channels.

use std::str;

/// The start of each kind of channel message: arrays, or pushes of RESP3, with three or four
/// elements.
const MESSAGES: [&[u8]; 3] = [b"message", b"smessage", b"pmessage"];

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The start of an incomplete message.
    part: Vec<u8>,
}

impl Stream {
    /// Adds received bytes. Returns the complete messages.
    pub(crate) fn add(&mut self, received: &[u8]) -> Vec<Vec<u8>> {
        self.part.extend_from_slice(received);
        let mut whole = Vec::new();
        while let Some(length) = length(&self.part) {
            whole.push(self.part.drain(..length).collect());
        }
        whole
    }

    /// Like `add`, without the messages of channels.
    pub(crate) fn add_replies(&mut self, received: &[u8]) -> Vec<u8> {
        self.add(received).into_iter().filter(|reply| !is_message(reply)).flatten().collect()
    }
}

/// Returns the length of the first line.
fn line(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\r\n").map(|end| end + 2)
}

/// Returns the length of the first request or reply; `None` if it is incomplete.
fn length(bytes: &[u8]) -> Option<usize> {
    let line = line(bytes)?;
    // Negative for a null.
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
