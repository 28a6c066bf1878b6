//! `held`, and the marker that `run` leaves in the environment of its command: the hold and the
//! lock under which the command runs.

use std::env;

use leasehold::{HeldAs, NameReport, Survey};

use crate::args::ServerArgs;
use crate::child::ReceivedSignals;
use crate::output::{ExitError, SUCCESS, USAGE};

/// The variable with the name of the lock.
pub(crate) const NAME: &str = "LEASEHOLD_NAME";

/// The variable with the id of the client whose only hold this is.
pub(crate) const CLIENT: &str = "LEASEHOLD_CLIENT";

/// The exit status with which test(1) says no.
const NOT_HELD: i32 = 1;

/// Succeeds if the `run` that has started this process still holds the lock.
pub(crate) fn held(server: &ServerArgs, name: &str) -> Result<i32, ExitError> {
    let Some(client) = marked_client(name) else { return Ok(NOT_HELD) };
    let report = server.open()?.survey().report(name)?;
    Ok(if hold_of(&report, &client).is_some() { SUCCESS } else { NOT_HELD })
}

/// The other holds that a new hold of a name tolerates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No other hold.
    Alone,
    /// Other permits.
    Permit,
    /// Readers.
    Read,
}

/// # Errors
///
/// Fails if this process was started under a hold of the same name that lasts until it ends.
pub(crate) fn refuse_to_wait_for_itself(
    survey: &Survey,
    signals: &ReceivedSignals,
    name: &str,
    access: Access,
) -> Result<(), ExitError> {
    let Some(client) = marked_client(name) else { return Ok(()) };
    let survey = survey.clone();
    let asked = name.to_owned();
    // The attempt to acquire the lock reports what is wrong with the server.
    let Ok(report) = signals.unless_received(move || survey.report(&asked))? else { return Ok(()) };
    let waits = match hold_of(&report, &client) {
        None => false,
        Some(HeldAs::Permit) => access != Access::Permit,
        Some(HeldAs::Reader) => access != Access::Read,
        Some(_) => true,
    };
    if waits {
        let why = format!("lock {name:?} is held by the `leasehold run` that has started this");
        return Err(ExitError::new(USAGE, why));
    }
    Ok(())
}

/// Returns the client of the `run` that has started this process, if it was for this lock.
fn marked_client(name: &str) -> Option<String> {
    let is_same = env::var(NAME).is_ok_and(|marked| marked == name);
    env::var(CLIENT).ok().filter(|client| is_same && !client.is_empty())
}

/// Returns how a client holds the name. A lock that stays taken after its release is not held.
fn hold_of(report: &NameReport, client: &str) -> Option<HeldAs> {
    let mut holds = report.holds.iter();
    let hold = holds.find(|(_, holder)| holder.client == client && holder.depth > 0)?;
    Some(hold.0)
}
