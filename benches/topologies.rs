//! The cost of a lock behind sentinels, on a Redis Cluster and with a required replica, compared
//! with one server.
//!
//! `cargo bench --bench topologies` starts all of them and measures them in turns of one run.

use std::time::Duration;

use leasehold::{Client, Durability};

use self::support::cluster::Cluster;
use self::support::scale::Scale;
use self::support::sentinel::{MASTER, Watched};
use self::support::server::{Server, redis_binary};
use self::support::setting;
use self::support::table;
use self::support::turns::{Plan, Rival, Series};

mod support;

fn main() {
    let (rounds, cycles) = Scale::from_args().pick((40, 200), (5, 100), (1, 10));
    let (server, cluster) = (Server::redis(), Cluster::of(3));
    println!("{}", setting::of(&server));
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
    table::head(&["a cycle", "wall", "÷ (quartiles)", "of", "goal"]);
    for (place, base, goal) in
        [(0, 0, None), (1, 0, Some(1.1)), (2, 0, None), (3, 2, Some(1.1)), (4, 2, None)]
    {
        let (series, base): (&Series, &Series) = (&results[place], &results[base]);
        let ratios = series.ratios_to(base);
        table::row(&[
            series.name.into(),
            table::micros(series.wall()),
            table::quartiles(ratios),
            base.name.into(),
            goal.map_or(String::new(), |goal| table::verdict("≤", goal, ratios[1] <= goal)),
        ]);
    }
}

fn strs(urls: &[String]) -> Vec<&str> {
    urls.iter().map(String::as_str).collect()
}

fn lock_and_unlock(client: &Client) {
    let guard = client.lock("alone").expect("it is free");
    guard.unlock().expect("it is still held");
}
