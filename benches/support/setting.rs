//! The conditions of a run: the server, the cores, the cost of waking a thread, and other load.

use std::fmt;
use std::fs;
use std::thread::available_parallelism;

use super::regime::Regime;
use super::server::Server;

pub(crate) struct Setting {
    /// The server and the cores.
    machine: String,
    pub(crate) regime: Regime,
    /// The load averages, where they are known.
    load: Option<String>,
}

impl Setting {
    /// Measures the cost of waking a thread.
    pub(crate) fn of(server: &Server) -> Self {
        let cores = available_parallelism().map_or(0, usize::from);
        // Other load changes the cost of waking a sleeping reader, and so the cost of raw.
        let load = fs::read_to_string("/proc/loadavg").ok();
        let averages = |load: &str| load.split_whitespace().take(3).collect::<Vec<_>>().join(", ");
        Self {
            machine: format!("{} on loopback, {cores} cores", version(server)),
            regime: Regime::of(server),
            load: load.as_deref().map(averages),
        }
    }

    /// Returns what matters most of it.
    pub(crate) fn brief(&self) -> String {
        format!("{}; waking a thread is {}", self.machine, self.regime.price())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, regime, load } = self;
        f.write_str(machine)?;
        if let Some(load) = load {
            write!(f, ", load averages {load}")?;
        }
        write!(f, "; {regime}.")
    }
}

/// Prints the cost of waking a thread after all measurements.
pub(crate) fn print_end(server: &Server) {
    println!("\nAt the end, {}.", Regime::of(server));
}

fn version(server: &Server) -> String {
    let info: String = server.ask(&["INFO", "server"]);
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name));
    match (field("valkey_version:"), field("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of unknown version")),
    }
}
