//! The exit status, and the message that goes with it.

use std::error::Error as StdError;
use std::io;

use leasehold::Error;

pub(crate) const SUCCESS: u8 = 0;
/// Of sysexits(3), as the next ones.
pub(crate) const USAGE: u8 = 64;
const WRONG_DATA: u8 = 65;
pub(crate) const UNAVAILABLE: u8 = 69;
/// The command may have run without the lock, whatever it has answered.
pub(crate) const LOST: u8 = 70;
const SYSTEM: u8 = 71;
/// As lckdo(1) has it.
pub(crate) const NOT_HAD: u8 = 75;
const REFUSED: u8 = 77;
/// Of a shell and env(1), as the next ones.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: u8 = 128;

/// An exit status that needs a word of explanation.
#[derive(Debug)]
pub(crate) struct ExitError {
    code: u8,
    message: String,
}

impl ExitError {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The system did not do what was attempted.
    pub(crate) fn system(attempt: &str, error: &io::Error) -> Self {
        Self::new(SYSTEM, format!("cannot {attempt}: {error}"))
    }

    /// A command was not run.
    pub(crate) fn of_command(command: &str, error: &io::Error) -> Self {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let code = if is_missing { NOT_FOUND } else { NOT_EXECUTABLE };
        Self::new(code, format!("cannot run {command:?}: {error}"))
    }

    /// The same error, with another status.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The same error, without a word.
    pub(crate) fn silent(self) -> Self {
        Self { message: String::new(), ..self }
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// What to say; empty if nothing.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl From<Error> for ExitError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidInput(_) => USAGE,
            Error::Lost { .. } => LOST,
            Error::Redis { code, .. } if matches!(&**code, "NOAUTH" | "NOPERM" | "WRONGPASS") => {
                REFUSED
            }
            Error::Timeout { .. } => NOT_HAD,
            Error::WrongType { .. } => WRONG_DATA,
            _ => UNAVAILABLE,
        };
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message = format!("{message}: {error}");
            cause = error.source();
        }
        Self::new(code, message)
    }
}

/// The status of a command that a signal has ended, and of this program where it has ended a wait.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(SIGNALLED, |signal| SIGNALLED.saturating_add(signal))
}
