//! Manual pages, the exit statuses that they list, and shell completions.

use std::fmt::Write as _;
use std::io;

use clap::builder::Resettable;
use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;
use crate::output::{ExitError, USAGE, print};

/// Scripts that complete names, for the shells that need one.
const BASH: &str = include_str!("completions/names.bash");
const FISH: &str = include_str!("completions/names.fish");
const ZSH: &str = include_str!("completions/names.zsh");

/// The start of each argument that is a name, in clap's script for zsh.
const NAMES: [&str; 3] = ["':name -- ", "'::name -- ", "'::start -- "];

/// The tasks that refuse `--json`.
const WITHOUT_JSON: [&str; 6] = ["completions", "held", "man", "release", "renew", "run"];

/// The tasks that send requests to servers.
const ASKING: &[&str] =
    &["held", "lock", "ls", "ping", "release", "renew", "run", "show", "unlock"];

/// The exit statuses except 0, their meanings, and the tasks that have them; none means every task.
const STATUSES: [(&str, &str, &[&str]); 13] = [
    ("the command's", "it ended by itself", &["run"]),
    ("1", "no `run` that has started this process holds the lock", &["held"]),
    ("128 + n", "signal n ended the command, and was not received", &["run"]),
    (
        "by signal n",
        "it was received, and ended the command, the wait or the release",
        &["lock", "run"],
    ),
    ("64", "wrong usage", &[]),
    ("65", "the key holds something else", &["held", "lock", "run", "show", "unlock"]),
    ("69", "the server was not reached, or cannot serve", ASKING),
    ("70", "the lock was lost", &["release", "renew", "run"]),
    ("71", "the system could not do something", &[]),
    ("75", "the lock could not be acquired in time", &["lock", "run"]),
    ("77", "the server refused the login or the right", ASKING),
    ("126", "the command could not be run", &["run"]),
    ("127", "the command was not found", &["run"]),
];

const DURATIONS: &str = "Durations are `500ms`, `2s`, `5m`, `1h`, or plain seconds.";

/// Returns the command line, which offers `--json` only where it is accepted.
pub(crate) fn command() -> Command {
    // Stands in for the global option.
    let hidden = Arg::new("json").long("json").action(ArgAction::SetTrue).hide(true);
    let command = WITHOUT_JSON.into_iter().fold(Args::command(), |command, task| {
        command.mut_subcommand(task, |task| task.arg(hidden.clone()))
    });
    command.after_help(format!("Exit status:\n{}\n{DURATIONS}", statuses_for_help()))
}

fn statuses_for_help() -> String {
    let lines = STATUSES.iter().map(|(status, meaning, _)| format!("  {status:13}  {meaning}\n"));
    lines.collect()
}

pub(crate) fn manual(task: Option<&str>) -> Result<i32, ExitError> {
    let mut command = command();
    // Adds the global options to the tasks.
    command.build();
    let command = match task {
        None => command,
        Some(task) => command
            .find_subcommand(task)
            .cloned()
            .ok_or_else(|| ExitError::new(USAGE, "man: there is no such subcommand"))?,
    };
    let page = page(command, task).map_err(ExitError::system("write the page"))?;
    print(&page)
}

/// Returns the page of a task, or of the program.
fn page(mut command: Command, task: Option<&str>) -> io::Result<String> {
    // Unlike the generated synopsis, the usage has the `--` before a command.
    let usage = command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    let has_durations = task.is_none() || command.get_arguments().any(takes_duration);
    // Its content has sections of its own.
    let command = command.override_usage(usage).after_help(Resettable::Reset);
    let mut page = Vec::new();
    Man::new(command).source(concat!("leasehold ", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    page.push_str(&status_section(task));
    if has_durations {
        page.push_str(".SH DURATIONS\n");
        page.push_str(DURATIONS);
        page.push('\n');
    }
    Ok(without_backticks(&page))
}

/// Returns the exit statuses of a task, or all of them, each in a paragraph of its own.
fn status_section(task: Option<&str>) -> String {
    let mut section = ".SH \"EXIT STATUS\"\n".to_owned();
    let mut entries = Vec::new();
    if task != Some("run") {
        entries.push(("0", "success"));
    }
    for (status, meaning, tasks) in STATUSES {
        if task.is_none_or(|task| tasks.is_empty() || tasks.contains(&task)) {
            entries.push((status, meaning));
        }
    }
    for (status, meaning) in entries {
        write!(section, ".TP\n\\fB{status}\\fR\n{meaning}\n").expect("a string takes everything");
    }
    section
}

fn takes_duration(arg: &Arg) -> bool {
    arg.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "DURATION"))
}

/// Sets text between backticks in bold type.
fn without_backticks(page: &str) -> String {
    let mut parts = page.split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (index, part) in parts.enumerate() {
        text.push_str(if index % 2 == 0 { "\\fB" } else { "\\fR" });
        text.push_str(part);
    }
    text
}

pub(crate) fn complete(shell: Shell) -> Result<i32, ExitError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "leasehold", &mut script);
    let script = String::from_utf8_lossy(&script);
    print(&match shell {
        Shell::Bash => format!("{script}{BASH}"),
        Shell::Fish => format!("{script}{FISH}"),
        // A completion file must keep its own first and last line.
        Shell::Zsh => with_names_of_zsh(&script),
        _ => script.into_owned(),
    })
}

/// Adds the completion of names to clap's script.
fn with_names_of_zsh(script: &str) -> String {
    let (first, rest) = script.split_once('\n').unwrap_or((script, ""));
    let lines = rest.lines().map(|line| match line.strip_suffix(":_default' \\") {
        Some(start) if NAMES.iter().any(|argument| start.starts_with(argument)) => {
            format!("{start}:_leasehold_names' \\\n")
        }
        _ => format!("{line}\n"),
    });
    format!("{first}\n{ZSH}{}", lines.collect::<String>())
}
