//! The findings of the ordering checker, which name the operations.

use core::fmt;

use forebay_core::{Bytes, DeviceOrdinal, Span, StreamId};
use forebay_hal::{Call, named_enum};

/// One operation on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number: operations of a machine are counted from 1 as they are enqueued.
    pub number: u64,
    /// What it is: `copy`, `fill`, or a kernel's name.
    pub name: String,
    /// The device it runs on.
    pub device: DeviceOrdinal,
    /// The stream it runs on.
    pub stream: StreamId,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (operation {}, {}, sim:{})", self.name, self.number, self.stream, self.device)
    }
}

named_enum! {
    /// How an operation uses memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Effect {
        /// It reads.
        Reads = "reads",
        /// It writes.
        Writes = "writes",
    }
}

/// An ordering error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// Two operations use the same bytes, one writes, and nothing orders them.
    Race {
        /// The one enqueued first.
        first: Operation,
        /// What it does to the bytes.
        first_effect: Effect,
        /// The one enqueued second.
        second: Operation,
        /// What it does to the bytes.
        second_effect: Effect,
        /// The first byte in question, from the start of its memory.
        offset: Bytes,
    },
    /// One operation writes bytes that it also reads through another mapping.
    Overlap {
        /// The operation.
        operation: Operation,
        /// The first byte in question, from the start of its memory.
        offset: Bytes,
    },
    /// Memory was freed or unmapped while an operation may still use it.
    TakenInUse {
        /// The call that took it, such as `free` or `unmap`.
        call: Call,
        /// What was taken.
        span: Span,
        /// An operation that the host has not waited for.
        operation: Operation,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Race { first, first_effect, second, second_effect, offset } => write!(
                f,
                "race: {second} {second_effect} bytes that {first} {first_effect}, from offset {} \
                 of their memory, and nothing orders them; record an event on {} after the one and \
                 make {} wait for it before the other",
                offset.get(),
                first.stream,
                second.stream
            ),
            Self::Overlap { operation, offset } => write!(
                f,
                "overlap: {operation} writes bytes it also reads through another mapping, from \
                 offset {} of their memory; what it reads is not defined",
                offset.get()
            ),
            Self::TakenInUse { call, span, operation } => write!(
                f,
                "taken in use: {call} took {span} while {operation} may not be done; wait for it \
                 first",
            ),
        }
    }
}
