//! Addresses and spans of addresses.

use core::fmt;

use crate::{Alignment, Bytes, QuantityError};

/// An address in device or host memory. Plain data: it owns nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64);

impl Address {
    /// The null address, which an allocation of 0 bytes returns.
    pub const NULL: Self = Self(0);

    /// The address with this value.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The address of a host pointer, whose memory a device may then use through it.
    pub fn of_pointer<T: ?Sized>(pointer: *const T) -> Self {
        Self(pointer.cast::<u8>().expose_provenance() as u64)
    }

    /// The value as an integer.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is [`Address::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `offset` further on, or the last one.
    pub const fn saturating_add(self, offset: Bytes) -> Self {
        Self(self.0.saturating_add(offset.get()))
    }

    /// The address `offset` further on, or `None` past the end of the address space.
    pub const fn checked_add(self, offset: Bytes) -> Option<Self> {
        match self.0.checked_add(offset.get()) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The distance from `start`, or `None` if this address is below `start`.
    pub const fn offset_from(self, start: Self) -> Option<Bytes> {
        match self.0.checked_sub(start.0) {
            Some(offset) => Some(Bytes::new(offset)),
            None => None,
        }
    }

    /// Whether this is a multiple of `alignment`.
    pub const fn is_aligned_to(self, alignment: Alignment) -> bool {
        self.0 & alignment.mask() == 0
    }

    /// The next multiple of `alignment`, or `None` past the end of the address space.
    pub const fn checked_align_up(self, alignment: Alignment) -> Option<Self> {
        match Bytes::new(self.0).checked_align_up(alignment) {
            Some(up) => Some(Self(up.get())),
            None => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A range of addresses whose end does not overflow.
///
/// ```
/// use forebay_core::{Address, Bytes, Span};
/// let a = Span::new(Address::new(0x1000), Bytes::new(16))?;
/// let b = Span::new(Address::new(0x100f), Bytes::new(16))?;
/// assert!(a.overlaps(b));
/// assert!(Span::new(Address::new(u64::MAX), Bytes::new(2)).is_err());
/// # Ok::<(), forebay_core::QuantityError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    start: Address,
    size: Bytes,
}

impl Span {
    /// `size` bytes from `start`. Fails if the end would overflow.
    pub fn new(start: Address, size: Bytes) -> Result<Self, QuantityError> {
        if start.checked_add(size).is_none() {
            return Err(QuantityError::Overflow { sum: format!("{start} + {} B", size.get()) });
        }
        Ok(Self { start, size })
    }

    /// The first address.
    pub const fn start(self) -> Address {
        self.start
    }

    /// The size in bytes.
    pub const fn size(self) -> Bytes {
        self.size
    }

    /// One past the last address.
    pub const fn end(self) -> Address {
        // `new` has seen that this sum exists.
        Address(self.start.0 + self.size.get())
    }

    /// Whether it is empty.
    pub const fn is_empty(self) -> bool {
        self.size.is_zero()
    }

    /// Whether `address` lies in it.
    pub const fn contains(self, address: Address) -> bool {
        address.0 >= self.start.0 && address.0 < self.end().0
    }

    /// Whether all of `other` lies in it.
    pub const fn contains_span(self, other: Self) -> bool {
        other.start.0 >= self.start.0 && other.end().0 <= self.end().0
    }

    /// Whether the two share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end().0
            && other.start.0 < self.end().0
            && !self.is_empty()
            && !other.is_empty()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{} ({})", self.start, self.end(), self.size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn overlap_is_a_shared_byte(a in 0_u64..64, n in 0_u64..32, b in 0_u64..64, m in 0_u64..32) {
            let left = Span::new(Address::new(a), Bytes::new(n)).unwrap();
            let right = Span::new(Address::new(b), Bytes::new(m)).unwrap();
            let shared = (a..a + n).any(|byte| (b..b + m).contains(&byte));
            prop_assert_eq!(left.overlaps(right), shared);
            prop_assert_eq!(right.overlaps(left), shared);
        }

        #[test]
        fn no_span_wraps(start: u64, size: u64) {
            let span = Span::new(Address::new(start), Bytes::new(size));
            prop_assert_eq!(span.is_ok(), start.checked_add(size).is_some());
        }
    }
}
