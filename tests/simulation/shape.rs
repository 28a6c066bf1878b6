//! The size of a seed's world. A failed world is shrunk before it is shown.

use std::fmt;

/// The most of each that a world has, whatever its seed says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) clients: usize,
    /// Of each client.
    pub(super) threads: u64,
    /// Of each thread.
    pub(super) calls: u64,
    pub(super) names: usize,
    pub(super) faults: u64,
    /// Whether requests and messages may be late, lost, broken or doubled.
    pub(super) weather: bool,
}

impl Shape {
    pub(super) const WHOLE: Self =
        Self { clients: 99, threads: 99, calls: 99, names: 99, faults: 99, weather: true };

    /// Parses the output of `Display`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut shape = Self::WHOLE;
        for part in text.split(',') {
            let (what, most) = part.split_once('=')?;
            match what {
                "clients" => shape.clients = most.parse().ok()?,
                "threads" => shape.threads = most.parse().ok()?,
                "calls" => shape.calls = most.parse().ok()?,
                "names" => shape.names = most.parse().ok()?,
                "faults" => shape.faults = most.parse().ok()?,
                "weather" => shape.weather = most.parse().ok()?,
                _ => return None,
            }
        }
        Some(shape)
    }

    /// Returns a smallest shape for which `fails` is true, found by reducing one number at a time.
    pub(super) fn shrink(fails: impl Fn(&Self) -> bool) -> Self {
        let mut least = Self::WHOLE;
        let start = Self { clients: 9, threads: 4, calls: 12, names: 3, faults: 5, weather: true };
        if !fails(&start) {
            return least;
        }
        least = start;
        loop {
            let smaller = least.smaller();
            let Some(next) = smaller.into_iter().find(&fails) else { return least };
            least = next;
        }
    }

    /// Returns the shapes with one number reduced, the smallest first.
    fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if self.weather {
            all.push(Self { weather: false, ..*self });
        }
        all.extend((0..self.faults).map(|faults| Self { faults, ..*self }));
        all.extend((1..self.clients).map(|clients| Self { clients, ..*self }));
        all.extend((1..self.threads).map(|threads| Self { threads, ..*self }));
        all.extend((1..self.calls).map(|calls| Self { calls, ..*self }));
        all.extend((1..self.names).map(|names| Self { names, ..*self }));
        all
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, threads, calls, names, faults, weather } = self;
        write!(
            f,
            "clients={clients},threads={threads},calls={calls},names={names},faults={faults},\
             weather={weather}"
        )
    }
}
