//! Element types, and their names in each protocol.

use pyo3::prelude::*;
use pyo3::{IntoPyObjectExt, intern};

use crate::failure::{Failure, shown};

/// DLPack's kinds of elements.
mod kind {
    pub(super) const INT: u8 = 0;
    pub(super) const UINT: u8 = 1;
    pub(super) const FLOAT: u8 = 2;
    pub(super) const BFLOAT: u8 = 4;
    pub(super) const COMPLEX: u8 = 5;
    pub(super) const BOOL: u8 = 6;
    pub(super) const FLOAT8_E3M4: u8 = 7;
    pub(super) const FLOAT8_E4M3: u8 = 8;
    pub(super) const FLOAT8_E4M3B11FNUZ: u8 = 9;
    pub(super) const FLOAT8_E4M3FN: u8 = 10;
    pub(super) const FLOAT8_E4M3FNUZ: u8 = 11;
    pub(super) const FLOAT8_E5M2: u8 = 12;
    pub(super) const FLOAT8_E5M2FNUZ: u8 = 13;
    pub(super) const FLOAT8_E8M0FNU: u8 = 14;
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
    unknown_to_numpy("bfloat16", (kind::BFLOAT, 16)),
    of("float32", (kind::FLOAT, 32), c"f", "<f4"),
    of("float64", (kind::FLOAT, 64), c"d", "<f8"),
    of("complex64", (kind::COMPLEX, 64), c"Zf", "<c8"),
    of("complex128", (kind::COMPLEX, 128), c"Zd", "<c16"),
    of("bool", (kind::BOOL, 8), c"?", "|b1"),
    unknown_to_numpy("float8_e3m4", (kind::FLOAT8_E3M4, 8)),
    unknown_to_numpy("float8_e4m3", (kind::FLOAT8_E4M3, 8)),
    unknown_to_numpy("float8_e4m3b11fnuz", (kind::FLOAT8_E4M3B11FNUZ, 8)),
    unknown_to_numpy("float8_e4m3fn", (kind::FLOAT8_E4M3FN, 8)),
    unknown_to_numpy("float8_e4m3fnuz", (kind::FLOAT8_E4M3FNUZ, 8)),
    unknown_to_numpy("float8_e5m2", (kind::FLOAT8_E5M2, 8)),
    unknown_to_numpy("float8_e5m2fnuz", (kind::FLOAT8_E5M2FNUZ, 8)),
    unknown_to_numpy("float8_e8m0fnu", (kind::FLOAT8_E8M0FNU, 8)),
];

/// One that numpy has by the package `ml_dtypes` alone, and the buffer protocol not at all.
const fn unknown_to_numpy(name: &'static str, dlpack: (u8, u8)) -> Dtype {
    Dtype { name, dlpack, format: None, typestr: None }
}

const fn of(
    name: &'static str,
    dlpack: (u8, u8),
    format: &'static core::ffi::CStr,
    typestr: &'static str,
) -> Dtype {
    Dtype { name, dlpack, format: Some(format), typestr: Some(typestr) }
}

/// What numpy makes arrays of where no type is named.
pub(crate) fn float64() -> &'static Dtype {
    const FLOAT64: &Dtype = &of("float64", (kind::FLOAT, 64), c"d", "<f8");
    FLOAT64
}

/// Bytes, of which plain memory is made.
pub(crate) fn bytes() -> &'static Dtype {
    const BYTES: &Dtype = &of("uint8", (kind::UINT, 8), c"B", "|u1");
    BYTES
}

impl Dtype {
    /// The unsigned integer of so many bytes, 1 or 2, which stands in for elements that a protocol lacks.
    pub(crate) fn plain(size: u64) -> &'static Self {
        ALL.iter().find(|dtype| dtype.size() == size).unwrap_or_else(bytes)
    }

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

    /// numpy's type of the same name, which `ml_dtypes` has where numpy itself does not. `None` if it cannot be imported.
    pub(crate) fn numpy<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let numpy = py.import(intern!(py, "numpy")).ok()?;
        let scalar = match self.typestr {
            Some(typestr) => typestr.into_bound_py_any(py).ok()?,
            None => py.import(intern!(py, "ml_dtypes")).ok()?.getattr(self.name).ok()?,
        };
        numpy.getattr(intern!(py, "dtype")).ok()?.call1((scalar,)).ok()
    }

    /// As `numpy`; an error that says what to install if it cannot be imported.
    pub(crate) fn numpy_or_refuse<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        // Without numpy the reason is the failed import itself.
        py.import("numpy")?;
        self.numpy(py).ok_or_else(|| {
            let name = self.name;
            Failure::unsupported(format!(
                "numpy has {name} with the package ml_dtypes alone: install it, or use view() with another type"
            ))
        })
    }

    /// One element of that value: its bytes.
    pub(crate) fn pattern(&self, value: &Bound<'_, PyAny>) -> Result<Vec<u8>, Failure> {
        let py = value.py();
        let packed = match self.format.and_then(|format| format.to_str().ok()) {
            Some(format) if format.len() == 1 => pack(py, &[value], format),
            Some(format) => {
                let complex = py.import("builtins")?.call_method1("complex", (value,));
                let part = |part| complex.as_ref().ok()?.getattr(part).ok();
                match (part("real"), part("imag")) {
                    (Some(real), Some(imag)) => pack(py, &[&real, &imag], &format.replace('Z', "")),
                    _ => complex.and_then(|complex| complex.extract()),
                }
            }
            None => {
                let scalar = self.numpy_or_refuse(py)?.getattr("type")?;
                let number = py.import("builtins")?.call_method1("float", (value,));
                // Of a text `ml_dtypes` makes no number but a crash.
                let made = number.and_then(|number| scalar.call1((number,)));
                made.and_then(|made| made.call_method0("tobytes")?.extract())
            }
        };
        packed.map_err(|error| {
            let (name, value) = (self.name, shown(value));
            Failure::invalid(format!("{value} is not one {name}: {}", error.value(py)))
        })
    }

    /// The one that an argument names: a text, or a type of numpy's, PyTorch's or Python's own.
    pub(crate) fn of_argument(given: &Bound<'_, PyAny>) -> Result<&'static Self, Failure> {
        let name = given.extract::<String>().ok();
        let is_text = name.is_some();
        let names = [name, text(given, "name"), text(given, "__name__")];
        let torch = given.str().ok().map(|text| text.to_string());
        let torch = torch.and_then(|text| text.strip_prefix("torch.").map(str::to_owned));
        let found = names.into_iter().flatten().chain(torch).find_map(|name| {
            let name = match &*name {
                "float" => "float64",
                "int" => "int64",
                "complex" => "complex128",
                other => other,
            };
            Self::named(name).or_else(|| Self::of_typestr(name))
        });
        // Its other names, such as "d", "half" or "=f4".
        let found = found.or_else(|| {
            let numpy = given.py().import("numpy").ok().filter(|_| is_text)?;
            let dtype = numpy.call_method1("dtype", (given,)).ok()?;
            Self::of_argument(&dtype).ok()
        });
        // numpy has the same name for both orders of bytes.
        let swapped = given.getattr("isnative").and_then(|native| native.extract::<bool>());
        let swapped = swapped.is_ok_and(|native| !native)
            || given.extract::<String>().is_ok_and(|name| name.starts_with('>'));
        found.filter(|_| !swapped).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|dtype| dtype.name).collect();
            let (given, order) = (
                shown(given),
                if swapped { " here: its byte order is not the machine's" } else { "" },
            );
            let names = names.join(", ");
            let said = format!("{given} is not an element type{order}: expected one of {names}");
            if is_text || swapped { Failure::invalid(said) } else { Failure::wrong_type(said) }
        })
    }

    /// The one with that type string of numpy's, such as "<f4" or "f4".
    fn of_typestr(name: &str) -> Option<&'static Self> {
        let is = |dtype: &&Self| {
            dtype.typestr.is_some_and(|own| own == name || own.get(1..) == Some(name))
        };
        ALL.iter().find(is)
    }
}

/// The values as `struct` packs each of them.
fn pack(py: Python<'_>, values: &[&Bound<'_, PyAny>], format: &str) -> PyResult<Vec<u8>> {
    let pack = py.import("struct")?.getattr("pack")?;
    let mut bytes = Vec::new();
    for value in values {
        bytes.extend(pack.call1((format!("<{format}"), value))?.extract::<Vec<u8>>()?);
    }
    Ok(bytes)
}

fn text(given: &Bound<'_, PyAny>, attribute: &str) -> Option<String> {
    given.getattr(attribute).ok()?.extract().ok()
}
