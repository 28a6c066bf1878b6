//! Which server answers at which address. One that has two must not count twice.

use std::io;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use redis::Value;

use crate::base::failure::{Failure, FailureKind};

/// The ids of the servers' processes, each as the address that it was last reached at has told it.
#[derive(Debug, Default)]
pub(super) struct RunIds {
    reached: Mutex<Vec<ReachedServer>>,
    /// Two addresses of one server.
    repeated: OnceLock<(Arc<str>, Arc<str>)>,
}

#[derive(Debug)]
struct ReachedServer {
    /// The place of its URL among the others.
    number: usize,
    label: Arc<str>,
    run_id: String,
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
        let (mut reached, label) = (self.reached.lock(), label.clone());
        reached.retain(|server| server.number != number);
        if let Some(other) = reached.iter().find(|server| server.run_id == run_id) {
            self.repeated.get_or_init(|| (other.label.clone(), label.clone()));
            return Err(is_repeated(&label, &other.label));
        }
        reached.push(ReachedServer { number, label, run_id: run_id.to_owned() });
        Ok(())
    }

    /// Two addresses of one server, if there are any.
    pub(super) fn repeated(&self) -> Option<&(Arc<str>, Arc<str>)> {
        self.repeated.get()
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
