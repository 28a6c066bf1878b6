//! Durations as text: in URLs, configuration files and command lines.
//!
//! The program `leasehold` includes this file too.

use std::time::Duration;

/// What is wrong with a text that is no duration.
pub(crate) const NO_DURATION: &str =
    "must be a duration such as `500ms`, `2s`, `5m`, or plain seconds";

/// The units and their length in seconds.
const UNITS: [(&str, f64); 7] = [
    ("", 1.0),
    ("us", 0.000_001),
    ("ms", 0.001),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];

/// Parses `500ms`, `2s`, `1.5m`, or plain seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let seconds = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, seconds)| seconds);
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: Option<f64> = digits.parse().ok().filter(|_| is_number);
    let seconds = number.zip(seconds).map(|(number, seconds)| number * seconds);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or(NO_DURATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_unit_is_in_seconds() {
        for (text, micros) in [
            ("50us", 50),
            ("500ms", 500_000),
            ("2s", 2_000_000),
            ("5m", 300_000_000),
            ("1h", 3_600_000_000),
            ("1d", 86_400_000_000),
            ("30", 30_000_000),
            ("0", 0),
            ("1.5s", 1_500_000),
            ("0.25", 250_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "s", "-1", "1x", "1 s", "1S", "inf", "NaN", "1e3", "1e400d", ".", "1s2"] {
            parse_duration(text).expect_err(text);
        }
        parse_duration(&"9".repeat(30)).expect_err("too long");
    }
}
