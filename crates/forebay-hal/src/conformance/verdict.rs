//! How a case fails: with a message that has the figures, never by a panic.

use core::fmt;

use forebay_core::Bytes;

use crate::{Call, Error, Result};

/// Why a case failed, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Prefixes the message with what was being done.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Self {
        Self(format!("{what}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(format!("a call that had to succeed failed: {error}"))
    }
}

impl From<forebay_core::QuantityError> for Failure {
    fn from(error: forebay_core::QuantityError) -> Self {
        Self(format!("the case needs a quantity that cannot be: {error}"))
    }
}

/// The result of a case.
pub type Verdict = core::result::Result<(), Failure>;

/// The result of a step of a case.
pub(super) type Step<T> = core::result::Result<T, Failure>;

/// Fails with the text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Failure::new(format!($($text)+)));
        }
    };
}

/// Fails, with both figures, unless what was found is what is right.
macro_rules! ensure_equal {
    ($what:expr, $found:expr, $right:expr) => {
        match (&$found, &$right) {
            (found, right) => {
                if *found != *right {
                    let text = format!("{}: found {found:?}, {right:?} is right", $what);
                    return Err($crate::conformance::Failure::new(text));
                }
            }
        }
    };
}

pub(super) use {ensure, ensure_equal};

/// The error of a call that had to fail, which must name that call.
fn error_of<T: fmt::Debug>(call: Call, what: &str, result: Result<T>) -> Step<Error> {
    match result {
        Ok(given) => Err(Failure::new(format!("{call} of {what} succeeded with {given:?}"))),
        Err(error) => {
            ensure_equal!(
                format!("{call} of {what}: the call its error names"),
                error.call(),
                call
            );
            Ok(error)
        }
    }
}

/// `what` is refused as an argument, with words for what was given and what is allowed.
pub(super) fn invalid<T: fmt::Debug>(call: Call, what: &str, result: Result<T>) -> Verdict {
    match error_of(call, what, result)? {
        Error::Invalid { argument, given, allowed, .. } => {
            let silent = argument.is_empty() || given.is_empty() || allowed.is_empty();
            ensure!(
                !silent,
                "{call} of {what} was refused without saying why: argument {argument:?}, \
                 given {given:?}, allowed {allowed:?}"
            );
            Ok(())
        }
        other => Err(Failure::new(format!(
            "{call} of {what}: an invalid argument is right, not {other}"
        ))),
    }
}

/// Checks that `what` is refused, as an invalid argument or for lack of memory.
pub(super) fn refused<T: fmt::Debug>(call: Call, what: &str, result: Result<T>) -> Verdict {
    match error_of(call, what, result)? {
        Error::Invalid { .. } | Error::OutOfMemory { .. } | Error::Busy { .. } => Ok(()),
        other => Err(Failure::new(format!("{call} of {what}: a refusal is right, not {other}"))),
    }
}

/// `what` cannot be done while something uses it.
pub(super) fn busy<T: fmt::Debug>(call: Call, what: &str, result: Result<T>) -> Verdict {
    match error_of(call, what, result)? {
        Error::Busy { .. } => Ok(()),
        other => Err(Failure::new(format!("{call} of {what}: busy is right, not {other}"))),
    }
}

/// `what` is something the device says it cannot do.
pub(super) fn unsupported<T: fmt::Debug>(call: Call, what: &str, result: Result<T>) -> Verdict {
    match error_of(call, what, result)? {
        Error::Unsupported { .. } => Ok(()),
        other => Err(Failure::new(format!("{call} of {what}: unsupported is right, not {other}"))),
    }
}

/// What an [`Error::OutOfMemory`] said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shortage {
    pub(super) free: Bytes,
    pub(super) total: Bytes,
}

/// `requested` bytes are more than there are; the error carries that very size.
pub(super) fn out_of_memory<T: fmt::Debug>(
    call: Call,
    requested: Bytes,
    result: Result<T>,
) -> Step<Shortage> {
    let what = format!("{} B, more than there is", requested.get());
    match error_of(call, &what, result)? {
        Error::OutOfMemory { requested: said, free, total, .. } => {
            ensure_equal!(format!("{call}: the size in the error"), said, requested);
            ensure!(free <= total, "{call}: {free} free of {total} in the error");
            Ok(Shortage { free, total })
        }
        other => {
            Err(Failure::new(format!("{call} of {what}: out of memory is right, not {other}")))
        }
    }
}
