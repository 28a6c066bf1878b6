//! The extent of a benchmark, by its arguments.

use std::env;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// `cargo bench`
    Full,
    /// `cargo test --benches`, which only checks that it runs.
    Once,
    /// `cargo bench -- --quick`
    Quick,
}

impl Scale {
    pub(crate) fn from_args() -> Self {
        let has = |wanted| env::args().any(|arg| arg == wanted);
        if has("--test") || !has("--bench") {
            Self::Once
        } else if has("--quick") {
            Self::Quick
        } else {
            Self::Full
        }
    }

    pub(crate) fn pick<T>(self, full: T, quick: T, once: T) -> T {
        match self {
            Self::Full => full,
            Self::Once => once,
            Self::Quick => quick,
        }
    }
}
