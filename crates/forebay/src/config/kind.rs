//! The kinds of values: how each is read, written and bounded.
//!
//! What is written reads back as the same value, so that what `forebay doctor` shows can be pasted
//! into a file or a variable.

use core::time::Duration;

use forebay_core::{Bytes, GIB, KIB, MIB, PageSize, TIB};

use super::fraction::Fraction;

/// A type of value that a key can have.
pub(super) trait Kind: Copy + PartialOrd {
    /// Its name, in a word or two.
    const NAME: &'static str;
    /// What may be written, with examples.
    const FORM: &'static str;

    /// The value, where `text` is one. Spaces around it do not count, nor do capitals.
    fn read(text: &str) -> Option<Self>;

    /// A text that reads as this value.
    fn write(&self) -> String;

    /// Whether it is a word for there being no bound at all, which no range can exclude.
    fn is_unbounded(&self) -> bool {
        false
    }
}

/// Which values of a kind a key takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bounds<T> {
    /// All.
    Any,
    /// This and greater ones.
    AtLeast(T),
    /// This and smaller ones.
    AtMost(T),
    /// These two and what is between them.
    Between(T, T),
}

impl<T: Kind> Bounds<T> {
    /// Whether `value` is allowed.
    pub(super) fn allow(&self, value: &T) -> bool {
        value.is_unbounded()
            || match self {
                Self::Any => true,
                Self::AtLeast(least) => value >= least,
                Self::AtMost(most) => value <= most,
                Self::Between(least, most) => value >= least && value <= most,
            }
    }

    /// What is allowed, in words.
    pub(super) fn allowed(&self) -> String {
        let form = T::FORM;
        match self {
            Self::Any => form.to_owned(),
            Self::AtLeast(least) => format!("{form}; at least {}", least.write()),
            Self::AtMost(most) => format!("{form}; at most {}", most.write()),
            Self::Between(least, most) => {
                format!("{form}; from {} to {}", least.write(), most.write())
            }
        }
    }
}

impl Kind for Bytes {
    const NAME: &'static str = "size";
    const FORM: &'static str = "a size, such as 8GiB, 1.5GiB, 512 MiB or 4096";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    /// The largest unit of which it is a whole number: nothing is rounded. No unit where the number
    /// would be no shorter for it.
    fn write(&self) -> String {
        let bytes = self.get();
        let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
        match units.iter().find(|&&(unit, _)| bytes != 0 && bytes.is_multiple_of(unit)) {
            Some((unit, name)) if bytes / unit < 10_000 => format!("{}{name}", bytes / unit),
            _ => bytes.to_string(),
        }
    }
}

/// No limit where there is none.
impl Kind for Option<Bytes> {
    const NAME: &'static str = "size or none";
    const FORM: &'static str = "a size, such as 8GiB, 512 MiB or 4096, or none for no limit";

    fn read(text: &str) -> Option<Self> {
        read_or("none", text, Bytes::read)
    }

    fn write(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |bytes| bytes.write())
    }

    fn is_unbounded(&self) -> bool {
        self.is_none()
    }
}

impl Kind for PageSize {
    const NAME: &'static str = "power of two";
    const FORM: &'static str = "a size that is a power of two, such as 2MiB or 32MiB";

    fn read(text: &str) -> Option<Self> {
        Self::new(Bytes::read(text)?.get()).ok()
    }

    fn write(&self) -> String {
        self.bytes().write()
    }
}

/// A page of `size`, for sizes in the code, which are powers of two.
pub(super) fn page_of(size: Bytes) -> PageSize {
    PageSize::new(size.get()).unwrap_or(PageSize::DEVICE)
}

impl Kind for Fraction {
    const NAME: &'static str = "fraction";
    const FORM: &'static str = "a fraction from 0 to 1, such as 0.8 or 80%";

    fn read(text: &str) -> Option<Self> {
        Self::read(text)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Kind for bool {
    const NAME: &'static str = "switch";
    const FORM: &'static str = "on or off (also true and false, 1 and 0)";

    fn read(text: &str) -> Option<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "on" | "true" | "1" => Some(true),
            "off" | "false" | "0" => Some(false),
            _ => None,
        }
    }

    fn write(&self) -> String {
        if *self { "on" } else { "off" }.to_owned()
    }
}

impl Kind for u64 {
    const NAME: &'static str = "number";
    const FORM: &'static str = "a whole number, such as 0 or 65536";

    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        // The standard reader takes a sign, which people do not write before a count.
        text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// The units of time that are read; those that are written come first, the longest in front.
const UNITS: [(&str, u64); 7] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];
/// How many of them are written.
const WRITTEN: usize = 4;

impl Kind for Duration {
    const NAME: &'static str = "duration";
    const FORM: &'static str = "a duration with its unit, such as 10s, 250ms, 5min or 1h";

    /// Reads "10s", "1.5 h", "250ms". A number alone is refused: nobody could tell of what.
    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, unit) = text.split_at_checked(split)?;
        let unit = unit.trim().to_ascii_lowercase();
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        // Nine decimals are more than any unit needs, and keep the sum in 128 bits.
        if fraction.len() > 9 || (number.contains('.') && fraction.is_empty()) {
            return None;
        }
        let whole: u64 = whole.parse().ok()?;
        let scale = 10_u128.checked_pow(fraction.len().try_into().ok()?)?;
        let part: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        let unit = u128::from(*unit);
        let total = u128::from(whole) * unit + u128::from(part) * unit / scale;
        u64::try_from(total).ok().map(Self::from_nanos)
    }

    /// The largest unit up to seconds of which it is a whole number.
    fn write(&self) -> String {
        let nanos = self.as_nanos();
        let units = UNITS.iter().take(WRITTEN);
        let mut whole = units.filter(|&&(_, unit)| nanos.is_multiple_of(u128::from(unit)));
        match whole.next() {
            Some((name, unit)) => format!("{}{name}", nanos / u128::from(*unit)),
            None => format!("{nanos}ns"),
        }
    }
}

/// Never where there is none.
impl Kind for Option<Duration> {
    const NAME: &'static str = "duration or never";
    const FORM: &'static str = "a duration with its unit, such as 60s, 250ms or 5min, or never";

    fn read(text: &str) -> Option<Self> {
        read_or("never", text, Duration::read)
    }

    fn write(&self) -> String {
        self.map_or_else(|| "never".to_owned(), |duration| duration.write())
    }

    fn is_unbounded(&self) -> bool {
        self.is_none()
    }
}

/// `word`, which stands for no value, or else what `read` makes of the text.
fn read_or<T>(word: &str, text: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    if text.trim().eq_ignore_ascii_case(word) { Some(None) } else { read(text).map(Some) }
}
