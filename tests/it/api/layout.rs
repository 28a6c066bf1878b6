//! The keys in Redis, which other programs may rely on.

use std::collections::BTreeSet;

use leasehold::Client;

use crate::support::{
    SOON, Server, Store, eventually, is_busy, ms, patient, stores, take, while_held,
};

stores! {
    several clients:
        different_splits_into_prefix_and_name_are_the_same_lock,
        every_client_has_an_id_of_its_own;
    every server:
        a_lock_is_one_key_with_the_default_prefix,
        a_prefix_goes_before_the_name,
        without_a_prefix_the_key_is_the_name,
        a_name_with_a_hash_tag_keeps_it,
        random_names_are_kept_byte_by_byte,
        an_owner_is_the_client_and_a_nonce_of_the_hold,
        a_waiting_client_leaves_nothing_without_a_ttl;
}

fn a_lock_is_one_key_with_the_default_prefix(server: &Server) {
    let client = server.open(Client::builder());
    let guard = take(&client, "stock:42");
    assert_eq!(server.keys(), ["leasehold:fence:{lock:stock:42}", "lock:stock:42"]);
    let fence: u64 = server.ask(&["GET", "leasehold:fence:{lock:stock:42}"]);
    assert_eq!(fence, guard.fence());
    assert!(server.pttl("stock:42") > ms(20_000) && server.pttl("stock:42") <= ms(30_000));
    guard.unlock().unwrap();
    assert_eq!(server.keys(), ["leasehold:fence:{lock:stock:42}"]);
}

fn a_prefix_goes_before_the_name(server: &Server) {
    let client = server.open(Client::builder().prefix("shop:"));
    let guard = take(&client, "a");
    assert_eq!(guard.name(), "a");
    assert_eq!(client.mutex("a").name(), "a");
    assert_eq!(server.keys(), ["leasehold:fence:{shop:a}", "shop:a"]);
    guard.unlock().unwrap();
    assert_eq!(server.keys(), ["leasehold:fence:{shop:a}"]);
}

/// Other libraries name their locks like this.
fn without_a_prefix_the_key_is_the_name(server: &Server) {
    let (bare, usual) = (server.open(patient().prefix("")), server.open(patient()));
    let guard = take(&bare, "a");
    assert_eq!(server.keys(), ["a", "leasehold:fence:{a}"]);
    assert!(!is_busy(&usual, "a"));
    guard.unlock().unwrap();
    let _guard = take(&usual, "a");
    assert!(is_busy(&bare, "lock:a"));
}

fn a_name_with_a_hash_tag_keeps_it(server: &Server) {
    let client = server.open(Client::builder());
    let _guards = [take(&client, "{a}b"), take(&client, "c{d}{e}")];
    let keys =
        ["leasehold:fence:lock:c{d}{e}", "leasehold:fence:lock:{a}b", "lock:c{d}{e}", "lock:{a}b"];
    assert_eq!(server.keys(), keys);
}

fn different_splits_into_prefix_and_name_are_the_same_lock(store: &Store) {
    let first = store.open(patient().prefix("a:"));
    let second = store.open(patient().prefix("b:"));
    let bare = store.open(patient().prefix(""));
    let _guard = take(&first, "x");
    assert!(!is_busy(&second, "x"));
    assert!(!is_busy(&bare, "x"));
    assert!(is_busy(&bare, "a:x"));
}

fn random_names_are_kept_byte_by_byte(server: &Server) {
    const LETTERS: [char; 16] =
        ['\0', '\r', '\n', ' ', '"', '\'', '\\', '%', '*', '{', ':', 'a', 'b', 'ß', '汉', '🐉'];
    let client = server.open(patient());
    let mut names = BTreeSet::new();
    let mut seed = 0x9e37_79b9_u64;
    while names.len() < 300 {
        let mut name = String::new();
        for _ in 0..=seed % 5 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            name.push(LETTERS[(seed >> 60) as usize]);
        }
        names.insert(name);
    }
    // Different names are different locks, and each is a key of that name.
    let guards: Vec<_> = names.iter().map(|name| take(&client, name)).collect();
    assert!(guards.iter().all(|guard| guard.depth() == 1));
    assert_eq!(BTreeSet::from_iter(server.hashes()), names);
    assert!(names.iter().all(|name| is_busy(&client, name)));
    drop(guards);
    eventually(SOON, || server.hashes().is_empty());
}

fn an_owner_is_the_client_and_a_nonce_of_the_hold(server: &Server) {
    let client = server.open(Client::builder().label("till 7"));
    assert!(client.id().starts_with("till 7"), "{}", client.id());
    let guard = take(&client, "a");
    let (first, _) = server.hold("a");
    let nonce = first.strip_prefix(client.id()).unwrap();
    assert!(nonce.starts_with(':') && nonce.len() > 1, "{first}");
    guard.unlock().unwrap();
    let _again = take(&client, "a");
    let (second, _) = server.hold("a");
    assert!(second.starts_with(client.id()));
    assert_ne!(second, first, "another hold has another nonce");
}

fn every_client_has_an_id_of_its_own(store: &Store) {
    let open = || store.open(Client::builder().label("till"));
    let clients = [open(), open(), open(), Client::in_memory(), Client::in_memory()];
    let mut ids = clients.each_ref().map(Client::id);
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
    // 128 random bits do not fit in less, whatever the encoding.
    assert!(ids.iter().all(|id| id.len() >= 20), "{ids:?}");
    assert_eq!(clients[0].clone().id(), clients[0].id());
}

fn a_waiting_client_leaves_nothing_without_a_ttl(server: &Server) {
    let client = server.open(patient());
    let other = server.open(patient());
    while_held(&other, "a", |_end| {
        assert!(client.try_lock_for("a", ms(300)).unwrap().is_none());
        for key in server.keys() {
            assert!(server.key_pttl(&key) > 0, "{key} has no time to live");
        }
    });
}
