//! A call of a script: a line of a trace, and the lines about what the script did.

use crate::hold::Block;

/// The time of an event by the server's clock: from the first of these microseconds to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Time {
    pub(crate) fn after(self, micros: u64) -> Self {
        Self { first: self.first + micros, last: self.last + micros }
    }

    /// Returns `true` if this time is not earlier than that, or may be the same.
    pub(crate) fn may_follow(self, other: Self) -> bool {
        self.last >= other.first
    }

    /// Returns the later time.
    pub(crate) fn or_later(self, other: Self) -> Self {
        Self { first: self.first.max(other.first), last: self.last.max(other.last) }
    }

    pub(crate) fn may_be(self, other: Self) -> bool {
        self.may_follow(other) && other.may_follow(self)
    }

    /// Returns `true` if the server's clock may have shown this then.
    pub(crate) fn may_show(self, micros: u64) -> bool {
        self.first <= micros
    }
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
    /// Its number in the trace, from 1.
    pub(crate) line: usize,
    /// The time of its execution: before its answer was seen, and before the next one.
    pub(crate) time: Time,
    pub(crate) script: String,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
    /// The numbers of the answer; `None` if it was not seen.
    pub(crate) answer: Option<Vec<i64>>,
    /// The commands that the script executed.
    effects: Vec<Vec<String>>,
}

impl Call {
    /// Parses the calls of a trace.
    pub(crate) fn read(trace: &str) -> Result<Vec<Self>, String> {
        let mut calls: Vec<Self> = Vec::new();
        for (line, text) in (1..).zip(trace.lines()) {
            let wrong = || format!("line {line} makes no sense: {text}");
            let (head, rest) = text.split_once("] ").ok_or_else(wrong)?;
            if head.ends_with(" lua") {
                calls.last_mut().ok_or_else(wrong)?.effects.push(words(rest));
            } else {
                let call = Self::parse(line, head, rest).ok_or_else(wrong)?;
                if let Some(before) = calls.last_mut() {
                    before.time.last = before.time.last.min(call.time.first + EARLY + ROUNDED);
                }
                calls.push(call);
            }
        }
        Ok(calls)
    }

    fn parse(line: usize, head: &str, rest: &str) -> Option<Self> {
        let (command, answer) = rest.split_once(" -> ")?;
        let (answer, seen) = answer.split_once(" @").unwrap_or((answer, ""));
        let last = micros(seen).map_or(NEVER, |seen| seen + ROUNDED);
        let time = Time { first: micros(head.split(' ').next()?)?.saturating_sub(EARLY), last };
        let mut words = words(command).into_iter();
        let (script, keys) = (words.next()?, words.next()?.parse().ok()?);
        let keys = words.by_ref().take(keys).collect();
        let numbers = answer.split(' ').filter_map(|word| word.parse().ok());
        let answer = (answer != "?").then(|| numbers.collect());
        let (args, effects) = (words.collect(), Vec::new());
        Some(Self { line, time, script, keys, args, answer, effects })
    }

    /// Returns the argument with this number, from 1 as in Lua; `""` if there is none.
    pub(crate) fn arg(&self, number: usize) -> &str {
        self.args.get(number - 1).map_or("", String::as_str)
    }

    /// Returns the client that asks, which is an argument itself or the owner without its number.
    pub(crate) fn client(&self) -> &str {
        let first = self.arg(1);
        let of_owner = first.rsplit_once(':').map_or(first, |(client, _)| client);
        if self.script == "unregister" { first } else { of_owner }
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

    /// Returns the token to which the script has set the counter.
    pub(crate) fn counted(&self) -> Option<u64> {
        self.effects_of("set").last()?.get(2)?.parse().ok()
    }

    /// Returns the client to which the script has offered the lock.
    pub(crate) fn offered(&self) -> Option<&str> {
        let mut set = self.effects_of("hset").filter(|words| words[1] == self.keys[0]);
        set.find_map(|words| words[2].strip_suffix(":0"))
    }

    /// Returns the locks on which the script has begun holds, with their owners.
    pub(crate) fn begun(&self) -> Vec<[&String; 2]> {
        self.effects_of("hset").map(|words| [&words[1], &words[2]]).collect()
    }

    /// Returns the clients that were told that the lock is free.
    pub(crate) fn told(&self) -> Vec<&str> {
        let told = self.effects_of("publish").filter(|words| words[2] == self.keys[0]);
        told.filter_map(|words| words[1].strip_prefix("leasehold:wake:")).collect()
    }

    /// Returns the owner whose client was told that another one asks for the lock, and whether that
    /// one waits.
    pub(crate) fn recalled(&self) -> Option<(String, bool)> {
        let mut messages = self.effects_of("publish").map(|words| (&words[1], &words[2]));
        messages.find_map(|(channel, message)| {
            let client = channel.strip_prefix("leasehold:wake:")?;
            let [_, word, number, key] = message.splitn(4, ':').collect::<Vec<_>>()[..] else {
                return None;
            };
            let waits = [("want", true), ("try", false)].into_iter().find(|it| it.0 == word)?.1;
            (key == self.keys[0]).then(|| (format!("{client}:{number}"), waits))
        })
    }

    /// Returns the clients that were put in front of the others: those that were found without a
    /// listener, and the one that asks, if it was found before.
    pub(crate) fn parked(&self) -> Vec<&str> {
        let moved = self.effects_of("zadd").filter(|words| words[2] == "xx");
        let moved = moved.filter(|words| words[1] != self.keys[0]);
        moved.filter_map(|words| words.last().map(String::as_str)).collect()
    }

    /// Returns the clients that were removed from the queue.
    pub(crate) fn removed(&self) -> Vec<&str> {
        let removed = self.effects_of("zrem").filter(|words| words[1] != self.keys[0]);
        removed.filter_map(|words| words.last().map(String::as_str)).collect()
    }

    fn effects_of(&self, command: &str) -> impl Iterator<Item = &Vec<String>> {
        self.effects.iter().filter(move |words| words[0] == command)
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
