//! Follows the answers of the servers of a quorum in the model of quorums. The torture writes such
//! traces, and `tests/traces` has them checked.

mod call;
mod recorded;
mod votes;

use crate::traces::call::Call;

/// Parses a trace. Each answer is seen at once, unless it has a time.
fn calls(trace: &str) -> Result<Vec<Call>, String> {
    let seen = |line: &str| match line.split_once(' ') {
        Some((time, _)) if line.contains(" -> ") && !line.contains(['?', '@']) => {
            format!("{line} @{time}\n")
        }
        _ => format!("{line}\n"),
    };
    Call::read(trace.trim().lines().map(seen).collect::<String>().trim())
}
