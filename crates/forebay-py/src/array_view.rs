//! An array in an allocation: which bytes of it, as elements of which dtype, in which shape. Always contiguous,
//! with the last index running fastest.

use core::fmt;

use forebay::{Address, Bytes};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::allocation::Allocation;
use crate::dtype::{self, Dtype};
use crate::failure::{Failure, shown};
use crate::quantity::items;

/// The most dimensions: as many as numpy allows.
const MAX_DIMENSIONS: usize = 64;

/// A part of a [`Allocation`] as elements.
#[derive(Clone, Debug)]
pub(crate) struct ArrayView {
    dtype: &'static Dtype,
    shape: Box<[u64]>,
    offset: u64,
    bytes: u64,
    writable: bool,
}

impl ArrayView {
    /// All of it, as bytes.
    pub(crate) fn whole(allocation: &Allocation) -> Self {
        let bytes = allocation.size().get();
        Self { dtype: dtype::bytes(), shape: [bytes].into(), offset: 0, bytes, writable: true }
    }

    /// A part of `outer`, from its byte `offset` on; all that is left of it where there is no shape.
    pub(crate) fn within(
        outer: &Self,
        dtype: &'static Dtype,
        shape: Option<Vec<u64>>,
        offset: u64,
    ) -> Result<Self, Failure> {
        let left = outer.bytes.checked_sub(offset).ok_or_else(|| {
            Failure::invalid(format!("offset {offset} is past the end of {} B", outer.bytes))
        })?;
        let shape = match shape {
            Some(shape) => shape,
            None if left.is_multiple_of(dtype.size()) => vec![left / dtype.size()],
            None => {
                let (name, size) = (dtype.name, dtype.size());
                let said =
                    format!("{left} B are not a whole number of {name} elements of {size} B");
                return Err(Failure::invalid(said));
            }
        };
        if shape.len() > MAX_DIMENSIONS {
            let said = format!(
                "{} dimensions are too many: at most {MAX_DIMENSIONS} are supported",
                shape.len()
            );
            return Err(Failure::invalid(said));
        }
        let product = |sum: u64, &next: &u64| sum.checked_mul(next);
        let bytes = shape.iter().try_fold(dtype.size(), product).filter(|&bytes| bytes <= left);
        let bytes = bytes.ok_or_else(|| {
            let name = dtype.name;
            Failure::invalid(format!("{shape:?} of {name} take more than the {left} B available"))
        })?;
        let start = outer.offset.saturating_add(offset);
        if !start.is_multiple_of(alignment(dtype)) {
            let (name, least) = (dtype.name, alignment(dtype));
            let said = format!("{name} must be aligned to {least} B, and {start} is not");
            return Err(Failure::invalid(said));
        }
        Ok(Self { dtype, shape: shape.into(), offset: start, bytes, writable: outer.writable })
    }

    /// Elements that Python asks for: of `dtype`, by default bytes, in `shape`, in memory of their own.
    pub(crate) fn requested(
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self, Failure> {
        let dtype = dtype.map_or(Ok(dtype::bytes()), Dtype::of_argument)?;
        Self::of_shape(dtype, shape_argument(shape)?)
    }

    /// The same, of what is known.
    pub(crate) fn of_shape(dtype: &'static Dtype, shape: Vec<u64>) -> Result<Self, Failure> {
        let product = |sum: u64, &next: &u64| sum.checked_mul(next);
        let bytes = shape.iter().try_fold(dtype.size(), product);
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| {
            let name = dtype.name;
            Failure::invalid(format!("{shape:?} of {name} are more than a process can address"))
        })?;
        Ok(Self::imported(dtype, shape, bytes, true))
    }

    /// All elements of an imported tensor.
    pub(crate) fn imported(
        dtype: &'static Dtype,
        shape: Vec<u64>,
        bytes: u64,
        writable: bool,
    ) -> Self {
        Self { dtype, shape: shape.into(), offset: 0, bytes, writable }
    }

    /// The same elements where they are all of an allocation, to be written or not.
    pub(crate) fn alone(&self, writable: bool) -> Self {
        Self { offset: 0, writable, ..self.clone() }
    }

    /// The length of the first dimension.
    pub(crate) fn rows(&self) -> Result<u64, Failure> {
        let said = "one element without dimensions has no rows";
        self.shape.first().copied().ok_or_else(|| Failure::invalid(said))
    }

    /// `count` rows of the first dimension, from row `first` on.
    pub(crate) fn part(&self, first: u64, count: u64) -> Result<Self, Failure> {
        let rows = self.rows()?;
        if first.checked_add(count).is_none_or(|end| end > rows) {
            let said = format!("{count} rows from row {first} on do not lie within {rows}");
            return Err(Failure::invalid(said));
        }
        let row = self.bytes / rows.max(1);
        let mut shape = self.shape.clone();
        shape.iter_mut().take(1).for_each(|rows| *rows = count);
        // Within the elements, which are there.
        let (offset, bytes) = (self.offset + first * row, count * row);
        Ok(Self { shape, offset, bytes, ..self.clone() })
    }

    /// At which byte of the allocation it begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The type of elements.
    pub(crate) fn dtype(&self) -> &'static Dtype {
        self.dtype
    }

    /// How many in each direction.
    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The stride of each dimension, in elements.
    pub(crate) fn strides(&self) -> Vec<u64> {
        let mut step = 1_u64;
        let mut strides: Vec<u64> = self
            .shape
            .iter()
            .rev()
            .map(|&length| {
                let stride = step;
                // At most the number of bytes, unless a dimension is 0; then no stride is ever used.
                step = step.saturating_mul(length.max(1));
                stride
            })
            .collect();
        strides.reverse();
        strides
    }

    /// Its first address; null for no bytes.
    pub(crate) fn address(&self, allocation: &Allocation) -> Address {
        allocation.address().checked_add(Bytes::new(self.offset)).unwrap_or(Address::NULL)
    }

    /// How many bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same, for memory of this process.
    pub(crate) fn length(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    /// Whether it may be written.
    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// The shape for Python.
    pub(crate) fn shape_tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.iter())
    }

    /// The offset, in the allocation, of `size` bytes from `offset` on; an error where they end past the view.
    pub(crate) fn span(&self, offset: u64, size: u64) -> Result<u64, Failure> {
        match offset.checked_add(size) {
            Some(end) if end <= self.bytes => Ok(self.offset.saturating_add(offset)),
            _ => Err(Failure::invalid(format!(
                "{size} B from byte {offset} on do not lie within {} B",
                self.bytes
            ))),
        }
    }
}

impl fmt::Display for ArrayView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype.name, self.shape)
    }
}

/// The alignment of elements: that of a complex number is its half.
fn alignment(dtype: &Dtype) -> u64 {
    if dtype.name.starts_with("complex") { dtype.size() / 2 } else { dtype.size() }
}

/// A shape from Python: a number, or several.
pub(crate) fn shape_argument(given: &Bound<'_, PyAny>) -> Result<Vec<u64>, Failure> {
    if let Ok(length) = given.extract::<u64>() {
        return Ok(vec![length]);
    }
    items::<u64>(given).map_err(|_| {
        let given = shown(given);
        Failure::invalid(format!("{given} is not a shape: expected whole numbers of 0 or more"))
    })
}
