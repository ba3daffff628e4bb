//! What every case uses.

use forebay_core::{Address, Bytes, Span};

pub(super) use super::super::Bench;
pub(super) use super::super::data::{HostBytes, ensure_bytes, picture};
pub(super) use super::super::gate::Latch;
pub(super) use super::super::verdict::{
    Failure, Step, Verdict, busy, ensure, ensure_equal, invalid, out_of_memory, refused,
    unsupported,
};
use crate::{Location, StreamHandle};

/// Lists a file's cases: `Group "prefix": function [needs CAPABILITY | ...] [wants Requirement], ...;`,
/// for one group or several.
macro_rules! cases {
    ($($group:ident $prefix:literal: $(
        $run:ident $(needs $($need:ident)|+)? $(wants $wants:ident)?
    ),+ $(,)?);+) => {
        pub(super) const CASES: &[$crate::conformance::Case] = &[$($(
            $crate::conformance::Case {
                name: concat!($prefix, "/", stringify!($run)),
                group: $crate::CallGroup::$group,
                needs: $crate::Capabilities::empty()$($(.union($crate::Capabilities::$need))+)?,
                wants: cases!(@wants $($wants)?),
                run: $run,
            },
        )+)+];
    };
    (@wants) => { $crate::conformance::Requirement::Device };
    (@wants $wants:ident) => { $crate::conformance::Requirement::$wants };
}

pub(super) use cases;

pub(super) fn at(address: Address, offset: u64) -> Address {
    Address::new(address.get() + offset)
}

pub(super) fn device(address: Address, offset: u64) -> Location {
    Location::Device(at(address, offset))
}

pub(super) fn index(value: u64) -> Step<usize> {
    Ok(Bytes::new(value).to_usize()?)
}

pub(super) fn span(start: Address, size: u64) -> Step<Span> {
    Ok(Span::new(start, Bytes::new(size))?)
}

/// Writes through a host pointer, as the owner of host memory does.
pub(super) fn host_write(to: Address, bytes: &[u8]) -> Verdict {
    let pointer: *mut u8 = core::ptr::with_exposed_provenance_mut(index(to.get())?);
    // SAFETY: cases call this with host memory they have just got, of that size, that no work
    // uses.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer, bytes.len()) };
    Ok(())
}

/// Reads through a host pointer.
pub(super) fn host_read(from: Address, size: u64) -> Step<Vec<u8>> {
    let pointer: *const u8 = core::ptr::with_exposed_provenance(index(from.get())?);
    // SAFETY: as for `host_write`; the case has written all of it, or had it written.
    Ok(unsafe { core::slice::from_raw_parts(pointer, index(size)?) }.to_vec())
}

/// Work that fills a block, and work that brings what it finds there to the host.
pub(super) struct Relay {
    pub(super) memory: Address,
    pub(super) seen: HostBytes,
}

impl Relay {
    pub(super) const SIZE: u64 = 4096;

    pub(super) fn new(bench: &Bench) -> Step<Self> {
        Self::of(bench, Self::SIZE)
    }

    pub(super) fn of(bench: &Bench, size: u64) -> Step<Self> {
        let relay = Self { memory: bench.allocate(size)?, seen: bench.blank(size, 0)? };
        bench.write(relay.memory, &relay.seen.read())?;
        Ok(relay)
    }

    pub(super) fn write(&self, bench: &Bench, byte: u8, stream: StreamHandle) -> Verdict {
        bench.fill(self.memory, self.seen.size().get(), byte, stream)
    }

    pub(super) fn look(&self, bench: &Bench, stream: StreamHandle) -> Verdict {
        let size = self.seen.size().get();
        bench.copy(self.seen.location(), device(self.memory, 0), size, stream)
    }

    /// Enqueues both.
    pub(super) fn pass(&self, bench: &Bench, byte: u8, stream: StreamHandle) -> Verdict {
        self.write(bench, byte, stream)?;
        self.look(bench, stream)
    }

    pub(super) fn ensure_seen(&self, what: &str, byte: u8) -> Verdict {
        self.seen.ensure_filled(what, byte)
    }
}
