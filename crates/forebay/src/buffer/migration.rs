//! Who moves the data of buffers.

/// Who moves data to where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "host"), expect(dead_code))]
pub(super) enum Migration {
    /// The buffers, by copies.
    Copies,
    /// The buffers, by copies, for a program that asked for managed memory.
    Emulated,
    /// The driver, page by page.
    Driver,
}
