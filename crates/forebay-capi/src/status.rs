//! The status of a call as a number, and the failure behind it.

use core::ffi::{CStr, c_char};
use core::fmt;
use std::borrow::Cow;

use forebay::bindings::CountedError;
use forebay::config::ConfigError;
use forebay::named::SharedError;
use forebay::quantity::QuantityError;
use forebay::{Error, hal};
use forebay_trace::FormatError;

/// What a call came to. Numbers keep their meaning; later versions may add some.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum forebay_status {
    /// It was done.
    Ok = 0,
    /// There is not that much memory, after all that could be given back was.
    OutOfMemory = 1,
    /// An argument is not allowed: a null pointer, a size, an alignment, a text.
    InvalidArgument = 2,
    /// A handle is null, was closed, is of another kind, or was never given out.
    InvalidHandle = 3,
    /// No block of the pool begins at that address.
    NotABlock = 4,
    /// The block is free already.
    DoubleFree = 5,
    /// The block is of another pool.
    WrongPool = 6,
    /// The block has another size than was said.
    WrongSize = 7,
    /// The stream or the memory is of another device.
    WrongDevice = 8,
    /// A setting has no such value, or cannot change now.
    Config = 9,
    /// The device is gone.
    Lost = 10,
    /// Something is still in use.
    Busy = 11,
    /// This device, driver or system cannot do it.
    Unsupported = 12,
    /// It failed this time, and may succeed the next.
    Transient = 13,
    /// The arena is full.
    Full = 14,
    /// What the checkpoint names was taken back, or it is of another arena.
    Lapsed = 15,
    /// A debugging aid found that memory was written to without right.
    Corrupted = 16,
    /// This process is a forked child: what its parent opened is not its own.
    Forked = 17,
    /// There are as many handles or tags as there can be.
    TooMany = 18,
    /// A file could not be written.
    Io = 19,
    /// The header is of another version of the library than the library itself.
    AbiMismatch = 20,
    /// A defect of forebay itself; the words say where.
    Defect = 21,
    /// A living process has that name already.
    NameTaken = 22,
    /// No living process has that name.
    NotFound = 23,
    /// What has that name is of another type, or not forebay's.
    WrongType = 24,
    /// What has that name is of another user.
    Denied = 25,
    /// It took longer than the caller, or the library, waits.
    TimedOut = 26,
    /// The transfer was cancelled.
    Cancelled = 27,
}

use forebay_status as Status;

/// The names as they are written in C, by number.
const NAMES: [&CStr; 28] = [
    c"FOREBAY_STATUS_OK",
    c"FOREBAY_STATUS_OUT_OF_MEMORY",
    c"FOREBAY_STATUS_INVALID_ARGUMENT",
    c"FOREBAY_STATUS_INVALID_HANDLE",
    c"FOREBAY_STATUS_NOT_A_BLOCK",
    c"FOREBAY_STATUS_DOUBLE_FREE",
    c"FOREBAY_STATUS_WRONG_POOL",
    c"FOREBAY_STATUS_WRONG_SIZE",
    c"FOREBAY_STATUS_WRONG_DEVICE",
    c"FOREBAY_STATUS_CONFIG",
    c"FOREBAY_STATUS_LOST",
    c"FOREBAY_STATUS_BUSY",
    c"FOREBAY_STATUS_UNSUPPORTED",
    c"FOREBAY_STATUS_TRANSIENT",
    c"FOREBAY_STATUS_FULL",
    c"FOREBAY_STATUS_LAPSED",
    c"FOREBAY_STATUS_CORRUPTED",
    c"FOREBAY_STATUS_FORKED",
    c"FOREBAY_STATUS_TOO_MANY",
    c"FOREBAY_STATUS_IO",
    c"FOREBAY_STATUS_ABI_MISMATCH",
    c"FOREBAY_STATUS_DEFECT",
    c"FOREBAY_STATUS_NAME_TAKEN",
    c"FOREBAY_STATUS_NOT_FOUND",
    c"FOREBAY_STATUS_WRONG_TYPE",
    c"FOREBAY_STATUS_DENIED",
    c"FOREBAY_STATUS_TIMED_OUT",
    c"FOREBAY_STATUS_CANCELLED",
];

/// The name of a status, as it is written in C: a text that is there for ever. "unknown status" for a
/// number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_status_name(status: i32) -> *const c_char {
    let known = usize::try_from(status).ok().and_then(|number| NAMES.get(number));
    known.unwrap_or(&c"unknown status").as_ptr()
}

/// Why a call failed: a status for programs, and a message for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    words: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(status: Status, words: impl Into<Cow<'static, str>>) -> Self {
        Self { status, words: words.into() }
    }

    /// An invalid argument: its name, the value given, and what was expected.
    pub(crate) fn argument(
        name: &str,
        given: impl fmt::Display,
        allowed: impl fmt::Display,
    ) -> Self {
        Self::new(Status::InvalidArgument, format!("invalid {name}: {given}; expected {allowed}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// The status of a device's error.
fn of_device(error: &hal::Error) -> Status {
    match error {
        hal::Error::OutOfMemory { .. } => Status::OutOfMemory,
        hal::Error::Invalid { .. } => Status::InvalidArgument,
        hal::Error::Lost { .. } => Status::Lost,
        hal::Error::Busy { .. } => Status::Busy,
        hal::Error::Transient { .. } => Status::Transient,
        _ => Status::Unsupported,
    }
}

/// The status of an error of a shared buffer.
fn of_shared(error: &SharedError) -> Status {
    match error {
        SharedError::InvalidName { .. } | SharedError::NotLocked => Status::InvalidArgument,
        SharedError::NotFound { .. } => Status::NotFound,
        SharedError::Taken { .. } => Status::NameTaken,
        SharedError::WrongType { .. } | SharedError::Foreign { .. } => Status::WrongType,
        SharedError::WrongLength { .. } => Status::WrongSize,
        SharedError::WrongDevice { .. } => Status::WrongDevice,
        SharedError::WrongVersion { .. } => Status::AbiMismatch,
        SharedError::OtherUser { .. } => Status::Denied,
        SharedError::NoAnswer { .. } => Status::TimedOut,
        SharedError::AlreadyLocked => Status::Busy,
        SharedError::System { .. } => Status::Transient,
        _ => Status::Unsupported,
    }
}

/// The status of a library error.
pub fn of_error(error: &Error) -> Status {
    match error {
        Error::OutOfMemory(_) => Status::OutOfMemory,
        Error::NotABlock { .. } => Status::NotABlock,
        Error::DoubleFree { .. } | Error::StaleBlock { .. } => Status::DoubleFree,
        Error::WrongPool { .. } => Status::WrongPool,
        Error::WrongSize { .. } => Status::WrongSize,
        Error::PoolGone { .. } => Status::InvalidHandle,
        Error::Overrun { .. } | Error::UnorderedFree { .. } | Error::WrittenAfterFree { .. } => {
            Status::Corrupted
        }
        Error::Config(_) => Status::Config,
        Error::Forked => Status::Forked,
        Error::Device(error) => of_device(error),
        Error::ArenaFull(_) => Status::Full,
        Error::ArenaLapsed(_) | Error::WrongArena { .. } => Status::Lapsed,
        Error::ChunksNotFreed { error, .. } => of_error(error),
        Error::Shared(error) => of_shared(error),
        Error::Cancelled { .. } => Status::Cancelled,
        Error::Quantity(_) => Status::InvalidArgument,
        Error::File { .. } => Status::Io,
        Error::Compressed(_)
        | Error::Differs { .. }
        | Error::FileChanged { .. }
        | Error::Weights(_) => Status::Corrupted,
        // Unavailable classes, captures and debugging aids, and addresses out of range.
        _ => Status::Unsupported,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(of_error(&error), error.to_string())
    }
}

impl From<CountedError> for Failure {
    fn from(error: CountedError) -> Self {
        let status = match error {
            CountedError::Library(error) => return error.into(),
            CountedError::InUse(_) | CountedError::Pinned(..) => Status::Busy,
            _ => Status::InvalidHandle,
        };
        Self::new(status, error.to_string())
    }
}

impl From<hal::Error> for Failure {
    fn from(error: hal::Error) -> Self {
        Self::new(of_device(&error), error.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Status::Config, error.to_string())
    }
}

impl From<QuantityError> for Failure {
    fn from(error: QuantityError) -> Self {
        Self::new(Status::InvalidArgument, error.to_string())
    }
}

/// What a caller of PyTorch's side did wrong, in words.
impl From<String> for Failure {
    fn from(words: String) -> Self {
        Self::new(Status::InvalidArgument, words)
    }
}

impl From<&'static str> for Failure {
    fn from(words: &'static str) -> Self {
        Self::new(Status::InvalidArgument, words)
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        Self::new(Status::Io, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: i32) -> &'static str {
        // SAFETY: it is a text that is there for ever.
        unsafe { CStr::from_ptr(forebay_status_name(number)) }.to_str().unwrap()
    }

    #[test]
    fn every_number_has_the_name_that_the_header_gives_it() {
        let header = include_str!("../include/forebay.h").lines();
        let lines = header.filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "));
        let statuses: Vec<_> =
            lines.filter(|(name, _)| name.starts_with("FOREBAY_STATUS_")).collect();
        assert_eq!(statuses.len(), NAMES.len());
        for (written, number) in statuses {
            assert_eq!(name(number.parse().unwrap()), written);
        }
        for number in [-1, 28, i32::MAX, i32::MIN] {
            assert_eq!(name(number), "unknown status");
        }
    }
}
