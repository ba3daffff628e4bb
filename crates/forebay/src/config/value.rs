//! The kinds of values: how each is parsed, written and bounded.
//!
//! Every written value parses back to itself, so that output of `forebay doctor` can be pasted into a file or a
//! variable.

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{
    Bytes, GIB, KIB, MIB, PageSize, SizeClasses, TIB, parse_decimal, steers_display,
};

/// The longest path in bytes: the usual limit of systems.
const LONGEST_PATH: usize = 4096;
/// The longest name of a pool in bytes.
const LONGEST_NAME: usize = 64;

/// A type of value for keys.
pub(super) trait Kind: Sized + PartialOrd {
    /// Its name, in a word or two.
    const NAME: &'static str;
    /// The accepted form, with examples.
    const FORM: &'static str;

    /// Parses `text`. Ignores surrounding spaces and case.
    fn read(text: &str) -> Option<Self>;

    /// Writes the value so that it parses back.
    fn write(&self) -> String;

    /// Whether `read` accepts what `write` returns. A program may set any value of the type.
    fn is_valid(&self) -> bool {
        true
    }

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
        let is_within = value.is_unbounded()
            || match self {
                Self::Any => true,
                Self::AtLeast(least) => value >= least,
                Self::AtMost(most) => value <= most,
                Self::Between(least, most) => value >= least && value <= most,
            };
        is_within && value.is_valid()
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
        u64::try_from(parse_decimal(number, *unit)?).ok().map(Self::from_nanos)
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

/// A value, or a word that stands for `None`.
macro_rules! optional {
    ($kind:ty, $word:literal, $name:literal, $form:literal) => {
        impl Kind for Option<$kind> {
            const NAME: &'static str = $name;
            const FORM: &'static str = $form;

            fn read(text: &str) -> Option<Self> {
                let is_none = text.trim().eq_ignore_ascii_case($word);
                if is_none { Some(None) } else { <$kind>::read(text).map(Some) }
            }

            fn write(&self) -> String {
                self.as_ref().map_or_else(|| $word.to_owned(), Kind::write)
            }

            fn is_valid(&self) -> bool {
                self.as_ref().is_none_or(Kind::is_valid)
            }

            fn is_unbounded(&self) -> bool {
                self.is_none()
            }
        }
    };
}

optional!(
    Bytes,
    "none",
    "size or none",
    "a size, such as 8GiB, 512 MiB or 4096, or none for no limit"
);
optional!(
    Duration,
    "never",
    "duration or never",
    "a duration with its unit, such as 60s, 250ms or 5min, or never"
);
optional!(PathBuf, "none", "path or none", "the path of a file, without commas, or none");

impl Kind for PathBuf {
    const NAME: &'static str = "path";
    const FORM: &'static str = "the path of a file, without commas";

    fn read(text: &str) -> Option<Self> {
        Some(text.trim().into())
    }

    fn write(&self) -> String {
        self.display().to_string()
    }

    fn is_valid(&self) -> bool {
        self.to_str().is_some_and(|path| is_plain(path, LONGEST_PATH))
    }
}

/// Whether `text` stands for itself in a file and in `FOREBAY_CONF`, and is not too long.
fn is_plain(text: &str, longest: usize) -> bool {
    let is_odd = |letter: char| steers_display(letter) || letter == ',';
    !text.is_empty() && text.len() <= longest && text.trim() == text && !text.contains(is_odd)
}

/// The name of a pool, or none: up to 64 bytes, without commas and control characters.
///
/// ```
/// use forebay::config::Settings;
/// use forebay::{HostDevice, PoolOptions};
///
/// let settings = Settings::builder().name("kv cache").build()?;
/// let pool = PoolOptions::with(settings).build(&HostDevice::open()?)?;
/// assert!(pool.id().to_string().ends_with("(kv cache)"));
/// assert!(Settings::builder().name("kv, cache").build().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolName(Option<Arc<str>>);

impl PoolName {
    /// The name, if there is one.
    pub fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// "none" stands for none, as in a file.
impl From<&str> for PoolName {
    fn from(text: &str) -> Self {
        let is_none = text.eq_ignore_ascii_case("none");
        Self((!is_none).then(|| text.into()))
    }
}

impl Kind for PoolName {
    const NAME: &'static str = "name or none";
    const FORM: &'static str = "up to 64 bytes without commas, or none";

    fn read(text: &str) -> Option<Self> {
        Some(text.trim().into())
    }

    fn write(&self) -> String {
        self.get().unwrap_or("none").to_owned()
    }

    fn is_valid(&self) -> bool {
        self.get().is_none_or(|name| is_plain(name, LONGEST_NAME))
    }
}

/// Reads and writes an enumeration by name. Several names may be read as a variant; the first is the one written.
macro_rules! words {
    ($name:ident, $form:literal { $($variant:ident = $text:literal $(| $other:literal)*,)* }) => {
        impl Kind for $name {
            const NAME: &'static str = "choice";
            const FORM: &'static str = $form;

            fn read(text: &str) -> Option<Self> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $($text $(| $other)* => Some(Self::$variant),)*
                    _ => None,
                }
            }

            fn write(&self) -> String {
                match self {
                    $(Self::$variant => $text.to_owned(),)*
                }
            }
        }
    };
}

/// Defines an enumeration that is read and written by name.
macro_rules! choice {
    (
        $(#[$about:meta])*
        $name:ident, $form:literal {
            $($(#[$each:meta])* $variant:ident = $text:literal $(| $other:literal)*,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$each])* $variant,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name in files and variables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }

        words!($name, $form { $($variant = $text $(| $other)*,)* });
    };
}

words! {
    SizeClasses, "exact, geometric or powers_of_two" {
        Exact = "exact",
        Geometric = "geometric",
        PowersOfTwo = "powers_of_two",
    }
}

choice! {
    /// What a pool counts.
    Counting, "on or exact" {
        /// Counts every operation, per thread: sums are exact, but the only peak is that of bytes taken from the heap.
        /// Cannot be turned off: it costs two additions per operation, and checking a flag would cost as much.
        On = "on" | "true" | "1",
        /// Also tracks the peak of bytes in live blocks, exact at every moment. Every call takes the slow path.
        Exact = "exact",
    }
}

choice! {
    /// What is zeroed before the program gets it.
    Zeroing, "never, pages or blocks" {
        /// Nothing: the contents of blocks are undefined.
        Never = "never",
        /// Pages when they come from the device, so that no data of other programs is visible.
        Pages = "pages",
        /// Every block when it is allocated.
        Blocks = "blocks",
    }
}

choice! {
    /// Values for a purpose. A preset may be named in any source; keys that are set explicitly, in any source, override
    /// it.
    Preset, "default, high_frequency, memory_constrained or debug" {
        /// Only the defaults of the table.
        Default = "default",
        /// For programs that allocate and free constantly, on a device of their own.
        HighFrequency = "high_frequency",
        /// For programs that share a device, or barely fit on it.
        MemoryConstrained = "memory_constrained",
        /// For finding memory errors. Slow, and uses more memory.
        Debug = "debug",
    }
}

impl Preset {
    /// Why it sets these values, in one sentence.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Default => "Nothing is set: every key has its default.",
            Self::HighFrequency => {
                "Memory once taken is kept, and caches are large, so that a steady program never \
                 reaches the driver; nothing runs in the background that could get in its way."
            }
            Self::MemoryConstrained => {
                "What is idle goes back after seconds, caches hold little, and pages are small \
                 enough to become wholly free; the driver is called more often for it."
            }
            Self::Debug => {
                "Every aid that shows wrong use is on; memory is not zeroed, because zeros hide that \
                 a program reads what it never wrote."
            }
        }
    }
}

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
        // Decimals beyond the ninth are below a millionth of any unit; they only must be digits.
        let end = number.find('.').map_or(number.len(), |dot| number.len().min(dot + 10));
        let (number, rest) = number.split_at_checked(end)?;
        let millionths = u32::try_from(parse_decimal(number, unit.into())?).ok()?;
        let is_number = rest.bytes().all(|digit| digit.is_ascii_digit());
        (is_number && millionths <= WHOLE).then_some(Self { millionths })
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
