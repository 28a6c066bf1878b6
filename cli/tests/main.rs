//! The program `leasehold` as a process, with real servers and real commands.
#![allow(
    clippy::unwrap_used,
    reason = "in a test, a panic at the line that went wrong is the wanted report"
)]

#[cfg(unix)]
mod loss;
#[cfg(unix)]
mod manual;
mod names;
#[cfg(unix)]
mod nested;
mod outcomes;
mod ping;
mod run;
#[cfg(unix)]
mod secrets;
#[cfg(unix)]
mod signals;
mod support;
#[cfg(unix)]
mod systemd;
#[cfg(unix)]
mod terminal;
mod tickets;
#[cfg(windows)]
mod windows;
