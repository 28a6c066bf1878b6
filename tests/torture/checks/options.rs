//! The command line.

use crate::harness::Result;
use crate::harness::nemesis::Fault;
use crate::harness::options::Options;

fn parse(line: &str) -> Result<Options> {
    Options::parse_words(line.split_whitespace().map(str::to_owned))
}

#[track_caller]
fn assert_refused(line: &str, what: &str) {
    let error = parse(line).expect_err(line).to_string();
    assert!(error.contains(what), "{error}");
}

#[test]
fn all_faults_are_those_that_fit_the_topology() {
    let alone = parse("").expect("nothing is required").faults;
    assert!(alone.contains(&Fault::DropReplies) && !alone.contains(&Fault::KillMaster));
    // The order of the options does not matter.
    let watched = parse("--nemesis all --locks sentinel").expect("both are known").faults;
    assert!(!watched.contains(&Fault::DropReplies) && watched.contains(&Fault::KillMaster));
}

#[test]
fn settings_that_do_not_fit_the_topology_are_refused() {
    assert_refused("--nemesis fail-over", "fail-over takes --locks sentinel");
    assert_refused(
        "--locks sentinel --nemesis drop-replies",
        "drop-replies takes --locks server or quorum",
    );
    assert_refused("--locks sentinel --nemesis drop-messages", "drop-messages takes");
    assert_refused(
        "--locks sentinel --nemesis narrow-link",
        "narrow-link takes --locks server or quorum",
    );
    assert_refused("--durability one-replica", "one-replica takes --locks sentinel");
    parse("--durability all-replicas --locks sentinel").expect("these fit");
    assert_refused(
        "--locks cluster --durability one-replica",
        "one-replica takes --locks sentinel",
    );
    assert_refused("--locks quorum --nemesis kill-master", "kill-master takes --locks sentinel");
    assert_refused("--locks quorum --kind all", "--locks quorum takes locks");
    for topology in ["server", "sentinel", "cluster", "quorum"] {
        parse(&format!("--locks {topology} --durability disk")).expect("all have disks");
    }
}

#[test]
fn names_are_of_one_kind_or_of_all() {
    let kinds = |line: &str| {
        let options = parse(line).expect("a known kind");
        [0, 1, 2, 3].map(|name| options.primitive(name).to_string())
    };
    assert_eq!(kinds(""), ["lock"; 4]);
    assert_eq!(kinds("--kind rw"), ["rw"; 4]);
    assert_eq!(kinds("--kind semaphore"), ["semaphore"; 4]);
    assert_eq!(kinds("--kind all"), ["lock", "rw", "semaphore", "lock"]);
    assert_refused("--kind semaphore --unfenced", "permits have none");
    parse("--kind all --unfenced").expect("some have fences");
}

#[test]
fn only_locks_are_kept_and_for_a_lease_at_most() {
    assert!(!parse("").expect("nothing is required").keeps());
    assert!(parse("--keep 300 --lease 300 --kind all").expect("these fit").keeps());
    assert_refused("--keep 301 --lease 300", "--keep must be at most the lease");
    assert_refused("--keep 300 --kind rw", "--keep takes locks");
}

#[test]
fn unknown_words_are_refused() {
    assert_refused("--locks moon", "--locks is server, sentinel, cluster or quorum");
    assert_refused("--kind spin", "--kind is lock, rw, semaphore or all");
    assert_refused("--durability tape", "no such durability");
    assert_refused("--nemesis none,fire", "no such nemesis");
    assert_refused("--seconds", "--seconds needs a value");
}
