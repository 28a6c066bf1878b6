//! # Cluster, sentinels and replicas
//!
//! One thread locks one name and releases it with `unlock`, which waits for the reply. A Redis
//! Cluster is compared with one server. A master that sentinels name is compared with the same
//! master at a known address: its replicas cost the same either way. *The same on a replica* waits
//! until one of the two replicas has each lock.

use std::time::Duration;

use leasehold::{Client, Durability};

use self::support::cluster::Cluster;
use self::support::scale::Scale;
use self::support::sentinel::{MASTER, Watched};
use self::support::server::{Server, redis_binary};
use self::support::setting::{self, Setting};
use self::support::table;
use self::support::turns::{Plan, Rival, Series};

mod support;

fn main() {
    let (rounds, cycles) = Scale::from_args().pick((40, 200), (5, 100), (1, 10));
    let (server, cluster) = (Server::redis(), Cluster::of(3));
    println!("{}", Setting::of(&server));
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
    let rival = |name, client| Rival {
        name,
        servers: &[],
        cycle: Box::new(move || lock_and_unlock(client)),
    };
    let results = Plan { rounds, cycles }.run(&mut [
        rival("one server", &one),
        rival("cluster of three", &three),
        // A master spends the same on its replicas with and without sentinels.
        rival("master of two replicas", &master),
        rival("the same by sentinels", &behind),
        rival("the same on a replica", &replicated),
    ]);
    print("one server", &results[..2]);
    print("the master", &results[2..]);
    setting::print_end(&server);
}

/// Prints a table of rivals that are compared with the first of them. The second has a goal.
fn print(base: &str, results: &[Series]) {
    table::head(&["a cycle", "wall", &format!("÷ {base} (quartiles)"), "goal"]);
    for (place, series) in results.iter().enumerate() {
        let ratios = series.ratios_to(&results[0]);
        let goal = if place == 1 { table::at_most(ratios[1], 1.1) } else { String::new() };
        let wall = table::micros(series.wall());
        table::row(&[series.name.into(), wall, table::quartiles(ratios), goal]);
    }
}

fn strs(urls: &[String]) -> Vec<&str> {
    urls.iter().map(String::as_str).collect()
}

fn lock_and_unlock(client: &Client) {
    let guard = client.lock("alone").expect("it is free");
    guard.unlock().expect("it is still held");
}
