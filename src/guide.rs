//! The pages in `docs/`, as part of this documentation.
//!
//! These modules exist in the documentation only, and there is nothing in them to use.
//!
//! | page | answers |
//! |---|---|
//! | [`cookbook`] | How do I do this with a lock, and what goes wrong otherwise? |
//! | [`guarantees`] | What is promised for each fault, what is not, and which test shows it? |
//! | [`deployment`] | One server, sentinels, a cluster or a quorum? URLs, permissions, keys |
//! | [`operations`] | Which services work? Which lease and timeouts? What if a lock is stuck? |
//! | [`monitoring`] | What do I export, and what do I alert on? |
//! | [`scaling`] | How much can one server carry, and how do I split the load? |
//! | [`moving`] | How do I replace another library, one instance at a time? |
//! | [`program`] | How do I run a cron job, a unit or a CI job under a lock? |
//! | [`from_flock`] | What is this option of flock(1) there? |
//! | [`from_consul_lock`] | What is this option of consul lock there? |
//! | [`comparison`] | What do other libraries do? |
//! | [`testing`] | How is all this tested, and how do I run it again? |

#![cfg_attr(docsrs, doc(auto_cfg = false))]

// The pages are also read as files, where they are. At its end each defines where its links lead
// there; `links.md` defines the same labels for this documentation and comes first, because the
// first definition of a label is the one that counts.
macro_rules! pages {
    ($($(#[$attribute:meta])* $name:ident = $file:literal;)*) => {$(
        $(#[$attribute])*
        #[doc = include_str!("../docs/guide/links.md")]
        #[doc = include_str!(concat!("../docs/", $file))]
        pub mod $name {}
    )*};
}

pages! {
    comparison = "comparison.md";
    cookbook = "cookbook.md";
    deployment = "deployment.md";
    from_consul_lock = "from-consul-lock.md";
    from_flock = "from-flock.md";
    guarantees = "guarantees.md";
    monitoring = "monitoring.md";
    moving = "moving.md";
    operations = "operations.md";
    program = "program.md";
    scaling = "scaling.md";
    testing = "testing.md";
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
