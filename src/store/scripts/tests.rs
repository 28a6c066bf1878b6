//! The files in `lua/`, and replies that scripts may give or never give.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::base::event_thread::Events;
use crate::config::Config;
use crate::fuzz::{cases, values};
use crate::net::demand::is_done;
use crate::net::packed::Request;
use crate::net::server::ServerFactory;

/// The names of the files in `lua/`, and their contents.
fn files() -> impl Iterator<Item = (String, String)> {
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/lua");
    fs::read_dir(scripts).expect("the scripts are there").map(|script| {
        let script = script.expect("they can be listed").path();
        let text = fs::read_to_string(&script).expect("they can be read");
        (script.display().to_string(), text)
    })
}

#[test]
fn the_scripts_use_no_function_that_newer_lua_lacks() {
    // Redis and Valkey have Lua 5.1, Dragonfly has 5.4.
    const GONE: [&str; 5] = ["unpack(", "loadstring(", "setfenv(", "table.getn(", "math.pow("];
    for (name, text) in files() {
        let gone = GONE.iter().find(|function| text.contains(**function));
        assert_eq!(gone, None, "in {name}");
    }
}

#[test]
fn no_comment_and_no_indentation_is_sent() {
    for (name, text) in files() {
        let code = code(&text);
        let needless = ["--", "  ", "\n ", "\n\n"].iter().find(|text| code.contains(**text));
        assert_eq!(needless, None, "in {name}");
        // Comments and strings that span lines are not recognized.
        assert!(!text.contains("[[") && !text.contains("[="), "in {name}");
    }
    let release = Request::call(&RELEASE, &[], &[]).in_full();
    let sent = String::from_utf8(release.bytes).expect("it is text");
    assert!(!sent.contains("--") && sent.len() < 6400, "{} bytes: {sent}", sent.len());
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn whatever_a_script_replies_is_decoded_or_has_another_shape(reply in values()) {
        if let Some(AcquireReply::Acquired { .. }) = AcquireReply::read(&reply) {
            prop_assert!(is_done(&reply));
        }
        if let Some(HoldReply::Done | HoldReply::Wanted) = HoldReply::read(&reply) {
            prop_assert!(is_done(&reply));
        }
        let _ = ReportReply::read(&reply);
    }
}

#[test]
fn replies_of_another_shape_are_rejected() {
    let odd = [
        Value::Nil,
        Value::Okay,
        Value::Int(-1),
        Value::Array(vec![Value::Int(1)]),
        Value::Array(vec![Value::Int(1), Value::Int(-1)]),
        Value::Array(vec![Value::Int(3), Value::Int(2)]),
        Value::Array(vec![Value::Int(1), Value::Nil, Value::Nil]),
        Value::Array([5, 9, 1, 1].map(Value::Int).into()),
        Value::Array([0, 9, 1, 0, 1].map(Value::Int).into()),
    ];
    for reply in odd {
        assert_eq!(HoldReply::read(&reply), None, "{reply:?}");
        assert_eq!(AcquireReply::read(&reply), None, "{reply:?}");
        assert_eq!(ReportReply::read(&reply), None, "{reply:?}");
    }
    for other in [Value::Int(0), Value::Int(1)] {
        assert_eq!(AcquireReply::read(&other), None, "{other:?}");
    }
    assert_eq!(HoldReply::read(&Value::Int(3)), None);
}

#[test]
fn only_a_hold_that_has_begun_or_changed_is_done() {
    let array = |first| Value::Array(vec![Value::Int(first), Value::Int(5)]);
    for (reply, done) in [
        (Value::Int(1), true),
        (Value::Int(2), true),
        (Value::Int(0), false),
        (array(7), true),
        (array(0), false),
        (array(-1), false),
        (Value::Array(Vec::new()), false),
        (Value::Nil, false),
    ] {
        assert_eq!(is_done(&reply), done, "{reply:?}");
    }
}

#[test]
fn only_a_key_of_another_kind_means_that_a_hold_is_gone() {
    let config = Config::default();
    let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
    let from = servers.connections(servers.endpoint("redis://there/").expect("a good URL"));
    let decode = |kind| {
        let error = std::io::Error::other("test");
        let failure = Failure::io(kind, &std::sync::Arc::from("there"), error);
        HoldReply::decode(Err(failure), &from).map_err(|failure| failure.kind)
    };
    assert_eq!(decode(FailureKind::WrongType), Ok(HoldReply::Gone));
    for kind in [FailureKind::Timeout, FailureKind::Rejected] {
        assert_eq!(decode(kind), Err(kind));
    }
}

#[test]
fn a_waiting_client_is_named_without_what_it_waits_for() {
    let text = |text: &str| Value::BulkString(text.into());
    let waiting = |kind: &str| {
        let hold = vec![text(kind), text("web:0a:1"), Value::Int(5), text("1")];
        let holds = Value::Array(vec![Value::Array(hold)]);
        let clients = Value::Array(vec![text("r:0b"), text("w:0c")]);
        ReportReply::read(&Value::Array(vec![holds, text("7"), clients])).expect("a reply").waiting
    };
    assert_eq!(waiting("w"), ["0b", "0c"]);
    assert_eq!(waiting("l"), ["r:0b", "w:0c"], "labels");
}

#[test]
fn a_holder_without_a_lease_holds_for_an_unknown_time() {
    let reply = Value::Array(vec![Value::Int(0), Value::Int(-1)]);
    let read = AcquireReply::read(&reply);
    assert!(matches!(read, Some(AcquireReply::Held { remaining: None, .. })), "{read:?}");
    let [kind, owner, depth, fence] = ["l", "me", "1", "7"].map(|it| Value::BulkString(it.into()));
    let holds = Value::Array(vec![Value::Array(vec![kind, owner, Value::Int(-1), depth])]);
    let reply = Value::Array(vec![holds, fence, Value::Array(Vec::new())]);
    let report = ReportReply::read(&reply).expect("a report");
    assert_eq!(report.holder().map(|holder| holder.remaining), Some(Duration::MAX));
}

#[test]
fn the_letter_of_an_owner_says_its_kind() {
    let text = |text: &str| Value::BulkString(text.into());
    let held_as = |kind: &str| {
        let hold = vec![text(kind), text("0a:1"), Value::Int(5), text("1")];
        let holds = Value::Array(vec![Value::Array(hold)]);
        let report = Value::Array(vec![holds, text("7"), Value::Array(Vec::new())]);
        ReportReply::read(&report).map(|report| report.holds[0].0)
    };
    let kinds = [HeldAs::Lock, HeldAs::Permit, HeldAs::Reader, HeldAs::Foreign, HeldAs::Writer];
    assert_eq!(["l", "p", "r", "s", "w"].map(held_as), kinds.map(Some));
    assert_eq!(held_as("x"), None);
}
