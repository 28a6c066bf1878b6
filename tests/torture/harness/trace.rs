//! The calls of the server's scripts and their answers, in the server's order: its MONITOR, with
//! the name instead of the hash of each script, and with the answer that the proxy has seen, and
//! its time. The effects of a script are included as far as they tell a client or change a lock,
//! its queue or its counter.
//!
//! ```text
//! 1763914000.123456 [0 127.0.0.1:41398] release 2 lock:torture:0 ... -> 1 @1763914000.123501
//! 1763914000.123460 [0 lua] publish leasehold:wake:... lock:torture:0
//! 1763914000.124011 [0 127.0.0.1:41412] acquire 3 lock:torture:0 ... -> 0 987 @1763914000.124062
//! ```
//!
//! For people to read.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::harness::Result;
use crate::harness::messages::{Stream, words};
use crate::harness::server::Server;

/// The effects of a script that the models know.
const EFFECTS: [&str; 5] = ["hset", "publish", "set", "zadd", "zrem"];

/// The last command of a trace.
const END: &str = "the trace ends";

/// The calls of scripts over all connections, by the address that the server knows each by. A
/// closed connection may leave its address to another one.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<HashMap<String, Vec<Arc<Calls>>>>);

/// The calls of scripts over one connection.
#[derive(Debug)]
pub(crate) struct Calls {
    /// When the connection was opened.
    opened: String,
    asked: Mutex<Asked>,
}

#[derive(Debug, Default)]
struct Asked {
    requests: Stream,
    replies: Stream,
    /// Whether each request without a reply calls a script.
    open: VecDeque<bool>,
    /// The answers to those that do.
    answers: VecDeque<String>,
}

impl Answers {
    /// Opens a connection to a server of this machine.
    pub(crate) fn open(&self, port: u16) -> io::Result<(TcpStream, Arc<Calls>)> {
        let calls = Arc::new(Calls { opened: now(), asked: Mutex::default() });
        let connection = TcpStream::connect(("127.0.0.1", port))?;
        let address = connection.local_addr()?.to_string();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(address).or_default().push(calls.clone());
        Ok((connection, calls))
    }

    /// Takes the next answer to the connection that had an address at that time; `?` if it was
    /// never seen.
    fn next(&self, address: &str, time: &str) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut calls = all.get(address).into_iter().flatten().rev();
        let calls = calls.find(|calls| calls.opened.as_str() <= time);
        let answer = calls.and_then(|calls| calls.lock().answers.pop_front());
        answer.unwrap_or_else(|| "?".into())
    }
}

impl Calls {
    pub(crate) fn ask(&self, sent: &[u8]) {
        let mut asked = self.lock();
        for request in asked.requests.add(sent) {
            let command = words(&request).into_iter().next();
            asked.open.push_back(command.is_some_and(|command| command.starts_with("EVAL")));
        }
    }

    pub(crate) fn answer(&self, received: &[u8]) {
        let mut asked = self.lock();
        for reply in asked.replies.add(received) {
            if asked.open.pop_front() == Some(true) {
                let answer = words(&reply).join(" ");
                asked.answers.push_back(format!("{answer} @{}", now()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens to the commands that a server executes.
pub(crate) struct Monitor(JoinHandle<io::Result<Vec<String>>>);

impl Monitor {
    pub(crate) fn start(server: &Server) -> io::Result<Self> {
        let mut connection = TcpStream::connect(("127.0.0.1", server.port()))?;
        connection.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(connection).lines();
        lines.next().transpose()?;
        Ok(Self(thread::spawn(move || {
            let mut heard = Vec::new();
            for line in lines {
                let line = line?;
                if line.contains(END) {
                    return Ok(heard);
                }
                let command = line.split(' ').nth(3).unwrap_or_default().to_lowercase();
                let command = command.trim_matches('"');
                let is_effect = line.contains(" lua] ") && EFFECTS.contains(&command);
                if is_effect || command.starts_with("eval") {
                    heard.push(line);
                }
            }
            Err(io::Error::other("the server has ended, or closed the connection"))
        })))
    }

    /// Writes the trace of all requests so far.
    pub(crate) fn write(self, server: &Server, answers: &Answers, path: &Path) -> Result<()> {
        server.command(&["ECHO", END]);
        let heard = self.0.join().expect("no panic")?;
        let (mut names, mut file) = (HashMap::new(), BufWriter::new(File::create_new(path)?));
        for line in heard {
            let [time, place, from, command] =
                line.trim_start_matches('+').splitn(4, ' ').collect::<Vec<_>>()[..]
            else {
                return Err(format!("no line of MONITOR: {line}").into());
            };
            if from == "lua]" {
                writeln!(file, "{time} {place} {from} {}", plain(command))?;
                continue;
            }
            let answer = answers.next(from.trim_end_matches(']'), time);
            // The text of the script, or its hash.
            let text = command.split("\" \"").nth(1).unwrap_or_default();
            let number = if command[1..5].eq_ignore_ascii_case("eval")
                && command.as_bytes()[5] == b'"'
            {
                let text = text.replace("\\n", "\n").replace("\\\"", "\"").replace("\\\\", "\\");
                let number: String = server.ask(&["SCRIPT", "LOAD", &text]);
                names.insert(number.clone(), name(&text)?);
                number
            } else {
                text.into()
            };
            // It was not executed either if that was the answer and was never seen.
            let is_unknown = answer == "?" && !names.contains_key(&number);
            if answer.starts_with("-NOSCRIPT") || is_unknown {
                continue;
            }
            let name = names.get(&number).ok_or("a script that was never sent")?;
            let arguments = command.splitn(3, "\" \"").nth(2).unwrap_or_default();
            writeln!(file, "{time} {place} {from} {name} {} -> {answer}", plain(arguments))?;
        }
        Ok(file.flush()?)
    }
}

/// Returns the time as MONITOR prints it.
fn now() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

/// Returns words without quotes, none of which contains a space. An empty one is `''`.
fn plain(words: &str) -> String {
    words.replace("\"\"", "''").replace('"', "")
}

/// Returns the name of a script: that of the file with which its text ends.
fn name(text: &str) -> Result<String> {
    let code = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
        lines.map(Into::into).collect()
    };
    let sent = code(text);
    for file in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/lua"))? {
        let file = file?.path();
        let code = code(&fs::read_to_string(&file)?);
        // Comments behind code are not sent.
        if sent.ends_with(&code[code.len().saturating_sub(4)..]) {
            return Ok(file.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    Err(format!("no script in src/store/lua ends as this one: {text}").into())
}
