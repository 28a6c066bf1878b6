//! Many holds cared for over one connection: requests go out in batches, replies are collected as
//! they come.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use redis::Value;

use crate::store::connection::{Connection, pack_asking};
use crate::store::failure::{Failure, Trouble};
use crate::store::keys::Keys;
use crate::store::reply::standing;
use crate::store::script::{Arg, Call, Form, RELEASE, RENEW};
use crate::store::{Care, Outcome, Standing, Task, Upkeep};

/// A server that takes nothing more for this long is not waited for: what was not written will be
/// sent again.
const WRITE_TIME: Duration = Duration::from_millis(50);

/// The background connection of one thread to one server.
#[derive(Debug)]
pub(crate) struct Pipeline {
    connection: Connection,
    keys: Keys,
    /// A connection that is silent for this long is given up.
    io_timeout: Duration,
    /// Whether each request is preceded by ASKING.
    asking: bool,
    /// What was sent and not answered, in order.
    flying: VecDeque<Flying>,
}

#[derive(Debug)]
struct Flying {
    /// `None` for ASKING, and for a task whose time is over: a lease that is short must not cost
    /// the others the connection, so the reply is still awaited, and then ignored.
    task: Option<Task>,
    sent: Instant,
}

impl Pipeline {
    pub(crate) fn new(connection: Connection, keys: Keys, io_timeout: Duration) -> Self {
        Self { connection, keys, io_timeout, asking: false, flying: VecDeque::new() }
    }

    /// The same for a node that is about to get the slot of the tasks.
    pub(crate) fn asking(self) -> Self {
        Self { asking: true, ..self }
    }

    /// Opens the connection, which `send` would do otherwise.
    pub(crate) fn connect(&mut self, until: Instant) -> Result<(), Failure> {
        self.connection.connect(until)
    }

    /// Tells whether tasks can be sent without connecting first.
    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_open()
    }

    /// Goes on over another connection.
    pub(crate) fn resume(&mut self, connection: Connection, done: &mut dyn FnMut(u64, Outcome)) {
        self.abandon(done);
        self.connection = connection;
    }

    /// Where outcomes come from; `None` if there are none to come.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        if self.flying.is_empty() { None } else { self.connection.as_fd() }
    }

    /// Collects the outcomes that have come already, and tells when some will have waited too long.
    pub(crate) fn collect_now(&mut self, done: &mut dyn FnMut(u64, Outcome)) -> Option<Instant> {
        let mut again = Vec::new();
        while !self.flying.is_empty()
            && let Some(reply) = self.connection.receive_now()
        {
            self.take_in(reply, &mut again, done);
        }
        let next = self.time_out(done);
        self.dispatch(again, Form::Body, done);
        next
    }

    fn dispatch(&mut self, tasks: Vec<Task>, form: Form, done: &mut dyn FnMut(u64, Outcome)) {
        let Some(until) = tasks.iter().map(|task| task.until).max() else { return };
        if !self.connection.is_open() {
            // The replies to what flies will not come on the next socket.
            self.abandon(done);
        }
        // Nothing flies if this opens a socket; and what is written goes to the socket of this
        // moment, even if it is given up for a new one by others in between.
        let (keys, asking) = (&self.keys, self.asking);
        let connected =
            if self.flying.is_empty() { self.connection.connect(until) } else { Ok(()) };
        let sent = connected.and_then(|()| {
            let end = until.min(Instant::now() + WRITE_TIME);
            self.connection.write(end, |out| pack(keys, &tasks, asking, form, out))
        });
        let now = Instant::now();
        for task in tasks {
            if asking {
                self.flying.push_back(Flying { task: None, sent: now });
            }
            self.flying.push_back(Flying { task: Some(task), sent: now });
        }
        if let Err(failure) = sent {
            self.fail(&failure, done);
        }
    }

    /// Ends everything that flies: one broken connection breaks it all.
    fn fail(&mut self, failure: &Failure, done: &mut dyn FnMut(u64, Outcome)) {
        self.connection.poison();
        for task in self.flying.drain(..).filter_map(|flying| flying.task) {
            done(task.id, Err(failure.clone()));
        }
    }

    /// Matches a reply with the task that it answers.
    fn take_in(
        &mut self,
        reply: Result<Value, Failure>,
        again: &mut Vec<Task>,
        done: &mut dyn FnMut(u64, Outcome),
    ) {
        let Some(Flying { task, .. }) = self.flying.pop_front() else { return };
        let outcome = match task {
            Some(_) => outcome(reply, &mut self.connection),
            None => reply.map(|_| Standing::Gone),
        };
        match (task, outcome) {
            (Some(task), Err(failure)) if failure.code == "NOSCRIPT" => {
                again.push(task);
            }
            (task, outcome) => {
                let broken = outcome.as_ref().err().filter(|failure| failure.is_ambiguous());
                if let Some(failure) = broken.cloned() {
                    self.fail(&failure, done);
                }
                if let Some(task) = task {
                    done(task.id, outcome);
                }
            }
        }
    }

    /// Ends what has waited too long, and tells when the next will have.
    fn time_out(&mut self, done: &mut dyn FnMut(u64, Outcome)) -> Option<Instant> {
        let now = Instant::now();
        let give_up = self.flying.front()?.sent + self.io_timeout;
        if give_up <= now {
            self.abandon(done);
            return None;
        }
        let mut next = give_up;
        for flying in &mut self.flying {
            match flying.task.take_if(|task| task.until <= now) {
                Some(task) => done(task.id, Err(self.connection.no_reply())),
                None => next = flying.task.as_ref().map_or(next, |task| next.min(task.until)),
            }
        }
        Some(next)
    }
}

impl Upkeep for Pipeline {
    fn send(&mut self, tasks: Vec<Task>, done: &mut dyn FnMut(u64, Outcome)) {
        self.dispatch(tasks, Form::Hash, done);
    }

    fn collect(&mut self, until: Instant, done: &mut dyn FnMut(u64, Outcome)) {
        // Tasks to be sent once more, because the server did not know the script.
        let mut again = Vec::new();
        while let Some(patience) = self.time_out(done) {
            while !self.flying.is_empty()
                && let Some(reply) = self.connection.receive(false, until.min(patience))
            {
                self.take_in(reply, &mut again, done);
            }
            if Instant::now() >= until {
                break;
            }
        }
        self.dispatch(again, Form::Body, done);
    }

    fn abandon(&mut self, done: &mut dyn FnMut(u64, Outcome)) {
        if !self.flying.is_empty() {
            let failure = self.connection.no_reply();
            self.fail(&failure, done);
        }
    }
}

fn pack(keys: &Keys, tasks: &[Task], asking: bool, form: Form, out: &mut Vec<u8>) {
    for Task { hold, care, .. } in tasks {
        if asking {
            pack_asking(out);
        }
        let (key, owner) = (keys.lock(&hold.name), hold.owner());
        match care {
            Care::Release => {
                let (queue, args) = (keys.queue(&hold.name), &[Arg::Text(&owner)]);
                Call { script: &RELEASE, keys: &[&key, &queue], args }.pack(form, out);
            }
            Care::Renew { lease } => {
                let args = &[Arg::Text(&owner), Arg::millis(*lease)];
                Call { script: &RENEW, keys: &[&key], args }.pack(form, out);
            }
        }
    }
}

fn outcome(reply: Result<Value, Failure>, connection: &mut Connection) -> Outcome {
    match reply {
        Ok(value) => standing(&value).ok_or_else(|| connection.nonsense()),
        // Somebody has put another thing in the lock's place.
        Err(failure) if failure.trouble == Trouble::WrongType => Ok(Standing::Gone),
        Err(failure) => Err(failure),
    }
}
