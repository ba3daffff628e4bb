//! The error of calls that consume a handle.

use core::fmt;

use crate::Error;

/// The error of a call that consumes a handle: the handle and the reason.
///
/// The handle still owns its block. Dropping it tries to free the block once more.
pub struct Refused<H> {
    /// Boxed, so that the results of successful calls stay small.
    parts: Box<(H, Error)>,
}

impl<H> Refused<H> {
    pub(crate) fn new(handle: H, error: Error) -> Self {
        Self { parts: Box::new((handle, error)) }
    }

    /// The reason.
    pub fn error(&self) -> &Error {
        &self.parts.1
    }

    /// Returns the handle.
    pub fn into_handle(self) -> H {
        self.parts.0
    }

    /// Returns the handle and the reason.
    pub fn into_parts(self) -> (H, Error) {
        *self.parts
    }

    /// The same reason with another handle.
    #[cfg(feature = "host")]
    pub(crate) fn map<G>(self, to: impl FnOnce(H) -> G) -> Refused<G> {
        let (handle, error) = self.into_parts();
        Refused::new(to(handle), error)
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
