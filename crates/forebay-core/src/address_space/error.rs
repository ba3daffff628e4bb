//! Why a record does not fit what the address space knows.

use super::Offset;

/// Why a record does not fit what the address space knows.
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
    /// A page is not free from end to end, or a block to be freed was not taken.
    InUse {
        /// Where.
        at: Offset,
    },
}

impl core::fmt::Display for AddressSpaceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Malformed { at, size } => {
                write!(f, "{size} B at {at:#x} cannot be on the space")
            }
            Self::Occupied { at } => {
                write!(f, "{at:#x} has a page, an alias or a reserved range already")
            }
            Self::Absent { at } => write!(f, "no page or alias begins at {at:#x}"),
            Self::InUse { at } => write!(f, "what is at {at:#x} is in use"),
        }
    }
}

impl core::error::Error for AddressSpaceError {}
