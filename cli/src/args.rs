//! The command line, and the client that it configures.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use clap::builder::NonEmptyStringValueParser;
use clap::{Parser, Subcommand, value_parser};
use clap_complete::Shell;
use leasehold::{Builder, Client, Credentials, parse_duration};

use crate::child::{self, parse_signal};
use crate::output::{ExitError, NOT_ACQUIRED, USAGE, is_out_of_files};

/// Runs a command while it holds a lock on Redis, shows locks, and ends them.
#[derive(Debug, Parser)]
#[command(name = "leasehold", bin_name = "leasehold", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print JSON: `lock`, `ls`, `ping`, `show` and `unlock`.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) task: Task,
}

/// Where the locks are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// The servers: `redis://`, `rediss://`, `unix://`, or several with `redis+sentinel://`,
    /// `redis+cluster://` or `redis+redlock://`. Defaults to `REDIS_URL` in the environment, where
    /// other users cannot see the password. `LEASEHOLD_CA`, `LEASEHOLD_CERT` and `LEASEHOLD_KEY`
    /// may set `ca`, `cert` and `key` of the URL.
    #[arg(long, global = true)]
    url: Option<String>,
    /// A file with the password, in place of the URL's. It is read whenever a connection is made.
    /// Defaults to `LEASEHOLD_PASSWORD_FILE` in the environment. The user is that of the URL.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "password_command")]
    password_file: Option<PathBuf>,
    /// A command for sh(1), or on Windows for cmd, that prints the password, in place of the URL's.
    /// It is run whenever a connection is made.
    #[arg(long, global = true, value_name = "CMD")]
    password_command: Option<String>,
    /// The beginning of the keys of locks, before the name. Defaults to that of the URL, or
    /// `lock:`.
    #[arg(long, global = true)]
    prefix: Option<String>,
    /// What `show` calls this client. Defaults to that of the URL, or the host name and the process
    /// id. After `unlock` it selects whose holds to end.
    #[arg(long)]
    label: Option<String>,
}

impl ServerArgs {
    /// Returns the client's settings. Options replace those of the URL.
    pub(crate) fn builder(&self) -> Result<Builder, ExitError> {
        let Some(url) = self.url() else {
            return Err(ExitError::new(USAGE, "no server: set REDIS_URL or give --url"));
        };
        let builder = Builder::from_url_and_env(&url)?;
        let builder = with(builder, self.label.as_deref(), Builder::label);
        let builder = with(builder, self.password_source(), |builder, source| {
            let user = user_of(&url);
            builder.credentials(move || Ok(Credentials::new(&*user, source.password()?)))
        });
        Ok(with(builder, self.prefix.as_deref(), Builder::prefix))
    }

    pub(crate) fn open(&self) -> Result<Client, ExitError> {
        Ok(self.builder()?.build()?)
    }

    /// Returns the prefix of the command line, and these arguments without it.
    pub(crate) fn without_prefix(&self) -> Option<(String, Self)> {
        Some((self.prefix.clone()?, Self { prefix: None, ..self.clone() }))
    }

    fn password_source(&self) -> Option<PasswordSource> {
        if let Some(command) = &self.password_command {
            return Some(PasswordSource::Command(command.clone()));
        }
        if let Some(file) = &self.password_file {
            return Some(PasswordSource::File(file.clone()));
        }
        let file = env::var_os("LEASEHOLD_PASSWORD_FILE").filter(|file| !file.is_empty())?;
        Some(PasswordSource::File(file.into()))
    }

    fn url(&self) -> Option<String> {
        let url = self.url.clone().or_else(|| env::var("REDIS_URL").ok());
        url.filter(|url| !url.is_empty())
    }

    /// Returns the age limit of holds, which only a URL can set.
    pub(crate) fn max_hold(&self) -> Option<Duration> {
        parse_duration(in_query(&self.url()?, "max_hold")?).ok()
    }

    /// Returns `true` if the URL is that of a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        let url = self.url().unwrap_or_default();
        url.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("+cluster"))
    }
}

pub(crate) fn with<T>(
    builder: Builder,
    value: Option<T>,
    set: impl FnOnce(Builder, T) -> Builder,
) -> Builder {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

/// The source of the password for the next connect.
#[derive(Debug)]
enum PasswordSource {
    Command(String),
    File(PathBuf),
}

impl PasswordSource {
    /// # Errors
    ///
    /// No error repeats the password.
    fn password(&self) -> io::Result<String> {
        let text = match self {
            Self::Command(command) => output_of(command)?,
            Self::File(path) => fs::read(path).map_err(|error| {
                // A relative path may be a password that was put in its place.
                let place = if path.is_absolute() {
                    path.display().to_string()
                } else {
                    format!("in {}", env::current_dir().unwrap_or_default().display())
                };
                explained(error, &format!("cannot read the password file {place}"))
            })?,
        };
        let text =
            String::from_utf8(text).map_err(|_| io::Error::other("the password is not UTF-8"))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
    }
}

/// Runs a password command, and returns its output.
fn output_of(command: &str) -> io::Result<Vec<u8>> {
    let attempt = child::output_of(command);
    let failed = "the password command failed";
    let output = attempt.map_err(|error| explained(error, failed))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(io::Error::other(format!("{failed}: {}", output.status)))
    }
}

/// Adds what has failed to an error, unless the error itself decides the exit status.
fn explained(error: io::Error, what: &str) -> io::Error {
    if is_out_of_files(&error) {
        return error;
    }
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Returns the user in a URL; empty for the default user.
fn user_of(url: &str) -> String {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let login = authority.rsplit_once('@').map(|(login, _)| login);
    let user = login.and_then(|login| login.split(':').next()).or_else(|| in_query(url, "user"));
    decoded(user.unwrap_or_default())
}

/// Returns the encoded text of a setting in the query of a URL.
fn in_query<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = url.split(['?', '&', '#']).skip(1);
    fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// Decodes the `%` codes of a URL.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.split_at_checked(2).map(|(code, rest)| (u8::from_str_radix(code, 16), rest)) {
            Some((Ok(byte), rest)) => {
                bytes.push(byte);
                bytes.extend_from_slice(rest.as_bytes());
            }
            // The URL itself is refused.
            _ => bytes.extend_from_slice(part.as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Print a script that completes words of the command line.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Succeed if the `leasehold run NAME` that has started this process still holds the lock.
    ///
    /// The exit status is 1 if there is none, or if it does not hold the lock any more.
    Held {
        /// The name of the lock.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Acquire a lock, print its ticket, and leave it held for the length of its lease.
    Lock {
        #[command(flatten)]
        how: HowToAcquire,
        /// The name of the lock.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// List the names that are held.
    Ls {
        /// Print only the names, one per line.
        #[arg(long)]
        names: bool,
        /// List only names that begin with this.
        #[arg(value_name = "PREFIX", default_value = "")]
        start: String,
    },
    /// Print the manual page of this program or of a subcommand, for man(1).
    Man {
        /// The subcommand, such as `run`.
        task: Option<String>,
    },
    /// Show the server's version, role, persistence and clock, and warn about dangers to locks.
    Ping,
    /// Release the lock of a ticket.
    Release {
        /// What `lock` has printed, or `-` to read it from stdin, where other users cannot see it.
        ticket: String,
    },
    /// Renew the lease of a ticket's lock.
    Renew {
        /// What `lock` has printed, or `-` to read it from stdin, where other users cannot see it.
        ticket: String,
    },
    /// Run a command while the lock is held.
    Run(Run),
    /// Show who holds a name and who waits for it.
    Show {
        /// The name of a lock, a read-write lock or a semaphore.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// End the current holds of a name, or those of a client that is gone.
    Unlock(Unlock),
}

/// Which holds to end.
#[derive(Debug, clap::Args)]
pub(crate) struct Unlock {
    /// End only the holds of the client with this id, as shown by `show`: those of all names, or of
    /// NAME.
    #[arg(long, value_name = "ID", group = "whose")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) client: Option<String>,
    /// End only the holds of the client with this label. If several clients have it, they are
    /// listed, and nothing is ended.
    #[arg(long, value_name = "TEXT", group = "whose")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) label: Option<String>,
    /// End the holds of all clients with that label.
    #[arg(long, requires = "label")]
    pub(crate) all: bool,
    /// End only the holds of names that begin with this.
    #[arg(long, value_name = "PREFIX", requires = "whose", conflicts_with = "name")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) starting: Option<String>,
    /// End only the hold with this fence, as shown by `show`, and none if that is over. Readers and
    /// permits have no fence of their own.
    #[arg(long, value_name = "N", requires = "name", conflicts_with = "whose")]
    pub(crate) fence: Option<u64>,
    /// List the holds that would be ended, and end none.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The name of a lock, a read-write lock or a semaphore.
    #[arg(value_name = "NAME", required_unless_present = "whose")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: Option<String>,
}

impl Unlock {
    /// Returns the name if all of its holds must be ended, whatever the client.
    pub(crate) fn whole_name(&self) -> Option<&str> {
        let Self { client, label, fence, dry_run, name, .. } = self;
        let is_whole = client.is_none() && label.is_none() && fence.is_none() && !dry_run;
        if is_whole { name.as_deref() } else { None }
    }
}

/// How to wait for a lock, and how long it lasts.
#[derive(Debug, clap::Args)]
pub(crate) struct HowToAcquire {
    /// Wait at most this long for the lock. Defaults to that of the URL, or no limit.
    #[arg(short, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: the same as `--wait 0`.
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// How long the lock lasts after its last renewal if this process dies. Defaults to that of the
    /// URL, or 30 s.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) lease: Option<Duration>,
    /// What `show` calls this client.
    #[arg(long, value_name = "LABEL")]
    pub(crate) label: Option<String>,
    /// Why the lock is held, such as a ticket or a URL: `show`, `ls` and waiting clients see it. At
    /// most 256 bytes.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// The exit status if the lock could not be acquired in time.
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = NOT_ACQUIRED)]
    #[arg(value_parser = value_parser!(i32).range(0..=255))]
    pub(crate) conflict_exit_code: i32,
    /// Do not say that the lock could not be acquired in time, and show no progress on a terminal.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Say on stderr what it waits for after a second, when it has acquired the lock, and when it
    /// has released it.
    #[arg(short, long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

/// What to hold, and the command to run meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) how: HowToAcquire,
    /// Keep the lock taken for at least this long, even if the command ends earlier. It should be
    /// longer than the difference between the clocks of the hosts plus the time for which they
    /// wait.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    #[arg(conflicts_with_all = ["shared", "exclusive", "permits"])]
    pub(crate) hold_at_least: Option<Duration>,
    /// Hold a read-write lock for reading.
    #[arg(short, long, group = "kind")]
    pub(crate) shared: bool,
    /// Hold a read-write lock for writing.
    #[arg(short = 'x', long, group = "kind")]
    pub(crate) exclusive: bool,
    /// Hold one of N permits of a semaphore.
    #[arg(long, value_name = "N", group = "kind", value_parser = value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Send the command this signal, such as SIGUSR1 (on Windows, only BREAK), when another client
    /// waits for the lock, but not in the command's first second.
    #[arg(long = "yield", value_name = "SIGNAL", value_parser = parse_signal)]
    #[arg(conflicts_with_all = ["shared", "exclusive", "permits"])]
    pub(crate) yield_signal: Option<i32>,
    /// The time between SIGTERM and SIGKILL, or on Windows between Ctrl-Break and its end, for a
    /// command whose lock is lost. Defaults to 5 s.
    #[arg(short, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) kill_after: Option<Duration>,
    /// The name of the lock. The command finds it in `LEASEHOLD_NAME`, the fencing token in
    /// `LEASEHOLD_FENCE`, and the id of the client that holds the lock in `LEASEHOLD_CLIENT`.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
    /// The command and its arguments. No shell is involved.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_user_is_that_of_the_url() {
        for (url, user) in [
            ("redis://h", ""),
            ("redis://:p@h/1", ""),
            ("redis://app@h", "app"),
            ("rediss://a%40b:p@h:1/0?x=1", "a@b"),
            ("redis+sentinel://app:p@a,b/m", "app"),
            ("unix:///tmp/x?db=1&user=app&pass=p", "app"),
        ] {
            assert_eq!(user_of(url), user, "{url}");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    /// Splits a shell command line into words, with as much syntax as the pages use.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quoted) = (vec![String::new()], None);
        for char in line.chars() {
            match quoted {
                None if char == ' ' => words.push(String::new()),
                None if char == '\'' || char == '"' => quoted = Some(char),
                Some(quote) if char == quote => quoted = None,
                _ => words.last_mut().expect("there is one").push(char),
            }
        }
        words.into_iter().filter(|word| !word.is_empty()).collect()
    }

    #[test]
    fn the_pages_show_command_lines_that_are_right() {
        let pages = [
            include_str!("../../docs/from-consul-lock.md"),
            include_str!("../../docs/from-flock.md"),
            include_str!("../../docs/program.md"),
        ];
        let mut count = 0;
        for page in pages {
            let code = page.split("```").skip(1).step_by(2).flat_map(str::lines);
            for line in code.map(|line| line.split(" # ").next().unwrap_or_default()) {
                let calls = line.split(['(', ';', '&', '|']).filter_map(|part| {
                    let (before, call) = part.split_once("leasehold ")?;
                    let is_other = |word| before.contains(word);
                    let is_call = !["install", "FROM", "COPY"].into_iter().any(is_other);
                    is_call.then(|| call.split(')').next().unwrap_or_default())
                });
                for call in calls {
                    let args = ["leasehold".to_owned()].into_iter().chain(words(call));
                    if let Err(error) = Args::try_parse_from(args) {
                        panic!("{call}: {error}");
                    }
                    count += 1;
                }
            }
        }
        assert!(count >= 10, "{count} calls");
    }

    #[test]
    fn the_pages_show_whole_objects_of_kubernetes() {
        let page = include_str!("../../docs/program.md");
        let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let objects: Vec<_> = blocks.filter(|block| block.contains("containers:")).collect();
        assert_eq!(objects.len(), 2);
        for object in objects {
            for start in ["apiVersion: ", "kind: ", "metadata:", "spec:"] {
                assert!(object.lines().any(|line| line.starts_with(start)), "{start} {object}");
            }
            let value = |name: &str| {
                let mut lines = object.lines().map(str::trim);
                lines.find_map(|line| line.strip_prefix(name)).map(str::trim)
            };
            assert_eq!(value("matchLabels:"), value("labels:"), "{object}");
            assert_eq!(value("labels:").is_some(), object.contains("kind: Deployment"));
        }
    }
}
