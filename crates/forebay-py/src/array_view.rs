//! An array in an allocation: which bytes of it, as elements of which dtype, in which shape.
//!
//! The last index runs fastest. Only the rows of the first dimension may lie apart, as every third row does:
//!
//! ```text
//!   offset      row 0 | skipped | skipped | row 1 | skipped | skipped | row 2      step 3
//!               <------- pitch ---------->
//! ```

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
    /// The bytes of its elements, without those between rows.
    bytes: u64,
    /// From one row to the next, in rows; 1 if it is contiguous.
    step: u64,
    writable: bool,
}

/// Rows of bytes, as one end of a copy has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// The bytes of a row.
    pub(crate) width: u64,
    /// How many.
    pub(crate) count: u64,
    /// From the start of one row to the start of the next.
    pub(crate) pitch: u64,
}

impl Rows {
    /// So many bytes without a gap.
    pub(crate) fn linear(size: u64) -> Self {
        Self { width: size, count: 1, pitch: size }
    }

    /// The bytes of all rows.
    pub(crate) fn bytes(self) -> u64 {
        self.width.saturating_mul(self.count)
    }

    /// From the first byte to the last, gaps included.
    pub(crate) fn extent(self) -> u64 {
        let before = self.pitch.saturating_mul(self.count.saturating_sub(1));
        if self.count == 0 { 0 } else { before.saturating_add(self.width) }
    }

    /// Whether there is no gap.
    pub(crate) fn is_linear(self) -> bool {
        self.count <= 1 || self.pitch == self.width
    }

    /// The same bytes, cut into rows as `other`, which has as many. Only what has no gap can be cut anew.
    pub(crate) fn cut_as(self, other: Self) -> Self {
        if self.is_linear() && !other.is_linear() {
            Self { width: other.width, count: other.count, pitch: other.width }
        } else {
            self
        }
    }
}

impl ArrayView {
    /// All of it, as bytes.
    pub(crate) fn whole(allocation: &Allocation) -> Self {
        let bytes = allocation.size().get();
        Self {
            dtype: dtype::bytes(),
            shape: [bytes].into(),
            offset: 0,
            bytes,
            step: 1,
            writable: true,
        }
    }

    /// A part of `outer`, from its byte `offset` on; all that is left of it where there is no shape.
    pub(crate) fn within(
        outer: &Self,
        dtype: &'static Dtype,
        shape: Option<Vec<u64>>,
        offset: u64,
    ) -> Result<Self, Failure> {
        outer.contiguous()?;
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
        check_dimensions(shape.len())?;
        let product = |sum: u64, &next: &u64| sum.checked_mul(next);
        let bytes = shape.iter().try_fold(dtype.size(), product).filter(|&bytes| bytes <= left);
        let bytes = bytes.ok_or_else(|| {
            let name = dtype.name;
            let shape = shape_text(&shape);
            Failure::invalid(format!("{shape} of {name} take more than the {left} B available"))
        })?;
        let start = outer.offset.saturating_add(offset);
        if !start.is_multiple_of(alignment(dtype)) {
            let (name, least) = (dtype.name, alignment(dtype));
            let said = format!("{name} must be aligned to {least} B, and {start} is not");
            return Err(Failure::invalid(said));
        }
        let (shape, writable) = (shape.into(), outer.writable);
        Ok(Self { dtype, shape, offset: start, bytes, step: 1, writable })
    }

    /// Elements that Python asks for: of `dtype`, or else of `default`, in `shape`, in memory of their own.
    pub(crate) fn requested(
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        default: &'static Dtype,
    ) -> Result<Self, Failure> {
        let dtype = dtype.map_or(Ok(default), Dtype::of_argument)?;
        Self::of_shape(dtype, shape_argument(shape)?)
    }

    /// The same, of what is known.
    pub(crate) fn of_shape(dtype: &'static Dtype, shape: Vec<u64>) -> Result<Self, Failure> {
        check_dimensions(shape.len())?;
        let product = |sum: u64, &next: &u64| sum.checked_mul(next);
        let bytes = shape.iter().try_fold(dtype.size(), product);
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| {
            let name = dtype.name;
            let shape = shape_text(&shape);
            Failure::invalid(format!("{shape} of {name} are more than a process can address"))
        })?;
        Ok(Self::imported(dtype, shape, bytes, true))
    }

    /// As many elements of a type in the same shape, in memory of their own.
    pub(crate) fn anew(&self, dtype: &'static Dtype) -> Result<Self, Failure> {
        Self::of_shape(dtype, self.shape.clone().into_vec())
    }

    /// All elements of an imported tensor.
    pub(crate) fn imported(
        dtype: &'static Dtype,
        shape: Vec<u64>,
        bytes: u64,
        writable: bool,
    ) -> Self {
        Self { dtype, shape: shape.into(), offset: 0, bytes, step: 1, writable }
    }

    /// The same elements where they are all of an allocation, to be written or not.
    pub(crate) fn alone(&self, writable: bool) -> Self {
        Self { offset: 0, writable, ..self.clone() }
    }

    /// The length of the first dimension.
    pub(crate) fn rows(&self) -> Result<u64, Failure> {
        let said = "a single element has no dimensions, so it has no length and no rows";
        self.shape.first().copied().ok_or_else(|| Failure::wrong_type(said))
    }

    /// The bytes of one row of the first dimension.
    fn row_bytes(&self) -> u64 {
        self.shape.first().map_or(self.bytes, |&rows| self.bytes / rows.max(1))
    }

    /// `count` rows of the first dimension, from row `first` on, each `step` rows after the one before. They lie within
    /// it.
    pub(crate) fn part(&self, first: u64, count: u64, step: u64) -> Result<Self, Failure> {
        let rows = self.rows()?;
        let end = count.checked_sub(1).and_then(|last| last.checked_mul(step)?.checked_add(first));
        if end.is_some_and(|end| end >= rows) || first > rows {
            let said = format!("{count} rows from row {first} on do not lie within {rows}");
            return Err(Failure::invalid(said));
        }
        let row = self.row_bytes();
        let mut shape = self.shape.clone();
        shape.iter_mut().take(1).for_each(|rows| *rows = count);
        // Within the elements, which are there.
        let (offset, bytes) = (self.offset + first * self.step * row, count * row);
        let step = if count > 1 { self.step.saturating_mul(step) } else { 1 };
        Ok(Self { shape, offset, bytes, step, ..self.clone() })
    }

    /// One row of the first dimension, without that dimension.
    pub(crate) fn row(&self, index: u64) -> Result<Self, Failure> {
        let row = self.part(index, 1, 1)?;
        let shape = row.shape.get(1..).unwrap_or_default().into();
        Ok(Self { shape, ..row })
    }

    /// The same elements in another shape; one length may be unknown.
    pub(crate) fn reshaped(&self, wanted: &[Option<u64>]) -> Result<Self, Failure> {
        self.contiguous()?;
        let elements = self.elements();
        let refused = || {
            let wanted = wanted.iter().map(|length| match length {
                Some(length) => length.to_string(),
                None => "-1".to_owned(),
            });
            let wanted = wanted.collect::<Vec<_>>().join(", ");
            let shape = shape_text(&self.shape);
            Failure::invalid(format!("{elements} elements of shape {shape} cannot have ({wanted})"))
        };
        let known = wanted.iter().flatten().try_fold(1_u64, |sum, &next| sum.checked_mul(next));
        let known = known.ok_or_else(refused)?;
        let unknown = wanted.iter().filter(|length| length.is_none()).count();
        let left = match (unknown, known) {
            (0, known) if known == elements => 1,
            (1, 1..) if elements.is_multiple_of(known) => elements / known,
            _ => return Err(refused()),
        };
        let shape: Box<[u64]> = wanted.iter().map(|length| length.unwrap_or(left)).collect();
        check_dimensions(shape.len())?;
        Ok(Self { shape, ..self.clone() })
    }

    /// The same bytes as elements of another type, as numpy's `view`: the length of the last dimension changes.
    pub(crate) fn reinterpreted(&self, dtype: &'static Dtype) -> Result<Self, Failure> {
        let (old, new) = (self.dtype.size(), dtype.size());
        if old == new {
            return Ok(Self { dtype, ..self.clone() });
        }
        self.contiguous()?;
        let mut shape = self.shape.clone();
        let last = shape.last_mut().filter(|length| length.saturating_mul(old).is_multiple_of(new));
        let last = last.ok_or_else(|| {
            let name = dtype.name;
            Failure::invalid(format!("rows of {self} are not a whole number of {name} of {new} B"))
        })?;
        *last = last.saturating_mul(old) / new;
        Self::within(self, dtype, Some(shape.into_vec()), 0)
    }

    /// An error where rows lie apart.
    pub(crate) fn contiguous(&self) -> Result<(), Failure> {
        if self.step == 1 {
            return Ok(());
        }
        let step = self.step;
        Err(Failure::invalid(format!(
            "the rows lie apart, as every row {step} of another array: copy them first, with forebay.array(x)"
        )))
    }

    /// Its rows in memory; one row if it is contiguous.
    pub(crate) fn in_rows(&self) -> Rows {
        if self.step == 1 {
            return Rows::linear(self.bytes);
        }
        let width = self.row_bytes();
        let count = self.shape.first().copied().unwrap_or(1);
        Rows { width, count, pitch: width.saturating_mul(self.step) }
    }

    /// How many elements.
    pub(crate) fn elements(&self) -> u64 {
        self.bytes / self.dtype.size()
    }

    /// The same elements, `step` rows apart: those of an imported tensor.
    pub(crate) fn with_step(self, step: u64) -> Self {
        Self { step, ..self }
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
        strides.iter_mut().take(1).for_each(|stride| *stride = stride.saturating_mul(self.step));
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
        write!(f, "{} {}", self.dtype.name, shape_text(&self.shape))
    }
}

/// A shape as Python writes it.
fn shape_text(shape: &[u64]) -> String {
    match shape {
        [length] => format!("({length},)"),
        lengths => {
            let lengths: Vec<String> = lengths.iter().map(u64::to_string).collect();
            format!("({})", lengths.join(", "))
        }
    }
}

fn check_dimensions(count: usize) -> Result<(), Failure> {
    if count <= MAX_DIMENSIONS {
        return Ok(());
    }
    let said = format!("{count} dimensions are too many: at most {MAX_DIMENSIONS} are supported");
    Err(Failure::invalid(said))
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
    items::<u64>(given).map_err(|_| shape_refused(given))
}

/// A shape from Python in which a length may be -1: what the others leave.
pub(crate) fn open_shape_argument(given: &Bound<'_, PyAny>) -> Result<Vec<Option<u64>>, Failure> {
    let lengths = match given.extract::<i64>() {
        Ok(length) => vec![length],
        Err(_) => items::<i64>(given).map_err(|_| shape_refused(given))?,
    };
    let length = |length: i64| match length {
        -1 => Ok(None),
        length => u64::try_from(length).map(Some).map_err(|_| shape_refused(given)),
    };
    lengths.into_iter().map(length).collect()
}

fn shape_refused(given: &Bound<'_, PyAny>) -> Failure {
    let shown = shown(given);
    let said = format!("{shown} is not a shape: expected whole numbers of 0 or more");
    let first = given.get_item(0).unwrap_or_else(|_| given.clone());
    if first.extract::<f64>().is_ok() { Failure::invalid(said) } else { Failure::wrong_type(said) }
}
