//! Durations, as they are written on the command line.

use std::time::Duration;

/// The units and their length in seconds.
const UNITS: [(&str, f64); 5] =
    [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// Parses `500ms`, `2s`, `1.5m`, or plain seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let seconds = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, seconds)| seconds);
    let seconds = if unit.is_empty() { Some(&1.0) } else { seconds };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: Option<f64> = digits.parse().ok().filter(|_| is_number);
    let duration = number.zip(seconds).map(|(number, seconds)| number * seconds);
    duration
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "not a duration such as `500ms`, `2s`, `5m`, or plain seconds".into())
}

/// Writes a time that is left with a tenth of a second.
pub(crate) fn in_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_unit_is_in_seconds() {
        for (text, millis) in [
            ("500ms", 500),
            ("2s", 2000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("30", 30_000),
            ("0", 0),
            ("1.5s", 1500),
            ("0.25", 250),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "s", "-1", "1x", "1 s", "1S", "inf", "NaN", "1e3", "1e400d", ".", "1s2"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let huge = "9".repeat(30);
        assert!(parse(&huge).is_err());
    }
}
