//! The cost of waking a waiting client in a cluster: by PUBLISH, which every node passes on to all
//! others, by SPUBLISH, which stays where the channel's slot is, and by the lock.

use std::fs;
use std::thread;
use std::time::Duration;

use leasehold::{Client, Mechanism};
use redis::{Connection, FromRedisValue, Value};

use super::support::cluster::Cluster;
use super::support::crowd::Work;
use super::support::meter::Spent;
use super::support::raw::connect;
use super::support::scale::Scale;
use super::support::server::{Server, lock_key};
use super::support::table;
use super::support::turns::{in_turn, quartiles};

/// The way of messages from one client to another.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// A lock that two clients with one thread each keep wanting.
    Lock,
    /// The same without sharded channels.
    LockByPublish,
    /// To a client that listens at every master, as those of leasehold do.
    PublishToAll,
    /// To one that listens at the publishing node.
    PublishToOne,
    Sharded,
}

impl Way {
    const ALL: [Self; 5] =
        [Self::Sharded, Self::PublishToOne, Self::PublishToAll, Self::Lock, Self::LockByPublish];

    fn name(self) -> &'static str {
        match self {
            Self::Lock => "leasehold, a cycle with a wake-up in it",
            Self::LockByPublish => "the same by PUBLISH only",
            Self::PublishToAll => "PUBLISH, subscribed at every master",
            Self::PublishToOne => "PUBLISH, subscribed at one",
            Self::Sharded => "SPUBLISH",
        }
    }
}

/// The cost of one turn, for each wake-up.
struct Cost {
    wall: Duration,
    cpu: Duration,
    servers: Duration,
    bus: f64,
    bytes: Option<f64>,
}

pub(crate) fn measure(scale: Scale) {
    let (rounds, wakeups) = scale.pick((5, 1000), (3, 200), (1, 10));
    let sizes: &[usize] = scale.pick(&[1, 3, 6, 12], &[3, 6], &[3]);
    for &masters in sizes {
        let cluster = Cluster::of(masters);
        // Redis 6.2 does not know this command.
        let is_known = cluster.nodes()[0].try_command(&["SPUBLISH", &channel(&cluster), ""]);
        let mut ways = Way::ALL.to_vec();
        ways.retain(|way| *way != Way::Sharded || is_known);
        let turns = in_turn(rounds, &mut ways, |way| way.turn(&cluster, wakeups));
        table::head(&[
            &format!("a wake-up in a cluster of {masters}"),
            "time",
            "CPU: client + servers",
            "servers ÷ the first",
            "messages between nodes",
            "bytes that servers write",
        ]);
        for (way, own) in ways.iter().zip(&turns) {
            table::row(&row(*way, own, &turns[0]));
        }
    }
}

fn row(way: Way, own: &[Cost], base: &[Cost]) -> Vec<String> {
    let median = |figure: &dyn Fn(&Cost) -> f64| quartiles(own.iter().map(figure).collect())[1];
    let micros = |figure: &dyn Fn(&Cost) -> Duration| {
        table::micros(Duration::from_secs_f64(median(&|cost| figure(cost).as_secs_f64())))
    };
    let ratios = own.iter().zip(base).map(|(own, base)| own.servers.div_duration_f64(base.servers));
    let is_known = own.iter().all(|cost| cost.bytes.is_some());
    vec![
        way.name().into(),
        micros(&|cost| cost.wall),
        format!("{} + {}", micros(&|cost| cost.cpu), micros(&|cost| cost.servers)),
        table::quartiles(quartiles(ratios.collect())),
        format!("{:.1}", median(&|cost| cost.bus)),
        if is_known {
            format!("{:.0}", median(&|cost| cost.bytes.unwrap_or(0.0)))
        } else {
            "?".into()
        },
    ]
}

impl Way {
    fn turn(self, cluster: &Cluster, wakeups: u32) -> Cost {
        let mut run = self.prepare(cluster, wakeups);
        let (bus, bytes) = (bus_messages(cluster), bytes_written(cluster));
        let (spent, wakeups) = run();
        let bytes = bytes_written(cluster).zip(bytes).map(|(now, then)| now - then);
        let each = f64::from(wakeups);
        Cost {
            wall: spent.wall / wakeups,
            cpu: spent.cpu / wakeups,
            servers: spent.servers / wakeups,
            bus: (bus_messages(cluster) - bus) / each,
            bytes: bytes.map(|bytes| bytes / each),
        }
    }

    /// Returns a closure that does the work and returns the number of wake-ups.
    fn prepare(self, cluster: &Cluster, wakeups: u32) -> Box<dyn FnMut() -> (Spent, u32) + '_> {
        let nodes: Vec<&Server> = cluster.nodes().iter().collect();
        if matches!(self, Self::Lock | Self::LockByPublish) {
            let builder = || match self {
                Self::Lock => Client::builder(),
                _ => Client::builder().without(Mechanism::ShardedWakeups),
            };
            let open = || builder().open_cluster(cluster.urls()).expect("it is up");
            let (clients, name) = ([open(), open()], cluster.name_at(0));
            warm_up(cluster, &clients, &name);
            return Box::new(move || {
                let time = Duration::from_micros(300) * wakeups;
                let work = Work::of(&nodes, clients.len(), time, |thread| {
                    let mutex = clients[thread].mutex(&name);
                    move || drop(mutex.lock().expect("the cluster answers"))
                });
                (work.spent, work.cycles)
            });
        }
        let channel = channel(cluster);
        let mut publisher = connect(&nodes[0].url());
        let (publish, subscribe) = match self {
            Self::Sharded => ("SPUBLISH", "SSUBSCRIBE"),
            _ => ("PUBLISH", "SUBSCRIBE"),
        };
        let listened = if self == Self::PublishToAll { &nodes[..] } else { &nodes[..1] };
        let mut listeners: Vec<Connection> =
            listened.iter().map(|node| listen(node, subscribe, &channel)).collect();
        Box::new(move || {
            let spent = Spent::by(&nodes, || {
                for _ in 0..wakeups {
                    let publish = redis::cmd(publish).arg(&channel).arg("lock:stock:42").take();
                    let heard: u32 = publish.query(&mut publisher).expect("the server publishes");
                    assert_eq!(heard, 1, "one listens at that node");
                    for listener in &mut listeners {
                        listener.recv_response().expect("the message comes");
                    }
                }
            });
            (spent, wakeups)
        })
    }
}

/// Returns a channel whose slot is at the first node.
fn channel(cluster: &Cluster) -> String {
    format!("wake:{{{}}}", lock_key(&cluster.name_at(0)))
}

/// Makes each client wait for the other, and returns when both listen at every master.
fn warm_up(cluster: &Cluster, clients: &[Client; 2], name: &str) {
    for (holder, waiter) in [(0, 1), (1, 0)] {
        let held = clients[holder].lock(name).expect("the cluster answers");
        thread::scope(|scope| {
            let waits = scope.spawn(|| drop(clients[waiter].lock(name)));
            let channel = format!("leasehold:wake:{}", clients[waiter].id());
            while !cluster.nodes().iter().all(|node| {
                let listeners: (String, u32) = node.ask(&["PUBSUB", "NUMSUB", &channel]);
                listeners.1 == 1
            }) {
                thread::sleep(Duration::from_millis(1));
            }
            drop(held);
            waits.join().expect("it gets the lock");
        });
    }
}

fn listen(node: &Server, subscribe: &str, channel: &str) -> Connection {
    let mut listener = connect(&node.url());
    let subscribe = redis::cmd(subscribe).arg(channel).get_packed_command();
    listener.send_packed_command(&subscribe).expect("the server takes it");
    let confirmed: Value = listener.recv_response().expect("the server confirms it");
    let confirmed = Vec::<Value>::from_redis_value(confirmed).expect("an array");
    assert_eq!(confirmed.len(), 3);
    listener
}

/// Returns the number of messages of either kind that the nodes have sent to other nodes.
fn bus_messages(cluster: &Cluster) -> f64 {
    let sent = |node: &Server| {
        let info: String = node.ask(&["CLUSTER", "INFO"]);
        let kinds = ["publish", "publishshard"];
        let count = |kind| {
            let field = format!("cluster_stats_messages_{kind}_sent:");
            let count = info.lines().find_map(|line| line.strip_prefix(&field));
            count.map_or(0.0, |count| count.trim().parse::<f64>().expect("a number"))
        };
        kinds.map(count).into_iter().sum::<f64>()
    };
    cluster.nodes().iter().map(sent).sum()
}

/// Returns the bytes that the servers have written, to clients and to one another; `None` where
/// there is no /proc.
fn bytes_written(cluster: &Cluster) -> Option<f64> {
    let written = |node: &Server| {
        let io = fs::read_to_string(format!("/proc/{}/io", node.pid())).ok()?;
        let bytes = io.lines().find_map(|line| line.strip_prefix("wchar:"))?;
        bytes.trim().parse::<f64>().ok()
    };
    cluster.nodes().iter().map(written).sum()
}
