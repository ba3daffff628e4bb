//! The program's hooks that an object pool calls.

use core::time::Duration;
use std::error::Error;

use forebay_core::Bytes;

/// An error of the create hook.
pub(super) type Failure = Box<dyn Error + Send + Sync>;

type Reset<T> = Box<dyn Fn(&mut T) + Send + Sync>;
type Validate<T> = Box<dyn Fn(&mut T) -> bool + Send + Sync>;

/// The hooks. Called without locks and outside of gates.
pub(super) struct Hooks<T> {
    pub(super) create: Box<dyn Fn() -> Result<T, Failure> + Send + Sync>,
    pub(super) reset: Option<Reset<T>>,
    pub(super) validate: Option<Validate<T>>,
    pub(super) largest: Option<Largest<T>>,
    /// The time since a fixed moment before the pool was made.
    pub(super) clock: Box<dyn Fn() -> Duration + Send + Sync>,
}

/// The size limit for kept objects, and a function that measures them.
pub(super) struct Largest<T> {
    pub(super) most: Bytes,
    pub(super) size: Box<dyn Fn(&T) -> Bytes + Send + Sync>,
}
