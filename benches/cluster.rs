//! What a lock costs on a Redis Cluster, beside one server.
//!
//! `cargo bench --bench cluster` starts both, and measures them in turns of one run.

use std::env;

use leasehold::Client;

use self::support::cluster::Cluster;
use self::support::server::Server;
use self::support::turns::{Plan, Rival};

mod support;

fn main() {
    let quick = !env::args().any(|arg| arg == "--bench");
    let plan =
        if quick { Plan { rounds: 1, cycles: 10 } } else { Plan { rounds: 40, cycles: 200 } };
    let (server, cluster) = (Server::redis(), Cluster::of(3));
    let urls = cluster.urls();
    let seeds: Vec<_> = urls.iter().map(String::as_str).collect();
    let one = Client::open(&server.url()).expect("the server answers");
    let three = Client::builder().open_cluster(&seeds).expect("the cluster is up");
    let results = plan.run(&mut [
        Rival::new("one server", || lock_and_unlock(&one)),
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

fn lock_and_unlock(client: &Client) {
    let guard = client.lock("alone").expect("nobody else holds it");
    guard.unlock().expect("it is still held");
}
