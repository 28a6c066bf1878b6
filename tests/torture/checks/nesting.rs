//! The model of nesting finds holds that begin, nest or end wrongly.

use crate::harness::check::nesting::Nesting;
use crate::history::show;

fn violations(lines: &str) -> Vec<String> {
    let mut model = Nesting::default();
    show(lines, |call| model.note(call));
    model.verdict().violations.into_iter().map(|violation| violation.what).collect()
}

const NESTED: &str = "\
    10 1 > lock 0 1
    11 1 < granted 7 1 99
    12 1 > lock 0 2
    13 1 < granted 7 2 99
    14 1 > unlock 0 2
    15 1 < done
    16 1 > check 0 1
    17 1 < held 99
    18 1 > unlock 0 1
    19 1 < done
    20 1 > check 0 0
    21 1 < free";

#[track_caller]
fn assert_found(old: &str, new: &str, what: &str) {
    let history = NESTED.replace(old, new);
    assert_ne!(history, NESTED);
    assert_eq!(violations(&history), [what]);
}

#[test]
fn a_good_history_has_no_violations() {
    assert!(violations(NESTED).is_empty());
    assert!(violations(&NESTED.replace("19 1 < done", "19 1 < unknown")).is_empty());
    let lost = NESTED.replace("< held 99", "< lost").replace("19 1 < done", "19 1 < lost");
    assert!(violations(&lost).is_empty());
}

#[test]
fn a_nested_lock_that_waits_is_found() {
    let waits = "13 1 < busy\n13 1 > lock 0 2\n13 1 < granted";
    assert_found("13 1 < granted", waits, "a nested lock waited for its own thread");
}

#[test]
fn another_fence_is_found() {
    assert_found("granted 7 2", "granted 8 2", "a nested lock has another fence");
}

#[test]
fn a_wrong_depth_is_found() {
    assert_found("granted 7 2", "granted 7 3", "the depth is wrong");
    assert_found("granted 7 1", "granted 7 2", "a new hold does not begin at depth 1");
}

#[test]
fn a_hold_that_does_not_end_is_found() {
    assert_found("< free", "< held 99", "still held after its last guard");
}

#[test]
fn a_hold_that_comes_back_is_found() {
    let lost = "16 1 > check 0 1\n16 1 < lost\n16 1 > check 0 1";
    let history = NESTED.replace("16 1 > check 0 1", lost).replace("19 1 < done", "19 1 < lost");
    assert_eq!(violations(&history), ["held again after it was lost"]);
    assert_found("< held 99", "< lost", "unlocked, although it was lost before");
}

#[test]
fn a_drop_may_find_what_was_lost_before() {
    let history = NESTED.replace("16 1 < held 99", "16 1 < lost");
    assert!(violations(&history.replace("19 1 < done", "19 1 < dropped")).is_empty());
}

#[test]
fn an_inner_unlock_that_finds_the_loss_is_remembered() {
    let history =
        NESTED.replace("15 1 < done", "15 1 < lost").replace("19 1 < done", "19 1 < lost");
    assert_eq!(violations(&history), ["held again after it was lost"]);
}

#[test]
fn sides_and_permits_end_with_their_only_guard() {
    let single = "\
        10 1 > share 0
        11 1 < granted 7 1 99
        12 1 > check 0 1
        13 1 < held 99
        14 1 > unlock 0 1
        15 1 < done
        16 1 > permit 1
        17 1 < granted 0 1 99";
    assert!(violations(single).is_empty());
    let lost = single.replace("held 99", "lost");
    assert_eq!(violations(&lost), ["unlocked, although it was lost before"]);
    let open = single.replace("14 1 > unlock 0 1\n", "").replace("15 1 < done\n", "");
    assert_eq!(violations(&open.replace("        \n", "")).len(), 1);
}
