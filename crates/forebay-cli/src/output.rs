//! Output for terminals and pipes.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use forebay_core::steers_display;
use serde::Serialize;

/// Why something could not be done.
pub(crate) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Whole nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How many columns lines and tables may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    words: usize,
    table: usize,
}

impl Width {
    /// Below this the columns of a report leave no room for words.
    const LEAST: usize = 60;
    /// Beyond this the next line of a text is hard to find.
    const MAX: usize = 100;
    /// What files, pipes and mails are read at.
    const USUAL: usize = 80;

    /// As many as `columns`, but no fewer than 60.
    pub const fn new(columns: usize) -> Self {
        let columns = if columns < Self::LEAST { Self::LEAST } else { columns };
        Self { words: columns, table: columns }
    }

    /// What standard output has: as COLUMNS says, or else the terminal. Elsewhere words take 80, and tables as many as
    /// they need: a pipe has no width, so no column is dropped.
    pub fn of_output() -> Self {
        let wish = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let wish = wish.filter(|&columns: &usize| columns > 0);
        let unbounded = Self { words: Self::USUAL, table: usize::MAX };
        wish.or_else(terminal_columns).map_or(unbounded, Self::new)
    }

    /// How many columns a line of words may take: at most 100.
    pub const fn columns(self) -> usize {
        if self.words > Self::MAX { Self::MAX } else { self.words }
    }

    /// How many columns a table may take: all of them.
    pub const fn full(self) -> usize {
        self.table
    }
}

/// The width of the terminal behind standard output, where there is one and it tells.
fn terminal_columns() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Whether writing failed because the reader of a pipe went away, as `head` does when it has
/// enough.
pub(crate) fn reader_left(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Says on standard error what went wrong.
pub(crate) fn complain(what: impl fmt::Display) {
    // Where standard error is gone too, the exit status is all that is left.
    let _ = writeln!(anstream::stderr(), "forebay: {}", clean(&what.to_string()));
}

/// The text without what would steer a terminal. Colours stay: they are this program's own, and can do no harm.
///
/// Names of recordings, tags, stacks and files come from others, who may have put commands for the terminal into them.
/// Everything that this program prints goes through here, or through [`CleanOutput`], which calls it.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let length = colour(rest).unwrap_or(letter.len_utf8());
        let (part, after) = rest.split_at(length);
        match letter {
            '\n' => cleaned.push('\n'),
            '\u{1b}' if length > 1 => cleaned.push_str(part),
            _ if steers_display(letter) => cleaned.push(char::REPLACEMENT_CHARACTER),
            _ => cleaned.push(letter),
        }
        rest = after;
    }
    cleaned
}

/// The length of the escape sequence that `text` begins with, if all it does is to change the colour or the weight.
/// Others, such as one that hides the text, are not this program's.
fn colour(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\u{1b}[")?;
    let end = body.find(|letter: char| !letter.is_ascii_digit() && letter != ';')?;
    let (codes, after) = body.split_at(end);
    let is_own = |code: &str| {
        matches!(code.parse(), Ok(0..=4_u8 | 22..=24 | 30..=37 | 39..=47 | 49 | 90..=97))
            || code.is_empty()
    };
    let is_colour = after.starts_with('m') && codes.split(';').all(is_own);
    is_colour.then_some("\u{1b}[".len() + end + 1)
}

/// Writes each row as a line of JSON.
pub(crate) fn json_lines<T: Serialize>(
    rows: impl IntoIterator<Item = T>,
    mut out: impl Write,
) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut out, &row)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Standard output that lets no text of others steer the terminal. Works on whole lines, since a command for the terminal
/// may come in parts.
pub(crate) struct CleanOutput<W: Write> {
    out: W,
    /// [`clean`] for people, [`escape_controls`] for programs.
    harmless: fn(&str) -> String,
    pending: Vec<u8>,
}

impl<W: Write> CleanOutput<W> {
    pub(crate) fn new(out: W, harmless: fn(&str) -> String) -> Self {
        Self { out, harmless, pending: Vec::new() }
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let text = String::from_utf8_lossy(&pending);
        self.out.write_all((self.harmless)(&text).as_bytes())
    }
}

/// JSON with what is a control character and not ASCII as `\u` escapes, the same to programs; `serde_json` escapes the
/// others but for DEL.
pub(crate) fn escape_controls(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '\u{7f}'..='\u{9f}' => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
            other => escaped.push(other),
        }
    }
    escaped
}

impl<W: Write> Write for CleanOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if bytes.contains(&b'\n') {
            // The last line may go on.
            let end = self.pending.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            let rest = self.pending.split_off(end);
            let written = self.write_pending();
            self.pending = rest;
            written?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_pending()?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_neither_too_narrow_nor_too_wide() {
        let columns = |wish| Width::new(wish).columns();
        assert_eq!(
            [0, 59, 60, 72, 100, 101, usize::MAX].map(columns),
            [60, 60, 60, 72, 100, 100, 100]
        );
        // Tables are read by column, so they may be as wide as the terminal.
        assert_eq!([20, 80, 200].map(|wish| Width::new(wish).full()), [60, 80, 200]);
    }

    #[test]
    fn only_colours_reach_the_terminal() {
        let evil = "\u{1b}]0;title\u{7}\u{1b}[2Jname\u{9b}5n\r\u{8}\u{1b}[8mhidden\u{1b}";
        let cleaned = clean(evil);
        assert!(!cleaned.contains(char::is_control), "{cleaned:?}");
        assert!(cleaned.contains("name") && cleaned.contains("hidden"), "{cleaned:?}");
        let ours = format!("{0}title{0:#} plain\n", crate::layout::BAD);
        assert_eq!(clean(&ours), ours);
        // In parts, as formatting writes them.
        let mut out = CleanOutput::new(Vec::new(), clean);
        for part in ["\u{1b}", "[1", "mbold", "\u{1b}[", "2J", "\n", "rest\u{1b}[0m"] {
            out.write_all(part.as_bytes()).unwrap();
        }
        out.flush().unwrap();
        assert_eq!(String::from_utf8(out.out).unwrap(), "\u{1b}[1mbold\u{fffd}[2J\nrest\u{1b}[0m");
        let mut json = CleanOutput::new(Vec::new(), escape_controls);
        writeln!(json, "{}", serde_json::to_string(evil).unwrap()).unwrap();
        let line = String::from_utf8(json.out).unwrap();
        assert!(!line.trim_end().contains(char::is_control), "{line:?}");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), evil);
    }
}
