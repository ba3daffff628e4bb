//! The types of elements that the format has.

use core::fmt;

macro_rules! dtypes {
    ($($(#[$what:meta])* $dtype:ident: $name:literal, $bits:literal;)*) => {
        /// A type of elements, by the names of the format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Dtype {
            $($(#[$what])* $dtype,)*
        }

        impl Dtype {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$dtype,)*];

            /// Its name in files: `"BF16"`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$dtype => $name,)*
                }
            }

            /// The bits of an element: 4 or 6 for those that share bytes.
            pub const fn bits(self) -> u64 {
                match self {
                    $(Self::$dtype => $bits,)*
                }
            }
        }
    };
}

dtypes! {
    /// Truth values, a byte each.
    Bool: "BOOL", 8;
    /// 4-bit floats of the MX formats, two in a byte.
    F4: "F4", 4;
    /// 6-bit floats of the MX formats, with 2 bits of exponent.
    F6E2M3: "F6_E2M3", 6;
    /// 6-bit floats of the MX formats, with 3 bits of exponent.
    F6E3M2: "F6_E3M2", 6;
    /// Unsigned bytes.
    U8: "U8", 8;
    /// Signed bytes.
    I8: "I8", 8;
    /// 8-bit floats with 5 bits of exponent.
    F8E5M2: "F8_E5M2", 8;
    /// 8-bit floats with 4 bits of exponent and no infinities (`float8_e4m3fn`).
    F8E4M3: "F8_E4M3", 8;
    /// 8-bit exponents: the scales of the MX formats.
    F8E8M0: "F8_E8M0", 8;
    /// `F8E4M3` without a negative zero.
    F8E4M3Fnuz: "F8_E4M3FNUZ", 8;
    /// `F8E5M2` without a negative zero.
    F8E5M2Fnuz: "F8_E5M2FNUZ", 8;
    /// Signed 16-bit integers.
    I16: "I16", 16;
    /// Unsigned 16-bit integers.
    U16: "U16", 16;
    /// Half-precision floats.
    F16: "F16", 16;
    /// bfloat16.
    BF16: "BF16", 16;
    /// Signed 32-bit integers.
    I32: "I32", 32;
    /// Unsigned 32-bit integers.
    U32: "U32", 32;
    /// Single-precision floats.
    F32: "F32", 32;
    /// Complex numbers of two single-precision floats.
    C64: "C64", 64;
    /// Double-precision floats.
    F64: "F64", 64;
    /// Signed 64-bit integers.
    I64: "I64", 64;
    /// Unsigned 64-bit integers.
    U64: "U64", 64;
}

impl Dtype {
    /// The one of that name in files.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// The bytes of so many elements; `None` if they end within a byte or are 2^61 and more.
    pub(super) fn size_of(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
