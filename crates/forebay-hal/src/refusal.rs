//! From a driver's refusal of a call to the error of the contract.

use core::fmt::Display;

use forebay_core::Bytes;

use crate::{Call, Error, MemoryInfo, invalid};

/// What a driver's error code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverErrorKind {
    /// Not enough memory is left.
    OutOfMemory,
    /// An argument is invalid.
    Invalid,
    /// The device or its context is gone, for this process at least.
    Lost,
    /// Something is in use or unfinished.
    Busy,
    /// This device, driver or system does not support it.
    Unsupported,
    /// It failed for a reason that may pass.
    Transient,
}

/// What a call asked of its driver, for the error if that refuses.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The argument at fault, if there is one.
    pub argument: &'static str,
    /// The value given.
    pub given: String,
    /// What was expected.
    pub allowed: &'static str,
    /// The requested size; zero for calls that allocate nothing.
    pub size: Bytes,
}

impl Asked {
    /// A call with one argument that could be at fault.
    pub fn of(argument: &'static str, given: impl Display, allowed: &'static str) -> Self {
        Self { argument, given: given.to_string(), allowed, size: Bytes::ZERO }
    }

    /// A request for `size` bytes.
    pub fn size(size: Bytes) -> Self {
        let allowed = "a size that the driver can allocate";
        Self { size, ..Self::of("size", format_args!("{} B", size.get()), allowed) }
    }

    /// The error of the call, which the driver refused with the words `said`. `figures` are asked for if memory ran
    /// out.
    pub fn refused(
        &self,
        call: Call,
        kind: DriverErrorKind,
        said: String,
        figures: impl FnOnce() -> MemoryInfo,
    ) -> Error {
        match kind {
            DriverErrorKind::OutOfMemory => figures().out_of_memory(call, self.size),
            DriverErrorKind::Invalid => {
                invalid(call, self.argument, format!("{}; {said}", self.given), self.allowed)
            }
            DriverErrorKind::Lost => Error::Lost { call, reason: said.into() },
            DriverErrorKind::Busy => Error::Busy { call, what: said.into() },
            DriverErrorKind::Unsupported => Error::Unsupported { call, missing: said.into() },
            DriverErrorKind::Transient => Error::Transient { call, reason: said.into() },
        }
    }
}
