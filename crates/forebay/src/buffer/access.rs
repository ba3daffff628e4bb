//! Kinds of access.

/// How an access uses the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Reads them.
    Read,
    /// Reads and writes them.
    Update,
    /// Writes them without reading, so the old contents need not be copied.
    Overwrite,
}

impl Access {
    pub(super) fn writes(self) -> bool {
        self != Self::Read
    }
}
