//! Builders deserialized from configuration files.

use leasehold::Builder;
use serde_json::{Value, json};

use crate::support::{Server, ms, stores, take};

stores! {
    one server:
        a_client_can_be_configured_by_a_file;
}

/// Returns the error for a bad file, which must not show its values.
#[track_caller]
fn refusal(file: Value) -> String {
    let error = serde_json::from_value::<Builder>(file).unwrap_err().to_string();
    assert!(!error.contains("secret"), "{error}");
    error
}

fn a_client_can_be_configured_by_a_file(server: &Server) {
    let file = json!({
        "prefix": "file:",
        "url": format!("{}?prefix=url:&label=worker", server.url()),
        "lease": 20,
        "wait": 0.05,
        "pool_size": 1,
        "reentrant": false,
        "idle_timeout": null,
        "max_hold": "none",
        "backoff": "5ms..500ms",
    });
    let client = serde_json::from_value::<Builder>(file).unwrap().build().unwrap();
    let guard = take(&client, "a");
    assert!(client.id().starts_with("worker"));
    assert!(guard.remaining() > ms(15_000) && guard.remaining() <= ms(20_000));
    let keys: Vec<String> = server.ask(&["KEYS", "*:a"]);
    assert_eq!(keys, ["file:a"]);
    client.lock("a").unwrap_err();
}

#[test]
fn a_file_may_leave_out_everything() {
    let builder: Builder = serde_json::from_str("{}").unwrap();
    take(&builder.in_memory().unwrap(), "a").unlock().unwrap();
}

#[test]
fn a_bad_file_is_refused() {
    for (file, named) in [
        (json!({"lease": "secret"}), "lease"),
        (json!({"lease": -1}), "lease"),
        (json!({"colour": "secret"}), "colour"),
        (json!({"pool": 1, "pool_size": 1}), "pool_size"),
        (json!({"url": "redis+sentinel://:secret@host"}), "url"),
        (json!({"url": "redis://:secret@host?lease=soon"}), "lease"),
        (json!({"backoff": [1, 2]}), "a text"),
        (json!(["secret"]), "a map"),
        (json!("redis://:secret@host"), "a map"),
    ] {
        let error = refusal(file);
        assert!(error.contains(named), "{error:?} does not name {named}");
    }
    let twice = r#"{"url": "redis://a", "url": "redis://a"}"#;
    let error = serde_json::from_str::<Builder>(twice).unwrap_err().to_string();
    assert!(error.contains("url"), "{error}");
}

#[test]
fn an_error_in_a_file_has_its_line() {
    for bad in [r#""lease": "soon""#, r#""colour": 1"#, r#""url": "redis://host?lease=soon""#] {
        let file = format!("{{\n  \"wait\": 1,\n  {bad},\n  \"pool_size\": 1\n}}");
        let error = serde_json::from_str::<Builder>(&file).unwrap_err();
        assert_eq!(error.line(), 3, "{error}");
    }
}
