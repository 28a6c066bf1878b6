//! The model of the register finds lost updates.

use crate::harness::check::register::Register;
use crate::history::show;

fn violations(lines: &str, finals: &[u64]) -> Vec<String> {
    let mut model = Register::default();
    show(lines, |call| model.note(call));
    model.verdict(finals).violations.into_iter().map(|violation| violation.what).collect()
}

const WRITTEN: &str = "\
    10 1 > write 0 7 1
    11 1 < done
    12 2 > write 0 8 2
    13 2 < done
    14 1 > write 0 7 2
    15 1 < stale
    16 1 > write 1 9 1
    17 1 < done";

#[test]
fn the_last_value_counts_what_was_acknowledged() {
    assert!(violations(WRITTEN, &[2, 1]).is_empty());
}

#[test]
fn a_lost_update_is_found() {
    let lost = violations(&WRITTEN.replace("write 0 8 2", "write 0 8 1"), &[1, 1]);
    let count = "lock 0 ended at 1 instead of 2 to 2";
    assert_eq!(lost, ["a lost update: 1 was written twice", count]);
}

#[test]
fn a_write_that_vanishes_or_appears_is_found() {
    assert_eq!(violations(WRITTEN, &[2, 0]), ["lock 1 ended at 0 instead of 1 to 1"]);
    assert_eq!(violations(WRITTEN, &[3, 1]), ["lock 0 ended at 3 instead of 2 to 2"]);
}

#[test]
fn an_unknown_write_may_count_or_not() {
    let unknown = WRITTEN.replace("13 2 < done", "13 2 < unknown");
    assert!(violations(&unknown, &[2, 1]).is_empty());
    assert!(violations(&unknown, &[1, 1]).is_empty());
    assert_eq!(violations(&unknown, &[3, 1]).len(), 1);
}

#[test]
fn a_last_value_below_an_acknowledged_one_is_found() {
    let replaced = WRITTEN.replace("13 2 < done", "13 2 < unknown").replace("0 7 1", "0 7 2");
    assert_eq!(violations(&replaced, &[1, 1]), ["lock 0 ended at 1 instead of 1 to 2"]);
}
