//! The use of kept locks by the processes: a file for each, with two numbers.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::harness::Result;

/// How often kept locks were used again or recalled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeptUse {
    /// The holds that began on such a lock.
    pub(crate) relocks: u64,
    /// The locks that were released because another process asked for them.
    pub(crate) recalls: u64,
}

impl KeptUse {
    pub(crate) fn write(self, dir: &Path, worker: u64) -> io::Result<()> {
        fs::write(path(dir, worker), format!("{} {}\n", self.relocks, self.recalls))
    }

    /// Returns the sums of all workers, except those that were killed.
    pub(crate) fn read(dir: &Path, workers: u64) -> Result<Self> {
        let mut sums = Self::default();
        for worker in 1..=workers {
            let text = match fs::read_to_string(path(dir, worker)) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                text => text?,
            };
            let (relocks, recalls) = text.trim_end().split_once(' ').ok_or("no two numbers")?;
            sums.relocks += relocks.parse::<u64>()?;
            sums.recalls += recalls.parse::<u64>()?;
        }
        Ok(sums)
    }

    /// Fails if nothing was kept that should have been, or nothing was released for another
    /// process.
    pub(crate) fn check(self, processes: u32) -> Result<()> {
        if self.relocks == 0 {
            return Err("no lock was kept until it was used again".into());
        }
        if self.recalls == 0 && processes > 1 {
            return Err("no lock that was kept was recalled, although processes share them".into());
        }
        Ok(())
    }
}

impl fmt::Display for KeptUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { relocks, recalls } = self;
        write!(f, "{relocks} holds began on locks that were kept, {recalls} were recalled")
    }
}

fn path(dir: &Path, worker: u64) -> PathBuf {
    dir.join(format!("kept-{worker}"))
}
