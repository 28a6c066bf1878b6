//! The model of exclusion finds violations, without false alarms.

use crate::harness::check::Loss;
use crate::harness::check::exclusion::Exclusion;
use crate::harness::history::Span;
use crate::history::show;

const LEASE: u64 = 1000;
const PERMITS: u32 = 2;

fn violations(lines: &str, losses: &[Loss]) -> Vec<String> {
    let mut model = Exclusion::new(LEASE, PERMITS, losses.to_vec(), 0);
    show(lines, |call| model.note(call));
    model.verdict().violations.into_iter().map(|violation| violation.what).collect()
}

fn wipe(start: u64, end: u64) -> Loss {
    Loss { span: Span { start, end }, everything: true }
}

fn failover(start: u64, end: u64) -> Loss {
    Loss { everything: false, ..wipe(start, end) }
}

/// Thread 2 gets the lock while thread 1 has it.
const OVERLAP: &str = "\
    1000 1 > lock 0 1
    1010 1 < granted 7 1 1900
    1020 2 > lock 0 1
    1500 2 < granted 8 1 2400";

#[test]
fn two_holders_at_once_are_found() {
    assert_eq!(violations(OVERLAP, &[]), ["held twice at 1500, for 400 ns"]);
}

#[test]
fn two_names_are_two_locks() {
    let two = OVERLAP.replace("2 > lock 0", "2 > lock 1");
    assert!(violations(&two, &[]).is_empty());
}

#[test]
fn a_hold_ends_with_its_promise() {
    assert!(violations(&OVERLAP.replace("1900", "1500"), &[]).is_empty());
}

#[test]
fn a_hold_that_is_over_when_acquired_does_not_count() {
    assert!(violations(&OVERLAP.replace("2400", "1500"), &[]).is_empty());
    assert!(violations(&OVERLAP.replace("2400", "0"), &[]).is_empty());
}

#[test]
fn a_hold_ends_when_its_last_unlock_begins() {
    let unlocked = OVERLAP.replace("1020 2", "1015 1 > unlock 0 1\n1019 1 < unknown\n1020 2");
    assert!(violations(&unlocked, &[]).is_empty());
    let inner = unlocked.replace("unlock 0 1", "unlock 0 2");
    assert_eq!(violations(&inner, &[]).len(), 1);
}

#[test]
fn a_hold_of_a_killed_process_lasts_as_long_as_promised() {
    let killed = OVERLAP.replace("1020 2", "1015 1 > lock 0 2\n1020 2");
    assert_eq!(violations(&killed, &[]).len(), 1);
}

#[test]
fn a_check_prolongs_a_hold() {
    let checked = OVERLAP.replace("1900", "1100");
    assert!(violations(&checked, &[]).is_empty());
    let checked = checked + "\n1600 1 > check 0 1\n1601 1 < held 1600";
    assert_eq!(violations(&checked, &[]).len(), 1);
}

#[test]
fn a_long_hold_is_compared_with_all_that_begin_in_it() {
    let third = OVERLAP.replace("2400", "1510") + "\n1520 3 > lock 0 1\n1600 3 < granted 9 1 1601";
    assert_eq!(violations(&third, &[]).len(), 2);
}

#[test]
fn lost_data_excuses_two_holders() {
    assert!(violations(OVERLAP, &[wipe(1100, 1200)]).is_empty());
}

#[test]
fn lost_data_excuses_nothing_else() {
    let before_both = wipe(800, 900);
    let after_both = wipe(1501, 1600);
    assert_eq!(violations(OVERLAP, &[before_both, after_both]).len(), 1);
    // The first hold does not end, although the second one was short.
    let kept = OVERLAP.replace("1900", "2201").replace("2400", "1600");
    assert_eq!(violations(&kept, &[wipe(1100, 1200)]).len(), 1);
    assert!(violations(&kept, &[failover(1005, 1200)]).is_empty());
    let long = OVERLAP.replace("1900", "2201");
    assert_eq!(violations(&long, &[wipe(1100, 1200)]).len(), 1);
    assert!(violations(&long, &[wipe(1100, 1201)]).is_empty());
}

#[test]
fn a_failover_excuses_two_holders_if_the_first_came_after_its_start() {
    assert!(violations(OVERLAP, &[failover(1005, 1600)]).is_empty());
    assert!(violations(OVERLAP, &[failover(1010, 1020)]).is_empty());
    assert_eq!(violations(OVERLAP, &[failover(1011, 1600)]).len(), 1);
}

#[test]
fn a_failover_voids_promises_made_after_its_start() {
    let renewed = OVERLAP.replace("1900", "1400");
    let renewed = renewed + "\n1300 1 > check 0 1\n1301 1 < held 1900";
    assert!(violations(&renewed, &[failover(1200, 1600)]).is_empty());
    assert_eq!(violations(&renewed, &[failover(1302, 1600)]).len(), 1);
}

#[test]
fn a_hold_from_before_a_failover_is_not_lost_early() {
    let lost = "\
        1000 1 > lock 0 1
        1010 1 < granted 7 1 1900
        1020 1 > check 0 1
        1300 1 < lost";
    assert_eq!(violations(lost, &[failover(1011, 1200)]).len(), 1);
    assert!(violations(lost, &[failover(1005, 1200)]).is_empty());
    assert!(violations(&lost.replace("1300", "1900"), &[failover(1011, 1200)]).is_empty());
}

#[test]
fn a_broken_promise_is_found() {
    let lost = "\
        1000 1 > lock 0 1
        1010 1 < granted 7 1 1900
        1020 1 > unlock 0 1
        1030 1 < lost";
    assert_eq!(violations(lost, &[]), ["lost 870 ns before its promise was over"]);
    assert!(violations(lost, &[wipe(1005, 1009)]).is_empty());
    assert!(violations(&lost.replace("1030", "1900"), &[]).is_empty());
}

/// A writer after a reader that is still believed to read.
fn a_writer_beside_a_reader() -> String {
    OVERLAP.replacen("lock 0 1", "share 0", 1)
}

#[test]
fn a_writer_beside_a_reader_is_found() {
    assert_eq!(violations(&a_writer_beside_a_reader(), &[]), ["held twice at 1500, for 400 ns"]);
    let reader_last = OVERLAP.replace("2 > lock 0 1", "2 > share 0");
    assert_eq!(violations(&reader_last, &[]), ["held twice at 1500, for 400 ns"]);
}

#[test]
fn readers_may_read_together() {
    let readers = OVERLAP.replace("lock 0 1", "share 0").replace("granted 8", "granted 7");
    assert!(violations(&readers, &[]).is_empty());
    // The writer overlaps both.
    let writer = readers + "\n1600 3 > lock 0 1\n1700 3 < granted 8 1 2600";
    assert_eq!(violations(&writer, &[]).len(), 2);
}

#[test]
fn a_hold_of_a_reader_ends_as_others_do() {
    let reader = a_writer_beside_a_reader();
    assert!(violations(&reader.replace("1900", "1500"), &[]).is_empty());
    let unlocked = reader.replace("1020 2", "1015 1 > unlock 0 1\n1019 1 < unknown\n1020 2");
    assert!(violations(&unlocked, &[]).is_empty());
    let lost = reader.replace("1020 2", "1020 1 > check 0 1\n1021 1 < lost\n1025 2");
    let early = "lost 879 ns before its promise was over";
    assert_eq!(violations(&lost, &[]), [early, "held twice at 1500, for 400 ns"]);
}

#[test]
fn lost_data_excuses_a_writer_beside_a_reader() {
    let reader = a_writer_beside_a_reader();
    assert!(violations(&reader, &[wipe(1100, 1200)]).is_empty());
    assert!(violations(&reader, &[failover(1005, 1600)]).is_empty());
    assert_eq!(violations(&reader, &[failover(1011, 1600)]).len(), 1);
    // The reader came last, although its fence is the writer's: the writer was forgotten, and is
    // believed for too long.
    let writer = OVERLAP.replace("2 > lock 0 1", "2 > share 0").replace("granted 8", "granted 7");
    let long = writer.replace("1900", "2201");
    assert_eq!(violations(&long, &[wipe(1100, 1200)]).len(), 1);
    assert!(violations(&long, &[wipe(1100, 1201)]).is_empty());
}

/// Two permits, taken one after another.
const PERMITTED: &str = "\
    1000 1 > permit 0
    1010 1 < granted 0 1 1900
    1020 2 > permit 0
    1030 2 < granted 0 1 1900
    1040 3 > permit 0
    1050 3 < granted 0 1 1900";

#[test]
fn more_holds_than_permits_are_found() {
    let found = violations(PERMITTED, &[]);
    assert_eq!(found, ["3 permits held at 1050 instead of 2"]);
    let fourth = PERMITTED.to_owned() + "\n1060 4 > permit 0\n1070 4 < granted 0 1 1900";
    assert_eq!(violations(&fourth, &[]).len(), 2);
}

#[test]
fn all_permits_may_be_held_at_once() {
    assert!(violations(&PERMITTED.replace("3 > permit 0", "3 > permit 1"), &[]).is_empty());
    assert!(violations(&PERMITTED.replacen("1900", "1050", 1), &[]).is_empty());
    let released = PERMITTED.replace("1040 3", "1035 2 > unlock 0 1\n1036 2 < unknown\n1040 3");
    assert!(violations(&released, &[]).is_empty());
    // A hold that was already over when the thread got it does not count.
    assert!(violations(&PERMITTED.replacen("1900", "0", 1), &[]).is_empty());
}

#[test]
fn lost_data_excuses_permits_from_before_only() {
    assert!(violations(PERMITTED, &[wipe(1032, 1035)]).is_empty());
    assert!(violations(PERMITTED, &[failover(1005, 1060)]).is_empty());
    // All three came after the loss.
    assert_eq!(violations(PERMITTED, &[wipe(900, 999)]).len(), 1);
    // Two may come after the loss, but a third may not.
    let fourth = PERMITTED.to_owned() + "\n1060 4 > permit 0\n1070 4 < granted 0 1 1900";
    assert!(violations(&fourth, &[wipe(1032, 1035)]).is_empty());
    let fifth = fourth + "\n1080 5 > permit 0\n1090 5 < granted 0 1 1900";
    assert_eq!(violations(&fifth, &[wipe(1032, 1035)]), ["3 permits held at 1090 instead of 2"]);
    // An earlier hold does not end in time.
    let long = PERMITTED.replacen("1900", "2100", 2);
    assert_eq!(violations(&long, &[wipe(1032, 1035)]).len(), 1);
}
