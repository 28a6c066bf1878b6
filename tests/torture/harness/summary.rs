//! A run in a few lines.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::harness::history::{Action, Call, Kind, Outcome};
use crate::harness::nemesis::Incident;

/// Counts calls.
#[derive(Default)]
pub(crate) struct Tally {
    /// The counts of ok, fail and unknown, by the name of the action.
    calls: BTreeMap<&'static str, [u64; 3]>,
    /// The durations of the calls that got a lock, in microseconds.
    waits: Vec<u32>,
    lost: u64,
    /// The last fence that a worker got for a name.
    fences: BTreeMap<(u64, u32), u64>,
    handoffs: u64,
}

impl Tally {
    pub(crate) fn note(&mut self, call: &Call) {
        let name = match call.action {
            Action::Check { .. } => "check",
            Action::Lock { level: 1 } => "lock",
            Action::Lock { .. } => "nest",
            Action::Permit => "permit",
            Action::Read { .. } => "read",
            Action::Share => "share",
            Action::Unlock { .. } => "unlock",
            Action::Write { .. } => "write",
        };
        let [ok, fail, unknown] = self.calls.entry(name).or_default();
        *match call.outcome.kind() {
            Kind::Ok => ok,
            Kind::Fail => fail,
            Kind::Unknown => unknown,
        } += 1;
        if call.action == (Action::Unlock { levels: 1 }) && call.outcome == Outcome::Lost {
            self.lost += 1;
        }
        if let (Action::Lock { level: 1 }, Outcome::Granted { fence, .. }) =
            (call.action, call.outcome)
        {
            // In a tenure, each hold has the next fence. Another tenure begins at the server's
            // clock.
            let last = self.fences.insert((call.actor.worker, call.name), fence);
            self.handoffs += u64::from(last.is_some_and(|last| last + 1 == fence));
        }
        if call.action.begins() && call.outcome.kind() == Kind::Ok {
            let wait = (call.span.end - call.span.start) / 1000;
            self.waits.push(u32::try_from(wait).unwrap_or(u32::MAX));
        }
    }

    /// Returns how often a thread got a lock from another one of its process, without a request.
    pub(crate) fn handoffs(&self) -> u64 {
        self.handoffs
    }

    pub(crate) fn print(mut self, incidents: &[Incident]) {
        for (name, [ok, fail, unknown]) in &self.calls {
            println!("{name:<10}{ok} ok, {fail} fail, {unknown} unknown");
        }
        self.waits.sort_unstable();
        let (half, most, all) = (self.wait(50), self.wait(99), self.wait(100));
        println!("waits     p50 {half:.1?}, p99 {most:.1?}, max {all:.1?}");
        println!("losses    {} holds were lost before they were unlocked", self.lost);
        println!("handoffs  {} holds followed another one of their tenure", self.handoffs);
        let mut times = BTreeMap::<String, u32>::new();
        for incident in incidents {
            *times.entry(incident.fault.to_string()).or_default() += 1;
        }
        let times: Vec<_> = times.iter().map(|(fault, times)| format!("{fault} {times}")).collect();
        println!("nemesis   {}", if times.is_empty() { "none".into() } else { times.join(", ") });
    }

    /// Returns the time that this percentage of the waits did not exceed. The waits are sorted.
    fn wait(&self, percent: usize) -> Duration {
        let index = (self.waits.len() * percent / 100).min(self.waits.len().saturating_sub(1));
        Duration::from_micros(self.waits.get(index).copied().unwrap_or_default().into())
    }
}
