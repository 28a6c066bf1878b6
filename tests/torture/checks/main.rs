//! Unit tests of the torture harness: its models find broken promises, without false alarms.
//!
//! They are a target of their own, because the harness is a main program in which no `#[test]`
//! runs.
#![allow(dead_code, reason = "the main program uses the rest")]

mod exclusion;
mod fences;
#[path = "../harness/mod.rs"]
mod harness;
mod history;
mod messages;
mod nesting;
mod options;
mod register;
mod tenures;
