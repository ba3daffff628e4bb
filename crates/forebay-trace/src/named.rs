//! Parses enums by the names of their variants.

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

/// Parses an enum that has `ALL` and `name`.
macro_rules! from_name {
    ($type:ty, $kind:literal) => {
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

pub(crate) use from_name;
