//! Writing for people and pipes.

use std::fmt;
use std::io::{self, IsTerminal, Write};

/// How many columns the terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width(usize);

impl Width {
    /// Below this the columns of a report leave no room for words.
    const LEAST: usize = 60;
    /// Beyond this the next line of a text is hard to find.
    const MOST: usize = 100;
    /// What files, pipes and mails are read at.
    const USUAL: usize = 80;

    /// As many as `columns`, but no fewer than 60.
    pub const fn new(columns: usize) -> Self {
        Self(if columns < Self::LEAST { Self::LEAST } else { columns })
    }

    /// What standard output has: as COLUMNS says, or else the terminal, or else 80.
    pub fn of_output() -> Self {
        let wish = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let wish = wish.filter(|&columns: &usize| columns > 0);
        Self::new(wish.or_else(terminal_columns).unwrap_or(Self::USUAL))
    }

    /// How many columns a line of words may take: at most 100.
    pub const fn columns(self) -> usize {
        if self.0 > Self::MOST { Self::MOST } else { self.0 }
    }

    /// How many columns a table may take: all of them.
    pub const fn full(self) -> usize {
        self.0
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
    let _ = writeln!(anstream::stderr(), "forebay: {what}");
}

#[cfg(test)]
mod tests {
    use super::Width;

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
}
