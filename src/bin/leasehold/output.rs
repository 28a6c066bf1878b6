//! What goes to stdout, and what goes to stderr.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use leasehold::printable;
use serde_json::Value;

use crate::exit::{ExitError, SUCCESS};

/// Writes a result to stdout. It is no error if no more of it is wanted there.
pub(crate) fn print(output: &str) -> Result<u8, ExitError> {
    let mut stdout = io::stdout();
    match stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(ExitError::system("write to stdout", &error))
        }
        _ => Ok(SUCCESS),
    }
}

/// Prints JSON on lines that people can read too.
pub(crate) fn print_json(value: &Value) -> Result<u8, ExitError> {
    print(&format!("{value:#}\n"))
}

/// Writes a time that is left with a tenth of a second.
pub(crate) fn in_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Says something on stderr.
pub(crate) fn say(message: &str) {
    say_plainly(&format!("leasehold: {message}"));
}

/// As `say`, for a text that is complete.
pub(crate) fn say_plainly(text: &str) {
    // There is no other place to complain of it.
    writeln!(io::stderr(), "{}", text.trim_end()).ok();
}

/// Columns of which each is as wide as its longest entry.
pub(crate) fn table<const COLUMNS: usize>(rows: Vec<[String; COLUMNS]>) -> String {
    let rows: Vec<_> = rows.into_iter().map(|row| row.map(|entry| printable(&entry))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..COLUMNS).map(|column| width(column).unwrap_or(0)).collect();
    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (entry, width) in row.iter().zip(&widths) {
            write!(line, "{entry:width$}  ").expect("a string takes everything");
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "lock", ""], ["stöck", "semaphore", "2"]];
        let text = table(rows.map(|row| row.map(str::to_owned)).to_vec());
        assert_eq!(text, "a      lock\nstöck  semaphore  2\n");
    }
}
