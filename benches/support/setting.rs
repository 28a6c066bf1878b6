//! The conditions of a run: the server, the cores, the cost of waking a thread, and other load.

use std::fs;
use std::thread::available_parallelism;

use super::regime::Regime;
use super::server::Server;

/// Describes them in one line, or in two if the load is known.
pub(crate) fn of(server: &Server) -> String {
    let cores = available_parallelism().map_or(0, usize::from);
    let (version, regime) = (version(server), Regime::of(server));
    let setting = format!("{version} on loopback, {cores} cores; {regime}");
    // Other load changes the cost of waking a sleeping reader, and so the cost of raw.
    match fs::read_to_string("/proc/loadavg") {
        Err(_) => setting,
        Ok(load) => {
            let averages: Vec<_> = load.split_whitespace().take(3).collect();
            format!("{setting}\nload averages: {}", averages.join(", "))
        }
    }
}

/// Prints the cost of waking a thread after all measurements.
pub(crate) fn print_end(server: &Server) {
    println!("\nat the end {}", Regime::of(server));
}

fn version(server: &Server) -> String {
    let info: String = server.ask(&["INFO", "server"]);
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name));
    match (field("valkey_version:"), field("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of unknown version")),
    }
}
