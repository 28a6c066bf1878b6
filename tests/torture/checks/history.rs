//! Whole histories: they can be parsed, and a good one breaks no promise.

use crate::harness::check::Checker;
use crate::harness::history::{self, Call, Place};

/// Passes the calls of a history written by hand to a model.
pub(super) fn show(lines: &str, note: impl FnMut(&Call)) {
    show_worker(0, lines, note);
}

/// The same for the history of one of several processes.
pub(super) fn show_worker(worker: u64, lines: &str, note: impl FnMut(&Call)) {
    let text: String = lines.lines().map(|line| line.trim().to_owned() + "\n").collect();
    history::read(text.trim_start().as_bytes(), worker, note).expect("a history");
}

/// Two threads, one after another. The first one nests.
const GOOD: &str = "\
    100 1 > lock 0 1
    101 2 > lock 0 1
    110 1 < granted 7 1 900
    111 1 > lock 0 2
    120 1 < granted 7 2 950
    121 1 > read 0 7
    122 1 < value 0
    123 1 > check 0 2
    124 1 < held 960
    125 1 > write 0 7 1
    126 1 < done
    130 1 > unlock 0 2
    140 1 < done
    150 1 > unlock 0 1
    155 2 < granted 8 1 999
    160 1 < done
    161 1 > check 0 0
    162 1 < free
    170 2 > read 0 8
    171 2 < value 1
    172 2 > write 0 8 2
    173 2 < done
    180 2 > unlock 0 1
    190 2 < done";

#[test]
fn a_good_history_keeps_all_models() {
    let mut checker = Checker::new(1000, 2, &[], Vec::new(), 0);
    show(GOOD, |call| checker.note(call));
    for verdict in checker.verdicts(&[2]) {
        assert!(verdict.violations.is_empty(), "{}: {:?}", verdict.model, verdict.violations);
    }
}

#[test]
fn a_line_cut_short_by_a_kill_is_left_out() {
    let text = "100 1 > lock 0 1\n110 1 < granted 7 1 9";
    let mut calls = Vec::new();
    history::read(text.as_bytes(), 3, |call| calls.push(*call)).expect("a history");
    let [call] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!(call.outcome, history::Outcome::Unknown);
    assert_eq!(call.place, Place { worker: 3, line: 1 });
}

#[test]
fn a_line_that_makes_no_sense_is_an_error() {
    for text in ["100 1 < done\n", "100 1 > lock x 1\n", "100 1 > read 0 1\n101 1 > read 0 1\n"] {
        history::read(text.as_bytes(), 0, |_| {}).expect_err(text);
    }
}
