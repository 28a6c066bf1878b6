//! Settings that a build without a feature refuses before it connects to a server. With all
//! features there is nothing to test.
#![allow(
    clippy::unwrap_used,
    reason = "in a test, a panic at the line that went wrong is the wanted report"
)]
#![cfg(not(feature = "tls-insecure"))]

use std::net::TcpListener;

use leasehold::{Client, Error};

/// Checks that a URL with this scheme and end is refused because of a feature.
fn assert_refused(scheme: &str, end: &str, feature: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error = Client::open(&format!("{scheme}://:sesame@{address}/{end}")).unwrap_err();
    let named = format!("feature `{feature}`");
    assert!(matches!(&error, Error::InvalidInput(text) if text.contains(&named)), "{error:?}");
    assert!(!format!("{error:?} {error}").contains("sesame"), "{error:?}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "no client has connected");
}

#[test]
#[cfg(not(feature = "tls"))]
fn an_encrypted_connection_needs_a_feature() {
    assert_refused("rediss", "", "tls");
}

#[test]
#[cfg(not(feature = "tls"))]
fn certificates_need_a_feature() {
    for setting in ["ca", "cert", "key", "server_name"] {
        assert_refused("redis", &format!("?{setting}=/sesame"), "tls");
    }
}

#[test]
#[cfg(feature = "tls")]
fn an_insecure_connection_needs_a_feature() {
    assert_refused("rediss", "#insecure", "tls-insecure");
}
