//! Settings that are one of a few words.

use forebay_core::SizeClasses;

use super::kind::Kind;

/// An enumeration that is read and written by the names beside its variants; the first of each is
/// the one that is written.
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
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word for it in files and variables.
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
        /// To eight classes a doubling up to 1 MiB: more requests share a cached block, for at most
        /// an eighth of waste.
        Geometric = "geometric",
        /// To powers of two up to 2 GiB.
        PowersOfTwo = "powers_of_two",
    }
}

impl Rounding {
    /// The rule itself.
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
        /// Every operation, each thread for itself: sums are exact, and of peaks only that of bytes out
        /// of the heap is known. There is no switching this off: it takes two additions an operation,
        /// and to ask whether it is on would take as much.
        On = "on" | "true" | "1",
        /// The most bytes in live blocks too, exact at every moment. Every call takes the long way.
        Exact = "exact",
    }
}

choice! {
    /// What is zeroed before a program gets it.
    Zeroing, "never, pages or blocks" {
        /// Nothing: what a block holds is not defined.
        Never = "never",
        /// Pages when they come from the device, so that nothing of other programs is seen.
        Pages = "pages",
        /// Every block when it is given out.
        Blocks = "blocks",
    }
}
