//! Holds that follow one another without a request after the server has lost the lock.

use crate::harness::check::exclusion::Exclusion;
use crate::harness::check::fences::Fences;
use crate::harness::check::{Loss, Verdict};
use crate::harness::history::Span;
use crate::history::show_worker;

/// The lock is kept for the second hold.
const KEPT: &str = "\
    900 1 > lock 0 1
    910 1 < granted 7 1 1900
    920 1 > unlock 0 1
    930 1 < dropped
    1200 1 > lock 0 1
    1210 1 < granted 8 1 1900";
/// Another process gets it first.
const OTHER: &str = "\
    1100 1 > lock 0 1
    1110 1 < granted 20 1 2100";

/// Returns the number of violations of exclusion, and that of fences.
fn violations(kept: &str, span: (u64, u64)) -> (usize, usize) {
    violations_since(0, kept, span)
}

/// Like `violations`, by a clock that began at `zero`.
fn violations_since(zero: u64, kept: &str, (start, end): (u64, u64)) -> (usize, usize) {
    let losses = vec![Loss { span: Span { start, end }, everything: true }];
    let mut exclusion = Exclusion::new(1000, 1, losses.clone(), zero);
    let mut fences = Fences::new(1000, losses, Vec::new(), zero);
    for (worker, lines) in [(1, kept), (2, OTHER)] {
        show_worker(worker, lines, |call| {
            exclusion.note(call);
            fences.note(call);
        });
    }
    let count = |verdict: Verdict| verdict.violations.len();
    (count(exclusion.verdict()), count(fences.verdict()))
}

#[test]
fn lost_data_excuses_holds_of_a_tenure_from_before() {
    assert_eq!(violations(KEPT, (1000, 1050)), (0, 0));
    let lost = KEPT.to_owned() + "\n1250 1 > check 0 1\n1260 1 < lost";
    assert_eq!(violations(&lost, (1000, 1050)), (0, 0));
}

/// The second hold is in a tenure that a call for several locks began and gave back. By the
/// servers' clock, its token was given at 950 or at 1250.
#[test]
fn lost_data_excuses_holds_of_a_tenure_that_no_hold_shows() {
    let skipped = KEPT.replace("granted 8", "granted 10");
    assert_eq!(violations_since(10_000 - 950, &skipped, (1000, 1050)), (0, 0));
    assert_eq!(violations_since(10_000 - 950, &skipped, (800, 850)), (1, 1));
    assert_eq!(violations_since(10_000 - 1250, &skipped, (1000, 1050)), (1, 1));
}

#[test]
fn lost_data_excuses_no_holds_of_other_tenures() {
    assert_eq!(violations(KEPT, (800, 850)), (1, 1));
    assert_eq!(violations(&KEPT.replace("granted 8", "granted 9"), (1000, 1050)), (1, 1));
    // The other process knows of the loss by then.
    assert_eq!(violations(&KEPT.replace("12", "22"), (1000, 1050)).1, 1);
}
