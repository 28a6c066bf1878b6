//! Clients that keep their locks.

use std::thread;
use std::time::Duration;

use leasehold::Client;

/// Longer than a benchmark leaves a lock alone.
pub(crate) const KEEP: Duration = Duration::from_secs(30);

/// Opens a client that keeps its locks, and already has one of this name.
pub(crate) fn keeping(url: &str, name: &str) -> Client {
    let client = Client::builder().keep(KEEP).open(url).expect("the server answers");
    keep(&client, name);
    client
}

/// Locks until the lock is kept, because the client may not listen yet.
pub(crate) fn keep(client: &Client, name: &str) {
    let kept = client.stats().kept;
    while client.stats().kept == kept {
        drop(client.lock(name).expect("it is free"));
        thread::sleep(Duration::from_millis(1));
    }
}
