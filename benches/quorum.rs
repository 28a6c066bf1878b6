//! # A quorum of five servers
//!
//! One thread locks and unlocks one name on five independent servers. The rows are compared with
//! bare connections to all five, which decide nothing and do not wait for their releases: the least
//! work that asking five servers takes. *2 hang*: two of the five accept requests and never answer,
//! which must cost nothing.

use leasehold::Client;

use self::support::raw::Raw;
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::{self, Setting};
use self::support::table;
use self::support::turns::{Plan, Rival};

mod support;

fn main() {
    let (rounds, cycles) = Scale::from_args().pick((100, 200), (40, 100), (1, 10));
    let single = Server::redis();
    println!("{}", Setting::of(&single));
    let (healthy, crippled) = (five(), five());
    let mut raw = Raw::connect(&single.url(), "lock");
    let mut raws = healthy.each_ref().map(|server| Raw::connect(&server.url(), "lock"));
    let mut owed = false;
    let (all, rest) = (open(&healthy), open(&crippled));
    crippled[1].stop();
    crippled[3].stop();
    let (five, three) = (healthy.each_ref(), [0, 2, 4].map(|alive| &crippled[alive]));
    let results = Plan { rounds, cycles }.run(&mut [
        Rival {
            name: "raw on all 5, releases not waited for",
            servers: &five,
            cycle: Box::new(|| {
                Raw::lock_and_post_unlock(&mut raws, owed);
                owed = true;
            }),
        },
        Rival {
            name: "raw on one server",
            servers: &[&single],
            cycle: Box::new(|| raw.lock_and_unlock()),
        },
        Rival {
            name: "quorum of 5",
            servers: &five,
            cycle: Box::new(|| drop(all.lock("alone").expect("it is free"))),
        },
        Rival {
            name: "quorum of 5, 2 hang",
            servers: &three,
            cycle: Box::new(|| drop(rest.lock("alone").expect("it is free"))),
        },
    ]);
    table::head_of_cycles("a cycle on five servers");
    for (series, goal) in results.iter().zip([None, None, Some(1.0), Some(1.0)]) {
        table::cycle(series, &results[0], goal);
    }
    setting::print_end(&single);
}

fn five() -> [Server; 5] {
    std::array::from_fn(|_| Server::redis())
}

fn open(servers: &[Server; 5]) -> Client {
    let urls = servers.each_ref().map(Server::url);
    Client::builder().open_redlock(urls).expect("the servers answer")
}
