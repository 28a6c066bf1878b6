//! Names over the masters of a cluster. All nodes share the cores of this machine with the client,
//! so more masters do not make it faster here. What counts is the distribution of the work: the CPU
//! time of the busiest master per cycle limits a cluster whose masters have cores of their own.

use std::time::Duration;

use leasehold::Client;

use super::support::cluster::Cluster;
use super::support::crowd::Work;
use super::support::raw::Raw;
use super::support::scale::Scale;
use super::support::server::{Server, lock_key};
use super::support::table;
use super::support::turns::{in_turn, quartiles};

const THREADS: usize = 16;

/// The number of names that each thread locks in turn.
const NAMES: usize = 4;

/// The results of one turn.
struct Turn {
    work: Work,
    /// The CPU time of the busiest master.
    busiest: Duration,
    /// The scripts run by the master with the fewest, and by the one with the most.
    least: u64,
    most: u64,
}

/// The masters and one way to lock there.
struct Rival {
    name: String,
    cluster: usize,
    turn: Box<dyn Fn(&Cluster) -> Turn>,
}

pub(crate) fn measure(scale: Scale) {
    let (rounds, millis) = scale.pick((9, 1000), (3, 100), (1, 10));
    let time = Duration::from_millis(millis);
    let sizes = [1, 3, 6];
    let clusters = sizes.map(Cluster::of);
    let mut rivals = Vec::new();
    for (place, cluster) in clusters.iter().enumerate() {
        let client = Client::builder().open_cluster(cluster.urls()).expect("the cluster is up");
        let masters = sizes[place];
        rivals.push(Rival {
            name: format!("{masters} × raw"),
            cluster: place,
            turn: Box::new(move |cluster| turn(cluster, time, &|thread| raw(cluster, thread))),
        });
        rivals.push(Rival {
            name: format!("{masters} × leasehold"),
            cluster: place,
            turn: Box::new(move |cluster| turn(cluster, time, &|thread| locks(&client, thread))),
        });
    }
    let turns = in_turn(rounds, &mut rivals, |rival| (rival.turn)(&clusters[rival.cluster]));
    let title = format!("masters, {THREADS} threads with {NAMES} names each");
    table::head(&[
        &title,
        "cycles/s",
        "÷ raw (quartiles)",
        "CPU of a cycle: client + servers",
        "of the busiest master",
        "cycles/s that fill its core",
        "scripts: least ÷ most of a master",
    ]);
    for (place, rival) in rivals.iter().enumerate() {
        let raw = &turns[place - place % 2];
        table::row(&row(rival, &turns[place], raw));
    }
}

fn row(rival: &Rival, own: &[Turn], raw: &[Turn]) -> Vec<String> {
    let median = |figure: &dyn Fn(&Turn) -> f64| quartiles(own.iter().map(figure).collect())[1];
    let rates = own.iter().zip(raw).map(|(own, raw)| own.work.per_second() / raw.work.per_second());
    let micros = |seconds| table::micros(Duration::from_secs_f64(seconds));
    let part = |part: usize| micros(median(&|turn| turn.work.cpu()[part].as_secs_f64()));
    let busiest = median(&|turn| turn.busiest.as_secs_f64() / f64::from(turn.work.cycles.max(1)));
    let evenness = median(&|turn| as_f64(turn.least) / as_f64(turn.most));
    vec![
        rival.name.clone(),
        table::rate(median(&|turn| turn.work.per_second())),
        table::quartiles(quartiles(rates.collect())),
        format!("{} + {}", part(0), part(1)),
        micros(busiest),
        table::rate(1.0 / busiest),
        format!("{evenness:.2}"),
    ]
}

fn as_f64(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("a u32 of scripts"))
}

fn turn<C: FnMut()>(
    cluster: &Cluster,
    time: Duration,
    prepare: &(impl Fn(usize) -> C + Sync),
) -> Turn {
    let nodes: Vec<&Server> = cluster.nodes().iter().collect();
    let seen = || nodes.iter().map(|node| (node.cpu_time(), node.evals())).collect::<Vec<_>>();
    let before = seen();
    let work = Work::of(&nodes, THREADS, time, prepare);
    let spent = seen().into_iter().zip(before);
    let spent: Vec<_> =
        spent.map(|(now, then)| (now.0.saturating_sub(then.0), now.1 - then.1)).collect();
    let scripts = || spent.iter().map(|(_, scripts)| *scripts);
    Turn {
        work,
        busiest: spent.iter().map(|(cpu, _)| *cpu).max().unwrap_or_default(),
        least: scripts().min().unwrap_or(0),
        most: scripts().max().unwrap_or(0),
    }
}

fn names(thread: usize) -> impl Iterator<Item = String> {
    (0..NAMES).map(move |number| format!("{thread} {number}"))
}

/// One bare connection for each name, to the master that has it.
fn raw(cluster: &Cluster, thread: usize) -> impl FnMut() {
    let connect = |name: String| Raw::connect(&cluster.home(&name).url(), &lock_key(&name));
    let mut raws: Vec<Raw> = names(thread).map(connect).collect();
    let mut next = 0;
    move || {
        raws[next].lock_and_unlock();
        next = (next + 1) % NAMES;
    }
}

fn locks(client: &Client, thread: usize) -> impl FnMut() + use<> {
    let mutexes: Vec<_> = names(thread).map(|name| client.mutex(&name)).collect();
    let mut next = 0;
    move || {
        drop(mutexes[next].lock().expect("the cluster answers"));
        next = (next + 1) % NAMES;
    }
}
