//! What a server sends to a connection that receives messages, one by one: messages of channels,
//! and replies.

use std::str;

/// How messages of channels begin: arrays, or pushes of RESP3, of three or of four.
const MESSAGES: [&[u8]; 3] = [b"message", b"smessage", b"pmessage"];

/// The replies of one connection.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// The beginning of one whose end has not come.
    part: Vec<u8>,
}

impl Replies {
    /// Adds what was received. Returns the replies that are whole, with or without the messages.
    pub(crate) fn pass(&mut self, received: &[u8], loses_messages: bool) -> Vec<u8> {
        self.part.extend_from_slice(received);
        let (mut passed, mut start) = (Vec::new(), 0);
        while let Some(length) = length(&self.part[start..]) {
            let reply = &self.part[start..start + length];
            if !(loses_messages && is_message(reply)) {
                passed.extend_from_slice(reply);
            }
            start += length;
        }
        self.part.drain(..start);
        passed
    }
}

/// The length of the first reply; `None` if it has not come to its end.
fn length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
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
