//! Clients, the store, the network between them and time: everything that can happen next.

use std::collections::BTreeSet;
use std::mem;

use stateright::{Model, Property};

use crate::hold::HoldId;
use crate::single::client::{Client, Phase};
use crate::single::flaw::Flaw;
use crate::single::promises;
use crate::single::store::{Answer, Command, Entry, Request, Store};
use crate::single::{DRIFT, LEASE};

/// How much of the world is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// How many holds each client may begin, or try to.
    pub(crate) holds: Vec<u8>,
    /// What may happen besides the usual.
    pub(crate) besides: Vec<Besides>,
    /// So many messages may be under way.
    pub(crate) messages: usize,
    pub(crate) flaw: Option<Flaw>,
}

/// What is left out where it is not what a test is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Besides {
    /// The server's clock gains on those of the clients.
    Drift,
    /// The server loses the last fence.
    ForgottenFence,
    /// Threads hand the lock on.
    HandOn,
    /// Threads lock what they have once more.
    Nesting,
}

/// One state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) clients: Vec<Client>,
    /// What is under way. Messages overtake each other, and stay for as long as they like.
    pub(crate) network: BTreeSet<Message>,
    pub(crate) witness: Witness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Message {
    Request(Request),
    Reply(Request, Answer),
}

/// What nobody in the world knows, but the promises are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// The fence of the last guard.
    pub(crate) fence: u8,
    /// Whether a guard's fence was not above that of the guard before.
    pub(crate) fence_repeated: bool,
    /// Whether a request has changed a hold that it did not name.
    pub(crate) meddled: bool,
    /// Whether a guard was relied on again after it was lost.
    pub(crate) revived: bool,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Ask(usize),
    CleanUp(HoldId),
    Deliver(Message),
    /// The server loses the last fence.
    ForgetFence,
    GiveUp(usize),
    HandOn(usize),
    Lose(Message),
    Nest(usize),
    NoticeLoss(usize),
    Release(usize),
    Renew(usize),
    Repeat(usize),
    /// The server's clock gains on those of the clients, by the drift.
    ServerIsFast,
    Tick,
    Unnest(usize),
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            store: Store::default(),
            clients: (0..self.holds.len()).map(Client::new).collect(),
            network: BTreeSet::new(),
            witness: Witness::default(),
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if self.has(Besides::Drift) && world.store.lock.is_some_and(|entry| entry.left == LEASE) {
            actions.push(Action::ServerIsFast);
        }
        if self.has(Besides::ForgottenFence) && !world.store.forgot_fence {
            actions.push(Action::ForgetFence);
        }
        actions.extend(world.network.iter().copied().map(Action::Deliver));
        // Elsewhere a message that is lost is like one that is late.
        if world.network.len() == self.messages {
            actions.extend(world.network.iter().copied().map(Action::Lose));
        }
        for (id, client) in world.clients.iter().enumerate() {
            self.moves(world, id, client, actions);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        let sent = match action {
            Action::Ask(id) => Some(world.clients[id].ask()),
            Action::CleanUp(hold) => Some(Request::release(hold)),
            Action::HandOn(id) => world.clients[id].hand_on(),
            Action::Nest(id) => world.clients[id].change_depth(2),
            Action::Release(id) => world.clients[id].release(),
            Action::Renew(id) => world.clients[id].renew(),
            Action::Repeat(id) => {
                let sent = world.clients[id].repeat();
                world.hang_up(sent);
                sent
            }
            Action::Unnest(id) => world.clients[id].change_depth(1),
            _ => {
                self.happen(&mut world, action);
                None
            }
        };
        world.network.extend(sent.map(Message::Request));
        world.simplify();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl Scope {
    pub(crate) fn has(&self, what: Besides) -> bool {
        self.besides.contains(&what)
    }

    /// What a client may do.
    fn moves(&self, world: &World, id: usize, client: &Client, actions: &mut Vec<Action>) {
        let more = client.nonces < self.holds[id];
        let may_send = world.network.len() < self.messages;
        match &client.phase {
            Phase::Idle if more && may_send => actions.push(Action::Ask(id)),
            Phase::Idle => {}
            Phase::Holding(lease) if lease.left == 0 => {
                actions.push(Action::NoticeLoss(id));
            }
            Phase::Holding(lease) => {
                if lease.nesting {
                    actions.push(Action::GiveUp(id));
                }
                let settled = !lease.nesting;
                let hands_on = more && self.has(Besides::HandOn);
                let can = [
                    (Action::Renew(id), true),
                    (Action::Repeat(id), lease.nesting),
                    (Action::Nest(id), self.has(Besides::Nesting) && settled && lease.depth == 1),
                    (Action::Unnest(id), settled && lease.depth == 2),
                    (Action::Release(id), settled && lease.depth == 1),
                    (Action::HandOn(id), hands_on && settled && lease.depth == 1),
                ];
                let can = can.into_iter().filter(|(_, can)| *can && may_send);
                actions.extend(can.map(|(action, _)| action));
            }
            Phase::Asking { .. } | Phase::Releasing { .. } | Phase::Passing { .. } => {
                actions.push(Action::GiveUp(id));
                if may_send {
                    actions.push(Action::Repeat(id));
                }
            }
        }
        if may_send {
            actions.extend(client.orphans.iter().map(|orphan| Action::CleanUp(orphan.hold)));
        }
    }

    /// What happens without a request being sent.
    fn happen(&self, world: &mut World, action: Action) {
        match action {
            Action::Deliver(message) => {
                world.network.remove(&message);
                match message {
                    Message::Request(request) => world.execute(request, self.flaw),
                    Message::Reply(request, answer) => world.reply(request, answer, self.flaw),
                }
            }
            Action::GiveUp(id) => world.clients[id].give_up(),
            Action::Lose(message) => {
                world.network.remove(&message);
            }
            Action::ForgetFence => world.store.forgot_fence = true,
            Action::NoticeLoss(id) => world.clients[id].notice_loss(),
            Action::ServerIsFast => {
                let lock = &mut world.store.lock;
                *lock = lock.map(|entry| Entry { left: LEASE - DRIFT, ..entry });
            }
            _ => world.tick(),
        }
    }
}

impl World {
    fn tick(&mut self) {
        self.store.lock = self.store.lock.and_then(Entry::older);
        self.clients.iter_mut().for_each(Client::grow_older);
        let network = mem::take(&mut self.network);
        self.network = network.into_iter().map(Message::older).collect();
    }

    fn execute(&mut self, request: Request, flaw: Option<Flaw>) {
        let before = self.store.lock;
        let answer = self.store.execute(request, flaw);
        let named =
            |hold| hold == request.hold || request.command == Command::Transfer { to: hold };
        if let Some(entry) = before {
            self.witness.meddled |= self.store.lock != before && !named(entry.owner);
        }
        self.network.insert(Message::Reply(request, answer));
    }

    fn reply(&mut self, request: Request, answer: Answer, flaw: Option<Flaw>) {
        let client = &mut self.clients[request.hold.client];
        let lost = client.lost();
        let fence = client.hear(request, answer, flaw);
        let guard = client.guard().map(|lease| lease.hold);
        self.witness.revived |= guard.is_some() && guard == lost;
        if let Some(fence) = fence {
            self.witness.fence_repeated |= fence <= self.witness.fence;
            self.witness.fence = fence;
        }
    }

    /// Makes the client deaf to replies to earlier requests of the kind: a repeated one goes over a
    /// new connection.
    fn hang_up(&mut self, sent: Option<Request>) {
        self.network.retain(|message| match (message, sent) {
            (Message::Reply(earlier, _), Some(sent)) => {
                (earlier.hold, earlier.command) != (sent.hold, sent.command)
            }
            _ => true,
        });
    }

    /// Makes one of states between which there is no difference.
    fn simplify(&mut self) {
        // A reply that nobody waits for is as good as lost.
        let clients = &self.clients;
        self.network.retain(|message| match message {
            Message::Request(_) => true,
            Message::Reply(request, _) => clients[request.hold.client].awaits(request),
        });
        // Fences have no meaning beyond their order.
        let mut fences = BTreeSet::from([0, self.store.fence, self.witness.fence]);
        fences.extend(self.network.iter().filter_map(Message::fence));
        if fences.iter().copied().eq(0..=self.store.fence) {
            return;
        }
        let rank = |fence: u8| fences.range(..fence).map(|_| 1).sum();
        self.store.fence = rank(self.store.fence);
        self.witness.fence = rank(self.witness.fence);
        let network = mem::take(&mut self.network);
        self.network = network.into_iter().map(|message| message.with_fence(rank)).collect();
    }
}

impl Message {
    /// The message after a tick.
    fn older(self) -> Self {
        let older =
            |request: Request| Request { worth: request.worth.saturating_sub(1), ..request };
        match self {
            Self::Request(request) => Self::Request(older(request)),
            Self::Reply(request, answer) => Self::Reply(older(request), answer),
        }
    }

    fn fence(&self) -> Option<u8> {
        match self {
            Self::Reply(_, Answer::Won { fence }) => Some(*fence),
            _ => None,
        }
    }

    fn with_fence(self, change: impl FnOnce(u8) -> u8) -> Self {
        match self {
            Self::Reply(request, Answer::Won { fence }) => {
                Self::Reply(request, Answer::Won { fence: change(fence) })
            }
            other => other,
        }
    }
}
