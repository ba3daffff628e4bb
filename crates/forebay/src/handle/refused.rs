//! A call that took a handle and could not keep it.

use core::fmt;

use crate::Error;

/// What a call gives that takes a handle and fails: the handle, and why.
///
/// The handle still owns its block. Dropping it tries once more, as every drop does.
pub struct Refused<H> {
    /// In a box, so that the results of calls that go well stay small.
    parts: Box<(H, Error)>,
}

impl<H> Refused<H> {
    pub(super) fn new(handle: H, error: Error) -> Self {
        Self { parts: Box::new((handle, error)) }
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.parts.1
    }

    /// The handle, back.
    pub fn into_handle(self) -> H {
        self.parts.0
    }

    /// Both.
    pub fn into_parts(self) -> (H, Error) {
        *self.parts
    }
}

impl<H> From<Refused<H>> for Error {
    /// The reason alone; the handle is dropped.
    fn from(refused: Refused<H>) -> Self {
        refused.parts.1
    }
}

impl<H> fmt::Display for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<H> fmt::Debug for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", self.error()).finish_non_exhaustive()
    }
}

impl<H> core::error::Error for Refused<H> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(self.error())
    }
}
