//! Hides passwords and tickets in messages. They may have slipped into any part of the command
//! line, and errors repeat its words.

use std::env;

use clap::error::{ContextKind, ContextValue};
use leasehold::Ticket;

/// The text shown in place of a word.
const HIDDEN: &str = "***";

/// The schemes that a URL of a server may have.
const SCHEMES: [&str; 5] = ["redis", "rediss", "unix", "valkey", "valkeys"];

/// Hides the words of the command line that a usage error repeats, if they may be secret.
pub(crate) fn hide_words(error: &mut clap::Error) {
    let hidden = error.context().filter(|(_, value)| match value {
        ContextValue::String(word) => may_be_secret(word),
        ContextValue::Strings(words) => words.iter().any(|word| may_be_secret(word)),
        _ => false,
    });
    let hidden: Vec<_> = hidden.map(|(kind, _)| kind).collect();
    if !hidden.is_empty() {
        // A tip may repeat the word.
        error.remove(ContextKind::Suggested);
    }
    for kind in hidden {
        error.insert(kind, ContextValue::String(HIDDEN.into()));
    }
}

/// Returns `true` for a word that looks like a URL or a part of one, and for a ticket. A shell may
/// have split a URL at a blank.
fn may_be_secret(word: &str) -> bool {
    word.contains(['@', '?', '=']) || is_url_with_more(word) || word.parse::<Ticket>().is_ok()
}

/// Returns `true` for a URL with more than hosts and a path. Names may be URLs, too.
fn is_url_with_more(word: &str) -> bool {
    let Some((scheme, rest)) = word.split_once(':') else { return false };
    let Some(rest) = rest.strip_prefix("//") else {
        // Slashes are missing.
        let scheme = scheme.split('+').next().unwrap_or_default();
        return SCHEMES.contains(&scheme) && rest.contains('@');
    };
    let hosts = rest.split('/').next().unwrap_or_default();
    rest.contains(['@', '?']) || rest.contains("://") || hosts.split(',').any(has_login)
}

fn has_login(host: &str) -> bool {
    // An IPv6 address has colons, in brackets.
    let port = host.rsplit(']').next().unwrap_or_default().split_once(':');
    port.is_some_and(|(_, port)| !port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Hides everything but the scheme of URLs that may contain a password.
pub(crate) fn without_secrets(text: &str) -> String {
    let words = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    hide_urls(&hide_quoted(text, words))
}

/// Hides words of the command line that a message quotes: names and labels. Only the whole text
/// shows where a password ends, because passwords may contain blanks.
fn hide_quoted(text: &str, words: impl Iterator<Item = String>) -> String {
    let mut text = text.to_owned();
    for word in words.filter(|word| is_url_with_more(word)) {
        text = text.replace(&format!("{word:?}"), &format!("\"{}\"", shown(&word)));
    }
    text
}

/// Hides URLs wherever they come from, such as the labels of other clients.
fn hide_urls(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace).map(|word| {
        let end =
            word.trim_end_matches(|char: char| char.is_whitespace() || "\"',:;.`".contains(char));
        let start = end.find("://").map_or(0, |colon| {
            let before = end[..colon].char_indices().rev();
            let scheme =
                before.take_while(|(_, char)| char.is_ascii_alphanumeric() || *char == '+');
            scheme.last().map_or(colon, |(start, _)| start)
        });
        let url = &end[start..];
        if url.contains("://") && is_url_with_more(url) {
            format!("{}{}{}", &word[..start], shown(url), &word[end.len()..])
        } else {
            word.to_owned()
        }
    });
    words.collect()
}

/// Returns what is shown of a URL.
fn shown(url: &str) -> String {
    url.split_once("://").map_or(HIDDEN.into(), |(scheme, _)| format!("{scheme}://{HIDDEN}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_login_and_no_query_of_a_url_is_shown() {
        for (text, shown) in [
            ("redis://h:1/0", "redis://h:1/0"),
            ("a name, https://example.com/page.", "a name, https://example.com/page."),
            ("redis://[::1]:6379,a:1/0", "redis://[::1]:6379,a:1/0"),
            ("a \"redis://:secret@h/\": b@c", "a \"redis://***\": b@c"),
            ("redis+sentinel://u:se/cr@et@a,b/m rediss://x@y", "redis+sentinel://*** rediss://***"),
            ("redis://app:se://cret@h", "redis://***"),
            ("{unix:///tmp/x?user=a&pass=b'", "{unix://***'"),
            ("is redis://app:se", "is redis://***"),
            ("no URL: u:p@h", "no URL: u:p@h"),
        ] {
            assert_eq!(hide_urls(text), shown);
        }
    }

    #[test]
    fn a_quoted_word_is_hidden_to_its_end() {
        let words = ["redis://app:se \"cret@h", "job"];
        let text = format!("lock {:?} is held, and {:?}", words[0], words[1]);
        let hidden = hide_quoted(&text, words.map(str::to_owned).into_iter());
        assert_eq!(hidden, "lock \"redis://***\" is held, and \"job\"");
    }

    #[test]
    fn a_usage_error_repeats_only_harmless_words() {
        for word in ["true", "./job.sh", "a:b", "--full", "soon", "[::1]:6379"] {
            assert!(!may_be_secret(word), "{word}");
        }
        for word in ["redis:/u:p@h", "u:p@h", "redis://u:se", "a?pass=b", "pass=b"] {
            assert!(may_be_secret(word), "{word}");
        }
    }
}
