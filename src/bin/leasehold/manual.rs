//! `completions` and `man`: what the definition of the command line tells shells and man(1).

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;
use crate::output::{ExitError, USAGE, print};

/// What completes names, for the shells that have a script here.
const BASH: &str = include_str!("completions/names.bash");
const FISH: &str = include_str!("completions/names.fish");
const ZSH: &str = include_str!("completions/names.zsh");

/// How the arguments begin that are names, in the script for zsh.
const NAMES: [&str; 3] = ["':name -- ", "'::name -- ", "'::start -- "];

/// Prints a script for a shell.
pub(crate) fn complete(shell: Shell) -> Result<u8, ExitError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "leasehold", &mut script);
    let script = String::from_utf8_lossy(&script);
    print(&match shell {
        Shell::Bash => format!("{script}{BASH}"),
        Shell::Fish => format!("{script}{FISH}"),
        // A file of completions has to begin with its own first line, and to end with its own last.
        Shell::Zsh => with_names_of_zsh(&script),
        _ => script.into_owned(),
    })
}

/// Has the arguments completed that are names.
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

/// Prints the manual page of the program, or of a task.
pub(crate) fn manual(task: Option<&str>) -> Result<u8, ExitError> {
    let mut command = Args::command();
    // Gives the tasks the options that are those of all.
    command.build();
    let command = match task {
        None => command,
        Some(task) => task_of(&command, task)?,
    };
    let mut page = Vec::new();
    let page_of = Man::new(command).source(concat!("leasehold ", env!("CARGO_PKG_VERSION")));
    let rendered = page_of.render(&mut page);
    rendered.map_err(|error| ExitError::system("write the page", &error))?;
    print(&String::from_utf8_lossy(&page))
}

fn task_of(command: &Command, task: &str) -> Result<Command, ExitError> {
    let found = command.find_subcommand(task).cloned();
    found.ok_or_else(|| ExitError::new(USAGE, format!("man: there is no task {task:?}")))
}
