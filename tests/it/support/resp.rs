//! The messages of the Redis protocol, as far as the proxy has to understand them.

use std::io::{BufRead, ErrorKind, Read, Result};

/// Returns `true` if the first word of a message begins with `word`.
pub(crate) fn is(message: &[u8], word: &[u8]) -> bool {
    let mut lines = message.split(|byte| *byte == b'\n').skip(2);
    lines.next().is_some_and(|line| {
        line.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
    })
}

pub(crate) fn contains(message: &[u8], text: &str) -> bool {
    text.is_empty() || message.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Reads one whole RESP message, a request or a reply, with everything in it.
pub(crate) fn message(stream: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut message = Vec::new();
    let mut missing = 1;
    while missing > 0 {
        missing -= 1;
        let start = message.len();
        if stream.read_until(b'\n', &mut message)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&message[start..]).into_owned();
        // -1 stands for a null, which has no content.
        let count = |text: &str| text.trim_end().parse::<u64>().unwrap_or(0);
        match line.split_at(1) {
            ("*" | "~" | ">", length) => missing += count(length),
            ("%", pairs) => missing += 2 * count(pairs),
            ("$" | "=", length) if !length.starts_with('-') => {
                let bytes = count(length) + 2;
                stream.take(bytes).read_to_end(&mut message)?;
            }
            _ => {}
        }
    }
    Ok(message)
}
