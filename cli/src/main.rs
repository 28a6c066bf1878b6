//! The program `leasehold`: runs a command while it holds a lock, holds locks for scripts that have
//! their tickets, shows holders, and ends holds.
//!
//! `docs/program.md` is its manual.

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

#[cfg(unix)]
use std::env;
use std::process::exit;
use std::time::Duration;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue};

use crate::args::{Args, Task};
use crate::output::{ExitError, USAGE, flush_err, print, say, say_plainly};
use crate::secrets::hide_words;

/// How long the program waits at its end for its last messages to be written.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

fn main() {
    let error = match run_program() {
        Ok(code) => ExitError::new(code, ""),
        Err(error) => error,
    };
    if !error.message.is_empty() {
        say(&error.message);
    }
    flush_err(LAST_OUTPUT);
    #[cfg(unix)]
    if let Some(signal) = error.signal {
        child::end_by(signal);
    }
    // An exit status of Windows has 32 bits, more than an `ExitCode` takes.
    exit(error.code);
}

fn run_program() -> Result<i32, ExitError> {
    #[cfg(unix)]
    child::become_asked(env::args_os().skip(1))?;
    let words = manual::command().try_get_matches();
    match words.and_then(|words| Args::from_arg_matches(&words)) {
        Ok(args) => perform(args),
        Err(error) => answer(error),
    }
}

/// Reports a usage error, or prints help.
fn answer(mut error: clap::Error) -> Result<i32, ExitError> {
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

fn perform(args: Args) -> Result<i32, ExitError> {
    let Args { server, json, task } = args;
    #[cfg(unix)]
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
