//! Writing for people and pipes.

use std::fmt;
use std::io::{self, Write};

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
