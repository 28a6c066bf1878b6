//! Torture: processes full of threads contend for a few locks while everything around them fails.
//! They record every call, and the harness compares the history with the promises. With `--kind`
//! the names are read-write locks or semaphores, or some of each kind. With `--keep` each process
//! keeps locks that no thread holds, until another process asks for them.
//!
//! `cargo test --release --test torture -- --seconds 60`; `--help` lists the options. The harness
//! starts a `redis-server` of its own. It fails if a promise was broken, if a lock is no longer
//! used when the faults are over, if threads that share locks never hand one off, or if locks that
//! may be kept are never used again or never recalled. It checks four models:
//!
//! | model | promise | voided by |
//! |---|---|---|
//! | exclusion | holds that exclude each other never overlap, none is lost early | lost data only |
//! | nesting | the holder gets its lock again at once, with its fence; lost is final | nothing |
//! | fences | later ones are greater, a reader has the last writer's | lost data, in old tenures |
//! | register | with the fence, no acknowledged write is lost | nothing |
//!
//! A server that loses its data excuses two holders of one lock if one got it before the loss and
//! the other after it, for at most a lease. The summary counts these cases. With `--locks sentinel`
//! the locks are on a master with replicas, and a failover is such a loss of what was promised
//! between its start and the time when no client uses the old master any more.
//!
//! The register is on another server, which nothing disturbs. Workers write to it whether or not
//! they still have the lock, except readers, and holders of permits, which have no fence. With
//! `--unfenced` it accepts every write, and the run fails unless updates are lost. This shows that
//! the faults do harm, and that the check notices.
//!
//! The binary is its own main program: it starts itself again as worker processes, and so has no
//! unit tests. The tests of the models and of the command line are in `checks/`.

use std::process::ExitCode;

mod harness;

fn main() -> ExitCode {
    harness::main()
}
