//! What an object pool calls of the program.

use core::time::Duration;
use std::error::Error;

use forebay_core::Bytes;

/// An error of the create hook.
pub(super) type Failure = Box<dyn Error + Send + Sync>;

type Reset<T> = Box<dyn Fn(&mut T) + Send + Sync>;
type Validate<T> = Box<dyn Fn(&mut T) -> bool + Send + Sync>;

/// The hooks. They are called without a lock and outside of gates.
pub(super) struct Hooks<T> {
    pub(super) create: Box<dyn Fn() -> Result<T, Failure> + Send + Sync>,
    pub(super) reset: Option<Reset<T>>,
    pub(super) validate: Option<Validate<T>>,
    pub(super) largest: Option<Largest<T>>,
    /// The time since some moment before the pool was made.
    pub(super) clock: Box<dyn Fn() -> Duration + Send + Sync>,
}

/// The largest object that is kept, and how large an object is.
pub(super) struct Largest<T> {
    pub(super) most: Bytes,
    pub(super) size: Box<dyn Fn(&T) -> Bytes + Send + Sync>,
}
