//! The program `leasehold` as a process, with real servers and real commands.
#![allow(
    clippy::unwrap_used,
    reason = "in a test, a panic at the line that went wrong is the wanted report"
)]

mod loss;
mod manual;
mod names;
mod nested;
mod outcomes;
mod ping;
mod run;
mod secrets;
mod signals;
mod support;
mod systemd;
mod terminal;
mod tickets;
