//! What happens to workers and servers while they work.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use super::Result;
use super::crew::Crew;
use super::history::{Span, now};
use super::options::Options;
use super::proxy::Proxy;
use super::random::Random;
use super::server::Server;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    CloseClients,
    DelayMessages,
    DropReplies,
    KillWorker,
    PauseServer,
    PauseWorker,
    RestartServer,
    WipeServer,
}

impl Fault {
    pub(crate) const ALL: [Self; 8] = [
        Self::CloseClients,
        Self::DelayMessages,
        Self::DropReplies,
        Self::KillWorker,
        Self::PauseServer,
        Self::PauseWorker,
        Self::RestartServer,
        Self::WipeServer,
    ];

    pub(crate) fn parse_list(list: &str) -> Result<Vec<Self>> {
        let find = |name: &str| {
            let fault = Self::ALL.into_iter().find(|fault| fault.to_string() == name);
            fault.ok_or_else(|| format!("no such nemesis: {name:?}").into())
        };
        match list {
            "all" => Ok(Self::ALL.to_vec()),
            "none" => Ok(Vec::new()),
            some => some.split(',').map(find).collect(),
        }
    }

    /// Whether it takes a [`Proxy`].
    pub(crate) fn is_of_network(self) -> bool {
        matches!(self, Self::DelayMessages | Self::DropReplies)
    }

    fn meets_workers(self) -> bool {
        matches!(self, Self::KillWorker | Self::PauseWorker)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CloseClients => "close-clients",
            Self::DelayMessages => "delay-messages",
            Self::DropReplies => "drop-replies",
            Self::KillWorker => "kill-worker",
            Self::PauseServer => "pause-server",
            Self::PauseWorker => "pause-worker",
            Self::RestartServer => "restart-server",
            Self::WipeServer => "wipe-server",
        })
    }
}

/// A fault that has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deed {
    pub(crate) fault: Fault,
    pub(crate) span: Span,
}

/// A line as in a history, with the times of begin and end.
impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { start, end } = self.span;
        writeln!(f, "{start} {end} {}", self.fault)
    }
}

/// Disturbs workers and the server for as long as the run takes: one fault after another at the
/// workers, and at the same time one after another at the server.
pub(crate) fn disturb(
    options: &Options,
    crew: &mut Crew,
    server: &Server,
    proxy: Option<&Proxy>,
) -> Result<Vec<Deed>> {
    let end = Instant::now() + options.time;
    let (at_workers, at_server): (Vec<_>, Vec<_>) =
        options.faults.iter().partition(|fault| fault.meets_workers());
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            repeat(options, 1, &at_server, end, |fault, random| {
                disturb_server(options.lease, server, proxy, fault, random);
                Ok(())
            })
        });
        let mut deeds = repeat(options, 2, &at_workers, end, |fault, random| {
            disturb_worker(options.lease, crew, fault, random)
        })?;
        deeds.extend(other.join().expect("the server can be disturbed")?);
        Ok(deeds)
    })
}

fn repeat(
    options: &Options,
    stream: u64,
    faults: &[Fault],
    end: Instant,
    mut act: impl FnMut(Fault, &mut Random) -> Result<()>,
) -> Result<Vec<Deed>> {
    let mut random = Random::new(options.seed, stream);
    let mut deeds = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let quiet = random.tenths(options.lease, (1, 10));
        thread::sleep(quiet.min(left));
        if quiet >= left {
            return Ok(deeds);
        }
        if !faults.is_empty() {
            let (fault, start) = (*random.pick(faults), now());
            act(fault, &mut random)?;
            deeds.push(Deed { fault, span: Span { start, end: now() } });
        }
    }
}

fn disturb_worker(
    lease: Duration,
    crew: &mut Crew,
    fault: Fault,
    random: &mut Random,
) -> Result<()> {
    let (size, first) = (crew.size(), random.below(crew.size()));
    if fault == Fault::KillWorker {
        return crew.replace(first);
    }
    let paused = || (first..=first + size / 3).map(|worker| worker % size);
    paused().try_for_each(|worker| crew.stop(worker))?;
    thread::sleep(random.tenths(lease, (11, 25)));
    paused().try_for_each(|worker| crew.cont(worker))
}

fn disturb_server(
    lease: Duration,
    server: &Server,
    proxy: Option<&Proxy>,
    fault: Fault,
    random: &mut Random,
) {
    let while_faulty = |set: fn(&Proxy, bool), random: &mut Random| {
        let proxy = proxy.expect("there is a proxy where the network is to fail");
        set(proxy, true);
        thread::sleep(random.tenths(lease, (3, 20)));
        set(proxy, false);
    };
    match fault {
        Fault::CloseClients => {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        Fault::DelayMessages => while_faulty(Proxy::delay, random),
        Fault::DropReplies => while_faulty(Proxy::lose_replies, random),
        Fault::PauseServer => {
            server.stop();
            thread::sleep(random.tenths(lease, (1, 15)));
            server.cont();
        }
        Fault::RestartServer => server.restart(),
        Fault::WipeServer => {
            // What is acknowledged from here on is kept again, and so is that everything was lost.
            server.command(&["FLUSHALL"]);
            server.restart();
        }
        Fault::KillWorker | Fault::PauseWorker => unreachable!("not at the server"),
    }
}
