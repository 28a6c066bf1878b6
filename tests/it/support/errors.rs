//! Checks of the errors of calls.

use std::error::Error as _;
use std::fmt::{Debug, Write as _};

use leasehold::Error;

/// Returns the texts of an error and of its causes.
pub(crate) fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, " {cause} {cause:?}").expect("a string takes everything");
        source = cause.source();
    }
    text
}

/// Checks that the message of an error includes its cause, and that a chain of messages says
/// nothing twice.
#[track_caller]
pub(crate) fn assert_has_its_cause(error: &Error) {
    let (Error::Redis { source, .. } | Error::Unavailable { source, .. }) = error else {
        panic!("another error: {error:?}");
    };
    let (message, cause) = (error.to_string(), source.to_string());
    assert_eq!(message.matches(&cause).count(), 1, "{message:?} and {cause:?}");
    let mut behind = error.source();
    while let Some(source) = behind {
        assert!(!message.contains(&source.to_string()), "{message:?} and {source}");
        behind = source.source();
    }
}

/// Checks that a call failed because its client is closed.
#[track_caller]
pub(crate) fn assert_closed<T: Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Closed)), "{result:?}");
}

/// Checks that a call failed because no server answered.
#[track_caller]
pub(crate) fn assert_unavailable<T: Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
}

/// Checks that a call failed because the hold of `name` is gone.
#[track_caller]
pub(crate) fn assert_lost<T: Debug>(result: Result<T, Error>, name: &str) {
    match result {
        Err(Error::Lost { name: lost, .. }) => assert_eq!(lost, name),
        other => panic!("{other:?} instead of the loss of {name}"),
    }
}

/// Checks that a server has refused a call with this code.
#[track_caller]
pub(crate) fn assert_rejected<T: Debug>(result: Result<T, Error>, wanted: &str) {
    match result {
        Err(Error::Redis { code, .. }) => assert_eq!(code, wanted),
        other => panic!("{other:?} instead of {wanted}"),
    }
}

/// Checks that a call failed because `name` is not a lock of that kind.
#[track_caller]
pub(crate) fn assert_wrong_type<T: Debug>(result: Result<T, Error>, name: &str) {
    match result {
        Err(Error::WrongType { name: wrong, .. }) => assert_eq!(wrong, name),
        other => panic!("{other:?} instead of the wrong type of {name}"),
    }
}

/// Checks that a call fails and says why it cannot get the lock.
#[track_caller]
pub(crate) fn assert_found<T: Debug>(result: Result<T, Error>, expected: &str) {
    let error = result.unwrap_err();
    let Error::WrongType { found, wanted, name, .. } = &error else { panic!("{error:?}") };
    assert_eq!(found, expected);
    assert!(error.to_string().ends_with(&format!(" holds {expected}")), "{error}");
    assert!(error.to_string().starts_with(&format!("the key of {wanted} {name:?}")), "{error}");
    assert_ne!(format!("a {wanted}"), expected, "{error}");
}
