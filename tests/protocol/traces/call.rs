//! One call of a script: a line of a trace, and those of what the script did.

/// A call, with the answer that the trace has.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Its number in the trace, from 1.
    pub(crate) line: usize,
    /// The server's clock in microseconds.
    pub(crate) time: u64,
    pub(crate) script: String,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
    /// Its numbers; `None` if it was not seen.
    pub(crate) answer: Option<Vec<i64>>,
    /// The commands that the script has executed.
    effects: Vec<Vec<String>>,
}

impl Call {
    /// Reads the calls of a trace.
    pub(crate) fn read(trace: &str) -> Result<Vec<Self>, String> {
        let mut calls: Vec<Self> = Vec::new();
        for (line, text) in (1..).zip(trace.lines()) {
            let wrong = || format!("line {line} makes no sense: {text}");
            let (head, rest) = text.split_once("] ").ok_or_else(wrong)?;
            if head.ends_with(" lua") {
                calls.last_mut().ok_or_else(wrong)?.effects.push(words(rest));
            } else {
                calls.push(Self::parse(line, head, rest).ok_or_else(wrong)?);
            }
        }
        Ok(calls)
    }

    fn parse(line: usize, head: &str, rest: &str) -> Option<Self> {
        let (seconds, micros) = head.split_once(' ')?.0.split_once('.')?;
        let time = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
        let (command, answer) = rest.split_once(" -> ")?;
        let mut words = words(command).into_iter();
        let (script, keys) = (words.next()?, words.next()?.parse().ok()?);
        let keys = words.by_ref().take(keys).collect();
        let numbers = answer.split(' ').filter_map(|word| word.parse().ok());
        let answer = (answer != "?").then(|| numbers.collect());
        let (args, effects) = (words.collect(), Vec::new());
        Some(Self { line, time, script, keys, args, answer, effects })
    }

    /// The argument with this number, from 1 as in Lua; `""` if there is none.
    pub(crate) fn arg(&self, number: usize) -> &str {
        self.args.get(number - 1).map_or("", String::as_str)
    }

    /// The argument with this number, in microseconds.
    pub(crate) fn micros(&self, number: usize) -> u64 {
        self.arg(number).parse::<u64>().map_or(0, |millis| millis * 1000)
    }

    /// The client to which the script has offered the lock.
    pub(crate) fn offered(&self) -> Option<&str> {
        let mut set = self.effects_of("hset").filter(|words| words[1] == self.keys[0]);
        set.find_map(|words| words[2].strip_suffix(":0"))
    }

    /// The clients, with their kinds, that the script has offered a place of what several can
    /// hold.
    pub(crate) fn offers(&self) -> Vec<&str> {
        let withdrawn = self.withdrawn();
        self.places("zadd").filter(|client| !withdrawn.contains(client)).collect()
    }

    /// Those to which an offer was made that has ended in the same call.
    pub(crate) fn withdrawn(&self) -> Vec<&str> {
        let made: Vec<_> = self.places("zadd").collect();
        self.places("zrem").filter(|client| made.contains(client)).collect()
    }

    fn places(&self, command: &str) -> impl Iterator<Item = &str> {
        let places = self.effects_of(command).filter(|words| words[1] == self.keys[0]);
        places.filter_map(|words| words.last()?.strip_suffix(":0"))
    }

    /// The clients that were told that the lock is free.
    pub(crate) fn told(&self) -> Vec<&str> {
        let told = self.effects_of("publish").filter(|words| words[2] == self.keys[0]);
        told.filter_map(|words| words[1].strip_prefix("leasehold:wake:")).collect()
    }

    /// The clients that were found without a listener and were put in front of the others.
    pub(crate) fn parked(&self) -> Vec<&str> {
        let moved = self.effects_of("zadd").filter(|words| words[2] == "xx");
        let moved = moved.filter(|words| words[1] != self.keys[0]);
        moved.filter_map(|words| words.last().map(String::as_str)).collect()
    }

    /// The clients that were removed from the queue.
    pub(crate) fn removed(&self) -> Vec<&str> {
        let removed = self.effects_of("zrem").filter(|words| words[1] != self.keys[0]);
        removed.filter_map(|words| words.last().map(String::as_str)).collect()
    }

    fn effects_of(&self, command: &str) -> impl Iterator<Item = &Vec<String>> {
        self.effects.iter().filter(move |words| words[0] == command)
    }
}

/// The words of a command, of which `''` stands for an empty one.
fn words(command: &str) -> Vec<String> {
    command.split(' ').map(|word| if word == "''" { "" } else { word }.into()).collect()
}
