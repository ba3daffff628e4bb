//! Sizes and alignments as types.
//!
//! Nothing wraps: `+`, `-` and `*` stop at zero and at [`Bytes::MAX`], which no device has, so an allocation of such a
//! size fails; `checked_*` return `None`, and `try_*` an error with the figures.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Mul, Sub, SubAssign};
use core::str::FromStr;

use crate::QuantityError;

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;
/// 1024 GiB.
pub const TIB: u64 = 1 << 40;

/// A number of bytes.
///
/// ```
/// use forebay_core::Bytes;
/// let size: Bytes = "1.5GiB".parse()?;
/// assert_eq!(size.get(), 1_610_612_736);
/// assert_eq!(size.to_string(), "1.50 GiB");
/// assert_eq!(Bytes::mib(1) + Bytes::kib(512) * 2, Bytes::mib(2));
/// assert_eq!(Bytes::MAX + size, Bytes::MAX);
/// assert!(size.checked_mul(u64::MAX).is_none());
/// # Ok::<(), forebay_core::QuantityError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// 0 bytes.
    pub const ZERO: Self = Self(0);
    /// The largest size.
    pub const MAX: Self = Self(u64::MAX);

    /// That many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `count` KiB; saturates at [`Bytes::MAX`].
    pub const fn kib(count: u64) -> Self {
        Self(count.saturating_mul(KIB))
    }

    /// `count` MiB; saturates at [`Bytes::MAX`].
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(MIB))
    }

    /// `count` GiB; saturates at [`Bytes::MAX`].
    pub const fn gib(count: u64) -> Self {
        Self(count.saturating_mul(GIB))
    }

    /// The size of `count` values of type `T`.
    pub fn of<T>(count: u64) -> Result<Self, QuantityError> {
        Self(core::mem::size_of::<T>() as u64).try_mul(count)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as a `usize`. Fails if it does not fit.
    pub fn to_usize(self) -> Result<usize, QuantityError> {
        usize::try_from(self.0).map_err(|_| QuantityError::OutOfRange {
            what: "size in bytes",
            given: self.0,
            least: 0,
            most: usize::MAX as u64,
        })
    }

    /// The size for display as advice: a limit set to the displayed figure admits this size.
    ///
    /// ```
    /// use forebay_core::Bytes;
    /// let needed = Bytes::new(20_975_520);
    /// assert_eq!(needed.to_string(), "20.00 MiB");
    /// assert_eq!(needed.rounded_up().to_string(), "20.01 MiB");
    /// ```
    pub const fn rounded_up(self) -> RoundedUp {
        RoundedUp(self.0)
    }

    /// Whether this is 0 bytes.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or `None` on overflow.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or `None` if `other` is larger.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// The product, or `None` on overflow.
    pub const fn checked_mul(self, times: u64) -> Option<Self> {
        match self.0.checked_mul(times) {
            Some(product) => Some(Self(product)),
            None => None,
        }
    }

    /// The sum, or [`Bytes::MAX`].
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, or an error with both figures.
    pub fn try_add(self, other: Self) -> Result<Self, QuantityError> {
        self.checked_add(other)
            .ok_or_else(|| QuantityError::Overflow { sum: format!("{} B + {} B", self.0, other.0) })
    }

    /// The product, or an error with both figures.
    pub fn try_mul(self, times: u64) -> Result<Self, QuantityError> {
        self.checked_mul(times)
            .ok_or_else(|| QuantityError::Overflow { sum: format!("{} B x {times}", self.0) })
    }

    /// Rounded up to a multiple of `alignment`, or `None` on overflow.
    pub const fn checked_align_up(self, alignment: Alignment) -> Option<Self> {
        match self.0.checked_add(alignment.mask()) {
            Some(sum) => Some(Self(sum & !alignment.mask())),
            None => None,
        }
    }

    /// Rounded up to a multiple of `alignment`, or an error with both figures.
    pub fn align_up(self, alignment: Alignment) -> Result<Self, QuantityError> {
        self.checked_align_up(alignment).ok_or_else(|| QuantityError::Overflow {
            sum: format!("{} B rounded up to {} B", self.0, alignment.get()),
        })
    }

    /// Rounded down to a multiple of `alignment`.
    pub const fn align_down(self, alignment: Alignment) -> Self {
        Self(self.0 & !alignment.mask())
    }

    /// Whether this is a multiple of `alignment`.
    pub const fn is_aligned_to(self, alignment: Alignment) -> bool {
        self.0 & alignment.mask() == 0
    }
}

/// The sum, or [`Bytes::MAX`].
impl Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// The difference, or zero.
impl Sub for Bytes {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// The product, or [`Bytes::MAX`].
impl Mul<u64> for Bytes {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Self::add)
    }
}

/// Binary units with two decimals, whole bytes below 1 KiB. `round` adds what rounding the last decimal takes, of a unit.
fn in_units(bytes: u64, round: fn(u128) -> u128) -> String {
    if bytes < KIB {
        return format!("{bytes} B");
    }
    let units = [(KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB"), (TIB, "TiB")];
    let mut shown = String::new();
    for (unit, name) in units {
        // By integers: no float decides what a person reads. The product of 64 bits and 100 fits in 128.
        let unit = u128::from(unit);
        let hundredths = (u128::from(bytes) * 100 + round(unit)) / unit;
        shown = format!("{}.{:02} {name}", hundredths / 100, hundredths % 100);
        // Compared after rounding, so that 1 MiB less a byte is "1.00 MiB" and not "1024.00 KiB".
        if hundredths < 1024 * 100 {
            break;
        }
    }
    shown
}

impl fmt::Display for Bytes {
    /// Binary units rounded to two decimals, whole bytes below 1 KiB.
    ///
    /// The figure may be up to half a hundredth of its unit below the exact size. Where a reader will
    /// set a limit by it, show [`Bytes::rounded_up`] instead.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&in_units(self.0, |unit| unit / 2))
    }
}

/// A size displayed as a figure no smaller than itself. Made by [`Bytes::rounded_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundedUp(u64);

impl fmt::Display for RoundedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&in_units(self.0, |unit| unit - 1))
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;

    /// Reads "4096", "512KiB", "1.5 GiB", "2GB" (decimal) or "24G" (binary); case does not matter.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let bad = || QuantityError::NotASize { text: text.to_owned() };
        let trimmed = text.trim();
        let split =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => KIB,
            "m" | "mib" => MIB,
            "g" | "gib" => GIB,
            "t" | "tib" => TIB,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(bad()),
        };
        // A fraction of a byte is a mistake; a tenth of a gibibyte is rounded down to whole bytes.
        if unit == 1 && number.contains('.') {
            return Err(bad());
        }
        let total = parse_decimal(number, unit).ok_or_else(bad)?;
        u64::try_from(total)
            .map(Self)
            .map_err(|_| QuantityError::Overflow { sum: format!("\"{trimmed}\"") })
    }
}

/// A number such as "1.5" times `unit`, rounded down. `None` unless it consists of digits, with at most nine decimals:
/// more than any unit up to a terabyte needs, and the sum fits in 128 bits.
#[doc(hidden)]
pub fn parse_decimal(number: &str, unit: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let (whole, part): (u64, u64) = (whole.parse().ok()?, fraction.parse().ok()?);
    let scale = 10_u128.pow(fraction.len().try_into().ok()?);
    let unit = u128::from(unit);
    Some(u128::from(whole) * unit + u128::from(part) * unit / scale)
}

/// An alignment: a power of two.
///
/// ```
/// use forebay_core::{Alignment, QuantityError};
/// assert_eq!(Alignment::new(512)?.get(), 512);
/// assert!(matches!(Alignment::new(48), Err(QuantityError::NotAPowerOfTwo { given: 48 })));
/// # Ok::<(), QuantityError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alignment {
    shift: u8,
}

impl Alignment {
    /// Any address.
    pub const ONE: Self = Self { shift: 0 };
    /// Two bytes.
    pub const TWO: Self = Self { shift: 1 };
    /// Four bytes.
    pub const FOUR: Self = Self { shift: 2 };
    /// A cache line, which is the minimum alignment on the host device.
    pub const CACHE_LINE: Self = Self { shift: 6 };
    /// The alignment of blocks on devices: 512 bytes, as with other CUDA allocators.
    pub const BLOCK: Self = Self { shift: 9 };
    /// The page size of common processors: 4 KiB.
    pub const HOST_PAGE: Self = Self { shift: 12 };
    /// 1 MiB.
    pub const MIB: Self = Self { shift: 20 };
    /// The granularity of CUDA's virtual memory: 2 MiB.
    pub const DEVICE_PAGE: Self = Self { shift: 21 };
    /// 1 GiB: the host's largest huge page.
    pub const GIB: Self = Self { shift: 30 };

    /// Two to the power of `log2`, which must be below 64.
    pub const fn of_log2(log2: u8) -> Option<Self> {
        if log2 < 64 { Some(Self { shift: log2 }) } else { None }
    }

    /// An alignment of `bytes`, which must be a power of two.
    pub const fn new(bytes: u64) -> Result<Self, QuantityError> {
        if bytes.is_power_of_two() {
            // trailing_zeros of a u64 is at most 63, so the cast keeps every bit.
            #[allow(clippy::cast_possible_truncation)]
            Ok(Self { shift: bytes.trailing_zeros() as u8 })
        } else {
            Err(QuantityError::NotAPowerOfTwo { given: bytes })
        }
    }

    /// The alignment in bytes.
    pub const fn get(self) -> u64 {
        1 << self.shift
    }

    /// The alignment as a size.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.get())
    }

    /// The power of two: 9 for 512 bytes.
    pub const fn log2(self) -> u8 {
        self.shift
    }

    /// The bits below the alignment.
    pub(crate) const fn mask(self) -> u64 {
        self.get() - 1
    }
}

impl Default for Alignment {
    fn default() -> Self {
        Self::BLOCK
    }
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The size of one physical page of a device: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(Alignment);

impl PageSize {
    /// The page size of common processors: 4 KiB.
    pub const HOST: Self = Self(Alignment::HOST_PAGE);
    /// The granularity of CUDA's virtual memory, and of the host's huge pages: 2 MiB.
    pub const DEVICE: Self = Self(Alignment::DEVICE_PAGE);

    /// A page of `bytes`, which must be a power of two.
    pub fn new(bytes: u64) -> Result<Self, QuantityError> {
        Alignment::new(bytes).map(Self)
    }

    /// The size.
    pub const fn bytes(self) -> Bytes {
        self.0.bytes()
    }

    /// The alignment of a page's address.
    pub const fn alignment(self) -> Alignment {
        self.0
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests;
