//! `ping`.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{
    Cluster, Server, finish, json, leasehold, output, redis_binary, without_server,
};

fn ping(server: &Server) -> Value {
    let servers = json(&mut leasehold(server, &["ping", "--json"]));
    assert_eq!(servers.as_array().unwrap().len(), 1);
    servers[0].clone()
}

fn warns(server: &Server, of: &str) -> bool {
    let warnings = &ping(server)["warnings"];
    warnings.as_array().unwrap().iter().any(|warning| warning.as_str().unwrap().contains(of))
}

#[test]
fn a_server_is_described() {
    for server in [Server::redis(), Server::valkey()] {
        let report = ping(&server);
        assert!(report["version"].as_str().unwrap().contains(' '), "{report}");
        assert_eq!(report["role"], "master");
        assert_eq!((&report["replicas"], &report["appendonly"]), (&0.into(), &false.into()));
        assert_eq!(report["maxmemory_policy"], "noeviction");
        assert!(report["clock_ahead_ms"].as_f64().unwrap().abs() < 1000.0, "{report}");
        let text = output(&mut leasehold(&server, &["ping"]));
        for part in [report["version"].as_str().unwrap(), "master", "noeviction"] {
            assert!(text.contains(part), "{part:?}: {text}");
        }
    }
}

#[test]
#[cfg(feature = "tls")]
fn a_server_that_demands_certificates_is_reached() {
    let authority = crate::support::authority::Authority::new("good");
    let server = authority.start(&authority.certify("localhost"), &[]);
    let client = authority.certify("client");
    let settings =
        [authority.file().display().to_string(), client.certificate_file, client.key_file];
    let [ca, cert, key] = &settings;
    let url = format!("{}?ca={ca}&cert={cert}&key={key}", server.tls_url());
    let by_url = output(without_server(&["ping", "--json"]).env("REDIS_URL", url));
    assert!(by_url.contains("master"), "{by_url}");
    let variables = ["LEASEHOLD_CA", "LEASEHOLD_CERT", "LEASEHOLD_KEY"];
    let mut command = without_server(&["ping", "--json", "--url", &server.tls_url()]);
    let by_variables = output(command.envs(variables.into_iter().zip(&settings)));
    assert!(by_variables.contains("master"), "{by_variables}");
    let finished = finish(command.env("LEASEHOLD_KEY", "/nowhere"));
    assert_eq!(finished.code, 64, "{finished:?}");
    assert!(finished.stderr.contains("LEASEHOLD_KEY"), "{finished:?}");
}

#[test]
fn settings_that_endanger_locks_are_warnings() {
    let server = Server::redis();
    assert!(warns(&server, "restart") && !warns(&server, "evict"));
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    assert!(!warns(&server, "restart") && warns(&server, "evict"));
    assert!(output(&mut leasehold(&server, &["ping"])).contains("\nwarning: maxmemory-policy"));
}

#[test]
fn the_timeouts_that_fit_follow_from_the_slowest_reply() {
    let server = Server::redis();
    let report = ping(&server);
    let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"));
    assert!(number("slowest_ms") >= number("round_trip_ms"), "{report}");
    let io_timeout = (10.0 * number("slowest_ms")).max(100.0);
    assert!((number("io_timeout_min_ms") - io_timeout).abs() < 0.1, "{report}");
    let lease = (3.0 * io_timeout).max(1000.0);
    assert!((number("lease_min_ms") - lease).abs() < 0.1, "{report}");
    assert!(output(&mut leasehold(&server, &["ping"])).contains("set io_timeout to "));

    let url = server.url();
    let hasty = format!("{url}{}io_timeout=90ms", if url.contains('?') { '&' } else { '?' });
    let text = finish(&mut without_server(&["ping", "--url", &hasty])).stdout;
    assert!(text.contains("warning: an io_timeout of 90ms is short here"), "{text}");
}

#[test]
fn every_server_is_shown_in_an_outage() {
    let cluster = Cluster::of_three();
    let servers = [Server::redis(), Server::redis(), Server::redis()];
    for (scheme, servers, is_down) in [
        ("redis+cluster", cluster.nodes(), [false, true, false]),
        ("redis+redlock", &servers, [true, false, true]),
    ] {
        let addresses: Vec<_> =
            servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        for (server, _) in servers.iter().zip(is_down).filter(|(_, is_down)| *is_down) {
            server.kill();
        }
        let url = format!("{scheme}://{}", addresses.join(","));
        let finished = finish(&mut without_server(&["ping", "--json", "--url", &url]));
        assert_eq!(finished.code, 69, "{scheme}: {finished:?}");
        let usable = is_down.iter().filter(|is_down| !**is_down).count();
        let required = if scheme == "redis+redlock" { 2 } else { 3 };
        let why = format!("leasehold: {usable} of {required} required servers");
        let is_said_once =
            finished.stderr.starts_with(&why) && !finished.stderr.contains("refused");
        assert!(is_said_once, "{scheme}: {finished:?}");
        let reports: Vec<Value> = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(reports.len(), addresses.len(), "{scheme}: {reports:?}");
        let text = finish(&mut without_server(&["ping", "--url", &url])).stdout;
        for (address, is_down) in addresses.iter().zip(is_down) {
            let report = reports.iter().find(|report| report["server"] == **address);
            let report = report.unwrap_or_else(|| panic!("{scheme}: {address}: {reports:?}"));
            assert_eq!(report["error"].is_string(), is_down, "{scheme}: {report}");
            assert!(text.contains(address), "{scheme}: {text}");
        }
    }
}

#[test]
fn a_login_without_the_right_to_ask_is_enough() {
    let server = Server::redis();
    server.command(&["ACL", "SETUSER", "default", "-info"]);
    assert_eq!(ping(&server)["version"], Value::Null);
    assert!(warns(&server, "INFO"));
}

/// As behind a proxy that passes on little but scripts.
#[test]
fn a_server_that_answers_few_questions_can_still_hold_locks() {
    let server = Server::redis();
    server.command(&["ACL", "SETUSER", "default", "-info", "-ping"]);
    let report = ping(&server);
    assert_eq!(report["version"], Value::Null);
    assert!(report["round_trip_ms"].is_number(), "{report}");
}

/// A sentinel that names a replica, which may become the master soon.
#[test]
fn an_outage_makes_ls_wait_once() {
    let (master, replica) = (Server::redis(), Server::redis());
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let sentinel = Server::sentinel(redis_binary(), &[]);
    let port = replica.port().to_string();
    sentinel.command(&["SENTINEL", "MONITOR", "shop", "127.0.0.1", &port, "1"]);
    let address = format!("127.0.0.1:{}", sentinel.port());
    let url = format!("redis+sentinel://{address}/shop?retry_window=5s");
    let begun = Instant::now();
    let finished = finish(&mut without_server(&["ls", "--url", &url]));
    let took = begun.elapsed();
    assert!(finished.code == 69 && finished.stderr.contains("not a master"), "{finished:?}");
    assert!(took < Duration::from_secs(9), "{took:?}");
}

#[test]
fn a_server_without_a_memory_limit_is_shown_as_such() {
    let server = Server::redis();
    assert_eq!(ping(&server)["maxmemory"], 0);
    let text = output(&mut leasehold(&server, &["ping"]));
    assert!(
        text.lines().any(|line| line
            .split_once("maxmemory  ")
            .is_some_and(|(start, rest)| { start.is_empty() && rest.trim() == "no limit" })),
        "{text}"
    );
}

#[test]
fn an_ipv6_address_has_brackets() {
    for task in [&["ping"][..], &["ls"], &["show", "a"]] {
        let args = [&["--url", "redis://[::1]:1"], task].concat();
        let finished = finish(&mut without_server(&args));
        assert_eq!(finished.code, 69, "{finished:?}");
        assert!(finished.stderr.contains("[::1]:1"), "{finished:?}");
    }
}

#[test]
fn a_replica_is_no_place_for_locks() {
    let (master, replica) = (Server::redis(), Server::redis());
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let finished = finish(&mut leasehold(&replica, &["ping"]));
    assert_eq!(finished.code, 69, "{finished:?}");
    assert!(finished.stdout.contains("warning: a replica: "), "{finished:?}");
    assert!(finished.stderr.contains("0 of 1 required servers"), "{finished:?}");
    assert_eq!(finish(&mut leasehold(&replica, &["run", "a", "--", "true"])).code, 69);
}

#[test]
fn a_server_that_refuses_what_a_lock_needs_is_no_place_for_locks() {
    let server = Server::redis();
    let refused = |code: i32, why: &str| {
        let finished = finish(&mut leasehold(&server, &["ping"]));
        assert!(finished.code == code && finished.stderr.contains(why), "{finished:?}");
    };
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    refused(69, "OOM");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    server.command(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    refused(77, "NOPERM");
}

#[test]
fn a_sentinel_is_no_place_for_locks() {
    let sentinel = Server::sentinel(redis_binary(), &[]);
    let finished = finish(&mut leasehold(&sentinel, &["ping"]));
    assert_eq!(finished.code, 69, "{finished:?}");
    assert!(finished.stdout.contains("use redis+sentinel://"), "{finished:?}");
    let finished = finish(&mut leasehold(&sentinel, &["ping", "--json"]));
    let reports: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(
        (&reports[0]["role"], &reports[0]["clock_ahead_ms"]),
        (&"sentinel".into(), &Value::Null)
    );
}

#[test]
fn a_node_of_a_cluster_is_not_the_cluster() {
    let cluster = Cluster::of_three();
    let node = &cluster.nodes()[0];
    let pinged = finish(&mut leasehold(node, &["ping"]));
    assert!(pinged.code == 69 && pinged.stdout.contains("redis+cluster://"), "{pinged:?}");
    assert!(warns(&Cluster::of(1).nodes()[0], "redis+cluster://"));
    let listed = finish(&mut leasehold(node, &["ls"]));
    assert_eq!((listed.code, &*listed.stdout), (0, ""));
    assert!(listed.stderr.contains("redis+cluster://"), "{listed:?}");
    let url = format!("redis+cluster://127.0.0.1:{}", node.port());
    let text = output(&mut without_server(&["ping", "--url", &url]));
    assert!(!text.contains("cluster"), "{text}");
    assert_eq!(output(&mut without_server(&["ls", "--url", &url])), "");
}

#[test]
fn slots_that_no_node_serves_are_an_outage() {
    let cluster = Cluster::of_three();
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    cluster.nodes()[0].command(&["CLUSTER", "DELSLOTS", "7"]);
    let finished = finish(&mut without_server(&["ping", "--url", &url]));
    assert_eq!(finished.code, 69, "{finished:?}");
    assert!(finished.stdout.contains("warning: the cluster serves 16383 of 16384"), "{finished:?}");
}
