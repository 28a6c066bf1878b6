//! The process that owns a server: as its parent it signals the right process or none.
//!
//! It is a shell that reads orders. When the process that started it ends, in whatever way, the
//! shell reads the end of its input, kills the server and removes its directory. From Windows it is
//! started by `tests/windows/servers`, and the orders go over a connection to that.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
#[cfg(windows)]
use std::net::{Shutdown, TcpStream};
use std::path::Path;
#[cfg(unix)]
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The environment variable with the address of the process that starts servers, and its password.
pub(super) const SERVERS: &str = "LEASEHOLD_TEST_SERVERS";

#[cfg(unix)]
const SCRIPT: &str = include_str!("keeper.sh");

#[derive(Debug)]
pub(super) struct Keeper {
    #[cfg(unix)]
    shell: Child,
    /// `None` once dropped: the end of its input ends the shell.
    #[cfg(unix)]
    orders: Option<ChildStdin>,
    #[cfg(unix)]
    answers: BufReader<ChildStdout>,
    #[cfg(windows)]
    orders: Option<TcpStream>,
    #[cfg(windows)]
    answers: BufReader<TcpStream>,
    pub(super) server: u32,
}

impl Keeper {
    #[cfg(unix)]
    pub(super) fn start(dir: &Path, binary: &Path, args: &[OsString]) -> Self {
        use std::os::unix::process::CommandExt;

        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "keeper"]).arg(dir).arg(binary).args(args);
        // In its own process group, the server does not get the Ctrl-C for this process.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.stderr(Stdio::null()).spawn().expect("sh starts");
        let answers = BufReader::new(shell.stdout.take().expect("stdout is piped"));
        Self { orders: shell.stdin.take(), answers, shell, server: 0 }
    }

    #[cfg(windows)]
    pub(super) fn start(dir: &Path, binary: &Path, args: &[OsString]) -> Self {
        let servers = std::env::var(SERVERS).expect("`.ci/run windows` says who starts servers");
        let count = args.len() + 3;
        let (address, word) = servers.split_once('/').expect("an address and a word");
        let orders = TcpStream::connect(address).expect("the process listens");
        let mut text = format!("{count}\n{word}\n");
        let args = args.iter().map(OsString::as_os_str);
        for arg in [dir.as_os_str(), binary.as_os_str()].into_iter().chain(args) {
            text += &path_there(arg.to_str().expect("UTF-8"));
            text.push('\n');
        }
        (&orders).write_all(text.as_bytes()).expect("it reads");
        let answers = BufReader::new(orders.try_clone().expect("a handle"));
        Self { orders: Some(orders), answers, server: 0 }
    }

    pub(super) fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("the keeper is alive");
        writeln!(orders, "{order}").expect("the keeper takes orders");
        let mut server = String::new();
        let read = self.answers.read_line(&mut server);
        read.expect("the keeper answers");
        self.server = server.trim().parse().expect("the keeper names its server");
    }
}

impl Drop for Keeper {
    #[cfg(unix)]
    fn drop(&mut self) {
        self.orders = None;
        // An error here cannot be handled, and a drop must not panic.
        self.shell.wait().ok();
    }

    #[cfg(windows)]
    fn drop(&mut self) {
        if let Some(orders) = self.orders.take() {
            orders.shutdown(Shutdown::Write).ok();
        }
        // The end comes once the server has ended.
        io::copy(&mut self.answers, &mut io::sink()).ok();
    }
}

/// Returns a path as the server's system names it: outside wine, `Z:` is the root. In the Windows
/// Subsystem for Linux, other drives are below `/mnt`. Any other text stays as it is.
pub(super) fn path_there(text: &str) -> String {
    if cfg!(unix) {
        return text.into();
    }
    let path = text.replace('\\', "/");
    match text.split_once(":\\") {
        Some(("Z", _)) => path[2..].into(),
        Some(("C", _)) => format!("/mnt/c{}", &path[2..]),
        Some(("D", _)) => format!("/mnt/d{}", &path[2..]),
        // A directory of the machine that has built the tests, and a file in it.
        _ if text.starts_with('/') => path,
        _ => text.into(),
    }
}

/// Creates a directory that other users of the machine cannot read.
pub(super) fn create_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(false).create(dir)
}

/// Extracts the 7 from `Redis server v=7.0.15 sha=…`.
#[cfg(unix)]
pub(super) fn major_version(binary: &Path) -> u32 {
    let output = Command::new(binary).arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {}: {error}", binary.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, version) = text.split_once("v=").unwrap_or_default();
    let major = version.split('.').next().unwrap_or_default();
    major.parse().unwrap_or(0)
}

/// Returns the version that `.ci/run windows` needs.
#[cfg(windows)]
pub(super) fn major_version(_: &Path) -> u32 {
    7
}
