//! The error of every device call.

use core::fmt;

use forebay_core::{Bytes, QuantityError};

use crate::Call;

/// The result of a device call.
pub type Result<T> = core::result::Result<T, Error>;

/// Why a device call failed. Every variant names the call; its text gives the argument, what was expected
/// and what would help.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Not enough memory is left.
    OutOfMemory {
        /// The call that failed.
        call: Call,
        /// The requested size.
        requested: Bytes,
        /// The free memory, as far as the device knows.
        free: Bytes,
        /// The memory of the device.
        total: Bytes,
    },
    /// An invalid argument: a size, an address, or a handle that is not live.
    Invalid {
        /// The call that failed.
        call: Call,
        /// The argument's name in the interface.
        argument: &'static str,
        /// The value given.
        given: Box<str>,
        /// What was expected.
        allowed: Box<str>,
    },
    /// The device is gone: it was reset, fell off the bus, or a kernel broke it.
    Lost {
        /// The call that failed.
        call: Call,
        /// The driver's message.
        reason: Box<str>,
    },
    /// Something is still in use, or not finished.
    Busy {
        /// The call that failed.
        call: Call,
        /// What is in use, and by what.
        what: Box<str>,
    },
    /// This device, driver or system cannot do it.
    Unsupported {
        /// The call that failed.
        call: Call,
        /// What is missing, and where it would come from.
        missing: Box<str>,
    },
    /// It failed for a reason that may be temporary.
    Transient {
        /// The call that failed.
        call: Call,
        /// The message of the driver or system.
        reason: Box<str>,
    },
    /// The device was opened by the parent, before the process forked.
    Forked {
        /// The call that was not made.
        call: Call,
    },
}

impl Error {
    /// The call that failed.
    pub const fn call(&self) -> Call {
        match self {
            Self::OutOfMemory { call, .. }
            | Self::Invalid { call, .. }
            | Self::Lost { call, .. }
            | Self::Busy { call, .. }
            | Self::Unsupported { call, .. }
            | Self::Transient { call, .. }
            | Self::Forked { call } => *call,
        }
    }

    /// Whether the same call, made again later with the same arguments, may succeed.
    ///
    /// After [`Error::OutOfMemory`] it may once memory was freed, after [`Error::Busy`] once the work in question is
    /// done, after [`Error::Transient`] at any time.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::Busy { .. } | Self::Transient { .. })
    }

    /// Advice to the caller.
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::OutOfMemory { .. } => "free or trim memory, or request less, and try again",
            Self::Invalid { .. } => "correct the argument; trying again will not help",
            Self::Lost { .. } => "release everything of this device and open it again",
            Self::Busy { .. } => "wait for the work that uses it, and try again",
            // There is no device yet whose capabilities could be checked.
            Self::Unsupported { call: Call::Open, .. } => {
                "`forebay doctor` shows which devices this machine has and what others need"
            }
            Self::Unsupported { .. } => "check the device's capabilities before the call",
            Self::Transient { .. } => "try again",
            Self::Forked { .. } => "open devices after the fork, or start the child by exec",
        }
    }

    /// An [`Error::Invalid`] for an invalid quantity.
    pub fn quantity(call: Call, argument: &'static str, error: &QuantityError) -> Self {
        let allowed = match error {
            QuantityError::OutOfRange { least, most, .. } => format!("{least} to {most}"),
            QuantityError::NotAPowerOfTwo { .. } => "a power of two".to_owned(),
            QuantityError::NotAMultiple { of, .. } => format!("a multiple of {} B", of.get()),
            QuantityError::NotASize { .. } => "a size, such as 512KiB or 1.5GiB".to_owned(),
            _ => "sizes whose sum and product fit in 64 bits".to_owned(),
        };
        crate::invalid(call, argument, error, allowed)
    }
}

debug_as_message!(Error {
    OutOfMemory { call, requested, free, total },
    Invalid { call, argument, given, allowed },
    Lost { call, reason },
    Busy { call, what },
    Unsupported { call, missing },
    Transient { call, reason },
    Forked { call },
});

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { call, requested, free, total } => write!(
                f,
                "{call}: out of memory: requested {requested} ({} B), {free} free of {total}",
                requested.get()
            ),
            Self::Invalid { call, argument, given, allowed } => {
                write!(f, "{call}: invalid {argument}: {given}; expected {allowed}")
            }
            Self::Lost { call, reason } => write!(f, "{call}: the device is lost: {reason}"),
            Self::Busy { call, what } => write!(f, "{call}: busy: {what}"),
            Self::Unsupported { call, missing } => write!(f, "{call}: not supported: {missing}"),
            Self::Transient { call, reason } => write!(f, "{call}: failed this time: {reason}"),
            Self::Forked { call } => {
                write!(f, "{call}: the device was opened before the process forked")
            }
        }?;
        write!(f, " ({})", self.advice())
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that cannot be opened has no capabilities to check.
    #[test]
    fn advice_fits_the_call() {
        let missing = |call| Error::Unsupported { call, missing: "no CUDA driver".into() };
        let said = missing(Call::Open).to_string();
        assert!(said.contains("no CUDA driver (`forebay doctor` shows"), "{said}");
        assert!(missing(Call::Fill).to_string().contains("check the device's capabilities"));
    }
}
