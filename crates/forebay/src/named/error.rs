//! Errors of named shared buffers.

use core::time::Duration;

/// Why a shared buffer could not be created, opened or locked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The name is empty, too long, or has a character that names cannot have.
    #[error(
        "{name:?} cannot name a shared buffer: a name has 1 to {} characters of A-Z a-z 0-9 . _ -, and this one has {} B",
        super::name::LONGEST, name.len()
    )]
    InvalidName {
        /// The name.
        name: Box<str>,
    },
    /// No living process has a buffer of this name.
    #[error(
        "no living process has a shared buffer {name:?}; create it first, and keep one handle of it alive"
    )]
    NotFound {
        /// The name.
        name: Box<str>,
    },
    /// A living process already has this name.
    #[error(
        "a living process has a shared buffer {name:?} already; open it, or choose another name"
    )]
    Taken {
        /// The name.
        name: Box<str>,
    },
    /// The elements are of another type, size or alignment.
    #[error("the shared buffer {name:?} has elements {found}, not {expected}")]
    WrongType {
        /// The name.
        name: Box<str>,
        /// The elements that the caller expected.
        expected: Box<str>,
        /// The elements of the buffer.
        found: Box<str>,
    },
    /// The buffer has another number of elements.
    #[error(
        "the shared buffer {name:?} has {found} elements, not {expected}; open it without a length"
    )]
    WrongLength {
        /// The name.
        name: Box<str>,
        /// The number that the caller expected.
        expected: u64,
        /// The number of the buffer.
        found: u64,
    },
    /// The memory is of another kind of device.
    #[error(
        "the shared buffer {name:?} is memory of kind {found}, and this device is of kind {expected}; open it with a \
         device of its kind"
    )]
    WrongDevice {
        /// The name.
        name: Box<str>,
        /// The kind of the caller's device.
        expected: Box<str>,
        /// The kind of the memory's device.
        found: Box<str>,
    },
    /// The creator runs a version of forebay with another layout.
    #[error(
        "the shared buffer {name:?} has layout version {found}, and this process knows version {expected}; use the same \
         version of forebay in both"
    )]
    WrongVersion {
        /// The name.
        name: Box<str>,
        /// The version that this process knows.
        expected: u64,
        /// The version of the buffer.
        found: u64,
    },
    /// The name belongs to another user, or its creator admits only processes of its own user.
    #[error(
        "the shared buffer {name:?} is of user {owner}, and this process runs as user {user}; create and open it with \
         SharedOptions::any_user, if these users trust each other"
    )]
    OtherUser {
        /// The name.
        name: Box<str>,
        /// The user that created the buffer.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Processes have the name, but none answered: they are stopped, or the creator is not ready.
    #[error(
        "a process has the name {name:?}, but none answered within {} ms and {attempts} attempts; it may be stopped: \
         continue or end it, or wait longer (SharedOptions::patience)",
        waited.as_millis()
    )]
    NoAnswer {
        /// The name.
        name: Box<str>,
        /// How long the call waited.
        waited: Duration,
        /// Number of attempts.
        attempts: u32,
    },
    /// The owner of the name is not a shared buffer of forebay.
    #[error(
        "what has the name {name:?} is not a shared buffer of forebay: {what}; choose another name"
    )]
    Foreign {
        /// The name.
        name: Box<str>,
        /// What is wrong with the answer.
        what: &'static str,
    },
    /// The calling thread already holds the lock.
    #[error(
        "this thread holds the lock of the shared buffer already; drop the guard before locking again"
    )]
    AlreadyLocked,
    /// The calling thread does not hold the lock.
    #[error(
        "this thread does not hold the lock of the shared buffer; unlock it on the thread that locked it"
    )]
    NotLocked,
    /// The system cannot share memory by name, or lacks what locks need.
    #[error("not supported here: {missing}")]
    Unsupported {
        /// What is missing and what would help.
        missing: Box<str>,
    },
    /// A system call failed.
    #[error("{call} failed: {message}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's message.
        message: Box<str>,
    },
}
