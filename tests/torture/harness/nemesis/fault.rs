//! The faults, and where each of them can occur.

use std::fmt;

use crate::harness::Result;
use crate::harness::options::Topology;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    CloseClients,
    CutReplicas,
    DelayMessages,
    DropMessages,
    DropReplies,
    FailOver,
    KillMaster,
    KillWorker,
    NarrowLink,
    PauseServer,
    PauseWorker,
    RestartServer,
    StopMaster,
    TwoMasters,
    WipeServer,
}

impl Fault {
    const ALL: [Self; 15] = [
        Self::CloseClients,
        Self::CutReplicas,
        Self::DelayMessages,
        Self::DropMessages,
        Self::DropReplies,
        Self::FailOver,
        Self::KillMaster,
        Self::KillWorker,
        Self::NarrowLink,
        Self::PauseServer,
        Self::PauseWorker,
        Self::RestartServer,
        Self::StopMaster,
        Self::TwoMasters,
        Self::WipeServer,
    ];

    /// Parses names with commas between them, or `all` that fit the topology, or `none`.
    pub(crate) fn parse_list(list: &str, topology: Topology) -> Result<Vec<Self>> {
        match list {
            "all" => Ok(Self::ALL.into_iter().filter(|fault| fault.fits(topology)).collect()),
            "none" => Ok(Vec::new()),
            some => some.split(',').map(|name| Self::parse(name, topology)).collect(),
        }
    }

    fn parse(name: &str, topology: Topology) -> Result<Self> {
        match Self::ALL.into_iter().find(|fault| fault.to_string() == name) {
            None => Err(format!("no such nemesis: {name:?}").into()),
            Some(fault) if fault.fits(topology) => Ok(fault),
            Some(fault) if fault.is_of_network() => {
                let why = "clients of others are told addresses behind the network";
                Err(format!("{fault} takes --locks server or quorum: {why}").into())
            }
            Some(fault) => Err(format!("{fault} takes --locks sentinel").into()),
        }
    }

    fn fits(self, topology: Topology) -> bool {
        (matches!(topology, Topology::Quorum | Topology::Server) || !self.is_of_network())
            && (topology == Topology::Sentinel || !self.is_failover())
    }

    /// Returns `true` if the fault needs a [`Proxy`](crate::harness::proxy::Proxy).
    pub(crate) fn is_of_network(self) -> bool {
        matches!(
            self,
            Self::DelayMessages | Self::DropMessages | Self::DropReplies | Self::NarrowLink
        )
    }

    /// Returns `true` if another server is the master afterwards.
    pub(super) fn is_failover(self) -> bool {
        matches!(
            self,
            Self::CutReplicas
                | Self::FailOver
                | Self::KillMaster
                | Self::StopMaster
                | Self::TwoMasters
        )
    }

    pub(super) fn hits_workers(self) -> bool {
        matches!(self, Self::KillWorker | Self::PauseWorker)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CloseClients => "close-clients",
            Self::CutReplicas => "cut-replicas",
            Self::DelayMessages => "delay-messages",
            Self::DropMessages => "drop-messages",
            Self::DropReplies => "drop-replies",
            Self::FailOver => "fail-over",
            Self::KillMaster => "kill-master",
            Self::KillWorker => "kill-worker",
            Self::NarrowLink => "narrow-link",
            Self::PauseServer => "pause-server",
            Self::PauseWorker => "pause-worker",
            Self::RestartServer => "restart-server",
            Self::StopMaster => "stop-master",
            Self::TwoMasters => "two-masters",
            Self::WipeServer => "wipe-server",
        })
    }
}
