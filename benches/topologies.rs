//! What a lock costs behind sentinels and on a Redis Cluster, beside one server.
//!
//! `cargo bench --bench topologies` starts all of them, and measures them in turns of one run.

use std::env;
use std::time::Duration;

use leasehold::Client;

use self::support::cluster::Cluster;
use self::support::sentinel::{MASTER, Watched, replicated};
use self::support::server::{Server, redis_binary};
use self::support::turns::{Plan, Rival};

mod support;

fn main() {
    let quick = !env::args().any(|arg| arg == "--bench");
    let plan =
        if quick { Plan { rounds: 1, cycles: 10 } } else { Plan { rounds: 40, cycles: 200 } };
    let (server, cluster) = (Server::redis(), Cluster::of(3));
    // What a master spends on its replicas, it spends without sentinels too.
    let servers = replicated(redis_binary(), 2, &[]);
    let watched = Watched::start(redis_binary(), Duration::from_secs(30));
    let one = Client::open(&server.url()).expect("the server answers");
    let with_replicas = Client::open(&servers[0].url()).expect("the master answers");
    let behind_sentinels = Client::builder().open_sentinel(&strs(&watched.urls()), MASTER);
    let behind_sentinels = behind_sentinels.expect("there is a master");
    let three = Client::builder().open_cluster(&strs(&cluster.urls()));
    let three = three.expect("the cluster is up");
    let results = plan.run(&mut [
        Rival::new("one server", || lock_and_unlock(&one)),
        Rival::new("with two replicas", || lock_and_unlock(&with_replicas)),
        Rival::new("behind sentinels", || lock_and_unlock(&behind_sentinels)),
        Rival::new("cluster of three", || lock_and_unlock(&three)),
    ]);
    println!("\n{:<22} {:>9} {:>9} {:>13}", "a cycle", "wall", "÷ one", "(quartiles)");
    for series in &results {
        let [low, ratio, high] = series.ratios_to(&results[0]);
        let quartiles = format!("({low:.2} - {high:.2})");
        println!("{:<22} {:>9.1?} {ratio:>9.2} {quartiles:>13}", series.name, series.wall());
    }
    println!("goal: at most 1.10");
}

fn strs(urls: &[String]) -> Vec<&str> {
    urls.iter().map(String::as_str).collect()
}

fn lock_and_unlock(client: &Client) {
    let guard = client.lock("alone").expect("nobody else holds it");
    guard.unlock().expect("it is still held");
}
