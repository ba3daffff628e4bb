//! Why an address space refused a call.

use super::Offset;

/// Why an address space refused a call. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressSpaceError {
    /// The span is not a multiple of the granule, is empty, or does not lie in one reserved range.
    Malformed {
        /// Where it begins.
        at: Offset,
        /// How long it is.
        size: u64,
    },
    /// Something is there already: a page, an alias, or a reserved range.
    Occupied {
        /// Where.
        at: Offset,
    },
    /// No page or alias begins there.
    Absent {
        /// Where.
        at: Offset,
    },
    /// A page to be removed is not entirely free, or a block to be freed was not allocated.
    InUse {
        /// Where.
        at: Offset,
    },
}

impl core::fmt::Display for AddressSpaceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Malformed { at, size } => {
                write!(f, "{size} B at {at:#x} are not whole granules within one reserved range")
            }
            Self::Occupied { at } => {
                write!(f, "{at:#x} already has a page, an alias or a reserved range")
            }
            Self::Absent { at } => write!(f, "no page or alias begins at {at:#x}"),
            Self::InUse { at } => {
                write!(f, "the page at {at:#x} is in use, or the block there is not allocated")
            }
        }
    }
}

impl core::error::Error for AddressSpaceError {}
