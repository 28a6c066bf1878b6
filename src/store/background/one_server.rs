//! The policies for one server, alone or the master that sentinels name: everything goes there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::net::connection::Connection;
use crate::net::request::Request;
use crate::net::server::Server;
use crate::store::background::connection::{Node, Pauses};
use crate::store::background::jobs::{Decision, JobPolicy};
use crate::store::background::wakeups::WakeupPolicy;
use crate::store::background::{Job, JobReply, Wake};
use crate::store::request::HoldReply;

impl Node for Server {
    fn label(&self) -> Arc<str> {
        self.factory.label()
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.factory, &other.factory)
    }

    fn connect(
        &self,
        previous: Option<Connection>,
        deadline: Instant,
    ) -> Result<Connection, Failure> {
        let mut connection = previous.unwrap_or_else(|| self.connection());
        self.factory.refresh_route(deadline);
        connection.connect(end_of(self.factory.connect_timeout))?;
        Ok(connection)
    }

    fn addressed(&self, request: Request) -> Request {
        self.addressed(request)
    }
}

/// All jobs to one server.
#[derive(Debug)]
pub(crate) struct JobsOfOneServer(pub(crate) Server);

impl JobPolicy for JobsOfOneServer {
    type Node = Server;
    type Progress = ();

    fn route(&mut self, _: &Job) -> Result<(Vec<Server>, ()), Failure> {
        Ok((vec![self.0.clone()], ()))
    }

    fn decide(
        &mut self,
        _: &Job,
        (): &mut (),
        _: &Server,
        reply: Result<HoldReply, Failure>,
    ) -> Decision<Server> {
        Decision::Done(reply.map(JobReply::from))
    }
}

/// The messages of one server.
#[derive(Debug)]
pub(crate) struct WakeupsOfOneServer {
    /// Until it was named.
    server: Option<Server>,
}

impl WakeupsOfOneServer {
    pub(crate) fn new(server: Server) -> Self {
        Self { server: Some(server) }
    }
}

impl WakeupPolicy for WakeupsOfOneServer {
    type Node = Server;

    /// There is nothing else to listen at, so the caller decides when to try again.
    fn pauses(&self) -> Pauses {
        Pauses { after_failure: Duration::ZERO, after_rejection: Duration::ZERO }
    }

    fn changed_nodes(&mut self) -> Option<Vec<Server>> {
        self.server.take().map(|server| vec![server])
    }

    fn receive(&mut self, _: &Server, wake: Wake) -> Option<Wake> {
        Some(wake)
    }
}
