//! Every exit status, with its message.

use std::net::TcpListener;
#[cfg(unix)]
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};
#[cfg(unix)]
use std::{env, fs};

use crate::support::{
    Finished, Server, TRUE, client, finish, leasehold, output, refuse_for_now, without_server,
};

fn code(server: &Server, args: &[&str]) -> i32 {
    finish(&mut leasehold(server, args)).code
}

#[cfg(unix)]
#[test]
fn the_command_has_stdout_to_itself_and_its_status_is_passed_on() {
    let server = Server::redis();
    let script = "printf 'to stdout'; printf 'to stderr' >&2; exit 7";
    let finished = finish(&mut leasehold(&server, &["run", "a", "--", "sh", "-c", script]));
    let expected = Finished { code: 7, stdout: "to stdout".into(), stderr: "to stderr".into() };
    assert_eq!(finished, expected);
    assert_eq!(output(&mut leasehold(&server, &["run", "a", "--", "true"])), "");
    assert_eq!(code(&server, &["run", "a", "--", "sh", "-c", "exit 255"]), 255);
}

#[cfg(unix)]
#[test]
fn a_command_ended_by_a_signal_exits_with_128_and_its_number() {
    let server = Server::redis();
    for (signal, expected) in [("INT", 130), ("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        let script = format!("ulimit -c 0; kill -s {signal} $$");
        assert_eq!(code(&server, &["run", "a", "--", "sh", "-c", &script]), expected, "{signal}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn without_threads_the_status_is_that_of_the_system() {
    let server = Server::redis();
    for args in [&["show", "a"][..], &["run", "a", "--", "true"]] {
        // More than there are addresses, so the system refuses to start a thread with such a stack.
        let mut command = leasehold(&server, args);
        let finished = finish(command.env("RUST_MIN_STACK", "400000000000000"));
        assert_eq!(finished.code, 71, "{finished:?}");
    }
}

#[cfg(unix)]
#[test]
fn too_many_open_files_are_an_error_of_the_system() {
    let server = Server::redis();
    server.command(&["CONFIG", "SET", "requirepass", "sesame"]);
    let file = env::temp_dir().join(format!("leasehold-files-{}", process::id()));
    fs::write(&file, "sesame").unwrap();
    let with_password = server.url().replace("//", "//:sesame@");
    let without = server.url();
    let option = format!("--password-file {}", file.display());
    for (url, option) in [(&with_password, ""), (&without, &option)] {
        let code = |files: u32| {
            let script = format!("ulimit -n {files}; exec \"$0\" {option} run -n a -- true");
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_leasehold"));
            finish(shell.env("REDIS_URL", url).stdin(Stdio::null())).code
        };
        // One more file is used each time.
        let codes: Vec<_> = (4..50).map(code).take_while(|code| *code != 0).collect();
        assert!(codes.len() > 2 && codes.iter().all(|code| *code == 71), "{option} {codes:?}");
    }
    fs::remove_file(&file).unwrap();
}

#[test]
fn escape_sequences_for_terminals_are_escaped() {
    let server = Server::redis();
    let word = "\u{1b}]0;a\u{7}\u{7f}\u{9b}2J";
    for args in [
        &[word][..],
        &["show", "a", word],
        &["run", word],
        &["run", "--wait", word, "a", "--", "true"],
        &["run", "--yield", word, "a", "--", "true"],
        &["man", word],
        &["--json", "show", word],
        &["--json", "lock", word],
        &["ls"],
        &["ls", "--json"],
        &["ls", "--names"],
        &["unlock", word],
        &["unlock", "--client", word, "--json"],
    ] {
        let Finished { stdout, stderr, .. } = finish(&mut leasehold(&server, args));
        let all = (stdout + &stderr).replace('\n', "");
        assert!(!all.is_empty() && !all.contains(char::is_control), "{args:?}: {all:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_command_that_cannot_be_run_exits_as_in_a_shell() {
    let server = Server::redis();
    let missing = finish(&mut leasehold(&server, &["run", "a", "--", "/no/such/command"]));
    assert_eq!(missing.code, 127);
    assert!(missing.stderr.contains("/no/such/command"), "{missing:?}");
    assert_eq!(code(&server, &["run", "a", "--", "no-such-command-on-the-path"]), 127);
    assert_eq!(code(&server, &["run", "a", "--", "/etc/passwd"]), 126);
    assert!(client(&server).try_lock("a").unwrap().is_some(), "it is released");
}

#[test]
fn wrong_usage_exits_with_64() {
    let server = Server::redis();
    for args in [
        &[][..],
        &["no-such-task"],
        &["run"],
        &["run", "a"],
        &["run", "a", "true"],
        &["run", "a", "--"],
        &["run", "", "--", "true"],
        &["run", "--lease", "1ms", "a", "--", "true"],
        &["run", "--lease", "soon", "a", "--", "true"],
        &["run", "--wait", "-1", "a", "--", "true"],
        &["run", "--wait", "1", "--nonblock", "a", "--", "true"],
        &["run", "--permits", "0", "a", "--", "true"],
        &["run", "--shared", "--exclusive", "a", "--", "true"],
        &["run", "--shared", "--permits", "2", "a", "--", "true"],
        &["run", "--hold-at-least", "1m", "--shared", "a", "--", "true"],
        &["show"],
        &["show", "leasehold:x", "--prefix", ""],
        &["ping", "--url", "gopher://127.0.0.1"],
        &["--json", "run", "a", "--", "true"],
        &["unlock"],
        &["unlock", "--client", "a", "--label", "b"],
        &["show", "--label", "a", "b"],
    ] {
        let finished = finish(&mut leasehold(&server, args));
        assert_eq!((finished.code, &*finished.stdout), (64, ""), "{args:?}: {finished:?}");
        assert!(!finished.stderr.is_empty(), "{args:?}");
    }
    for url in [None, Some("")] {
        let mut command = without_server(&["ping"]);
        let finished = finish(command.envs(url.map(|url| ("REDIS_URL", url))));
        assert_eq!(finished.code, 64, "no server is named");
        assert!(finished.stderr.contains("set REDIS_URL"), "{finished:?}");
    }
    let finished = finish(&mut leasehold(&server, &["show"]));
    assert!(!finished.stderr.contains("--url"), "it is not missing: {finished:?}");
    let finished = finish(&mut leasehold(&server, &["run", "a", "true"]));
    assert!(finished.stderr.contains("`leasehold run NAME -- true`"), "{finished:?}");
    let finished = finish(&mut leasehold(&server, &["show", "a", "b"]));
    assert!(!finished.stderr.contains("`--`"), "{finished:?}");
    // This is checked before any server is asked.
    for args in [&["run", "", "--", "true"][..], &["show", ""], &["unlock", ""]] {
        let finished = finish(leasehold(&server, args).env("REDIS_URL", "redis://127.0.0.1:1"));
        assert_eq!(finished.code, 64, "{args:?}: {finished:?}");
    }
    let finished = finish(&mut without_server(&["ping", "--url", "redis+sentinal://h/m"]));
    assert!(finished.stderr.contains("redis+sentinel://"), "{finished:?}");
}

#[test]
fn help_and_version_are_no_errors() {
    let help = output(&mut without_server(&["--help"]));
    let manual = include_str!("../../docs/program.md").lines();
    let rows = manual.skip_while(|line| !line.starts_with("| exit status |")).skip(2);
    let statuses = rows.map_while(|row| row.strip_prefix("| ")?.split_once(" |"));
    let statuses = statuses.flat_map(|(statuses, _)| statuses.split(", "));
    let statuses: Vec<_> = statuses.filter(|status| status.parse::<u8>().is_ok()).collect();
    assert!(statuses.len() >= 9, "{statuses:?}");
    for status in statuses {
        assert!(help.contains(&format!(" {status}  ")), "{status}: {help}");
    }
    assert!(output(&mut without_server(&["run", "--help"])).contains("LEASEHOLD_FENCE"));
    let version = output(&mut without_server(&["--version"]));
    assert_eq!(version, concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"));
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&mut without_server(&["completions", shell]));
        assert!(script.contains("unlock"), "{shell}");
    }
}

#[test]
fn an_unreachable_server_exits_with_69() {
    let server = Server::redis();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://127.0.0.1:{port}/");
    let run = ["run", "a", "--", "true"];
    let without_wait = ["run", "-n", "a", "--", "true"];
    for args in [&run[..], &without_wait, &["show", "a"], &["ls"], &["unlock", "a"], &["ping"]] {
        let begin = Instant::now();
        let finished = finish(leasehold(&server, args).env("REDIS_URL", &url));
        assert_eq!(finished.code, 69, "{args:?}: {finished:?}");
        // The retry window of calls without a limit is 10 s.
        assert!(begin.elapsed() < Duration::from_secs(7), "{args:?}: {finished:?}");
        // `ping` says it about each server, and does not repeat it.
        let said = [&finished.stdout, &finished.stderr].map(|text| text.contains("refused"));
        assert_eq!(said, [args == ["ping"], args != ["ping"]], "{finished:?}");
        assert!(finished.stdout.is_empty() || args == ["ping"], "{finished:?}");
        assert!(finished.stderr.contains(&format!("127.0.0.1:{port}")), "{finished:?}");
        assert!(!finished.stderr.contains("could not ping"), "{finished:?}");
    }
    // The option takes precedence over the environment.
    assert_eq!(code(&server, &["--url", &url, "ping"]), 69);
}

#[test]
fn a_wait_ends_in_time_whatever_the_server_does() {
    let (silent, refusing) = (Server::redis(), Server::redis());
    silent.stop();
    refuse_for_now(&refusing);
    for server in [&silent, &refusing] {
        for options in [&["-n"][..], &["-w", "1s"]] {
            let args = [&["run"], options, &["a", "--", "echo", "ran"]].concat();
            let begin = Instant::now();
            let finished = finish(&mut leasehold(server, &args));
            assert_eq!((finished.code, &*finished.stdout), (69, ""), "{finished:?}");
            // The retry window of calls without a limit is 10 s.
            assert!(begin.elapsed() < Duration::from_secs(7), "{options:?}: {finished:?}");
        }
    }
    silent.cont();
}

#[test]
fn a_refused_login_exits_with_77() {
    let server = Server::redis();
    server.command(&["CONFIG", "SET", "requirepass", "sesame"]);
    let finished = finish(&mut leasehold(&server, &["run", "a", "--", "true"]));
    assert_eq!(finished.code, 77, "{finished:?}");
    let url = server.url().replace("//", "//:sesame@");
    let run = [&["run", "a", "--"], TRUE].concat();
    assert_eq!(output(leasehold(&server, &run).env("REDIS_URL", &url)), "");
    let wrong = server.url().replace("//", "//:open@");
    let finished = finish(leasehold(&server, &["run", "a", "--", "true"]).env("REDIS_URL", &wrong));
    assert_eq!(finished.code, 77, "{finished:?}");
    assert!(!finished.stderr.contains("open@"), "{finished:?}");
}

#[test]
fn a_key_of_another_program_exits_with_65() {
    let server = Server::redis();
    server.command(&["SET", "lock:a", "precious"]);
    for args in [&["run", "a", "--", "true"][..], &["show", "a"], &["unlock", "a"]] {
        let finished = finish(&mut leasehold(&server, args));
        assert_eq!(finished.code, 65, "{args:?}");
        assert!(finished.stderr.contains("a string without a TTL"), "{finished:?}");
    }
    assert_eq!(server.ask::<String>(&["GET", "lock:a"]), "precious");
}

#[test]
fn a_held_lock_exits_with_75() {
    let server = Server::redis();
    let client = client(&server);
    let _guard = client.lock("a").unwrap();
    for options in [&["--nonblock"][..], &["-n"], &["--wait", "0"], &["-w", "200ms"]] {
        let args = [&["run"], options, &["a", "--", "echo", "ran"]].concat();
        let finished = finish(&mut leasehold(&server, &args));
        assert_eq!((finished.code, &*finished.stdout), (75, ""), "{options:?}");
        assert!(finished.stderr.contains("tester"), "it names the holder: {finished:?}");
    }
    let other = ["run", "-n", "-E", "0", "--quiet", "a", "--", "echo", "ran"];
    assert_eq!(output(&mut leasehold(&server, &other)), "");
}

#[test]
fn a_wait_in_the_url_applies_at_the_start_like_the_option() {
    let server = Server::redis();
    let run = |url: &str, options: &[&str]| {
        let args = [&["run"], options, &["a", "--", "true"]].concat();
        let begin = Instant::now();
        assert_eq!(finish(leasehold(&server, &args).env("REDIS_URL", url)).code, 69);
        begin.elapsed()
    };
    let wait = Duration::from_millis(1500);
    assert!(run("redis://127.0.0.1:1/", &["--wait", "1500ms"]) >= wait);
    assert!(run("redis://127.0.0.1:1/?wait=1500ms", &[]) >= wait);
    assert!(run("redis://127.0.0.1:1/?wait=1h", &["-n"]) < Duration::from_secs(600));
}
