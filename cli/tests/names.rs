//! `show`, `ls` and `unlock`.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use leasehold::{Canceller, Client};
use serde_json::{Value, json};

use crate::support::{
    Cluster, Server, client, eventually, finish, json, leasehold, output, without_server,
};

fn show(server: &Server, name: &str) -> Value {
    json(&mut leasehold(server, &["--json", "show", name]))
}

/// Checks the JSON and the text about a name that `client` holds.
#[track_caller]
fn assert_shown(server: &Server, name: &str, client: &Client, kind: &str, side: Option<&str>) {
    let report = show(server, name);
    assert_eq!((&report["name"], &report["kind"]), (&json!(name), &json!(kind)));
    let hold = &report["holds"][0];
    assert_eq!((&hold["client"], &hold["label"]), (&json!(client.id()), &json!("tester")));
    assert_eq!((&hold["side"], &hold["depth"]), (&json!(side), &json!(1)));
    let left = hold["remaining_ms"].as_u64().expect("a lease");
    assert!(left > 20_000 && left <= 30_000, "{left}");
    let text = output(&mut leasehold(server, &["show", name]));
    for part in [name, kind, client.id(), " s left", side.unwrap_or_default()] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

#[test]
fn a_holder_of_every_kind_is_shown() {
    let server = Server::redis();
    let client = client(&server);
    let guard = client.lock("a lock").unwrap();
    assert_shown(&server, "a lock", &client, "lock", None);
    assert_eq!(show(&server, "a lock")["fence"], guard.fence());
    let reader = client.rw_lock("read").read().unwrap();
    assert_shown(&server, "read", &client, "read-write lock", Some("reader"));
    assert_eq!(show(&server, "read")["fence"], reader.fence());
    let _writer = client.rw_lock("write").write().unwrap();
    assert_shown(&server, "write", &client, "read-write lock", Some("writer"));
    let _permit = client.semaphore("permits", 2).acquire().unwrap();
    assert_shown(&server, "permits", &client, "semaphore", None);
    assert_eq!(show(&server, "permits")["fence"], Value::Null);
    let _other = client.semaphore("permits", 2).acquire().unwrap();
    assert_eq!(show(&server, "permits")["holds"].as_array().unwrap().len(), 2);
    let _nested = client.lock("a lock").unwrap();
    assert_eq!(show(&server, "a lock")["holds"][0]["depth"], 2);
}

#[test]
fn a_hold_is_shown_with_the_time_when_it_began() {
    let server = Server::redis();
    let client = client(&server);
    let _lock = client.lock("lock").unwrap();
    let _writer = client.rw_lock("write").write().unwrap();
    // The token of a reader is that of the last writer, and a permit has none.
    let _reader = client.rw_lock("read").read().unwrap();
    let _permit = client.semaphore("permits", 1).acquire().unwrap();
    for (name, is_known) in [("lock", true), ("write", true), ("read", false), ("permits", false)] {
        let since = show(&server, name)["holds"][0]["since"].clone();
        assert_eq!(since.is_string(), is_known, "{name}: {since}");
        for args in [["show", name], ["ls", name]] {
            let text = output(&mut leasehold(&server, &args));
            let ago = text.split_once("since ").and_then(|(_, rest)| rest.split_once(" s ago)"));
            assert_eq!(ago.is_some(), is_known, "{text}");
            if let Some((shown, _)) = ago {
                let (time, ago) = shown.split_once(" (").expect("a time and how long ago");
                assert_eq!(since, time, "{text}");
                assert!(ago.parse::<f64>().unwrap() < 60.0, "{text}");
            }
        }
    }
}

#[test]
fn a_hold_is_shown_as_renewed_or_as_a_ticket() {
    let server = Server::redis();
    let client = client(&server);
    let _renewed = client.lock("renewed").unwrap();
    let _not_renewed = client.mutex("not").renew(false).lock().unwrap();
    let _permit = client.semaphore("permit", 1).renew(false).acquire().unwrap();
    output(&mut leasehold(&server, &["lock", "ticket"]));
    for (name, renewed, ticket, text) in [
        ("renewed", true, false, ", renewed\n"),
        ("not", false, false, ", not renewed\n"),
        ("permit", false, false, ", not renewed\n"),
        ("ticket", false, true, ", a ticket, not renewed unless adopted\n"),
    ] {
        let hold = &show(&server, name)["holds"][0];
        assert_eq!(
            (&hold["renewed"], &hold["ticket"]),
            (&json!(renewed), &json!(ticket)),
            "{name}"
        );
        let shown = output(&mut leasehold(&server, &["show", name]));
        assert!(shown.contains(text), "{text:?}: {shown}");
    }
}

#[test]
fn the_note_of_a_hold_is_shown() {
    let server = Server::redis();
    let client = client(&server);
    let note = "deploy 4711, https://ci/4711";
    let _plain = client.lock("plain").unwrap();
    let _permit = client.semaphore("permit", 1).note(note).acquire().unwrap();
    output(&mut leasehold(&server, &["lock", "--note", note, "ticket"]));
    for (name, note) in [("plain", None), ("permit", Some(note)), ("ticket", Some(note))] {
        assert_eq!(show(&server, name)["holds"][0]["note"], json!(note), "{name}");
        for args in [["show", name], ["ls", name]] {
            let text = output(&mut leasehold(&server, &args));
            let shown = text.split_once(", note: ").map(|(_, rest)| rest.trim_end());
            assert_eq!(shown, note, "{text}");
        }
    }
    let program = env!("CARGO_BIN_EXE_leasehold");
    let command = ["run", "--note", note, "run", "--", program, "show", "run"];
    let shown = output(&mut leasehold(&server, &command));
    assert!(shown.contains(&format!(", note: {note}\n")), "{shown}");
    // Nothing is sent.
    let long = "x".repeat(257);
    for bad in ["two\nlines", &long] {
        let refused = finish(&mut without_server(&[
            "--url",
            "redis://127.0.0.1:1/",
            "lock",
            "--note",
            bad,
            "a",
        ]));
        assert_eq!(refused.code, 64, "{}", refused.stderr);
        assert!(refused.stderr.contains("note: must "), "{}", refused.stderr);
    }
}

#[test]
fn a_lock_that_may_be_kept_is_shown_as_such() {
    let server = Server::redis();
    let client = client(&server);
    let kept = client.mutex("kept").keep(Duration::from_secs(20));
    // The lock is not kept before the client listens.
    eventually(|| {
        drop(kept.lock().unwrap());
        client.stats().kept == 1
    });
    let _other = client.lock("not").unwrap();
    for (name, may_be_kept) in [("kept", true), ("not", false)] {
        assert_eq!(show(&server, name)["holds"][0]["may_be_kept"], may_be_kept);
        for args in [["show", name], ["ls", name]] {
            let text = output(&mut leasehold(&server, &args));
            assert_eq!(text.contains(" s left, may be kept"), may_be_kept, "{text}");
            let asked =
                text.split_once("asked for ").and_then(|(_, rest)| rest.split_once(" s ago"));
            let ago = asked.map(|(seconds, _)| seconds.parse::<f64>().unwrap());
            assert_eq!(ago.is_some_and(|ago| ago < 60.0), may_be_kept, "{text}");
        }
    }
}

#[test]
fn the_token_of_another_library_is_not_shown() {
    let server = Server::redis();
    server.command(&["SET", "lock:a", "a secret", "NX", "PX", "60000"]);
    let report = show(&server, "a");
    assert_eq!(report["kind"], "lock of another library");
    assert_eq!(report["holds"][0]["client"], Value::Null);
    let text = output(&mut leasehold(&server, &["show", "a"]));
    assert!(!text.contains("secret") && !report.to_string().contains("secret"), "{text}");
}

#[test]
fn a_free_name_is_shown_as_free() {
    let server = Server::redis();
    let free = json!({
        "name": "a", "key": "lock:a", "kind": null, "holds": [], "fence": null, "waiting": [],
        "circles": [],
    });
    assert_eq!(show(&server, "a"), free);
    let text = output(&mut leasehold(&server, &["show", "a", "--prefix", "shop:"]));
    assert_eq!(text, "name  a\nkey   shop:a\nkind  free\n");
}

#[test]
fn a_deadlock_of_clients_is_shown() {
    let server = Server::redis();
    // Without deadlock checks of their own, neither ever learns of the other.
    let never = Client::builder().deadlock_after(None);
    let clients = [(); 2].map(|()| never.clone().open(&server.url()).unwrap());
    let canceller = Canceller::new();
    let (all_hold, canceller) = (Barrier::new(2), &canceller);
    thread::scope(|scope| {
        for (client, [own, other]) in clients.iter().zip([["a", "b"], ["b", "a"]]) {
            let all_hold = &all_hold;
            scope.spawn(move || {
                let _own = client.lock(own).unwrap();
                all_hold.wait();
                client.mutex(other).cancelled_by(canceller).lock().map(drop).unwrap_err()
            });
        }
        let [first, second] = clients.each_ref().map(Client::id);
        let mut circle = [(first, "b"), (second, "a")];
        circle.sort_unstable();
        let [(client, name), (holder, back)] = circle;
        eventually(|| {
            let shown = json!([{ "clients": [client, holder], "names": [name, back] }]);
            let found = show(&server, "a")["circles"].clone();
            assert!(found == json!([]) || found == shown, "{found}");
            found == shown
        });
        let text = output(&mut leasehold(&server, &["show", "b"]));
        let line = format!(
            "circle   {client} waits for \"{name}\", held by {holder}, which waits for \
             \"{back}\", held by {client}: perhaps a deadlock\n"
        );
        assert!(text.ends_with(&line), "{text}");
        canceller.cancel();
    });
    assert_eq!(show(&server, "a")["circles"], json!([]));
}

#[test]
fn names_of_every_kind_are_listed() {
    let server = Server::redis();
    let client = client(&server);
    let list = |args: &[&str]| {
        let report = json(leasehold(&server, &["ls", "--json"]).args(args));
        let names = report.as_array().unwrap().iter().map(|name| name["name"].as_str().unwrap());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(output(&mut leasehold(&server, &["ls"])), "");
    let _lock = client.lock("x:lock").unwrap();
    let _reader = client.rw_lock("x:read").read().unwrap();
    let _permit = client.semaphore("x:permit", 1).acquire().unwrap();
    let _other = client.lock("y*").unwrap();
    client.lock("x:free").unwrap().unlock().unwrap();
    server.command(&["SET", "lock:x:foreign", "token", "PX", "60000"]);
    server.command(&["SET", "lock:x:data", "precious"]);
    server.command(&["HSET", "lock:x:hash", "someone", "1"]);
    server.command(&["SET", "x:elsewhere", "token", "PX", "60000"]);
    assert_eq!(list(&["x"]), ["x:foreign", "x:lock", "x:permit", "x:read"]);
    assert_eq!(list(&[]).len(), 5);
    let names = output(&mut leasehold(&server, &["ls", "--names", "x"]));
    assert_eq!(names, "x:foreign\nx:lock\nx:permit\nx:read\n");
    assert_eq!(list(&["y*"]), ["y*"]);
    assert_eq!(list(&["*"]), [""; 0], "nothing stands for anything else");
    // Without a prefix, neither counters nor queues are names.
    assert!(list(&["--prefix", ""]).iter().all(|name| !name.starts_with("leasehold:")));
    let text = output(&mut leasehold(&server, &["ls", "x:l"]));
    assert!(text.starts_with("x:lock  lock  tester:") && text.lines().count() == 1, "{text}");
}

#[test]
fn names_are_listed_in_an_outage_as_far_as_they_are_known() {
    let cluster = Cluster::of_three();
    let nodes = cluster.nodes();
    let client = Client::builder().open_cluster(cluster.urls()).unwrap();
    let names: Vec<_> = (0..3).map(|node| cluster.name_at(node)).collect();
    let _guards: Vec<_> = names.iter().map(|name| client.lock(name).unwrap()).collect();
    let hosts = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect::<Vec<_>>();
    let url = format!("redis+cluster://{}?retry_window=500ms", hosts.join(","));
    for full_coverage in ["no", "yes"] {
        for node in [&nodes[0], &nodes[2]] {
            node.command(&["CONFIG", "SET", "cluster-require-full-coverage", full_coverage]);
        }
        if full_coverage == "no" {
            nodes[1].kill();
        }
        // The other nodes refuse to say who holds a name, but only with full coverage.
        let info = || nodes[0].ask::<String>(&["CLUSTER", "INFO"]);
        eventually(|| full_coverage == "no" || info().contains("cluster_state:fail"));
        let finished = finish(&mut without_server(&["ls", "--url", &url, "--json"]));
        assert_eq!(finished.code, 69, "{finished:?}");
        assert!(!finished.stderr.is_empty());
        let listed: Value = serde_json::from_str(&finished.stdout).unwrap();
        let listed = listed.as_array().unwrap();
        for name in [&names[0], &names[2]] {
            let report = listed.iter().find(|report| report["name"] == **name).expect("it is held");
            assert_eq!(report["error"].is_string(), full_coverage == "yes", "{report}");
        }
        assert_eq!(listed.len(), 2, "{finished:?}");
        let text = finish(&mut without_server(&["ls", "--url", &url])).stdout;
        assert!(text.contains(&names[0]) && text.contains(&names[2]), "{text}");
    }
}

/// The end of each line of `unlock` about a hold that it has ended.
const LATE: &str = "; a holder that listens learns it at once, another at its next renewal\n";

#[test]
fn unlock_ends_holds_of_every_kind() {
    let server = Server::redis();
    let [client, neighbour] = [(); 2].map(|()| client(&server));
    let guard = client.lock("a").unwrap();
    assert_eq!(
        output(&mut leasehold(&server, &["unlock", "a"])),
        format!("ended 1 hold of a{LATE}")
    );
    guard.verify().unwrap_err();
    assert_eq!(output(&mut leasehold(&server, &["unlock", "a"])), "a is free\n");

    // Readers of one client share a hold.
    let lock = client.rw_lock("a");
    let (one, other) = (lock.read().unwrap(), neighbour.rw_lock("a").read().unwrap());
    let ended = json(&mut leasehold(&server, &["unlock", "a", "--json"]));
    assert_eq!(ended, json!({ "name": "a", "ended": 2 }));
    one.verify().unwrap_err();
    other.verify().unwrap_err();
    let writer = lock.try_write().unwrap().expect("it is free");
    assert_eq!(
        output(&mut leasehold(&server, &["unlock", "a"])),
        format!("ended 1 hold of a{LATE}")
    );
    writer.verify().unwrap_err();

    let permits = client.semaphore("a", 2);
    let (one, other) = (permits.acquire().unwrap(), permits.acquire().unwrap());
    assert_eq!(
        output(&mut leasehold(&server, &["unlock", "a"])),
        format!("ended 2 holds of a{LATE}")
    );
    one.verify().unwrap_err();
    other.verify().unwrap_err();
    assert_eq!(permits.available().unwrap(), 2);

    server.command(&["SET", "lock:a", "token", "PX", "60000"]);
    assert_eq!(
        output(&mut leasehold(&server, &["unlock", "a"])),
        format!("ended 1 hold of a{LATE}")
    );
    assert!(!server.ask::<bool>(&["EXISTS", "lock:a"]));
}

#[test]
fn unlock_ends_all_holds_of_a_client_or_of_a_label() {
    let server = Server::redis();
    let [gone, twin] = [client(&server), client(&server)];
    let other = Client::builder().label("tester 2").open(&server.url()).unwrap();
    let take = |client: &Client, name: &str| client.lock_owned(name).unwrap();
    let permits = other.semaphore("x:permits", 3);
    let kept = [take(&other, "x:other"), take(&other, "y:other")];
    let (kept_permit, kept_read) =
        (permits.acquire().unwrap(), other.rw_lock("x:read").read().unwrap());
    let ticket = take(&gone, "x:ticket").detach().unwrap();
    let lost = [take(&gone, "x:lock"), take(&gone, "y:lock")];
    let _read = gone.rw_lock("x:read").read().unwrap();
    let _permit = gone.semaphore("x:permits", 3).acquire().unwrap();
    let of_twin = take(&twin, "y:twin");
    // A value that another library or program has written.
    let owner = format!("{}:1", gone.id());
    server.command(&["SET", "lock:x:foreign", &owner, "PX", "60000"]);
    server.command(&["SET", "lock:x:data", &owner]);

    let unlock = |args: &[&str]| output(leasehold(&server, &["unlock"]).args(args));
    let id = gone.id();
    assert_eq!(unlock(&["--client", id, "--starting", "z"]), format!("{id} holds nothing\n"));
    let ended = format!(
        "ended the hold of lock x:lock by {id}\n\
         ended the hold of semaphore x:permits by {id}\n\
         ended the hold of read-write lock x:read (reader) by {id}\n\
         ended the hold of lock x:ticket by {id}\n\
         {}",
        LATE.trim_start_matches("; ")
    );
    let would_end = ended.replace("ended", "would end");
    let would_end = would_end.split_inclusive('\n').take(4).collect::<String>();
    assert_eq!(unlock(&["--client", id, "--starting", "x:", "--dry-run"]), would_end);
    lost[0].verify().unwrap();
    assert_eq!(unlock(&["--client", id, "--starting", "x:"]), ended);
    lost[0].verify().unwrap_err();
    twin.adopt(&ticket).unwrap_err();
    lost[1].verify().unwrap();

    let by_label = ["unlock", "--label", "tester", "--all", "--json"];
    let ended = json(&mut leasehold(&server, &by_label));
    let hold = |name: &str, client: &Client| {
        json!({
            "name": name, "kind": "lock", "side": null, "client": client.id(), "label": "tester",
        })
    };
    assert_eq!(ended, json!([hold("y:lock", &gone), hold("y:twin", &twin)]));
    lost[1].verify().unwrap_err();
    of_twin.verify().unwrap_err();

    for guard in &kept {
        guard.verify().unwrap();
    }
    kept_permit.verify().unwrap();
    kept_read.verify().unwrap();
    assert_eq!(server.ask::<String>(&["GET", "lock:x:foreign"]), owner);
    assert_eq!(server.ask::<String>(&["GET", "lock:x:data"]), owner);
}

#[test]
fn several_clients_of_a_label_are_listed_and_keep_their_holds() {
    let server = Server::redis();
    let [one, other] = [client(&server), client(&server)];
    let guards = [one.lock_owned("a").unwrap(), other.lock_owned("b").unwrap()];
    let unlock = |args: &[&str]| finish(leasehold(&server, &["unlock"]).args(args));
    let refused = unlock(&["--label", "tester"]);
    let listed = format!(
        "did not end the hold of lock a by {}\ndid not end the hold of lock b by {}\n",
        one.id(),
        other.id()
    );
    assert_eq!((refused.code, &refused.stdout), (64, &listed));
    assert!(refused.stderr.contains("2 clients have the label \"tester\""), "{refused:?}");
    for guard in &guards {
        guard.verify().unwrap();
    }
    // One of them has this name.
    let ended = unlock(&["--label", "tester", "a"]);
    assert_eq!((ended.code, ended.stdout.contains("lock a by")), (0, true), "{ended:?}");
    guards[0].verify().unwrap_err();
    guards[1].verify().unwrap();
    assert_eq!(unlock(&["--label", "tester"]).code, 0);
    guards[1].verify().unwrap_err();
}

#[test]
fn an_empty_selector_exits_with_64_and_ends_nothing() {
    let server = Server::redis();
    let client = Client::builder().label("").open(&server.url()).unwrap();
    let guard = client.lock("a").unwrap();
    for args in [
        &["--label", ""][..],
        &["--label="],
        &["--client", ""],
        &["--client", client.id(), "--starting", ""],
        &["--client", client.id(), ""],
        &["--starting", "a"],
        &["--fence", "", "a"],
        &["--fence", "1"],
        &["--all"],
        &["--all", "a"],
        &["--dry-run"],
        &[""],
        &[],
    ] {
        let finished = finish(leasehold(&server, &["unlock"]).args(args));
        assert_eq!((finished.code, &*finished.stdout), (64, ""), "{args:?}: {finished:?}");
    }
    guard.verify().unwrap();
}

#[test]
fn a_name_given_with_a_client_is_exact() {
    let server = Server::redis();
    let client = client(&server);
    let guards = ["deploy", "deploy-docs"].map(|name| client.lock_owned(name).unwrap());
    let unlock = |args: &[&str]| output(leasehold(&server, &["unlock"]).args(args));
    let nothing = format!("{} does not hold depl\n", client.id());
    assert_eq!(unlock(&["--client", client.id(), "depl"]), nothing);
    let ended = unlock(&["--label", "tester", "deploy"]);
    assert_eq!(ended.lines().count(), 2, "{ended}");
    guards[0].verify().unwrap_err();
    guards[1].verify().unwrap();
}

#[test]
fn a_fence_selects_exactly_one_hold() {
    let server = Server::redis();
    let client = client(&server);
    let unlock = |name: &str, fence: u64, option: &[&str]| {
        output(leasehold(&server, &["unlock", name, "--fence", &fence.to_string()]).args(option))
    };
    let seen = client.lock("a").unwrap().fence();
    let guard = client.lock("a").unwrap();
    let (fence, id) = (guard.fence(), client.id());
    let nothing = format!("a has no hold with fence {seen}: its last fence is {fence}\n");
    assert_eq!(unlock("a", seen, &[]), nothing);
    let would_end = format!("would end the hold of lock a by {id}\n");
    assert_eq!(unlock("a", fence, &["--dry-run"]), would_end);
    guard.verify().unwrap();
    let line = format!("ended the hold of lock a by {id}\n");
    assert!(unlock("a", fence, &[]).starts_with(&line));
    guard.verify().unwrap_err();
    assert_eq!(unlock("a", fence, &[]), "a is free\n");

    let lock = client.rw_lock("sides");
    let writer = lock.write().unwrap();
    let fence = writer.fence();
    assert!(unlock("sides", fence, &[]).contains("sides (writer)"));
    writer.verify().unwrap_err();
    // All readers have the token of the last writer.
    let reader = lock.read().unwrap();
    assert_eq!(reader.fence(), fence);
    assert!(unlock("sides", fence, &[]).starts_with("sides has no hold with fence"));
    reader.verify().unwrap();
}

#[test]
fn a_dry_run_lists_what_a_name_has() {
    let server = Server::redis();
    let client = client(&server);
    let permits = client.semaphore("a", 2);
    let held = [permits.acquire().unwrap(), permits.acquire().unwrap()];
    server.command(&["SET", "lock:foreign", "a secret", "PX", "60000"]);
    let dry_run = |name: &str| output(&mut leasehold(&server, &["unlock", "--dry-run", name]));
    let line = format!("would end the hold of semaphore a by {}\n", client.id());
    assert_eq!(dry_run("a"), line.repeat(2));
    assert_eq!(
        dry_run("foreign"),
        "would end the hold of lock of another library foreign by another library\n"
    );
    assert_eq!(dry_run("free"), "free is free\n");
    for permit in &held {
        permit.verify().unwrap();
    }
}

#[test]
fn a_name_given_as_a_prefix_is_explained() {
    let server = Server::redis();
    let client = client(&server);
    let list = |args: &[&str]| finish(leasehold(&server, &["ls"]).args(args));
    assert_eq!(list(&["--prefix", "stock"]).stderr, "");
    let _guard = client.lock("stock:42").unwrap();
    let listed = list(&["--prefix", "stock"]);
    assert_eq!((listed.code, &*listed.stdout), (0, ""));
    assert!(listed.stderr.contains("`leasehold ls stock` lists"), "{listed:?}");
    assert_eq!(list(&["--prefix", "lock:"]).stderr, "");
    assert_eq!(list(&["--prefix", "other"]).stderr, "");
}

#[test]
fn unlock_lets_waiting_clients_in() {
    let server = Server::redis();
    let holder = client(&server);
    let _held = holder.semaphore("a", 1).acquire().unwrap();
    let waiter = client(&server);
    let waiting = std::thread::spawn(move || waiter.semaphore("a", 1).acquire().map(drop));
    eventually(|| !show(&server, "a")["waiting"].as_array().unwrap().is_empty());
    output(&mut leasehold(&server, &["unlock", "a"]));
    waiting.join().unwrap().unwrap();
}

#[test]
fn the_command_line_overrides_settings_of_the_url() {
    let server = Server::redis();
    let url = format!("{}?prefix=url:&label=of-url", server.url());
    let program = without_server(&[]).get_program().to_str().unwrap().to_owned();
    for (prefix, option) in [("url:", &[][..]), ("line:", &["--prefix", "line:"])] {
        let client = Client::builder().prefix(prefix).open(&server.url()).unwrap();
        let _guard = client.lock("a").unwrap();
        let args = [&["--url", &url, "--json", "show", "a"], option].concat();
        assert_eq!(json(&mut without_server(&args))["holds"][0]["client"], json!(client.id()));
    }
    for (label, option) in [("of-url", &[][..]), ("of-line", &["--label", "of-line"])] {
        let show = ["b", "--", &program, "--url", &url, "--json", "show", "b"];
        let args = [&["--url", &url, "run"], option, &show].concat();
        assert_eq!(json(&mut without_server(&args))["holds"][0]["label"], json!(label));
    }
}
