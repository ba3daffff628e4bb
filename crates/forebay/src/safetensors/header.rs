//! The header of a file: which tensors it has, and where.
//!
//! ```text
//!   | length: 8 B | header: JSON, up to 100 MB           | tensors, without holes        |
//!                   {"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}
//! ```

use std::path::Path;

use forebay_core::Bytes;
use forebay_hal::Call;
use serde::de::{IgnoredAny, MapAccess};

use super::dtype::Dtype;
use super::error::{Problem, shown};
use super::json::{Entries, MAX_JSON, Numbers, Object, Pairs, Parse, Text, push, set};
use crate::{Result, host_vec};

/// The bytes before a header, which hold its length.
pub(super) const LENGTH: usize = 8;

/// The most dimensions of a shape: as many as numpy allows.
pub const MAX_DIMENSIONS: usize = 64;

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    /// Its first byte, counted from the file's first.
    pub(super) offset: u64,
    pub(super) size: u64,
    /// The number of its file.
    pub(super) file: usize,
}

impl TensorInfo {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The elements in each dimension; none for a single element. The last index runs fastest.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Its bytes.
    pub fn size(&self) -> Bytes {
        Bytes::new(self.size)
    }

    /// Where it begins in its file.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    tensors: Vec<TensorInfo>,
    metadata: Vec<(String, String)>,
}

/// What of a header is read so far.
#[derive(Default)]
struct Draft {
    tensors: Vec<TensorInfo>,
    metadata: Option<Pairs>,
}

/// What of a tensor is read so far.
struct TensorDraft {
    name: String,
    dtype: Option<Dtype>,
    shape: Option<Vec<u64>>,
    offsets: Option<[u64; 2]>,
}

impl Header {
    /// The length of a header, from the first eight bytes of a file of `size` bytes. `path` is for errors.
    pub fn length(path: &Path, first: [u8; LENGTH], size: u64) -> Result<usize> {
        let parse = Parse::of(path);
        let header = u64::from_le_bytes(first);
        if header > MAX_JSON {
            return Err(parse.error(Problem::HeaderTooLong { header, max: MAX_JSON }));
        }
        let needed = header + LENGTH as u64;
        if needed > size {
            return Err(parse.error(Problem::CutShort { size, needed }));
        }
        Ok(usize::try_from(header).unwrap_or(usize::MAX))
    }

    /// Reads a header, which is without its length, of a file of `size` bytes. `path` is for errors.
    ///
    /// Tensors do not overlap, leave no byte out, have as many bytes as their shapes need, and each a name of its own. What
    /// this takes of time and memory follows from the header's length, whatever it says.
    ///
    /// ```
    /// use forebay::safetensors::Header;
    ///
    /// let header = br#"{"bias": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}"#;
    /// let file = 8 + header.len() as u64 + 12;
    /// let header = Header::parse("some.safetensors".as_ref(), header, file)?;
    /// assert_eq!((header.tensors()[0].name(), header.tensors()[0].shape()), ("bias", &[3][..]));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn parse(path: &Path, header: &[u8], size: u64) -> Result<Self> {
        let parse = Parse::of(path);
        let mut draft = Draft::default();
        parse.object(header, &mut draft)?;
        let Draft { mut tensors, metadata } = draft;
        let before = (LENGTH as u64).saturating_add(header.len() as u64);
        let data = size
            .checked_sub(before)
            .ok_or_else(|| parse.error(Problem::CutShort { size, needed: before }))?;
        // Offsets are counted from the header's end so far. An empty tensor comes before one that begins where it lies.
        if !tensors.is_sorted_by_key(|tensor| (tensor.offset, tensor.size)) {
            let key = |tensor: &TensorInfo| (tensor.offset, tensor.size);
            tensors.sort_unstable_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name)));
        }
        check_places(&tensors, data).map_err(|problem| parse.error(problem))?;
        check_names(&parse, &tensors)?;
        for tensor in &mut tensors {
            tensor.offset += before;
        }
        Ok(Self { tensors, metadata: metadata.unwrap_or_default().0 })
    }

    /// The tensors, in the order in which they lie in the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// What the file says of itself: `__metadata__`.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    #[cfg(feature = "host")]
    pub(super) fn into_parts(self) -> (Vec<TensorInfo>, Vec<(String, String)>) {
        (self.tensors, self.metadata)
    }
}

/// Checks that tensors in order lie one after the other in so many bytes.
fn check_places(tensors: &[TensorInfo], size: u64) -> core::result::Result<(), Problem> {
    let (mut end, mut before) = (0, "");
    for TensorInfo { name, offset: start, size: own, .. } in tensors {
        let (start, own_end) = (*start, start.saturating_add(*own));
        if own_end > size {
            return Err(Problem::OutOfFile { name: shown(name), start, end: own_end, size });
        }
        if start > end {
            return Err(Problem::Hole { start: end, end: start });
        }
        if start < end {
            let before = shown(before);
            return Err(Problem::Overlap { name: shown(name), start, before, end });
        }
        (end, before) = (own_end, name);
    }
    if end < size { Err(Problem::Hole { start: end, end: size }) } else { Ok(()) }
}

/// Checks that no two tensors have one name.
fn check_names(parse: &Parse<'_>, tensors: &[TensorInfo]) -> Result<()> {
    let mut names = host_vec::with_capacity::<&str>(tensors.len(), Call::Allocate)?;
    names.extend(tensors.iter().map(TensorInfo::name));
    names.sort_unstable();
    match names.windows(2).find(|two| two.first() == two.last()) {
        Some(two) => {
            let name = shown(two.first().copied().unwrap_or_default());
            Err(parse.error(Problem::TwoOfOneName { name, elsewhere: None }))
        }
        None => Ok(()),
    }
}

impl Entries for Draft {
    fn entry<'de, A: MapAccess<'de>>(
        &mut self,
        parse: &Parse<'_>,
        name: String,
        map: &mut A,
    ) -> core::result::Result<(), A::Error> {
        if name == "__metadata__" {
            let mut pairs = Pairs::default();
            map.next_value_seed(Object(parse, &mut pairs))?;
            return set(&mut self.metadata, "__metadata__", pairs);
        }
        let mut draft = TensorDraft { name, dtype: None, shape: None, offsets: None };
        map.next_value_seed(Object(parse, &mut draft))?;
        let tensor = draft.finish(parse)?;
        push(parse, &mut self.tensors, tensor)
    }
}

impl Entries for TensorDraft {
    fn entry<'de, A: MapAccess<'de>>(
        &mut self,
        parse: &Parse<'_>,
        field: String,
        map: &mut A,
    ) -> core::result::Result<(), A::Error> {
        let name = &self.name;
        match &*field {
            "dtype" => {
                let named = |dtype: &str| {
                    let unknown =
                        || Problem::UnknownDtype { name: shown(name), dtype: shown(dtype) };
                    Dtype::named(dtype).ok_or_else(|| parse.error(unknown()))
                };
                let dtype = map.next_value_seed(Text(parse, named))?;
                set(&mut self.dtype, "dtype", dtype)
            }
            "shape" => {
                let too_many =
                    || Problem::TooManyDimensions { name: shown(name), max: MAX_DIMENSIONS };
                let shape = map.next_value_seed(Numbers::<MAX_DIMENSIONS, _>(parse, too_many))?;
                set(&mut self.shape, "shape", shape)
            }
            "data_offsets" => set(&mut self.offsets, "data_offsets", map.next_value()?),
            // Of later versions of the format.
            _ => map.next_value::<IgnoredAny>().map(drop),
        }
    }
}

impl TensorDraft {
    /// The tensor, if all of it is there and its size is right.
    fn finish<E: serde::de::Error>(self, parse: &Parse<'_>) -> core::result::Result<TensorInfo, E> {
        let dtype = self.dtype.ok_or_else(|| E::missing_field("dtype"))?;
        let shape = self.shape.ok_or_else(|| E::missing_field("shape"))?;
        let [offset, end] = self.offsets.ok_or_else(|| E::missing_field("data_offsets"))?;
        let Some(size) = end.checked_sub(offset) else {
            let problem = Problem::Backwards { name: shown(&self.name), start: offset, end };
            return Err(parse.stop(parse.error(problem)));
        };
        let elements = shape.iter().try_fold(1_u64, |all, &next| all.checked_mul(next));
        let problem = match elements.and_then(|elements| dtype.size_of(elements)) {
            Some(needed) if needed == size => {
                return Ok(TensorInfo { name: self.name, dtype, shape, offset, size, file: 0 });
            }
            Some(needed) => {
                Problem::WrongSize { name: shown(&self.name), shape, dtype, found: size, needed }
            }
            None => Problem::ImpossibleShape { name: shown(&self.name), shape, dtype },
        };
        Err(parse.stop(parse.error(problem)))
    }
}
