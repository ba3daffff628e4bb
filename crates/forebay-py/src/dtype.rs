//! Element types, and their names in each protocol.

use pyo3::prelude::*;

use crate::failure::{Failure, shown};

/// DLPack's kinds of elements.
mod kind {
    pub(super) const INT: u8 = 0;
    pub(super) const UINT: u8 = 1;
    pub(super) const FLOAT: u8 = 2;
    pub(super) const BFLOAT: u8 = 4;
    pub(super) const COMPLEX: u8 = 5;
    pub(super) const BOOL: u8 = 6;
}

/// A type of elements.
#[derive(Debug)]
pub(crate) struct Dtype {
    /// As numpy names it.
    pub(crate) name: &'static str,
    /// DLPack's kind, and the bits of an element.
    pub(crate) dlpack: (u8, u8),
    /// The format of the buffer protocol; nothing where it has none.
    pub(crate) format: Option<&'static core::ffi::CStr>,
    /// As `__cuda_array_interface__` names it; nothing where it cannot.
    pub(crate) typestr: Option<&'static str>,
}

impl PartialEq for &'static Dtype {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Little-endian names: every machine with these devices is.
const ALL: &[Dtype] = &[
    of("uint8", (kind::UINT, 8), c"B", "|u1"),
    of("uint16", (kind::UINT, 16), c"H", "<u2"),
    of("uint32", (kind::UINT, 32), c"I", "<u4"),
    of("uint64", (kind::UINT, 64), c"Q", "<u8"),
    of("int8", (kind::INT, 8), c"b", "|i1"),
    of("int16", (kind::INT, 16), c"h", "<i2"),
    of("int32", (kind::INT, 32), c"i", "<i4"),
    of("int64", (kind::INT, 64), c"q", "<i8"),
    of("float16", (kind::FLOAT, 16), c"e", "<f2"),
    Dtype { name: "bfloat16", dlpack: (kind::BFLOAT, 16), format: None, typestr: None },
    of("float32", (kind::FLOAT, 32), c"f", "<f4"),
    of("float64", (kind::FLOAT, 64), c"d", "<f8"),
    of("complex64", (kind::COMPLEX, 64), c"Zf", "<c8"),
    of("complex128", (kind::COMPLEX, 128), c"Zd", "<c16"),
    of("bool", (kind::BOOL, 8), c"?", "|b1"),
];

const fn of(
    name: &'static str,
    dlpack: (u8, u8),
    format: &'static core::ffi::CStr,
    typestr: &'static str,
) -> Dtype {
    Dtype { name, dlpack, format: Some(format), typestr: Some(typestr) }
}

/// Bytes, of which plain memory is made.
pub(crate) fn bytes() -> &'static Dtype {
    const BYTES: &Dtype = &of("uint8", (kind::UINT, 8), c"B", "|u1");
    BYTES
}

impl Dtype {
    /// The bytes of an element.
    pub(crate) fn size(&self) -> u64 {
        u64::from(self.dlpack.1 / 8)
    }

    /// The one with that format of the buffer protocol.
    pub(crate) fn of_format(format: &str) -> Result<&'static Self, Failure> {
        let is =
            |dtype: &&Self| dtype.format.is_some_and(|own| own.to_bytes() == format.as_bytes());
        ALL.iter().find(is).ok_or_else(|| {
            Failure::invalid(format!(
                "no element type has the format {format:?} of the buffer protocol"
            ))
        })
    }

    /// The one of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|dtype| dtype.name == name)
    }

    /// The name under which processes share elements: Rust's, where Rust has a type for it.
    pub(crate) fn shared_name(&self) -> String {
        let letter = match self.dlpack {
            (kind::UINT, _) => 'u',
            (kind::INT, _) => 'i',
            (kind::FLOAT, 32..) => 'f',
            _ => return self.name.to_owned(),
        };
        format!("{letter}{}", self.dlpack.1)
    }

    /// The one that processes share under that name, in elements of so many bytes. Elements of a structure are bytes.
    pub(crate) fn of_shared(name: &str, element: u64) -> &'static Self {
        let is = |dtype: &&Self| dtype.shared_name() == name;
        let found = ALL.iter().find(is);
        found.filter(|dtype| dtype.size() == element || element == 1).unwrap_or_else(bytes)
    }

    /// The one DLPack means.
    pub(crate) fn of_dlpack(code: u8, bits: u8) -> Option<&'static Self> {
        ALL.iter().find(|dtype| dtype.dlpack == (code, bits))
    }

    /// One element of that value, as the low bytes of a number, and how many bytes it has.
    pub(crate) fn pattern(&self, value: &Bound<'_, PyAny>) -> Result<(u64, u32), Failure> {
        let name = self.name;
        let format = self.format.and_then(|format| format.to_str().ok());
        let format = format.filter(|format| format.len() == 1).ok_or_else(|| {
            Failure::invalid(format!("no value of Python's is one {name}: write it through a view"))
        })?;
        let py = value.py();
        let packed = py.import("struct")?.call_method1("pack", (format!("<{format}"), value));
        let packed: Vec<u8> = packed.and_then(|bytes| bytes.extract()).map_err(|error| {
            let value = shown(value);
            Failure::invalid(format!("{value} is not one {name}: {}", error.value(py)))
        })?;
        let pattern = packed.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        Ok((pattern, u32::from(self.dlpack.1 / 8)))
    }

    /// The one that an argument names: a text, or a type of numpy's, PyTorch's or Python's own.
    pub(crate) fn of_argument(given: &Bound<'_, PyAny>) -> Result<&'static Self, Failure> {
        let names = [given.extract::<String>().ok(), text(given, "name"), text(given, "__name__")];
        let torch = given.str().ok().map(|text| text.to_string());
        let torch = torch.and_then(|text| text.strip_prefix("torch.").map(str::to_owned));
        let found = names.into_iter().flatten().chain(torch).find_map(|name| {
            let name = match &*name {
                "float" => "float64",
                "int" => "int64",
                "complex" => "complex128",
                other => other,
            };
            Self::named(name)
        });
        // numpy has the same name for both orders of bytes.
        let swapped = given.getattr("isnative").and_then(|native| native.extract::<bool>());
        let swapped = swapped.is_ok_and(|native| !native);
        found.filter(|_| !swapped).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|dtype| dtype.name).collect();
            let given = shown(given);
            Failure::invalid(format!(
                "{given} is not an element type: expected one of {}",
                names.join(", ")
            ))
        })
    }
}

fn text(given: &Bound<'_, PyAny>, attribute: &str) -> Option<String> {
    given.getattr(attribute).ok()?.extract().ok()
}
