//! A request to all servers of a quorum, and the replies to it.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use redis::Value;

use crate::store::HoldId;
use crate::store::durable::Demand;
use crate::store::failure::Failure;
use crate::store::lane::Reply;
use crate::store::reply::is_done;
use crate::store::script::{Arg, Call, Form, Script};

/// A script with its keys and arguments, the same for each server.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) script: &'static Script,
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<Word>,
    pub(super) effect: Effect,
    /// What must be met by a server that does it, and when there must be an answer.
    pub(super) demand: Option<(Demand, Instant)>,
}

/// As [`Arg`], for a request that outlives the call which makes it.
#[derive(Debug)]
pub(super) enum Word {
    Number(u64),
    Text(String),
}

/// What is left over where a request fails.
#[derive(Debug)]
pub(super) enum Effect {
    Nothing,
    /// The hold may come to stand there.
    Begins(HoldId),
    /// The hold may stand there still.
    Ends(HoldId),
    /// Both.
    Replaces {
        from: HoldId,
        to: HoldId,
    },
}

impl Effect {
    pub(super) fn begun(&self) -> Option<&HoldId> {
        match self {
            Self::Begins(hold) | Self::Replaces { to: hold, .. } => Some(hold),
            Self::Nothing | Self::Ends(_) => None,
        }
    }

    pub(super) fn ended(&self) -> Option<&HoldId> {
        match self {
            Self::Ends(hold) | Self::Replaces { from: hold, .. } => Some(hold),
            Self::Nothing | Self::Begins(_) => None,
        }
    }
}

impl Request {
    pub(super) fn pack(&self, form: Form) -> Vec<u8> {
        let keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        let args: Vec<Arg<'_>> = self.args.iter().map(Word::as_arg).collect();
        let mut out = Vec::with_capacity(512);
        Call { script: self.script, keys: &keys, args: &args }.pack(form, &mut out);
        if let Some((demand, until)) = &self.demand {
            demand.pack(*until, &mut out);
        }
        out
    }
}

impl Word {
    fn as_arg(&self) -> Arg<'_> {
        match self {
            Self::Number(number) => Arg::Number(*number),
            Self::Text(text) => Arg::Text(text),
        }
    }
}

impl From<Arg<'_>> for Word {
    fn from(arg: Arg<'_>) -> Self {
        match arg {
            Arg::Number(number) => Self::Number(number),
            Arg::Text(text) => Self::Text(text.into()),
        }
    }
}

/// A request on its way. Whoever reads a reply to it puts it in here; nobody need wait for it.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) request: Request,
    fates: Mutex<Vec<Fate>>,
}

#[derive(Debug)]
enum Fate {
    Awaited,
    /// The server has done it, and is still to say whether that is as durable as demanded.
    Done(Value),
    Replied(Reply),
    Taken,
}

impl Flight {
    pub(super) fn new(request: Request, servers: usize) -> Arc<Self> {
        let fates = Mutex::new((0..servers).map(|_| Fate::Awaited).collect());
        Arc::new(Self { request, fates })
    }

    /// Puts in the reply of a server.
    pub(super) fn answer(&self, server: usize, reply: Reply) {
        self.fates.lock()[server] = match reply {
            Ok(reply) if self.request.demand.is_some() && is_done(&reply) => Fate::Done(reply),
            reply => Fate::Replied(reply),
        };
    }

    /// Puts in whether what a server has done, if anything, is as durable as demanded.
    pub(super) fn confirm(&self, server: usize, durable: Result<(), Failure>) {
        let fate = &mut self.fates.lock()[server];
        if let Fate::Done(reply) = fate {
            *fate = Fate::Replied(durable.map(|()| mem::replace(reply, Value::Nil)));
        }
    }

    pub(super) fn awaits(&self, server: usize) -> bool {
        matches!(self.fates.lock()[server], Fate::Awaited | Fate::Done(_))
    }

    /// Hands out the replies that nobody has taken yet.
    pub(super) fn take(&self, mut each: impl FnMut(usize, Reply)) {
        for (server, fate) in self.fates.lock().iter_mut().enumerate() {
            if matches!(fate, Fate::Replied(_))
                && let Fate::Replied(reply) = mem::replace(fate, Fate::Taken)
            {
                each(server, reply);
            }
        }
    }
}
