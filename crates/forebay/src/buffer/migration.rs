//! How the data of buffers moves.

/// What moves data to where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "host"), expect(dead_code))]
pub(super) enum Migration {
    /// The buffers, by copying.
    Copies,
    /// The buffers, by copying, for a program that requested managed memory.
    Emulated,
    /// The driver, page by page.
    Driver,
}
