//! `ping`: what the servers report about themselves, and what of that endangers locks.

use std::time::Duration;

use leasehold::{Client, ServerReport, printable};
use serde_json::{Value, json};

use crate::args::ServerArgs;
use crate::output::{ExitError, UNAVAILABLE, print, print_json, table};

/// How far apart clocks may be without a warning, in seconds.
const CLOCKS_APART: f64 = 1.0;

/// The oldest version that this library supports.
const OLDEST: (u32, u32) = (6, 2);

/// How many slots a cluster has.
const SLOTS: u64 = 16_384;

/// An `io_timeout` of this many times the slowest reply takes no pause for an outage.
const SLOWEST_IN_TIMEOUT: u32 = 10;

/// The shortest that are advised: a busy system may pause a process.
const IO_TIMEOUT_MIN: Duration = Duration::from_millis(100);
const LEASE_MIN: Duration = Duration::from_secs(1);

/// The warning about a node of a cluster whose URL does not say that it is one.
pub(crate) const NODE: &str =
    "a node of a cluster, which may have only a part of the names: use redis+cluster://";

/// Shows what each server says of itself, or why it does not. Then fails if too few of them can be
/// used for locks.
pub(crate) fn ping(client: &Client, server: &ServerArgs, json: bool) -> Result<u8, ExitError> {
    let survey = client.survey();
    let replies = survey.servers()?;
    let in_cluster = server.is_cluster();
    let servers: Vec<_> = replies
        .each
        .into_iter()
        .map(|(address, reply)| {
            let facts = reply.map(|report| Facts::new(&report, survey.io_timeout(), in_cluster));
            (address, facts.map_err(ExitError::from))
        })
        .collect();
    let code = if json {
        print_json(&servers.iter().map(|(address, facts)| to_json(address, facts)).collect())
    } else {
        let texts: Vec<_> =
            servers.iter().map(|(address, facts)| to_text(address, facts)).collect();
        print(&texts.join("\n"))
    }?;
    let is_usable = |facts: &Result<Facts, _>| facts.as_ref().is_ok_and(Facts::is_usable);
    let useless = servers.iter().filter(|(_, facts)| !is_usable(facts));
    let useless: Vec<_> = useless.map(|(address, _)| printable(address)).collect();
    let (usable, required) = (servers.len() - useless.len(), replies.required);
    if usable >= required {
        return Ok(code);
    }
    // What is wrong with each was printed.
    let code = servers.iter().find_map(|(_, facts)| facts.as_ref().err().map(ExitError::code));
    let useless = useless.join(", ");
    let why =
        format!("{usable} of {required} required servers can be used for locks, not {useless}");
    Err(ExitError::new(code.unwrap_or(UNAVAILABLE), why))
}

/// A reply to INFO or CLUSTER INFO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info<'a>(&'a str);

impl<'a> Info<'a> {
    /// Empty if the server has refused to reply.
    pub(crate) fn new(reply: Option<&'a str>) -> Self {
        Self(reply.unwrap_or_default())
    }

    pub(crate) fn field(self, name: &str) -> Option<&'a str> {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
    }

    pub(crate) fn number(self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// Returns `true` for a node of a cluster.
    pub(crate) fn is_of_node(self) -> bool {
        self.number("cluster_enabled") == Some(1)
    }
}

/// What is shown of a server. What it does not report is `None`.
#[derive(Debug, Default)]
struct Facts {
    round_trip_ms: f64,
    /// The slowest of some replies.
    slowest_ms: f64,
    /// The shortest times that suit these replies.
    io_timeout_min: Duration,
    lease_min: Duration,
    clock_ahead_ms: Option<f64>,
    version: Option<String>,
    role: Option<String>,
    replicas: Option<u64>,
    appendonly: Option<bool>,
    maxmemory: Option<u64>,
    maxmemory_policy: Option<String>,
    /// Why locks, or some of them, cannot be acquired there.
    obstacle: Option<String>,
    warnings: Vec<String>,
}

impl Facts {
    /// The facts for a client with that `io_timeout`. `in_cluster`: the servers are opened as a
    /// cluster.
    fn new(report: &ServerReport, io_timeout: Duration, in_cluster: bool) -> Self {
        let info = Info::new(report.info.as_deref());
        let valkey = info.field("valkey_version").map(|version| format!("Valkey {version}"));
        let redis = || info.field("redis_version").map(|version| format!("Redis {version}"));
        let role = match (info.field("redis_mode"), info.field("role")) {
            (Some("sentinel"), _) => Some("sentinel"),
            (_, Some("slave")) => Some("replica"),
            (_, role) => role,
        };
        let cluster_info = Info::new(report.cluster_info.as_deref());
        let io_timeout_min = (report.slowest * SLOWEST_IN_TIMEOUT).max(IO_TIMEOUT_MIN);
        let facts = Self {
            slowest_ms: in_ms(report.slowest.as_secs_f64()),
            io_timeout_min,
            // A renewal may fail once, and be repeated in time.
            lease_min: (io_timeout_min * 3).max(LEASE_MIN),
            round_trip_ms: in_ms(report.round_trip.as_secs_f64()),
            clock_ahead_ms: report.clock_ahead.map(in_ms),
            version: valkey.or_else(redis),
            role: role.map(str::to_owned),
            replicas: info.number("connected_slaves"),
            appendonly: info.number("aof_enabled").map(|enabled| enabled == 1),
            maxmemory: info.number("maxmemory"),
            maxmemory_policy: info.field("maxmemory_policy").map(str::to_owned),
            obstacle: obstacle(role, cluster_info),
            warnings: Vec::new(),
        };
        let mut warnings = facts.dangers(info.field("redis_version"));
        if io_timeout < facts.io_timeout_min {
            let asked = facts.timeouts();
            warnings.push(format!("an io_timeout of {io_timeout:?} is short here: set {asked}"));
        }
        if info.is_of_node() && !in_cluster {
            warnings.push(NODE.into());
        }
        Self { warnings, ..facts }
    }

    fn timeouts(&self) -> String {
        let [io_timeout, lease] =
            [self.io_timeout_min, self.lease_min].map(|time| time.as_millis());
        format!("io_timeout to {io_timeout} ms or more, and lease to {lease} ms or more")
    }

    fn is_usable(&self) -> bool {
        self.obstacle.is_none()
    }

    /// What endangers locks.
    fn dangers(&self, version: Option<&str>) -> Vec<String> {
        let mut warnings = Vec::new();
        warnings.extend(self.obstacle.clone());
        let mut warn = |what: String| warnings.push(what);
        if self.version.is_none() {
            warn("INFO is refused to this login, so that little is known of the server".into());
        }
        if version.and_then(numbers).is_some_and(|version| version < OLDEST) {
            warn(format!("older than version {}.{}", OLDEST.0, OLDEST.1));
        }
        if self.appendonly == Some(false) && self.replicas == Some(0) {
            warn("no append-only file and no replica: locks are lost in a restart".into());
        }
        if let Some(policy) = self.maxmemory_policy.as_deref()
            && policy != "noeviction"
        {
            warn(format!("maxmemory-policy {policy}: the server may evict a lock that is held"));
        }
        if self.clock_ahead_ms.is_some_and(|ahead| ahead.abs() > in_ms(CLOCKS_APART)) {
            warn("its clock and this system's differ".into());
        }
        warnings
    }
}

/// Why locks, or some of them, cannot be acquired at a server; `None` if they can.
fn obstacle(role: Option<&str>, cluster_info: Info<'_>) -> Option<String> {
    match role {
        Some("replica") => return Some("a replica: no lock can be acquired here".into()),
        Some("sentinel") => {
            return Some("a sentinel: no lock can be acquired here, use redis+sentinel://".into());
        }
        _ => {}
    }
    let assigned = cluster_info.number("cluster_slots_assigned")?;
    let served = assigned.saturating_sub(cluster_info.number("cluster_slots_fail").unwrap_or(0));
    let state = cluster_info.field("cluster_state").unwrap_or("unknown");
    (served < SLOTS || state != "ok")
        .then(|| format!("the cluster serves {served} of {SLOTS} slots, and its state is {state}"))
}

/// The major and the minor version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Milliseconds with three decimals.
fn in_ms(seconds: f64) -> f64 {
    (seconds * 1_000_000.0).round() / 1000.0
}

fn to_text(address: &str, facts: &Result<Facts, ExitError>) -> String {
    let server = ("server", Some(address.to_owned()));
    let facts = match facts {
        Ok(facts) => facts,
        Err(error) => {
            return format!("{}warning: {}\n", table(vec![row(server)]), error.message());
        }
    };
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let appendonly = facts.appendonly.map(|on| if on { "on" } else { "off" });
    let fields = [
        server,
        ("version", facts.version.clone()),
        ("role", facts.role.clone()),
        ("replicas", number(facts.replicas)),
        ("append-only file", appendonly.map(str::to_owned)),
        ("maxmemory", number(facts.maxmemory)),
        ("maxmemory-policy", facts.maxmemory_policy.clone()),
        ("round trip", Some(format!("{:.3} ms", facts.round_trip_ms))),
        ("slowest reply", Some(format!("{:.3} ms", facts.slowest_ms))),
        ("advice", Some(format!("set {}", facts.timeouts()))),
        ("clock ahead", facts.clock_ahead_ms.map(|ahead| format!("{ahead:.3} ms"))),
    ];
    let warnings =
        facts.warnings.iter().map(|warning| format!("warning: {}\n", printable(warning)));
    table(fields.map(row).to_vec()) + &warnings.collect::<String>()
}

fn row((name, value): (&str, Option<String>)) -> [String; 2] {
    [name.to_owned(), value.unwrap_or_else(|| "unknown".to_owned())]
}

fn to_json(address: &str, facts: &Result<Facts, ExitError>) -> Value {
    match facts {
        Ok(facts) => json!({
            "server": address,
            "version": facts.version,
            "role": facts.role,
            "replicas": facts.replicas,
            "appendonly": facts.appendonly,
            "maxmemory": facts.maxmemory,
            "maxmemory_policy": facts.maxmemory_policy,
            "round_trip_ms": facts.round_trip_ms,
            "slowest_ms": facts.slowest_ms,
            "io_timeout_min_ms": in_ms(facts.io_timeout_min.as_secs_f64()),
            "lease_min_ms": in_ms(facts.lease_min.as_secs_f64()),
            "clock_ahead_ms": facts.clock_ahead_ms,
            "warnings": facts.warnings,
        }),
        Err(error) => json!({ "server": address, "error": error.message() }),
    }
}
