//! The program `leasehold`: runs a command while it holds a lock, holds locks for scripts that have
//! their tickets, shows holders, and ends holds.
//!
//! `docs/program.md` is its manual.

#[cfg(not(unix))]
compile_error!("the program `leasehold` is for Unix systems; the library has Windows, too");

mod args;
mod child;
mod held;
mod lock;
mod manual;
mod output;
mod ping;
mod progress;
mod run;
mod secrets;
mod show;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue};

use crate::args::{Args, Task};
use crate::output::{ExitError, USAGE, flush_err, print, say, say_plainly};
use crate::secrets::hide_words;

/// How long the program waits at its end for its last messages to be written.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    let outcome = match words.next() {
        Some(word) if word == child::AS_COMMAND => Err(child::become_command(words)),
        Some(word) if word == child::AS_OTHER => Err(child::become_other(words)),
        _ => {
            let words = manual::command().try_get_matches();
            match words.and_then(|words| Args::from_arg_matches(&words)) {
                Ok(args) => perform(args),
                Err(error) => answer(error),
            }
        }
    };
    let error = match outcome {
        Ok(code) => ExitError::new(code, ""),
        Err(error) => error,
    };
    if !error.message.is_empty() {
        say(&error.message);
    }
    flush_err(LAST_OUTPUT);
    if let Some(signal) = error.signal {
        child::end_by(signal);
    }
    ExitCode::from(error.code)
}

/// Reports a usage error, or prints help.
fn answer(mut error: clap::Error) -> Result<u8, ExitError> {
    if !error.use_stderr() {
        return print(&error.to_string());
    }
    hide_words(&mut error);
    let text = error.to_string();
    say_plainly(&text);
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && text.contains("leasehold run")
        && !word.starts_with('-')
    {
        say(&format!("the command comes after `--`, as in `leasehold run NAME -- {word}`"));
    }
    Ok(USAGE)
}

fn perform(args: Args) -> Result<u8, ExitError> {
    let Args { server, json, task } = args;
    child::expect_children().map_err(ExitError::system("receive SIGCHLD"))?;
    match task {
        Task::Completions { .. }
        | Task::Held { .. }
        | Task::Man { .. }
        | Task::Release { .. }
        | Task::Renew { .. }
        | Task::Run(_)
            if json =>
        {
            let why = "--json: only `lock`, `ls`, `ping`, `show` and `unlock` print it";
            Err(ExitError::new(USAGE, why))
        }
        Task::Completions { shell } => manual::complete(shell),
        Task::Held { name } => held::held(&server, &name),
        Task::Lock { how, name } => lock::lock(&server, &how, &name, json),
        Task::Ls { names, start } => {
            // Also lists what a single node of a cluster has.
            let client = server.builder()?.lazy(true).build()?;
            show::list(&client, &server, &start, names, json)
        }
        Task::Man { task } => manual::manual(task.as_deref()),
        Task::Ping => {
            // `ping` reports servers that do not answer, so opening must not fail because of them.
            let client = server.builder()?.lazy(true).build()?;
            ping::ping(&client, &server, json)
        }
        Task::Release { ticket } => lock::release(&server, &ticket),
        Task::Renew { ticket } => lock::renew(&server, &ticket),
        Task::Run(run) => run::run(&server, &run),
        Task::Show { name } => show::show(&server.open()?, &name, json),
        Task::Unlock(which) => show::unlock(&server.open()?, &which, json),
    }
}
