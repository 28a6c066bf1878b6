//! `ping`.

use serde_json::Value;

use crate::support::{Cluster, Server, finish, json, leasehold, output, without_server};

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
fn what_endangers_locks_is_a_warning() {
    let server = Server::redis();
    assert!(warns(&server, "restart") && !warns(&server, "evict"));
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    assert!(!warns(&server, "restart") && warns(&server, "evict"));
    assert!(output(&mut leasehold(&server, &["ping"])).contains("\nwarning: maxmemory-policy"));
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
        assert!(finished.stderr.contains("refused"), "{scheme}: {finished:?}");
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

#[test]
fn a_replica_is_no_place_for_locks() {
    let (master, replica) = (Server::redis(), Server::redis());
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    assert_eq!(ping(&replica)["role"], "replica");
    assert!(warns(&replica, "replica"));
    assert_eq!(finish(&mut leasehold(&replica, &["run", "a", "--", "true"])).code, 69);
}
