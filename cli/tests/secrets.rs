//! Sources of passwords, none of which is ever shown.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::{Running, Server, finish, leasehold, output, without_server};

/// Gives the user `app` another password, and closes its connections.
pub(crate) fn set_password(server: &Server, password: &str) {
    let password = format!(">{password}");
    let rights = ["ACL", "SETUSER", "app", "on", "resetpass", &password, "~*", "&*", "+@all"];
    server.command(&rights);
    server.command(&["CLIENT", "KILL", "USER", "app"]);
}

/// Returns the URL of the user `app`, without a password.
pub(crate) fn url(server: &Server) -> String {
    server.url().replace("//", "//app@")
}

/// A file that is removed on drop.
struct PasswordFile(PathBuf);

impl PasswordFile {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("leasehold-{name}-{}", process::id())))
    }

    fn write(&self, password: &str) {
        // Tools replace a file like this if it may be read at any moment.
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{password}\n")).unwrap();
        fs::rename(new, &self.0).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for PasswordFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

#[test]
fn a_long_run_survives_new_passwords() {
    let server = Server::redis();
    let file = PasswordFile::new("rotated");
    let command = format!("cat {}", file.path());
    let sources = [
        (&["--password-file", file.path()][..], None),
        (&["--password-command", &command], None),
        (&[], Some(("LEASEHOLD_PASSWORD_FILE", file.path()))),
    ];
    for (options, variable) in sources {
        file.write("first");
        set_password(&server, "first");
        let args = [options, &["run", "--lease", "3s", "a", "--", "sh", "-c"]].concat();
        let mut program = leasehold(&server, &args);
        program.arg("echo ready; read line; exit 5").env("REDIS_URL", url(&server));
        let mut running = Running::start(program.envs(variable).stdin(Stdio::piped()));
        assert_eq!(running.next(), "ready", "{options:?}");
        file.write("second");
        set_password(&server, "second");
        // This is longer than the lease, so renewals need new connections.
        thread::sleep(Duration::from_secs(4));
        running.close_input();
        assert_eq!(running.code(), 5, "{options:?}: {}", running.errors());
    }
}

#[test]
fn a_password_that_cannot_be_had_is_an_error_that_says_why() {
    let server = Server::redis();
    set_password(&server, "sesame");
    for (option, value, why) in [
        ("--password-file", "/no/such/file", "cannot read the password file /no/such/file: "),
        ("--password-file", "sesame", "cannot read the password file in /"),
        ("--password-command", "echo sesame; exit 3", "exit status: 3"),
    ] {
        let args = [option, value, "run", "-n", "a", "--", "true"];
        let finished = finish(leasehold(&server, &args).env("REDIS_URL", url(&server)));
        assert_eq!(finished.code, 69, "{finished:?}");
        assert!(finished.stderr.contains(why), "{finished:?}");
        assert!(!finished.stderr.contains("sesame"), "{finished:?}");
    }
    let both = ["--password-file", "a", "--password-command", "b", "ping"];
    assert_eq!(finish(&mut leasehold(&server, &both)).code, 64);
    let args = ["--password-command", "printf sesame", "run", "a", "--", "true"];
    assert_eq!(output(leasehold(&server, &args).env("REDIS_URL", url(&server))), "");
}

#[cfg(target_os = "linux")]
#[test]
fn a_password_command_works_though_its_end_is_ignored_from_the_start() {
    let server = Server::redis();
    set_password(&server, "sesame");
    let program = leasehold(&server, &[]).get_program().to_owned();
    for task in [&["ls"][..], &["run", "a", "--", "true"]] {
        let mut command = Command::new("env");
        command.arg("--ignore-signal=CHLD").arg(&program);
        command.args(["--password-command", "echo sesame"]).args(task).stdin(Stdio::null());
        assert_eq!(output(command.env("REDIS_URL", url(&server))), "", "{task:?}");
    }
}

#[test]
fn no_error_shows_a_url_that_was_put_in_a_wrong_place() {
    let server = Server::redis();
    let url = "redis://app:sesame@host.example:1/0";
    for args in [
        &[url][..],
        &["--url"],
        &["--prefix", url, "--bad"],
        &["--json", url],
        &["ls", url, url],
        &["show", url, url],
        &["ping", url],
        &["run", url],
        &["run", url, "true"],
        &["run", "a", url],
        &["run", "--wait", url, "a", "--", "true"],
        &["run", "--lease", url, "a", "--", "true"],
        &["run", "--permits", url, "a", "--", "true"],
        &["run", "--yield", url, "a", "--", "true"],
        &["run", "-E", url, "a", "--", "true"],
        &["run", "a", "--", url],
        &["run", "-n", "--label", &format!("{{{url}"), "a", "--", "true"],
        &["lock", "--wait", url, "a"],
        &["renew", url],
        &["release", url],
        &["unlock", "--client", url, "--label", url],
        &["completions", url],
        &["man", url],
        &["held", "a", url],
        &["--url", "http://app:sesame@host.example", "ping"],
        // Parts of a query, a URL with another sign in it or without slashes, and one split at a
        // blank.
        &["unix:///tmp/x?user=app&pass=sesame"],
        &["ping", "redis+sentinel://a,b/m?master_login=app:sesame"],
        &["release", "unix:///tmp/x?pass=sesame"],
        &["--prefix=unix:///tmp/x?pass=sesame", "--bad"],
        &["show", "--prefix", "pass=sesame", "app:sesame@h", "b"],
        &["app:sesame@h"],
        &["redis:/app:sesame@h"],
        &["man", "app:sesame@h"],
        &["redis://app:se sesame@h/0"],
        &["redis://app:sesame://x@h/0"],
        &["ping", "redis://app:sesame", "rest@h/0"],
        // Something that looks like a setting.
        &["ping", "--url", "redis://h/0?sesame"],
        &["ping", "--url", "unix:///tmp/x?user=app&pass=a&sesame"],
        &["ping", "--url", "unix:///tmp/x?user=app&pass=a&sesame=1"],
        &["ping", "--url", "redis+sentinel://a,b/m?master_login=app:a&sesame=1"],
        &["--password-file", url, "run", "-n", "a", "--", "true"],
    ] {
        let finished = finish(&mut leasehold(&server, args));
        assert!(finished.code != 0, "{args:?}: {finished:?}");
        assert!(!finished.stderr.contains("sesame"), "{args:?}: {finished:?}");
        assert!(!finished.stderr.is_empty(), "{args:?}");
    }
    // A name may be a URL, and the server cannot be reached.
    for name in [url, "redis://app:se sesame@h", "unix:///x?pass=sesame", "redis:/a:sesame@h"] {
        let args = ["--url", "redis://127.0.0.1:1", "run", "-n", name, "--", "true"];
        let finished = finish(&mut without_server(&args));
        assert!(finished.code == 69 && !finished.stderr.contains("sesame"), "{finished:?}");
    }
    // It may be in use.
    let held = [&["run", url, "--"][..], &[env!("CARGO_BIN_EXE_leasehold"), "lock", "-n", url]];
    let finished = finish(&mut leasehold(&server, &held.concat()));
    assert!(finished.code == 64 && !finished.stderr.contains("sesame"), "{finished:?}");
    assert_eq!(finish(&mut without_server(&["ping", "--url", url])).code, 69);
}
