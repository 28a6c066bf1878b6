//! Input written by users: URLs, configuration files, durations, names.

use std::fmt::Debug;
use std::time::Duration;

use super::*;
use crate::base::event_thread::Events;
use crate::client::builder::Builder;
use crate::config::Config as Settings;
use crate::config::url::parse_duration;
use crate::error::Error;
use crate::net::endpoint::Endpoint;
use crate::store::hold_id::{HoldId, HoldKind};

const URLS: &[&[u8]] = &[
    b"redis://127.0.0.1:6379/0",
    b"redis://ada:se5ame@localhost/3?lease=20s&backoff=5ms..500ms&client_name=web",
    b"rediss://[::1]:6380/#insecure",
    b"unix:///run/redis.sock?db=2&user=ada&pass=se5ame",
    b"redis+unix:///run/redis.sock",
    b"redis+sentinel://:se5ame@a:26379,b,c/main/1?master_login=ada:se5ame&label=a%20b",
    b"redis+cluster://10.0.0.1,10.0.0.2:7001?durability=fsync:1:2:100ms&pool=4",
    b"rediss+redlock://a,b,c?prefix=shop:&reentrant=false&max_hold=none&lazy=true",
];

const URL_PIECES: &[&str] = &[
    "@",
    ":",
    "/",
    "?",
    "#",
    "&",
    "=",
    ",",
    "%",
    "%00",
    "%ff",
    "%2c",
    "[",
    "]",
    "..",
    "://",
    "lease=",
    "db=-1",
    ":0",
    ":65536",
    "none",
    "1e9s",
    "\n",
    "\u{1f409}",
    "redis+cluster://",
];

#[cfg(feature = "serde")]
const FILES: &[&[u8]] = &[
    br#"{"url": "redis+cluster://10.0.0.1,10.0.0.2", "lease": "20s", "pool_size": 4}"#,
    br#"{"lease": 20, "reentrant": false, "max_hold": null, "url": "redis://:se5ame@h/1"}"#,
    br#"{"backoff": "5ms..500ms", "io_timeout": 1.5, "master_login": "ada:se5ame"}"#,
    br#"{"durability": "replicas:2:100ms", "redisson": true, "label": "worker 7"}"#,
];

#[cfg(feature = "serde")]
const FILE_PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "null",
    "true",
    "-1",
    "1e400",
    "0.0000001",
    "\\u0000",
    "\"url\":1,",
    "\"lease\":[]",
    "18446744073709551616",
    "\"lease\":\"-1s\",",
];

const DURATIONS: &[&[u8]] = &[b"500ms", b"2s", b"1.5m", b"30", b"1h", b"7d", b"50us"];

const DURATION_PIECES: &[&str] =
    &["0", "9", ".", "-", "+", "e9", "ms", "d", "inf", "nan", "_", " "];

const NAMES: &[&[u8]] = &[b"stock:42", b"{user:7}:cart", b"a{b", b"leasehold:x", b"x{a}b}"];

const NAME_PIECES: &[&str] = &["{", "}", "{}", "leasehold:", "\0", "\r\n", "\u{1f409}"];

/// Returns `true` for one line without a password, because errors are logged.
fn is_fit_to_be_logged(error: &Error) -> bool {
    let text = error.to_string();
    let config = matches!(error, Error::InvalidInput(_));
    config && !text.contains("se5ame") && !text.contains('\n')
}

fn shows_no_password(settings: &impl Debug) -> bool {
    !format!("{settings:?}").contains("se5ame")
}

/// Returns the part of a key that determines its slot: the hash tag, if it has one.
fn hashed(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn a_url_is_understood_or_refused_in_one_line_without_a_password(
        url in edited_text(URLS, URL_PIECES)
    ) {
        match Builder::from_url(&url) {
            Ok(builder) => prop_assert!(shows_no_password(&builder)),
            Err(error) => prop_assert!(is_fit_to_be_logged(&error), "{}", error),
        }
        match Endpoint::parse(&url, &Settings::default(), &Events::default()) {
            // Text in the place of a host or a path is shown.
            Ok(endpoint) if url.contains("ada:se5ame@") && !url.starts_with("unix") => {
                prop_assert!(shows_no_password(&endpoint));
            }
            Ok(_) => {}
            Err(error) => prop_assert!(is_fit_to_be_logged(&error), "{}", error),
        }
    }

    #[test]
    fn a_duration_is_a_number_of_one_unit(text in edited_text(DURATIONS, DURATION_PIECES)) {
        if parse_duration(&text).is_ok() {
            let number = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
            let is_number = |char: char| char.is_ascii_digit() || char == '.';
            prop_assert!(number.chars().all(is_number), "{}", text);
            prop_assert!(text.len() - number.len() <= 2, "{}", text);
        }
    }

    #[test]
    fn whole_durations_are_read_exactly(millis in 0..1_000_000_000_u64) {
        let read = parse_duration(&format!("{millis}ms"));
        let off = read.as_ref().map(|read| read.abs_diff(Duration::from_millis(millis)));
        prop_assert!(off.is_ok_and(|off| off < Duration::from_micros(1)), "{}: {:?}", millis, read);
    }

    #[test]
    fn all_keys_of_a_name_that_is_accepted_are_in_one_slot(
        name in edited_text(NAMES, NAME_PIECES),
        prefix in select(&["", "lock:", "{shop}:", "a}"][..]),
    ) {
        use crate::store::keys::{FENCE, Keys, QUEUE, TURN, check_name, companions};
        if check_name(prefix, &name).is_ok() {
            let keys = Keys::new(prefix);
            let lock = keys.lock(&name);
            prop_assert_eq!(keys.name(&lock), Some(&*name));
            for other in companions(&lock, [FENCE, QUEUE, TURN]) {
                prop_assert_eq!(hashed(&lock), hashed(&other), "{} and {}", lock, other);
                prop_assert_ne!(&*lock, &other);
            }
        }
    }

    #[test]
    fn an_owner_is_read_as_it_was_written_or_not_at_all(
        owner in edited(
            &[b"web:7:0a1b2c:1f", b":0", b"a:b:ffffffffffffffff"],
            &[":", "-", "+", "x"],
        ),
    ) {
        if let Some(hold) = HoldId::of_owner(&owner, HoldKind::Lock, "name") {
            let again = HoldId::of_owner(hold.owner().as_bytes(), HoldKind::Lock, "name");
            let again = again.expect("it is an owner");
            prop_assert_eq!((again.client, again.nonce), (hold.client, hold.nonce));
        }
    }
}

#[cfg(feature = "serde")]
proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn a_configuration_is_understood_or_refused_without_a_password(
        file in edited(FILES, FILE_PIECES)
    ) {
        match serde_json::from_slice::<Builder>(&file) {
            Ok(builder) => prop_assert!(shows_no_password(&builder)),
            Err(error) => prop_assert!(!error.to_string().contains("se5ame"), "{}", error),
        }
    }
}
