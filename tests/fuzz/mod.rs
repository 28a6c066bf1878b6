//! Foreign input, nearly right or quite wrong: nothing panics, memory is bounded, and errors are
//! the right ones.
//!
//! Each case is a valid seed with a few edits. Every input that has once caused a fault becomes a
//! seed.

mod replies;
mod settings;
mod tickets;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::Config;
use redis::Value;

/// A change of a text.
#[derive(Clone, Debug)]
enum Edit {
    Delete { from: Index, length: usize },
    Insert { at: Index, bytes: Vec<u8> },
    Repeat { from: Index, length: usize, times: usize },
    Replace { at: Index, byte: u8 },
}

impl Edit {
    fn apply(&self, text: &mut Vec<u8>) {
        let span = |from: &Index, length: usize| {
            let from = from.index(text.len() + 1);
            from..(from + length).min(text.len())
        };
        match self {
            Self::Delete { from, length } => drop(text.drain(span(from, *length))),
            Self::Insert { at, bytes } => {
                let at = at.index(text.len() + 1);
                text.splice(at..at, bytes.iter().copied());
            }
            Self::Repeat { from, length, times } => {
                let span = span(from, *length);
                let copies = text[span.clone()].repeat(*times);
                text.splice(span.end..span.end, copies);
            }
            Self::Replace { at, byte } if !text.is_empty() => {
                let at = at.index(text.len());
                text[at] = *byte;
            }
            Self::Replace { .. } => {}
        }
    }
}

/// Returns one of the seeds with a few edits, which insert typical pieces of such texts.
pub(crate) fn edited(
    seeds: &'static [&'static [u8]],
    pieces: &'static [&'static str],
) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        select(pieces).prop_map(|piece| piece.as_bytes().to_vec()),
        vec(any::<u8>(), 1..4),
    ];
    let index = any::<Index>;
    let edit = prop_oneof![
        2 => (index(), 1..8_usize).prop_map(|(from, length)| Edit::Delete { from, length }),
        4 => (index(), piece).prop_map(|(at, bytes)| Edit::Insert { at, bytes }),
        1 => (index(), 1..8_usize, 1..40_usize)
            .prop_map(|(from, length, times)| Edit::Repeat { from, length, times }),
        2 => (index(), any::<u8>()).prop_map(|(at, byte)| Edit::Replace { at, byte }),
    ];
    (select(seeds), vec(edit, 0..5)).prop_map(|(seed, edits)| {
        let mut text = seed.to_vec();
        for edit in edits {
            edit.apply(&mut text);
        }
        text
    })
}

/// Like `edited`, for text.
fn edited_text(
    seeds: &'static [&'static [u8]],
    pieces: &'static [&'static str],
) -> impl Strategy<Value = String> {
    edited(seeds, pieces).prop_map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// Returns any reply that the protocol can carry, with numbers and words from replies of scripts.
pub(crate) fn values() -> impl Strategy<Value = Value> {
    const WORDS: [&str; 8] = ["", "0", "1", "l", "p", "web:0a:1", "10.0.0.1", "7000"];
    const NUMBERS: [i64; 8] = [0, 1, 2, -1, -2, 16_383, i64::MAX, i64::MIN];
    let leaf = prop_oneof![
        Just(Value::Nil),
        Just(Value::Okay),
        select(&NUMBERS[..]).prop_map(Value::Int),
        any::<i64>().prop_map(Value::Int),
        select(&WORDS[..]).prop_map(|word| Value::BulkString(word.into())),
        vec(any::<u8>(), 0..6).prop_map(Value::BulkString),
        "[a-z]{0,4}".prop_map(Value::SimpleString),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| vec(inner, 0..5).prop_map(Value::Array))
}

/// Returns the number of cases; `LEASEHOLD_FUZZ_CASES` sets it for a long run.
pub(crate) fn cases(usual: u32) -> Config {
    let cases = std::env::var("LEASEHOLD_FUZZ_CASES").ok();
    let cases = cases.map_or(usual, |cases| cases.parse().expect("a number of cases"));
    Config { cases, failure_persistence: None, ..Config::default() }
}
