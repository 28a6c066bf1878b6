//! A call of a script: a line of a trace. Those about what the script did are left out.

use crate::hold::Block;

/// The time of an event by the server's clock: from the first of these microseconds to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// How much earlier than MONITOR says a script may have read the clock, in microseconds.
const EARLY: u64 = 20_000;
/// The imprecision where the server counts milliseconds.
const ROUNDED: u64 = 2_000;

/// Later than any time of a trace.
const NEVER: u64 = u64::MAX / 2;

/// A call, with its answer in the trace.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The time of its execution: before its answer was seen, and before the next one.
    pub(crate) time: Time,
    pub(crate) script: String,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
    /// The numbers of the answer; `None` if it was not seen.
    pub(crate) answer: Option<Vec<i64>>,
}

impl Call {
    /// Parses the calls of a trace.
    pub(crate) fn read(trace: &str) -> Result<Vec<Self>, String> {
        let mut calls: Vec<Self> = Vec::new();
        for (line, text) in (1..).zip(trace.lines()) {
            let wrong = || format!("line {line} makes no sense: {text}");
            let (head, rest) = text.split_once("] ").ok_or_else(wrong)?;
            if !head.ends_with(" lua") {
                let call = Self::parse(head, rest).ok_or_else(wrong)?;
                if let Some(before) = calls.last_mut() {
                    before.time.last = before.time.last.min(call.time.first + EARLY + ROUNDED);
                }
                calls.push(call);
            }
        }
        Ok(calls)
    }

    fn parse(head: &str, rest: &str) -> Option<Self> {
        let (command, answer) = rest.split_once(" -> ")?;
        let (answer, seen) = answer.split_once(" @").unwrap_or((answer, ""));
        let last = micros(seen).map_or(NEVER, |seen| seen + ROUNDED);
        let time = Time { first: micros(head.split(' ').next()?)?.saturating_sub(EARLY), last };
        let mut words = words(command).into_iter();
        let (script, keys) = (words.next()?, words.next()?.parse().ok()?);
        let keys = words.by_ref().take(keys).collect();
        let numbers = answer.split(' ').filter_map(|word| word.parse().ok());
        let answer = (answer != "?").then(|| numbers.collect());
        let args = words.collect();
        Some(Self { time, script, keys, args, answer })
    }

    /// Returns the argument with this number, from 1 as in Lua; `""` if there is none.
    pub(crate) fn arg(&self, number: usize) -> &str {
        self.args.get(number - 1).map_or("", String::as_str)
    }

    /// Returns the argument with this number, in microseconds.
    pub(crate) fn micros(&self, number: usize) -> u64 {
        self.arg(number).parse::<u64>().map_or(0, |millis| millis * 1000)
    }

    /// Returns the tokens that it got for a lock.
    pub(crate) fn tokens(&self) -> Option<Block> {
        let (first, rest) = self.answer.as_deref()?.split_first()?;
        let first = u64::try_from(*first).ok().filter(|first| *first > 0)?;
        let last = rest.first().map_or(Some(first), |last| u64::try_from(*last).ok())?;
        Some(Block { first, last })
    }
}

/// Parses a time of the trace.
fn micros(time: &str) -> Option<u64> {
    let (seconds, micros) = time.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?)
}

/// Splits a command into words; `''` stands for an empty one.
fn words(command: &str) -> Vec<String> {
    command.split(' ').map(|word| if word == "''" { "" } else { word }.into()).collect()
}
