//! The model of fences finds tokens that do not grow.

use crate::harness::check::Loss;
use crate::harness::check::fences::Fences;
use crate::harness::history::Span;
use crate::history::show;

fn violations(lines: &str) -> Vec<String> {
    violations_with(lines, &[], &[])
}

fn violations_with(lines: &str, losses: &[Loss], faults: &[Span]) -> Vec<String> {
    let mut model = Fences::new(1000, losses.to_vec(), faults.to_vec(), 0);
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
fn fences_that_grow_within_each_name_are_accepted() {
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

/// Two readers after a writer, and another writer.
const READ: &str = "\
    10 1 > lock 0 1
    20 1 < granted 7 1 99
    21 2 > share 0
    30 2 < granted 7 1 99
    31 3 > share 0
    40 3 < granted 7 1 99
    41 1 > lock 0 1
    50 1 < granted 9 1 99";

#[test]
fn readers_have_the_fence_of_the_last_writer() {
    assert!(violations(READ).is_empty());
    let before = "\
        1 2 > share 0
        2 2 < granted 5 1 99
        ";
    assert!(violations(&(before.to_owned() + READ)).is_empty(), "the first of all has its own");
}

#[test]
fn a_reader_with_the_fence_of_an_earlier_writer_is_found() {
    let first = "\
        1 1 > lock 0 1
        2 1 < granted 5 1 99
        ";
    let stale = first.to_owned() + &READ.replace("30 2 < granted 7", "30 2 < granted 5");
    assert_eq!(violations(&stale), ["fence 5 came after 7"]);
    // A failover may have forgotten the last writer, unless the failover came first.
    let failover = |start, end| Loss { span: Span { start, end }, everything: false };
    assert!(violations_with(&stale, &[failover(15, 25)], &[]).is_empty());
    assert_eq!(violations_with(&stale, &[failover(21, 25)], &[]).len(), 1);
    assert_eq!(violations_with(&stale, &[failover(31, 45)], &[]).len(), 1);
}

#[test]
fn a_writer_whose_fence_readers_had_before_is_found() {
    assert_eq!(violations(&READ.replace("granted 9", "granted 7")).len(), 2);
    let unknown = READ.replace("20 1 < granted 7 1 99", "20 1 < unknown");
    assert!(violations(&unknown).is_empty());
    assert_eq!(violations(&unknown.replace("granted 9", "granted 7")), ["fence 7 came after 7"]);
}

#[test]
fn a_reader_with_a_fence_of_no_writer_is_found() {
    let none = READ.replace("30 2 < granted 7", "30 2 < granted 8");
    let unwritten = "no writer was given the reader's fence 8, but 7";
    let shrunk = "fence 7 came after 8";
    assert_eq!(violations(&none), [shrunk, unwritten]);
    let both = none.replace("40 3 < granted 7", "40 3 < granted 8");
    assert_eq!(violations(&both), [unwritten, unwritten]);
    // A writer whose reply was lost or late may have been given it.
    let lost = "\n22 4 > lock 0 1\n23 4 < unknown";
    assert!(violations(&(both.clone() + lost)).is_empty());
    let killed = "\n22 4 > lock 0 1";
    assert!(violations(&(both.clone() + killed)).is_empty());
    let late = "\n22 4 > lock 0 1\n1022 4 < busy";
    assert!(violations(&(both.clone() + late)).is_empty());
    // This excludes a writer that learned in time that it has none, a later one, and one of another
    // lock.
    for other in ["22 4 > lock 0 1\n23 4 < busy", "42 4 > lock 0 1", "22 4 > lock 1 1"] {
        assert_eq!(violations(&format!("{both}\n{other}")).len(), 2, "{other}");
    }
    // The same goes for a fault, and requests that it may have delayed, between the last writer and
    // the reader.
    let fault = |start, end| Span { start, end };
    assert!(violations_with(&both, &[], &[fault(22, 23)]).is_empty());
    assert!(violations_with(&both, &[], &[fault(5, 6)]).is_empty());
    assert_eq!(violations_with(&both, &[], &[fault(42, 43)]).len(), 2);
    let later: Vec<_> = both.lines().map(|line| format!("20{}", line.trim())).collect();
    assert_eq!(violations_with(&later.join("\n"), &[], &[fault(5, 6)]).len(), 2);
}

#[test]
fn permits_have_no_fence() {
    let permits = GROWING.replace("lock 0 1", "permit 0").replace("granted 8", "granted 7");
    assert!(violations(&permits).is_empty());
}
