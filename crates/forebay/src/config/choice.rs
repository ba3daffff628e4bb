//! Settings whose value is one of a few words.

use forebay_core::SizeClasses;

use super::kind::Kind;

/// Defines an enumeration that is read and written by name. Several names may be read as a variant; the first is the
/// one written.
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
                self.name().to_owned()
            }
        }
    };
}

pub(super) use choice;

choice! {
    /// How sizes are rounded.
    Rounding, "exact, geometric or powers_of_two" {
        /// To multiples of 512 B.
        Exact = "exact",
        /// To eight size classes per doubling, up to 1 MiB: more requests share a cached block, at the cost of at most
        /// an eighth of waste.
        Geometric = "geometric",
        /// To powers of two up to 2 GiB.
        PowersOfTwo = "powers_of_two",
    }
}

impl Rounding {
    /// The rounding rule.
    pub fn classes(self) -> SizeClasses {
        match self {
            Self::Exact => SizeClasses::exact(),
            Self::Geometric => SizeClasses::geometric(),
            Self::PowersOfTwo => SizeClasses::powers_of_two(),
        }
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
