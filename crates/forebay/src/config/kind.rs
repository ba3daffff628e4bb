//! The kinds of values: how each is parsed, written and bounded.
//!
//! Every written value parses back to itself, so that output of `forebay doctor` can be pasted into a file or a
//! variable.

use core::time::Duration;

use forebay_core::{Bytes, GIB, KIB, MIB, PageSize, TIB};

use super::fraction::Fraction;

/// A type of value for keys.
pub(super) trait Kind: Copy + PartialOrd {
    /// Its name, in a word or two.
    const NAME: &'static str;
    /// The accepted form, with examples.
    const FORM: &'static str;

    /// Parses `text`. Ignores surrounding spaces and case.
    fn read(text: &str) -> Option<Self>;

    /// Writes the value so that it parses back.
    fn write(&self) -> String;

    /// Whether it stands for "no bound", which every range allows.
    fn is_unbounded(&self) -> bool {
        false
    }
}

/// The values of a kind that a key allows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bounds<T> {
    /// All values.
    Any,
    /// This value and greater ones.
    AtLeast(T),
    /// This value and smaller ones.
    AtMost(T),
    /// Both values and those in between.
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

    /// The allowed values, in words.
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

    /// Uses the largest unit that needs no rounding, or no unit if that is as short.
    fn write(&self) -> String {
        let bytes = self.get();
        let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
        match units.iter().find(|&&(unit, _)| bytes != 0 && bytes.is_multiple_of(unit)) {
            Some((unit, name)) if bytes / unit < 10_000 => format!("{}{name}", bytes / unit),
            _ => bytes.to_string(),
        }
    }
}

/// `None` means no limit.
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

/// A page size from `size`, for constants in the code, which are powers of two.
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
        // The standard parser accepts a sign, which makes no sense for a count.
        text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// The units of time that are parsed. Those that are also written come first, longest first.
const UNITS: [(&str, u64); 7] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];
/// How many of the units are written.
const WRITTEN: usize = 4;

impl Kind for Duration {
    const NAME: &'static str = "duration";
    const FORM: &'static str = "a duration with its unit, such as 10s, 250ms, 5min or 1h";

    /// Parses "10s", "1.5 h", "250ms". Rejects a number without a unit as ambiguous.
    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, unit) = text.split_at_checked(split)?;
        let unit = unit.trim().to_ascii_lowercase();
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        // Nine decimals suffice for any unit, and keep the sum within 128 bits.
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

    /// Uses the largest unit, up to seconds, that needs no rounding.
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

/// `None` means never.
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

/// Parses `word` as `None`, and anything else with `read`.
fn read_or<T>(word: &str, text: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    if text.trim().eq_ignore_ascii_case(word) { Some(None) } else { read(text).map(Some) }
}
