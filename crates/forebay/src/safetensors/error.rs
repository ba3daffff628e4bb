//! What is wrong with files of weights.

use std::path::PathBuf;

use super::dtype::Dtype;

/// The longest text of a file that a message repeats, in characters.
const SHOWN: usize = 120;

/// A file of weights, or an index of several, that cannot be loaded, and why. Nothing was allocated for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
#[non_exhaustive]
pub struct WeightsError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a file of weights. Names and texts of the file are cut to 120 characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It is a pipe, a device, or a folder in the place of a file.
    #[error("it is not a regular file")]
    NotAFile,
    /// It ends within the header.
    #[error(
        "it ends after {size} B, and its header takes {needed} B: it was cut short, or is no safetensors file"
    )]
    CutShort {
        /// The file's size.
        size: u64,
        /// The bytes of the header and of its length.
        needed: u64,
    },
    /// The header is longer than any header may be.
    #[error(
        "its header would be {header} B, and at most {max} B are allowed: the file is damaged, or no safetensors file"
    )]
    HeaderTooLong {
        /// The length that the file gives.
        header: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// The header is not UTF-8.
    #[error(
        "its header is not UTF-8 from byte {at} on: the file is damaged, or no safetensors file"
    )]
    NotText {
        /// The first wrong byte, counted from the header's first.
        at: u64,
    },
    /// The header or index is not the JSON that it should be.
    #[error("line {line}, column {column} of its JSON: {reason}")]
    NotJson {
        /// The line, from 1 on.
        line: u64,
        /// The column, from 1 on.
        column: u64,
        /// What was expected.
        reason: String,
    },
    /// Two tensors have one name: in a file, in several files that are loaded together, or in an index.
    #[error("the tensor {name:?} is there twice{}", elsewhere.as_ref().map(|path| format!(": also in {}", path.display())).unwrap_or_default())]
    TwoOfOneName {
        /// The name.
        name: String,
        /// The other file, if it is another.
        elsewhere: Option<PathBuf>,
    },
    /// The elements are of a type that the format does not have.
    #[error("the elements of {name:?} are {dtype:?}, which is none of the format's types")]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// What stands there.
        dtype: String,
    },
    /// The shape has too many dimensions.
    #[error("the shape of {name:?} has more than {max} dimensions")]
    TooManyDimensions {
        /// The tensor.
        name: String,
        /// The most that are allowed.
        max: usize,
    },
    /// The shape has more elements than can be, or they end within a byte.
    #[error("{shape:?} of {dtype} in {name:?} are no whole number of bytes below 2^61")]
    ImpossibleShape {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its type of elements.
        dtype: Dtype,
    },
    /// The bytes are not as many as the shape needs.
    #[error("{name:?} has {found} B, and {shape:?} of {dtype} need {needed} B")]
    WrongSize {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its type of elements.
        dtype: Dtype,
        /// The bytes between its offsets.
        found: u64,
        /// The bytes that the shape needs.
        needed: u64,
    },
    /// The offsets end before they begin.
    #[error("{name:?} begins at byte {start} and ends at {end}, before that")]
    Backwards {
        /// The tensor.
        name: String,
        /// Its first byte, counted from the first after the header.
        start: u64,
        /// The end of its bytes.
        end: u64,
    },
    /// The tensor ends past the end of the file.
    #[error(
        "{name:?} lies at bytes {start} to {end} of {size}: the file was cut short, or its header is wrong"
    )]
    OutOfFile {
        /// The tensor.
        name: String,
        /// Its first byte, counted from the first after the header.
        start: u64,
        /// The end of its bytes.
        end: u64,
        /// The bytes after the header.
        size: u64,
    },
    /// Two tensors overlap.
    #[error("{name:?} begins at byte {start}, and {before:?} ends at {end}: they overlap")]
    Overlap {
        /// The later tensor.
        name: String,
        /// Its first byte.
        start: u64,
        /// The tensor before it.
        before: String,
        /// The end of that one.
        end: u64,
    },
    /// Bytes belong to no tensor.
    #[error("bytes {start} to {end} after the header belong to no tensor")]
    Hole {
        /// The first of them.
        start: u64,
        /// Their end.
        end: u64,
    },
    /// An index, or the program, names a tensor that is not there.
    #[error(
        "there is no tensor {name:?}{}",
        nearest.as_ref().map(|name| format!("; {name:?} is the most similar name")).unwrap_or_default()
    )]
    NoTensor {
        /// The name.
        name: String,
        /// A name that is similar.
        nearest: Option<String>,
    },
    /// An index names a file outside its folder.
    #[error("it names {file:?}, which is not below its folder: nothing outside is opened")]
    OutsideFolder {
        /// What stands there.
        file: String,
    },
    /// A folder has no weights, or several.
    #[error(
        "there are {count} files that end in {ending}, and one is expected: name a file, or several"
    )]
    WhichFile {
        /// How many there are.
        count: usize,
        /// The ending.
        ending: &'static str,
    },
}

/// A text of a file, cut to what a message may repeat.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
