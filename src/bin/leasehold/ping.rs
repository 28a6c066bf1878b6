//! `ping`: what the servers say of themselves, and what of it endangers locks.

use leasehold::{Client, ServerReport};
use serde_json::{Value, json};

use crate::exit::ExitError;
use crate::output::{print, print_json, table};

/// A difference between clocks that is worth a warning, in seconds.
const CLOCKS_APART: f64 = 1.0;

/// The oldest version that this library supports.
const OLDEST: (u32, u32) = (6, 2);

/// Shows what each server says of itself, or why it does not. Fails after that if so few of them
/// answer that no lock can be relied on.
pub(crate) fn ping(client: &Client, json: bool) -> Result<u8, ExitError> {
    let replies = client.survey().servers()?;
    let servers: Vec<_> = replies
        .each
        .into_iter()
        .map(|(address, reply)| {
            (address, reply.map(|report| Facts::new(&report)).map_err(ExitError::from))
        })
        .collect();
    let code = if json {
        print_json(&servers.iter().map(|(address, facts)| to_json(address, facts)).collect())
    } else {
        let texts: Vec<_> =
            servers.iter().map(|(address, facts)| to_text(address, facts)).collect();
        print(&texts.join("\n"))
    }?;
    replies.too_few.map_or(Ok(code), |error| Err(error.into()))
}

/// What is shown of a server. What it does not say is missing.
#[derive(Debug, Default)]
struct Facts {
    round_trip_ms: f64,
    clock_ahead_ms: f64,
    version: Option<String>,
    role: Option<String>,
    replicas: Option<u64>,
    appendonly: Option<bool>,
    maxmemory: Option<u64>,
    maxmemory_policy: Option<String>,
    warnings: Vec<String>,
}

impl Facts {
    fn new(report: &ServerReport) -> Self {
        let info = report.info.as_deref().unwrap_or_default();
        let field = |name: &str| {
            let mut fields = info.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
        };
        let number = |name| field(name).and_then(|value| value.parse::<u64>().ok());
        let valkey = field("valkey_version").map(|version| format!("Valkey {version}"));
        let redis = || field("redis_version").map(|version| format!("Redis {version}"));
        let facts = Self {
            round_trip_ms: in_ms(report.round_trip.as_secs_f64()),
            clock_ahead_ms: in_ms(report.clock_ahead),
            version: valkey.or_else(redis),
            role: field("role").map(|role| if role == "slave" { "replica" } else { role }.into()),
            replicas: number("connected_slaves"),
            appendonly: number("aof_enabled").map(|enabled| enabled == 1),
            maxmemory: number("maxmemory"),
            maxmemory_policy: field("maxmemory_policy").map(str::to_owned),
            warnings: Vec::new(),
        };
        let warnings = facts.dangers(field("redis_version"));
        Self { warnings, ..facts }
    }

    /// What endangers locks.
    fn dangers(&self, version: Option<&str>) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |what: String| warnings.push(what);
        if self.version.is_none() {
            warn("INFO is refused to this login, so that little is known of the server".into());
        }
        if version.and_then(numbers).is_some_and(|version| version < OLDEST) {
            warn(format!("older than version {}.{}", OLDEST.0, OLDEST.1));
        }
        if self.role.as_deref() == Some("replica") {
            warn("a replica: no lock can be acquired here".into());
        }
        if self.appendonly == Some(false) && self.replicas == Some(0) {
            warn("no append-only file and no replica: locks are lost in a restart".into());
        }
        if let Some(policy) = self.maxmemory_policy.as_deref()
            && policy != "noeviction"
        {
            warn(format!("maxmemory-policy {policy}: the server may evict a lock that is held"));
        }
        if self.clock_ahead_ms.abs() > in_ms(CLOCKS_APART) {
            warn("its clock and this system's differ".into());
        }
        warnings
    }
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
        ("clock ahead", Some(format!("{:.3} ms", facts.clock_ahead_ms))),
    ];
    let warnings = facts.warnings.iter().map(|warning| format!("warning: {warning}\n"));
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
            "clock_ahead_ms": facts.clock_ahead_ms,
            "warnings": facts.warnings,
        }),
        Err(error) => json!({ "server": address, "error": error.message() }),
    }
}
