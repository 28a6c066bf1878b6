//! Which server answers at which address. One that has two must not count twice.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::Value;

use crate::base::failure::{Failure, FailureKind};

/// The ids of the servers' processes, each as the address that it was last reached at has told it.
#[derive(Debug, Default)]
pub(super) struct RunIds(Mutex<Vec<ReachedServer>>);

#[derive(Debug)]
struct ReachedServer {
    /// The place of its URL among the others.
    number: usize,
    label: Arc<str>,
    run_id: String,
    /// The address at which the same process was reached before.
    reached_before: Option<Arc<str>>,
}

impl RunIds {
    /// Notes the reply to `INFO server`. Fails if another URL leads to the same process. A server
    /// that does not tell its id counts as different from all others.
    pub(super) fn note(
        &self,
        number: usize,
        label: &Arc<str>,
        info: &Value,
    ) -> Result<(), Failure> {
        let Some(run_id) = run_id(info) else { return Ok(()) };
        let mut servers = self.0.lock();
        servers.retain(|server| server.number != number);
        let same =
            |server: &&ReachedServer| server.run_id == run_id && server.reached_before.is_none();
        let reached_before = servers.iter().find(same).map(|server| server.label.clone());
        let (run_id, label) = (run_id.to_owned(), label.clone());
        let failure = reached_before.as_ref().map(|other| is_repeated(&label, other));
        servers.push(ReachedServer { number, label, run_id, reached_before });
        failure.map_or(Ok(()), Err)
    }

    /// Two addresses of one server, if there are any.
    pub(super) fn repeated(&self) -> Option<(Arc<str>, Arc<str>)> {
        let servers = self.0.lock();
        let mut repeated = servers
            .iter()
            .filter_map(|server| Some((server.reached_before.clone()?, server.label.clone())));
        repeated.next()
    }
}

fn is_repeated(label: &Arc<str>, other: &Arc<str>) -> Failure {
    let error = io::Error::other(format!("it is the same server as {other}"));
    Failure::io(FailureKind::Rejected, label, error)
}

/// The id in the reply to `INFO server`; `None` if there is none, as where the command is refused.
fn run_id(info: &Value) -> Option<&str> {
    let Value::BulkString(text) = info else { return None };
    let lines = str::from_utf8(text).ok()?.lines();
    lines.filter_map(|line| line.strip_prefix("run_id:")).map(str::trim).find(|id| !id.is_empty())
}
