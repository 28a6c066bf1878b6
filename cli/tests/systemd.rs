//! The units in the manual, and the program as a service with sockets.

use std::env;
use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{self, Command, Stdio};

use crate::support::{Running, Server, eventually, leasehold};

/// Returns `true` if this system has a tool of systemd.
fn has(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        eprintln!("skipped: this system has no {tool}");
    }
    is_there
}

/// Returns the units in the manual, with their file names.
fn units() -> Vec<(&'static str, String)> {
    let manual = include_str!("../../docs/program.md");
    let parts = manual.split("`/etc/systemd/system/").skip(1);
    let units = parts.map(|part| {
        let (name, part) = part.split_once('`').expect("a file name");
        let unit = part.split_once("```ini\n").expect("a unit").1.split("```").next();
        (name, unit.expect("an end").to_owned())
    });
    units.collect()
}

#[test]
fn systemd_finds_no_fault_in_the_units_of_the_manual() {
    let units = units();
    assert!(units.len() >= 3, "{units:?}");
    if !has("systemd-analyze") {
        return;
    }
    let dir = env::temp_dir().join(format!("leasehold-units-{}", process::id()));
    fs::create_dir_all(&dir).unwrap();
    let files = units.iter().map(|(name, unit)| {
        let unit = unit.replace("/usr/local/bin/leasehold", env!("CARGO_BIN_EXE_leasehold"));
        fs::write(dir.join(name), unit).unwrap();
        dir.join(name)
    });
    let files: Vec<_> = files.collect();
    let output = Command::new("systemd-analyze").arg("verify").args(files).output().unwrap();
    fs::remove_dir_all(&dir).unwrap();
    // The tool reports warnings without failing.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}

#[test]
fn a_socket_of_systemd_is_for_the_command() {
    if !has("systemd-socket-activate") {
        return;
    }
    let server = Server::redis();
    let socket = env::temp_dir().join(format!("leasehold-socket-{}", process::id()));
    let program = leasehold(&server, &[]).get_program().to_owned();
    let mut command = Command::new("systemd-socket-activate");
    command.arg("-l").arg(&socket).arg("-E").arg(format!("REDIS_URL={}", server.url()));
    command.arg(program).args(["run", "a", "--", "sh", "-c"]);
    command.arg("test $LISTEN_PID = $$ && test -S /dev/fd/3 && echo \"has $LISTEN_FDS\"");
    let mut running = Running::start(command.stdin(Stdio::null()));
    // The first connection starts the program.
    eventually(|| UnixStream::connect(&socket).is_ok());
    assert_eq!(running.next(), "has 1");
    assert_eq!(running.code(), 0);
    fs::remove_file(&socket).unwrap();
}
