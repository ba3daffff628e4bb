//! Errors for quantities that are out of range.

use core::fmt;

use crate::Bytes;

/// An invalid size, alignment or text, with the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantityError {
    /// A sum or product of sizes does not fit in 64 bits.
    Overflow {
        /// What was being computed, such as "1024 B x 18446744073709551615".
        sum: String,
    },
    /// An alignment that is not a power of two.
    NotAPowerOfTwo {
        /// What was given.
        given: u64,
    },
    /// A size that must be a multiple of another and is not.
    NotAMultiple {
        /// What was given.
        given: Bytes,
        /// What it must be a multiple of.
        of: Bytes,
    },
    /// A value outside its range.
    OutOfRange {
        /// Which value, in the words of the interface.
        what: &'static str,
        /// What was given.
        given: u64,
        /// The smallest allowed.
        least: u64,
        /// The largest allowed.
        most: u64,
    },
    /// A text that is not a size.
    NotASize {
        /// The text as given.
        text: String,
    },
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow { sum } => {
                write!(f, "{sum} does not fit in 64 bits; the maximum is {} B", u64::MAX)
            }
            Self::NotAPowerOfTwo { given } => {
                write!(f, "invalid alignment {given}: expected a power of two")
            }
            Self::NotAMultiple { given, of } => {
                write!(f, "invalid size {} B: expected a multiple of {}", given.get(), of)
            }
            Self::OutOfRange { what, given, least, most } => {
                write!(f, "invalid {what} {given}: expected {least} to {most}")
            }
            Self::NotASize { text } => write!(
                f,
                "\"{text}\" is not a size: expected a number and an optional unit, such as 4096, 512KiB, \
                 1.5GiB or 2GB"
            ),
        }
    }
}

impl core::error::Error for QuantityError {}
