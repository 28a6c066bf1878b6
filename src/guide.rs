//! The pages in `docs/`, as part of this documentation.
//!
//! These modules exist only in the documentation, and contain nothing to use.

#![cfg_attr(docsrs, doc(auto_cfg = false))]

// The pages are also read as files, so each one defines, at its end, where its links lead among the
// files. `links.md` defines the same labels for this documentation and comes first, because the
// first definition of a label counts.
macro_rules! pages {
    ($($(#[doc = $summary:literal])* $name:ident = $file:literal;)*) => {$(
        $(#[doc = $summary])*
        ///
        #[doc = include_str!("../docs/guide/links.md")]
        #[doc = include_str!(concat!("../docs/", $file))]
        pub mod $name {}
    )*};
}

pages! {
    /// What do other libraries do?
    comparison = "comparison.md";
    /// How do I do this with a lock, and what goes wrong otherwise?
    cookbook = "cookbook.md";
    /// One server, sentinels, a cluster or a quorum? URLs, permissions and keys.
    deployment = "deployment.md";
    /// Why a hash, Lua, tenures, offers and a clock as the fence? What was tried and dropped?
    design = "design.md";
    /// What replaces this option of consul lock?
    from_consul_lock = "from-consul-lock.md";
    /// What replaces this option of flock(1)?
    from_flock = "from-flock.md";
    /// What is promised for each fault, what is not, and which test shows it?
    guarantees = "guarantees.md";
    /// What do I export, and what do I alert on?
    monitoring = "monitoring.md";
    /// How do I replace another library, one instance at a time?
    moving = "moving.md";
    /// Which services work? Which lease and timeouts? What if a lock is stuck?
    operations = "operations.md";
    /// How do I run a cron job, a unit or a CI job under a lock?
    program = "program.md";
    /// How much can one server carry, and how do I split the load?
    scaling = "scaling.md";
    /// How is all this tested, and how do I run it again?
    testing = "testing.md";
    /// Which mistakes compile?
    traps = "traps.md";
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
