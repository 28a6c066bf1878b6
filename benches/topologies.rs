//! The cost of a lock behind sentinels, on a Redis Cluster and with a replica that must have it,
//! compared with one server.
//!
//! `cargo bench --bench topologies` starts all of them and measures them in turns of one run.

use std::env;
use std::time::Duration;

use leasehold::{Client, Durability};

use self::support::cluster::Cluster;
use self::support::sentinel::{MASTER, Watched};
use self::support::server::{Server, redis_binary};
use self::support::turns::{Plan, Rival, Series};

mod support;

fn main() {
    let quick = !env::args().any(|arg| arg == "--bench");
    let plan =
        if quick { Plan { rounds: 1, cycles: 10 } } else { Plan { rounds: 40, cycles: 200 } };
    let (server, cluster) = (Server::redis(), Cluster::of(3));
    let watched = Watched::start(redis_binary(), Duration::from_secs(30));
    let open = |url: &str| Client::open(url).expect("the server answers");
    let (one, master) = (open(&server.url()), open(&watched.master().url()));
    let three = Client::builder().open_cluster(&strs(&cluster.urls()));
    let three = three.expect("the cluster is up");
    let behind = Client::builder().open_sentinel(&strs(&watched.urls()), MASTER);
    let behind = behind.expect("there is a master");
    let durability = Durability::Replicas { acks: 1, timeout: Duration::from_secs(1) };
    let replicated = Client::builder().durability(durability).open(&watched.master().url());
    let replicated = replicated.expect("the server answers");
    let results = plan.run(&mut [
        Rival::new("one server", || lock_and_unlock(&one)),
        Rival::new("cluster of three", || lock_and_unlock(&three)),
        // A master spends the same on its replicas with and without sentinels.
        Rival::new("master of two replicas", || lock_and_unlock(&master)),
        Rival::new("the same by sentinels", || lock_and_unlock(&behind)),
        Rival::new("the same on a replica", || lock_and_unlock(&replicated)),
    ]);
    println!("\n{:<22} {:>9} {:>6} {:>15}", "a cycle", "wall", "ratio", "(quartiles)");
    let [one, three, master, behind, replicated] = &results[..] else {
        unreachable!("there are five rivals")
    };
    report(one, one);
    report(three, one);
    report(master, one);
    report(behind, master);
    report(replicated, master);
    println!("goal for a cluster, of one server, and for sentinels, of the master: at most 1.10");
}

fn report(series: &Series, base: &Series) {
    let [low, ratio, high] = series.ratios_to(base);
    let (name, wall) = (series.name, series.wall());
    let quartiles = format!("({low:.2} - {high:.2})");
    println!("{name:<22} {wall:>9.1?} {ratio:>6.2} {quartiles:>15} of {}", base.name);
}

fn strs(urls: &[String]) -> Vec<&str> {
    urls.iter().map(String::as_str).collect()
}

fn lock_and_unlock(client: &Client) {
    let guard = client.lock("alone").expect("it is free");
    guard.unlock().expect("it is still held");
}
