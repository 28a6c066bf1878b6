//! A small server that speaks RESP, with the commands that clients' connections need and the
//! scripts of a plain lock. It may also be a node of a cluster, or a sentinel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use crate::base::sync::executor;
use crate::net::packed::{Request, Script};
use crate::simulation::wire::judge::{Execution, record};
use crate::simulation::wire::network::OUTSIDE;
use crate::simulation::wire::world::{World, now, with};
use crate::store::keys::{Keys, SLOTS, slot_of};
use crate::store::scripts::{ACQUIRE, CHANGE, RELEASE};

/// The fate of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepts {
    /// It is accepted, but never served.
    Mutely,
    /// It is refused: the server is down.
    Nothing,
    /// The server replies that it has too many, and closes it.
    Full,
    /// It hangs, without even being refused.
    Silence,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    Replica,
    /// Names this server as the master.
    Sentinel(usize),
}

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) role: Role,
    pub(super) accepts: Accepts,
    /// It is stopped, and later resumes with what has arrived.
    pub(super) is_stopped: bool,
    /// The error reply to each script.
    pub(super) refusal: Option<&'static str>,
    /// The hashes of the scripts that it knows.
    pub(super) known: BTreeSet<String>,
    pub(super) locks: BTreeMap<String, Lock>,
    pub(super) last_fence: i64,
}

/// The state of a name on a server.
#[derive(Clone, Default)]
pub(super) struct Lock {
    owner: String,
    until: Duration,
    /// The waiting clients.
    queue: Vec<String>,
}

/// The state that a server keeps about a connection.
#[derive(Default)]
pub(super) struct Session {
    /// Bytes that have arrived but were not executed.
    pub(super) input: Vec<u8>,
    pub(super) channels: BTreeSet<String>,
    is_asking: bool,
    /// It waits for replicas, and executes nothing else.
    is_blocked: bool,
}

/// The kind of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Acquire,
    Check,
    Release,
    Renew,
}

/// The scripts by their hashes. The kind of one that changes a hold follows from its arguments.
static SCRIPTS: LazyLock<HashMap<String, Kind>> = LazyLock::new(|| {
    let scripts: [(&'static Script, Kind); 3] =
        [(&ACQUIRE, Kind::Acquire), (&CHANGE, Kind::Renew), (&RELEASE, Kind::Release)];
    let scripts = scripts.into_iter();
    scripts.map(|(script, kind)| (parse_one(script), kind)).collect()
});

/// Returns the hash of a script.
fn parse_one(script: &'static Script) -> String {
    let mut call = Request::call(script, &[], &[]).bytes;
    parse(&mut call).expect("a whole request").swap_remove(1)
}

impl Server {
    pub(super) fn new(address: SocketAddr, role: Role) -> Self {
        Self {
            address,
            role,
            accepts: Accepts::Yes,
            is_stopped: false,
            refusal: None,
            known: BTreeSet::new(),
            locks: BTreeMap::new(),
            last_fence: 0,
        }
    }
}

/// Takes the first complete request from the bytes that have arrived.
fn parse(input: &mut Vec<u8>) -> Option<Vec<String>> {
    let mut at = 0;
    let count = number(input, &mut at, b'*')?;
    let mut args = Vec::new();
    for _ in 0..count {
        let len = number(input, &mut at, b'$')?;
        let arg = input.get(at..at + len)?;
        args.push(String::from_utf8(arg.to_vec()).expect("arguments in this world are text"));
        at += len + 2;
    }
    if at > input.len() {
        return None;
    }
    input.drain(..at);
    Some(args)
}

/// Reads a line with a number.
fn number(input: &[u8], at: &mut usize, mark: u8) -> Option<usize> {
    let rest = input.get(*at..)?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    assert_eq!(rest[0], mark, "not RESP: {:?}", String::from_utf8_lossy(rest));
    let digits = str::from_utf8(&rest[1..end]).expect("digits");
    *at += end + 2;
    Some(digits.parse().expect("a number"))
}

pub(super) fn array(parts: &[&str]) -> String {
    let mut array = format!("*{}\r\n", parts.len());
    for part in parts {
        write!(array, "${}\r\n{part}\r\n", part.len()).expect("a string takes it");
    }
    array
}

/// Executes the requests that have arrived, unless the server is stopped.
pub(super) fn receive(world: &mut World, number: u64) {
    loop {
        let Some(link) = world.links.get_mut(&number) else { return };
        let server = link.server;
        if link.session.is_blocked || world.servers[server].is_stopped {
            return;
        }
        let Some(args) = parse(&mut link.session.input) else { return };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let reply = execute(world, number, server, &args);
        world.send(number, reply.as_bytes());
    }
}

/// Executes a request, and returns the reply.
fn execute(world: &mut World, number: u64, server: usize, args: &[&str]) -> String {
    let session = &mut world.links.get_mut(&number).expect("it exists").session;
    let is_asking = session.is_asking;
    session.is_asking = false;
    match (args[0], &args[1..]) {
        ("PING", _) if !session.channels.is_empty() => array(&["pong", ""]),
        ("PING", _) => "+PONG\r\n".into(),
        ("ASKING", _) => {
            session.is_asking = true;
            "+OK\r\n".into()
        }
        ("AUTH" | "SELECT" | "CLIENT", _) => "+OK\r\n".into(),
        ("ROLE", _) => match world.servers[server].role {
            Role::Master => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".into(),
            _ => array(&["slave", "10.0.0.1", "6379", "connected", "0"]),
        },
        ("SENTINEL", _) => {
            let Role::Sentinel(master) = world.servers[server].role else { panic!("no sentinel") };
            let address = world.servers[master].address;
            array(&[&address.ip().to_string(), &address.port().to_string()])
        }
        ("CLUSTER", _) => world.slots(),
        ("WAIT", [_, millis]) => {
            let limit = Duration::from_millis(millis.parse().expect("a time"));
            wait_for_replicas(world, number, limit)
        }
        ("SUBSCRIBE", [channel]) => {
            session.channels.insert((*channel).into());
            world.say(|| format!("#{number} subscribes to {channel}"));
            format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:1\r\n", channel.len())
        }
        ("ssubscribe", [channel]) => {
            if let Some(owner) = world.elsewhere(server, channel) {
                return world.moved(channel, owner);
            }
            let session = &mut world.links.get_mut(&number).expect("it exists").session;
            session.channels.insert((*channel).into());
            format!("*3\r\n$10\r\nssubscribe\r\n${}\r\n{channel}\r\n:1\r\n", channel.len())
        }
        ("EVALSHA", [hash, rest @ ..]) => {
            if !world.servers[server].known.contains(*hash) {
                world.tally.unknown_scripts += 1;
                return "-NOSCRIPT No matching script. Please use EVAL.\r\n".into();
            }
            script(world, number, server, is_asking, hash, rest)
        }
        ("EVAL", [body, rest @ ..]) => {
            let script = redis::Script::new(body);
            let hash = script.get_hash();
            world.servers[server].known.insert(hash.into());
            self::script(world, number, server, is_asking, hash, rest)
        }
        _ => panic!("the server does not know {args:?}"),
    }
}

/// Replies to WAIT later, and executes nothing else over this connection meanwhile.
fn wait_for_replicas(world: &mut World, number: u64, limit: Duration) -> String {
    let lag = world.random.time(world.replica_lag);
    let lag = if world.random.permille(world.replica_fails) { Duration::MAX } else { lag };
    let (time, acks) = if lag < limit { (lag, 1) } else { (limit, 0) };
    world.links.get_mut(&number).expect("it exists").session.is_blocked = true;
    executor::after(OUTSIDE, time, move || {
        with(|world| {
            let Some(link) = world.links.get_mut(&number) else { return };
            link.session.is_blocked = false;
            world.send(number, format!(":{acks}\r\n").as_bytes());
            receive(world, number);
        });
    });
    String::new()
}

/// Executes a script, unless the server is unable to.
fn script(
    world: &mut World,
    number: u64,
    server: usize,
    is_asking: bool,
    hash: &str,
    args: &[&str],
) -> String {
    let keys: usize = args[0].parse().expect("a number of keys");
    let (keys, args) = args[1..].split_at(keys);
    let key = keys[0];
    if let Some(refusal) = world.servers[server].refusal {
        world.tally.refused += 1;
        return format!("-{refusal}\r\n");
    }
    if world.is_cluster()
        && let Some(redirection) = world.redirection(server, key, keys.len(), is_asking)
    {
        world.tally.redirected += 1;
        return redirection;
    }
    if world.servers[server].role != Role::Master {
        world.tally.refused += 1;
        return "-READONLY You can't write against a read only replica.\r\n".into();
    }
    let kind = match (SCRIPTS[hash], args) {
        // Without a lease.
        (Kind::Renew, [_, "0", ..]) => Kind::Check,
        (kind, _) => kind,
    };
    let owner = args[0];
    let time = now();
    let it = &mut world.servers[server];
    let lock = it.locks.entry(key.into()).or_default();
    let is_held = lock.until > time;
    let is_own = is_held && lock.owner == owner;
    let mut woken = None;
    let mut reply = i64::from(is_own);
    let lease = |place: usize| Duration::from_millis(args[place].parse().expect("a time"));
    match kind {
        Kind::Acquire if !is_held || is_own => {
            it.last_fence = (it.last_fence + 1).max(i64::try_from(time.as_micros()).unwrap_or(0));
            reply = it.last_fence;
            lock.owner = owner.into();
            lock.until = time + lease(1);
        }
        Kind::Acquire => {
            reply = 0;
            let client = client_of(owner);
            if args[3] != "0" && !lock.queue.iter().any(|waiting| waiting == client) {
                lock.queue.push(client.into());
            }
        }
        Kind::Release if is_own => {
            lock.until = Duration::ZERO;
            if !lock.queue.is_empty() {
                woken = Some(lock.queue.remove(0));
            }
        }
        Kind::Renew if is_own => lock.until = lock.until.max(time + lease(1)),
        Kind::Check | Kind::Release | Kind::Renew => {}
    }
    let left = lock.until.saturating_sub(time).as_millis();
    record(world, owner, Execution { kind, reply });
    world.say(|| format!("server {server} has {kind:?} of {owner} at {key}, #{number}: {reply}"));
    if let Some(client) = woken {
        let shard = args.get(3).copied().unwrap_or_default();
        world.publish(server, &client, shard, key);
    }
    match kind {
        Kind::Acquire if reply == 0 => format!("*2\r\n:0\r\n:{left}\r\n"),
        _ => format!(":{reply}\r\n"),
    }
}

fn client_of(owner: &str) -> &str {
    owner.rsplit_once(':').expect("an owner").0
}

impl World {
    /// Sends a message to a client: over its sharded channel at this server, if it listens there,
    /// or else over its own, which all nodes of a cluster pass on.
    pub(super) fn publish(&mut self, server: usize, client: &str, shard: &str, message: &str) {
        let own = Keys::channel(client);
        let sharded = Keys::shard_channel(&own, shard);
        let is_cluster = self.is_cluster();
        let links = |channel: &String, is_meant: &dyn Fn(usize) -> bool| -> Vec<u64> {
            let links = self.links.iter().filter(|(_, link)| {
                is_meant(link.server) && link.session.channels.contains(channel)
            });
            links.map(|(number, _)| *number).collect()
        };
        let here = links(&sharded, &|at| at == server);
        let (links, kind, channel) = if here.is_empty() {
            (links(&own, &|at| is_cluster || at == server), "message", own)
        } else {
            (here, "smessage", sharded)
        };
        for number in links {
            self.send(number, array(&[kind, &channel, message]).as_bytes());
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Returns the index of the part of the slots that a key is in.
    pub(super) fn part(&self, key: &str) -> usize {
        slot_of(key) * self.owners.len() / SLOTS
    }

    /// Returns the node that serves a key, if that is another one.
    fn elsewhere(&self, server: usize, key: &str) -> Option<usize> {
        let owner = self.owners[self.part(key)];
        (owner != server).then_some(owner)
    }

    fn moved(&self, key: &str, to: usize) -> String {
        format!("-MOVED {} {}\r\n", slot_of(key), self.servers[to].address)
    }

    /// Returns the reply of a cluster node that does not have a key.
    fn redirection(
        &mut self,
        server: usize,
        key: &str,
        keys: usize,
        is_asking: bool,
    ) -> Option<String> {
        let part = self.part(key);
        let moving = self.moving.filter(|(moving, _)| *moving == part).map(|(_, to)| to);
        let owner = self.owners[part];
        match moving {
            Some(to) if to == server && is_asking => {
                let is_divided = keys > 1 && self.random.permille(100);
                is_divided.then(|| "-TRYAGAIN Multiple keys request during rehashing\r\n".into())
            }
            Some(to) if owner == server => {
                if self.servers[server].locks.contains_key(key) && self.random.permille(500) {
                    // It is still here.
                    return None;
                }
                // The key moves now, if it has not moved before.
                let lock = self.servers[server].locks.remove(key);
                self.servers[to].locks.extend(lock.map(|lock| (key.to_owned(), lock)));
                self.servers[to].last_fence =
                    self.servers[to].last_fence.max(self.servers[server].last_fence);
                let slot = slot_of(key);
                Some(format!("-ASK {slot} {}\r\n", self.servers[to].address))
            }
            _ if owner != server => Some(self.moved(key, owner)),
            _ => None,
        }
    }

    /// Returns the reply to CLUSTER SLOTS.
    fn slots(&self) -> String {
        let parts = self.owners.len();
        let mut reply = format!("*{parts}\r\n");
        for (part, owner) in self.owners.iter().enumerate() {
            // The first slot for which `part` returns this index.
            let first = (part * SLOTS).div_ceil(parts);
            let last = ((part + 1) * SLOTS).div_ceil(parts) - 1;
            let address = self.servers[*owner].address;
            let host = address.ip().to_string();
            write!(
                reply,
                "*3\r\n:{first}\r\n:{last}\r\n*2\r\n${}\r\n{host}\r\n:{}\r\n",
                host.len(),
                address.port()
            )
            .expect("a string takes it");
        }
        reply
    }
}
