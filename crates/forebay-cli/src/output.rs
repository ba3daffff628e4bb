//! Writing for people and pipes.

use std::io::{self, Write};

/// Whether writing failed because the reader of a pipe went away, as `head` does when it has
/// enough.
pub(crate) fn reader_left(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Says on standard error why the output is not complete.
pub(crate) fn complain(error: &io::Error) {
    // Where standard error is gone too, the exit status is all that is left.
    let _ = writeln!(anstream::stderr(), "forebay: cannot write the output: {error}");
}
