//! The meaning of an error reply: what has failed, and whether the request was executed.
//!
//! A Redis server refuses a request before executing it, and the scripts fail, if at all, before
//! their first write that matters. But not every error comes from a Redis server. A proxy that has
//! lost its server replies with an error of its own, perhaps after the server has executed the
//! request. Only known replies prove that nothing was done.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use redis::ServerError;

use crate::base::failure::{Failure, FailureKind};
use crate::base::printable;

/// The codes of errors about a temporary condition.
const TRANSIENT: [&str; 7] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"];

/// The codes of errors from a server that is a replica, or may come back as one. A master that
/// becomes a replica replies UNBLOCKED to blocked clients.
const DEMOTED: [&str; 4] = ["LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"];

/// The codes of the other errors that prove that a server, or a script, has done nothing. FENCE
/// comes from the scripts.
const REFUSALS: [&str; 15] = [
    "ASK",
    "CROSSSLOT",
    "DENIED",
    "EXECABORT",
    "FENCE",
    "INVALIDOBJ",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOPROTO",
    "NOSCRIPT",
    "OOM",
    "UNBLOCKED",
    "WRONGPASS",
];

/// The starts of the texts of other such errors, which have no code of their own, from Redis,
/// managed services and proxies. Elsewhere in a text the same words prove nothing: a proxy may use
/// them to report a lost server.
const REFUSING_TEXTS: [&str; 20] = [
    "bad lua script for redis cluster",
    "command is not available",
    "could not find scripting engine",
    "eval/evalsha command keys must be in same slot",
    "for redis cluster, eval/evalsha",
    "handle request, command",
    "invalid expire time",
    "max daily request limit",
    "max request size",
    "max requests limit",
    "protocol error",
    "syntax error",
    "this instance has cluster support disabled",
    "this redis command is not allowed",
    "unknown command",
    "unknown redis command",
    "unknown subcommand",
    "unsupported command",
    "value is not",
    "wrong number of arguments",
];

/// The words after the name of a command in the text of a refusal: `command eval not support for
/// normal user`.
const REFUSED_COMMAND: [&str; 4] = ["is disabled", "is not allowed", "not allowed", "not support"];

/// The name of a script in the error that ended it. The scripts of this library fail before they
/// write.
const SCRIPT: &str = "user_script:";

/// Redis before 7 sends this in place of a code when a script returns the error of a refused
/// command.
const PLACE: &str = "@user_script:";

/// The starts of the error texts of a script whose user lacks a permission.
const MISSING_RIGHT: [&str; 2] = ["acl failure in script", "the user executing the script"];

/// The words after which servers repeat parts of a request, such as the owner of a lock, in an
/// error text.
const ARGUMENTS: &str = ", with args beginning with";

/// The text of an error reply, as shown to people.
#[derive(Debug)]
pub(crate) struct ErrorReply {
    code: String,
    pub(crate) details: String,
}

impl fmt::Display for ErrorReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(format!("{} {}", self.code, self.details).trim_end())
    }
}

impl StdError for ErrorReply {}

/// Returns `true` if a server that sends this reply may no longer be the master.
pub(crate) fn suggests_demotion(code: &str) -> bool {
    DEMOTED.contains(&code)
}

/// Returns the failure for an error reply of `server`.
pub(crate) fn failure(error: &ServerError, server: &Arc<str>) -> Failure {
    let details = error.details().unwrap_or_default();
    let text = details.to_ascii_lowercase();
    let is_of_script = error.code() == PLACE || text.contains(SCRIPT);
    let lacks_right = MISSING_RIGHT
        .iter()
        .any(|known| text.starts_with(known) || is_of_script && text.contains(known));
    let code = inner_code(details).unwrap_or(error.code());
    let code = printable(if lacks_right { "NOPERM" } else { code });
    let is_refusal =
        REFUSING_TEXTS.iter().any(|known| text.starts_with(known)) || refuses_command(&text);
    let kind = match code.as_str() {
        code if TRANSIENT.contains(&code) => FailureKind::Transient,
        code if REFUSALS.contains(&code) => FailureKind::Rejected,
        "WRONGTYPE" => FailureKind::WrongType,
        "ERR" if text.starts_with("max number of clients") => FailureKind::Transient,
        "ERR" if text.contains(SCRIPT) => FailureKind::Rejected,
        "ERR" if is_refusal => FailureKind::Rejected,
        _ => FailureKind::Unclear,
    };
    let shown = details.split_once(ARGUMENTS).map_or(details, |(reply, _)| reply);
    let reply = ErrorReply { code: printable(error.code()), details: printable(shown) };
    Failure { code, ..Failure::io(kind, server, reply) }
}

fn refuses_command(text: &str) -> bool {
    let named = text.strip_prefix("command ").and_then(|text| text.split_once(' '));
    named.is_some_and(|(_, rest)| REFUSED_COMMAND.iter().any(|words| rest.starts_with(words)))
}

/// Returns the code of a command that failed inside a script, which Redis before 7 hides: `ERR
/// Error running script (call to f_…): @user_script:3: WRONGTYPE Operation against …`, or with the
/// place in it twice.
fn inner_code(details: &str) -> Option<&str> {
    let (_, place) = details.strip_prefix("Error running script")?.rsplit_once(PLACE)?;
    let (_, reply) = place.trim_start().split_once(": ")?;
    let word = reply.trim_start_matches('-').split(' ').next()?;
    let is_code = word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    if is_code { Some(word) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reply: &str) -> Failure {
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).expect("a reply");
        let redis::Value::ServerError(error) = reply else { panic!("an error reply") };
        failure(&error, &Arc::from("here"))
    }

    fn kind(reply: &str) -> FailureKind {
        read(reply).kind
    }

    #[test]
    fn an_error_reply_is_shown_once_and_without_parts_of_the_request() {
        for (reply, shown, code) in [
            ("NOAUTH Authentication required.", "NOAUTH Authentication required.", "NOAUTH"),
            ("MOVED 3999 ::1:6381", "MOVED 3999 ::1:6381", "MOVED"),
            ("LOADING", "LOADING", "LOADING"),
            ("NOPERM a\n\u{1b}[2Jb", r"NOPERM a\n\u{1b}[2Jb", "NOPERM"),
            ("\u{7}NEW\nb", r"\u{7}NEW\nb", r"\u{7}NEW\nb"),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 'a1' 'me:7' ",
                "ERR unknown command 'EVALSHA'",
                "ERR",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "ERR The user executing the script can't run this command or subcommand",
                "NOPERM",
            ),
            (
                "@user_script: 9: The user executing the script can't run this command",
                "@user_script: 9: The user executing the script can't run this command",
                "NOPERM",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: \
                 The user executing the script can't run this command",
                "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: \
                 The user executing the script can't run this command",
                "NOPERM",
            ),
        ] {
            let failure = read(reply);
            assert_eq!((failure.source.to_string().as_str(), &*failure.code), (shown, code));
            assert!(failure.source.source().is_none());
        }
    }

    #[test]
    fn a_known_error_reply_proves_that_nothing_was_done() {
        for reply in [
            "DENIED Redis is running in protected mode",
            "ERR ACL failure in script: User ali has no permissions to run the 'get' command",
            "ERR Error compiling script (new function): user_script:1: '=' expected",
            "ERR Error running script (call to f_1): @user_script:7: Script killed by user",
            "ERR The user executing the script can't run this command or subcommand",
            "ERR Unknown command called from script script: on @user_script:1.",
            "ERR user_script:1: attempt to index local 'x' script: on @user_script:1.",
            "ERR Protocol error: invalid bulk length",
            "ERR This instance has cluster support disabled",
            "ERR Could not find scripting engine 'lua'",
            "ERR bad lua script for redis cluster, all the keys that the script uses should be \
             passed using the KEYS array",
            "ERR max requests limit exceeded. Limit: 500000, Usage: 500000.",
            "ERR Command is not available: 'EVALSHA'.",
            "ERR command eval not support for normal user",
            "ERR handle request, command 'EVALSHA' is not allowed",
            "ERR unknown command `EVALSHA`, with args beginning with: ",
            "ERR wrong number of arguments for 'evalsha' command",
            "FENCE leasehold:fence:{a} does not hold a token",
            "NOAUTH Authentication required.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "OOM command not allowed when used memory > 'maxmemory'.",
        ] {
            assert_eq!(kind(reply), FailureKind::Rejected, "{reply}");
        }
        assert_eq!(kind("ERR max number of clients reached"), FailureKind::Transient);
        assert_eq!(kind("LOADING Redis is loading the dataset in memory"), FailureKind::Transient);
        assert_eq!(kind("WRONGTYPE Operation against a key"), FailureKind::WrongType);
    }

    #[test]
    fn an_unknown_error_reply_proves_nothing() {
        for reply in [
            "upstream failure",
            "no upstream host",
            "ERR Connection timed out",
            "ERR handle response, backend conn reset",
            "ERR handle request, slot-0007 is not ready",
            "ERR command timed out, backend not available",
            "ERR command timed out",
            "ERR script call was interrupted by the proxy",
            "ERR unknown upstream error",
            "NOTYET invented",
        ] {
            assert_eq!(kind(reply), FailureKind::Unclear, "{reply}");
        }
    }

    #[test]
    fn the_code_inside_a_script_is_found_in_the_replies_of_redis_6() {
        let code = |text| inner_code(text);
        assert_eq!(
            code(
                "Error running script (call to f_1a): @user_script:7: WRONGTYPE Operation against"
            ),
            Some("WRONGTYPE")
        );
        assert_eq!(
            code("Error running script (call to f_1a): @user_script: 7: -OOM command not allowed"),
            Some("OOM")
        );
        assert_eq!(
            code(
                "Error running script (call to f_1a): @user_script:62: @user_script: 62: \
                 -READONLY You can't write"
            ),
            Some("READONLY")
        );
        assert_eq!(
            code("Error running script (call to f_1a): @user_script:7: attempt to call"),
            None
        );
        assert_eq!(code("Error compiling script (new function)"), None);
    }
}
