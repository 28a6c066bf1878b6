//! The model of fences finds tokens that do not grow.

use crate::harness::check::fences::Fences;
use crate::history::show;

fn violations(lines: &str) -> Vec<String> {
    let mut model = Fences::default();
    show(lines, |call| model.note(call));
    model.verdict().violations.into_iter().map(|violation| violation.what).collect()
}

const GROWING: &str = "\
    10 1 > lock 0 1
    20 1 < granted 7 1 99
    21 2 > lock 0 1
    30 2 < granted 8 1 99
    31 1 > lock 1 1
    40 1 < granted 5 1 99
    41 2 > lock 1 1
    50 2 < granted 6 1 99";

#[test]
fn growing_fences_are_good_in_each_name() {
    assert!(violations(GROWING).is_empty());
}

#[test]
fn a_shrinking_fence_is_found() {
    let smaller = GROWING.replace("granted 8", "granted 6");
    assert_eq!(violations(&smaller), ["fence 6 came after 7"]);
    let smaller = GROWING.replace("50 2 < granted 6", "50 2 < granted 4");
    assert_eq!(violations(&smaller), ["fence 4 came after 5"]);
}

#[test]
fn fences_of_calls_at_the_same_time_have_no_order() {
    let both = GROWING.replace("21 2", "19 2").replace("granted 8", "granted 6");
    assert!(violations(&both).is_empty());
}

#[test]
fn a_fence_given_twice_is_found() {
    let twice = GROWING.replace("21 2", "19 2").replace("granted 8", "granted 7");
    assert_eq!(violations(&twice), ["fence 7 was given twice"]);
}
