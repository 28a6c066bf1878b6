//! Servers that restart, with or without their data.

use leasehold::HoldEnd;

use crate::support::{
    LEASE, SOON, Server, assert_lost, is_busy, ms, patient, stores, take, throughout,
};

stores! {
    every server:
        a_restart_with_the_data_keeps_the_hold,
        a_restart_with_older_data_ends_the_hold_and_repeats_no_fence,
        a_restart_while_idle_is_not_noticed;
}

stores! {
    over tls:
        a_restart_while_idle_is_not_noticed;
}

fn a_restart_with_the_data_keeps_the_hold(server: &Server) {
    let client = server.open(patient().lease(ms(3000)));
    let guard = take(&client, "a");
    server.command(&["SAVE"]);
    server.restart();
    throughout(ms(3500), || guard.is_held());
    guard.verify().unwrap();
    assert!(is_busy(&client, "a"));
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_restart_with_older_data_ends_the_hold_and_repeats_no_fence(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    take(&client, "a").unlock().unwrap();
    // Everything written after this is lost, including the last step of the counter.
    server.command(&["SAVE"]);
    let guard = take(&client, "a");
    server.restart();
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    let fence = guard.fence();
    assert_lost(guard.unlock(), "a");
    assert!(take(&client, "a").fence() > fence);
}

fn a_restart_while_idle_is_not_noticed(server: &Server) {
    let client = server.open(patient());
    take(&client, "a").unlock().unwrap();
    server.restart();
    take(&client, "a").unlock().unwrap();
}
