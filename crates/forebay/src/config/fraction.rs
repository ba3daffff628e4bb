//! Fractions of a whole, exact to a millionth.

use core::fmt;

use forebay_core::Bytes;

/// The number of parts in a whole.
const WHOLE: u32 = 1_000_000;

/// A fraction from 0 to 1, in millionths. Unlike floats, values that print the same are equal.
///
/// ```
/// use forebay::config::Fraction;
/// use forebay::Bytes;
///
/// let warn = Fraction::percent(80);
/// assert_eq!(Fraction::read("0.8"), Some(warn));
/// assert_eq!(Fraction::nearest(0.8), Some(warn));
/// assert_eq!(warn.of(Bytes::new(1001)), Bytes::new(800));
/// assert_eq!(warn.to_string(), "0.8");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fraction {
    millionths: u32,
}

impl Fraction {
    /// Zero.
    pub const ZERO: Self = Self { millionths: 0 };
    /// One.
    pub const ONE: Self = Self { millionths: WHOLE };

    /// From hundredths; saturates at one.
    pub const fn percent(percent: u32) -> Self {
        Self::millionths(percent.saturating_mul(WHOLE / 100))
    }

    /// From millionths; saturates at one.
    pub const fn millionths(millionths: u32) -> Self {
        Self { millionths: if millionths > WHOLE { WHOLE } else { millionths } }
    }

    /// The fraction nearest to `value`, which must be from 0 to 1.
    pub fn nearest(value: f64) -> Option<Self> {
        if !(0.0..=1.0).contains(&value) {
            return None;
        }
        // From 0 to a million, as checked above, so the cast is exact.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let millionths = (value * f64::from(WHOLE)).round() as u32;
        Some(Self::millionths(millionths))
    }

    /// Parses "0.8", "1", "80%" or "12.5 %". Truncates to millionths.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let (number, unit) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), WHOLE / 100),
            None => (text, WHOLE),
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let dangling = number.contains('.') && decimals.is_empty();
        if whole.is_empty() || dangling || !digits(whole) || !digits(decimals) {
            return None;
        }
        let mut millionths = whole.parse::<u32>().ok()?.checked_mul(unit)?;
        let mut place = unit;
        for digit in decimals.bytes().map(|byte| byte.saturating_sub(b'0')) {
            place /= 10;
            millionths = millionths.checked_add(place * u32::from(digit))?;
        }
        (millionths <= WHOLE).then_some(Self { millionths })
    }

    /// The number of millionths.
    pub const fn as_millionths(self) -> u32 {
        self.millionths
    }

    /// As a float.
    pub fn as_f64(self) -> f64 {
        f64::from(self.millionths) / f64::from(WHOLE)
    }

    /// This fraction of `whole`, rounded down to whole bytes.
    pub fn of(self, whole: Bytes) -> Bytes {
        let part = u128::from(whole.get()) * u128::from(self.millionths) / u128::from(WHOLE);
        // No fraction exceeds its whole, so the result fits in 64 bits.
        Bytes::new(u64::try_from(part).unwrap_or(whole.get()))
    }
}

impl fmt::Display for Fraction {
    /// Prints the fewest decimals that are exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.millionths / WHOLE, self.millionths % WHOLE);
        if part == 0 {
            return f.pad(&whole.to_string());
        }
        f.pad(format!("{whole}.{part:06}").trim_end_matches('0'))
    }
}
