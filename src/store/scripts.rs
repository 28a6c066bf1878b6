//! The scripts in `lua/`: which of the files each is made of, and what a call of one is.

use std::sync::LazyLock;

use crate::net::request::{Request, Script};
use crate::store::decoder::Decoder;

/// Defines a script from its file in `lua/`, between the parts that it shares with others.
macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $($file:literal),+) => {
        $(#[$doc])*
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(code(concat!($(include_str!(concat!("lua/", $file))),+))));
    };
}

script!(ACQUIRE, "holds.lua", "wake.lua", "token.lua", "acquire.lua");
script!(ACQUIRE_ALL, "token.lua", "acquire_all.lua");
script!(ACQUIRE_MEMBER, "holds.lua", "wake.lua", "serve.lua", "token.lua", "acquire_member.lua");
script!(CHANGE, "change.lua");
script!(RELEASE, "wake.lua", "redisson.lua", "release.lua");
script!(RELEASE_MEMBER, "wake.lua", "serve.lua", "release_member.lua");
script!(REPORT, "holds.lua", "report.lua");
script!(UNREGISTER, "holds.lua", "wake.lua", "serve.lua", "redisson.lua", "unregister.lua");

/// A request and the decoder of its reply.
#[derive(Clone, Debug)]
pub(crate) struct Command<T> {
    pub(crate) request: Request,
    pub(crate) decoder: Decoder<T>,
}

/// What a server is sent of a script: its lines without comments and indentation.
fn code(script: &str) -> String {
    let lines = script.lines().map(|line| without_comment(line).trim());
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

/// What is in front of the comment of a line. A `--` in a string begins none.
fn without_comment(line: &str) -> &str {
    let (bytes, mut quote, mut at) = (line.as_bytes(), None, 0);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (None, b'-') if bytes[at..].starts_with(b"--") => return &line[..at],
            (None, mark @ (b'"' | b'\'')) => quote = Some(mark),
            (Some(_), b'\\') => at += 1,
            (Some(open), mark) if mark == open => quote = None,
            _ => {}
        }
        at += 1;
    }
    line
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The names of the files in `lua/`, and what they have.
    fn files() -> impl Iterator<Item = (String, String)> {
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/lua");
        fs::read_dir(scripts).expect("the scripts are there").map(|script| {
            let script = script.expect("they can be listed").path();
            let text = fs::read_to_string(&script).expect("they can be read");
            (script.display().to_string(), text)
        })
    }

    #[test]
    fn the_scripts_need_no_lua_older_than_others_have() {
        // Redis and Valkey have Lua 5.1, Dragonfly has 5.4.
        const GONE: [&str; 5] = ["unpack(", "loadstring(", "setfenv(", "table.getn(", "math.pow("];
        for (name, text) in files() {
            let gone = GONE.iter().find(|function| text.contains(**function));
            assert_eq!(gone, None, "in {name}");
        }
    }

    #[test]
    fn no_comment_and_no_indentation_is_sent() {
        for (name, text) in files() {
            let code = code(&text);
            let needless = ["--", "  ", "\n ", "\n\n"].iter().find(|text| code.contains(**text));
            assert_eq!(needless, None, "in {name}");
            // Comments and strings of several lines, which are not looked for.
            assert!(!text.contains("[[") && !text.contains("[="), "in {name}");
        }
        let release = Request::call(&RELEASE, &[], &[]).in_full();
        let sent = String::from_utf8(release.bytes).expect("it is text");
        assert!(!sent.contains("--") && sent.len() < 5000, "{} bytes: {sent}", sent.len());
    }

    #[test]
    fn a_string_is_no_comment() {
        for (line, kept) in [
            ("local a = '--' -- why", "local a = '--'"),
            (r#"local a = "it's -- \"so\" --" --"#, r#"local a = "it's -- \"so\" --""#),
            (r"local a = '\\' -- why", r"local a = '\\'"),
            ("  return 2 - -1 -- not 2--1", "return 2 - -1"),
        ] {
            assert_eq!(code(&format!("-- what\n\n{line}\n")), format!("{kept}\n"));
        }
    }
}
