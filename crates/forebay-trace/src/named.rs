//! Parses and displays enums whose variants have a name.

use core::fmt;

/// A name that nothing of the kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// The name as given.
    pub given: String,
    pub(crate) kind: &'static str,
    pub(crate) known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { given, kind, known } = self;
        write!(f, "unknown {kind} \"{given}\"; expected one of {}", known.join(", "))
    }
}

impl core::error::Error for UnknownName {}

/// Implements `Display` and `FromStr` by the names of an enum with `ALL` and `name`.
macro_rules! by_name {
    ($type:ty, $kind:literal) => {
        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }

        impl core::str::FromStr for $type {
            type Err = crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, crate::UnknownName> {
                let found = Self::ALL.iter().find(|one| one.name() == text);
                found.copied().ok_or_else(|| crate::UnknownName {
                    given: text.to_owned(),
                    kind: $kind,
                    known: Self::ALL.iter().map(|one| one.name()).collect(),
                })
            }
        }
    };
}

pub(crate) use by_name;
