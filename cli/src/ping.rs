//! `ping`: reports of the servers about themselves, and warnings about dangers to locks.

use std::fmt::Write;
use std::time::Duration;

use leasehold::{Client, ServerReport};
use serde_json::{Value, json};

use crate::args::ServerArgs;
use crate::output::{ExitError, UNAVAILABLE, print_either, printable, table};

/// The clock difference, in seconds, that causes a warning.
const CLOCKS_APART: f64 = 1.0;

/// The oldest version that this library supports.
const OLDEST: (u32, u32) = (6, 2);

const SLOTS: u64 = 16_384;

/// The advised `io_timeout`, as a multiple of the slowest reply, so that no pause counts as an
/// outage.
const SLOWEST_IN_TIMEOUT: u32 = 10;

/// The minimum advised times: a busy system may pause a process.
const IO_TIMEOUT_MIN: Duration = Duration::from_millis(100);
const LEASE_MIN: Duration = Duration::from_secs(1);

/// The warning about a cluster node whose URL is not `redis+cluster://`.
pub(crate) const NODE: &str =
    "a node of a cluster, which may have only a part of the names: use redis+cluster://";

/// Shows what each server reports, or why it does not reply. Then fails if too few of them can be
/// used for locks.
pub(crate) fn ping(client: &Client, server: &ServerArgs, json: bool) -> Result<i32, ExitError> {
    let survey = client.survey();
    let replies = survey.servers()?;
    let in_cluster = server.is_cluster();
    let mut servers = Vec::new();
    for (address, reply) in replies.each {
        servers.push(match reply {
            Ok(report) => Facts::new(&address, &report, survey.io_timeout(), in_cluster),
            Err(error) => Facts::of_error(&address, error.into()),
        });
    }
    let code = print_either(
        json,
        || servers.iter().map(|facts| facts.shown.clone()).collect(),
        || servers.iter().map(Facts::to_text).collect::<Vec<_>>().join("\n"),
    )?;
    let useless = servers.iter().filter(|facts| !facts.is_usable);
    let useless: Vec<_> = useless.map(|facts| printable(&facts.text_of("server"))).collect();
    let usable = servers.len() - useless.len();
    let required = replies.required;
    if usable >= required {
        // The reports do not show whether the servers would execute what a lock needs.
        client.ping()?;
        return Ok(code);
    }
    // The problems of each server were printed.
    let code = servers.iter().find_map(|facts| facts.failure);
    let useless = useless.join(", ");
    let why = format!(
        "{usable} of {required} required servers can be used for locks; unusable: {useless}"
    );
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

    fn role(self) -> Option<&'a str> {
        match (self.field("redis_mode"), self.field("role")) {
            (Some("sentinel"), _) => Some("sentinel"),
            (_, Some("slave")) => Some("replica"),
            (_, role) => role,
        }
    }

    /// Returns `true` for a node of a cluster.
    pub(crate) fn is_of_node(self) -> bool {
        self.number("cluster_enabled") == Some(1)
    }
}

/// A server as shown to the user.
struct Facts {
    /// Facts that the server does not report are `null`.
    shown: Value,
    /// Whether all locks can be acquired there.
    is_usable: bool,
    /// The exit status for a server that has not answered.
    failure: Option<i32>,
    /// The shortest times that suit its replies.
    advice: Option<String>,
    warnings: Vec<String>,
}

impl Facts {
    /// Collects the facts for a client with that `io_timeout`. `in_cluster` says whether the
    /// servers are opened as a cluster.
    fn new(address: &str, report: &ServerReport, io_timeout: Duration, in_cluster: bool) -> Self {
        let info = Info::new(report.info.as_deref());
        // Valkey names a version of Redis, too, with which it is compatible.
        let version = match info.field("valkey_version") {
            Some(version) => Some(format!("Valkey {version}")),
            None => info.field("redis_version").map(|version| format!("Redis {version}")),
        };
        let role = info.role();
        let cluster_info = Info::new(report.cluster_info.as_deref());
        let is_node = info.is_of_node() && !in_cluster;
        let has_others = is_node && cluster_info.number("cluster_size").is_some_and(|all| all > 1);
        let mut obstacle = obstacle(role, cluster_info);
        if has_others && obstacle.is_none() {
            obstacle = Some(NODE.to_owned());
        }
        let io_timeout_min = (report.slowest * SLOWEST_IN_TIMEOUT).max(IO_TIMEOUT_MIN);
        // A renewal may fail once, and be repeated in time.
        let lease_min = (io_timeout_min * 3).max(LEASE_MIN);
        let [io_min, lease] = [io_timeout_min, lease_min].map(|time| time.as_millis());
        let advice =
            format!("set io_timeout to {io_min} ms or more, and lease to {lease} ms or more");
        let is_usable = obstacle.is_none();
        let may_have_others = is_node && !has_others;
        let mut warnings: Vec<_> = obstacle.into_iter().chain(dangers(info, report)).collect();
        if io_timeout < io_timeout_min {
            warnings.push(format!("an io_timeout of {io_timeout:?} is short here: {advice}"));
        }
        if may_have_others {
            warnings.push(NODE.into());
        }
        let shown = json!({
            "server": address,
            "version": version,
            "role": role,
            "replicas": info.number("connected_slaves"),
            "appendonly": info.number("aof_enabled").map(|enabled| enabled == 1),
            "maxmemory": info.number("maxmemory"),
            "maxmemory_policy": info.field("maxmemory_policy"),
            "round_trip_ms": in_ms(report.round_trip.as_secs_f64()),
            "slowest_ms": in_ms(report.slowest.as_secs_f64()),
            "io_timeout_min_ms": in_ms(io_timeout_min.as_secs_f64()),
            "lease_min_ms": in_ms(lease_min.as_secs_f64()),
            "clock_ahead_ms": report.clock_ahead.map(in_ms),
            "warnings": warnings,
        });
        Self { shown, is_usable, failure: None, advice: Some(advice), warnings }
    }

    fn of_error(address: &str, ExitError { code, message, .. }: ExitError) -> Self {
        let shown = json!({ "server": address, "error": message });
        Self { shown, is_usable: false, failure: Some(code), advice: None, warnings: vec![message] }
    }

    fn to_text(&self) -> String {
        let rows = [
            ("server", "server"),
            ("version", "version"),
            ("role", "role"),
            ("replicas", "replicas"),
            ("append-only file", "appendonly"),
            ("maxmemory", "maxmemory"),
            ("maxmemory-policy", "maxmemory_policy"),
            ("round trip", "round_trip_ms"),
            ("slowest reply", "slowest_ms"),
            ("clock ahead", "clock_ahead_ms"),
        ];
        let rows = rows.into_iter().filter(|(_, key)| self.shown.get(key).is_some());
        let rows = rows.map(|(name, key)| [name.to_owned(), self.text_of(key)]);
        let advice = self.advice.iter().map(|advice| ["advice".to_owned(), advice.clone()]);
        let mut text = table(rows.chain(advice).collect());
        for warning in &self.warnings {
            writeln!(text, "warning: {}", printable(warning)).expect("a string takes everything");
        }
        text
    }

    /// Returns a fact as text.
    fn text_of(&self, key: &str) -> String {
        match &self.shown[key] {
            Value::Null => "unknown".into(),
            Value::Bool(on) => if *on { "on" } else { "off" }.into(),
            Value::String(text) => text.clone(),
            Value::Number(number) if key == "maxmemory" && number.as_u64() == Some(0) => {
                "no limit".into()
            }
            Value::Number(number) if key.ends_with("_ms") => {
                format!("{:.3} ms", number.as_f64().unwrap_or_default())
            }
            other => other.to_string(),
        }
    }
}

fn dangers(info: Info<'_>, report: &ServerReport) -> Vec<String> {
    let version = info.field("redis_version");
    let is_unknown = version.is_none() && info.field("valkey_version").is_none();
    let is_old = version.and_then(numbers).is_some_and(|version| version < OLDEST);
    let is_only_in_memory =
        info.number("aof_enabled") == Some(0) && info.number("connected_slaves") == Some(0);
    let policy = info.field("maxmemory_policy").filter(|policy| *policy != "noeviction");
    let has_other_clock = report.clock_ahead.is_some_and(|ahead| ahead.abs() > CLOCKS_APART);
    let unknown = "INFO is refused to this login, so that little is known of the server";
    let evicts = "the server may evict a lock that is held";
    let mut dangers = Vec::new();
    if is_unknown {
        dangers.push(unknown.into());
    }
    if is_old {
        dangers.push(format!("older than version {}.{}", OLDEST.0, OLDEST.1));
    }
    if is_only_in_memory {
        dangers.push("no append-only file and no replica: locks are lost in a restart".into());
    }
    if let Some(policy) = policy {
        dangers.push(format!("maxmemory-policy {policy}: {evicts}"));
    }
    if has_other_clock {
        dangers.push("its clock and this system's differ".into());
    }
    dangers
}

/// Returns why locks, or some of them, cannot be acquired at a server; `None` if they can.
fn obstacle(role: Option<&str>, cluster_info: Info<'_>) -> Option<String> {
    if let Some("replica") = role {
        return Some("a replica: no lock can be acquired here".into());
    }
    if let Some("sentinel") = role {
        return Some("a sentinel: no lock can be acquired here, use redis+sentinel://".into());
    }
    let assigned = cluster_info.number("cluster_slots_assigned")?;
    let served = assigned.saturating_sub(cluster_info.number("cluster_slots_fail").unwrap_or(0));
    let state = cluster_info.field("cluster_state").unwrap_or("unknown");
    if served >= SLOTS && state == "ok" {
        return None;
    }
    Some(format!("the cluster serves {served} of {SLOTS} slots, and its state is {state}"))
}

/// Returns the major and the minor version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Returns milliseconds with three decimals.
fn in_ms(seconds: f64) -> f64 {
    (seconds * 1_000_000.0).round() / 1000.0
}
