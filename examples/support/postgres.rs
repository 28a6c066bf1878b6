//! A private PostgreSQL server, queried with `psql`.

use std::error::Error;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, process};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The shell that owns the server. When its input ends, because this process has ended, it ends the
/// server and removes the directory. The server listens on a socket in that directory, on no port.
const KEEPER: &str = r#"
dir=$1
initdb --pgdata "$dir/data" --username postgres --auth trust --no-sync >"$dir/log" 2>&1
postgres -D "$dir/data" -k "$dir" -c listen_addresses= -c fsync=off </dev/null >>"$dir/log" 2>&1 &
until psql -qXh "$dir" -U postgres -c 'SELECT 1' >/dev/null 2>&1; do
    kill -0 $! 2>/dev/null || break
    sleep 0.1
done
echo started
read -r end
kill -s QUIT $!; wait $!
rm -rf "$dir"
"#;

/// A running server. It ends, and its directory is removed, when this is dropped.
pub(crate) struct Postgres {
    keeper: Child,
    dir: PathBuf,
}

impl Postgres {
    /// Starts a server, from PATH or from where Debian puts it.
    pub(crate) fn start() -> Result<Self> {
        let path =
            path_to_binaries().ok_or("there is no PostgreSQL here: ./tests/run installs it")?;
        let dir = env::temp_dir().join(format!("leasehold-postgres-{}", process::id()));
        DirBuilder::new().mode(0o700).create(&dir)?;
        let mut shell = Command::new("sh");
        shell.args(["-c", KEEPER, "keeper"]).arg(&dir).env("PATH", path);
        // In its own process group, the server does not get the Ctrl-C for this process.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        if number_of("id -u")? == 0 {
            // PostgreSQL refuses to run as root.
            let (user, group) = (number_of("id -u nobody")?, number_of("id -g nobody")?);
            chown(&dir, Some(user), Some(group))?;
            shell.uid(user).gid(group).current_dir(&dir);
        }
        let mut keeper = shell.spawn()?;
        let stdout = keeper.stdout.take().ok_or("stdout is piped")?;
        BufReader::new(stdout).read_line(&mut String::new())?;
        let postgres = Self { keeper, dir };
        let answer = query(&postgres.dir, "SELECT 1");
        let log = fs::read_to_string(postgres.dir.join("log")).unwrap_or_default();
        answer.map_err(|error| format!("PostgreSQL did not start: {error}\n{log}"))?;
        Ok(postgres)
    }

    /// Returns the directory of the server's socket, for [`query`].
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Its input ends with the handle. An error cannot be handled in a drop.
        drop(self.keeper.stdin.take());
        self.keeper.wait().ok();
    }
}

/// Runs a statement, and returns its rows and its effect, such as `UPDATE 1`.
pub(crate) fn query(dir: &Path, statement: &str) -> Result<String> {
    let mut psql = Command::new("psql");
    psql.args(["-X", "-A", "-t", "-U", "postgres", "-h"]).arg(dir).args(["-c", statement]);
    output(psql.env("PATH", path_to_binaries().unwrap_or_default()))
}

/// PATH, followed by the directories of Debian's versions.
fn path_to_binaries() -> Option<OsString> {
    let mut dirs: Vec<_> = env::split_paths(&env::var_os("PATH")?).collect();
    for version in fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        dirs.push(version.path().join("bin"));
    }
    let complete = ["initdb", "postgres", "psql"]
        .iter()
        .all(|name| dirs.iter().any(|dir| dir.join(name).is_file()));
    complete.then(|| env::join_paths(dirs).ok()).flatten()
}

fn number_of(command: &str) -> Result<u32> {
    let words: Vec<_> = command.split(' ').collect();
    Ok(output(Command::new(words[0]).args(&words[1..]))?.parse()?)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().into())
}
