//! The address book of a device.
//!
//! OpenCL buffers have no addresses. Each gets its own range of the host's address space, reserved without access, so
//! that it overlaps no other buffer and nothing else in the process:
//!
//! ```text
//!   addresses   ──[ buffer A, 2 MiB ]────[ buffer B ]──────[ pinned: the mapped pointer ]──
//!   books          start ─> cl_mem, first byte in it
//! ```
//!
//! Pinned and shared virtual memory have pointers, which serve as their addresses. The lock is held briefly, and never
//! across a call of OpenCL.

use core::ffi::c_void;
use std::sync::Arc;

use cl3::command_queue::enqueue_unmap_mem_object;
use cl3::memory::svm_free;
use forebay_core::{Address, Bytes, Span};
use forebay_hal::address_book::{AddressBook, Entry, Figures, MemoryEntry, MemoryKind};
use forebay_hal::{Call, PinnedFlags, Result, invalid};
use forebay_host::mapping::AddressRange;

use crate::code::Made;
use crate::context::{Context, Reservation};
use crate::object::{Buffer, Event};

/// Where the addresses of memory come from. What is here goes with the value.
#[derive(Debug)]
pub(crate) enum Source {
    /// Reserved for a buffer.
    Reserved { _range: AddressRange },
    /// Shared virtual memory, which the buffer is made of.
    Svm { context: &'static Context, pointer: *mut c_void },
    /// Where the buffer is mapped.
    Mapped,
}

/// A pointer at which a buffer is mapped, until the value goes.
#[derive(Debug)]
pub(crate) struct HostMapping {
    pub(crate) context: &'static Context,
    pub(crate) buffer: cl3::types::cl_mem,
    pub(crate) pointer: *mut c_void,
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        let queue = self.context.upkeep.raw();
        // SAFETY: mapped by this queue at that pointer, and nobody uses it from now on.
        let unmapped = unsafe {
            enqueue_unmap_mem_object(queue, self.buffer, self.pointer, 0, core::ptr::null())
        };
        // SAFETY: the call gave the event, with a reference.
        drop(unmapped.made("clEnqueueUnmapMemObject").map(|event| unsafe { Event::new(event) }));
        let _ = cl3::command_queue::flush(queue);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Self::Svm { context, pointer } = *self {
            let _turn = context.svm_turn();
            // SAFETY: it came from `clSVMAlloc` in this context, the buffer made of it went before, and
            // nobody uses it from now on.
            let _ = unsafe { svm_free(context.raw(), pointer) };
        }
    }
}

/// What memory of a device is made of. The fields go in this order.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) mapping: Option<HostMapping>,
    pub(crate) buffer: Buffer,
    pub(crate) source: Source,
    /// The byte of the buffer that the first address stands for.
    pub(crate) first: Bytes,
    /// What it counts for; nothing where it is the host's memory.
    pub(crate) reservation: Option<Reservation>,
}

// SAFETY: the pointers are names of memory that the value owns; every thread may unmap and free it.
unsafe impl Send for Allocation {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn counted(&self) -> Bytes {
        self.reservation.as_ref().map_or(Bytes::ZERO, Reservation::size)
    }

    /// Whether work that is under way must see the memory outlive it. Buffers do so by themselves.
    pub(crate) const fn is_host_memory(&self) -> bool {
        self.mapping.is_some() || matches!(self.source, Source::Svm { .. })
    }
}

/// Memory that a call found, and the byte of its buffer that the call's address stands for.
#[derive(Clone, Debug)]
pub(crate) struct BufferOffset {
    pub(crate) memory: Arc<Allocation>,
    pub(crate) offset: Bytes,
}

/// The address book, and how much the device holds.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) book: AddressBook<Arc<Allocation>>,
    pub(crate) figures: Figures,
}

impl Space {
    /// Enters memory, and counts it.
    pub(crate) fn insert(&mut self, span: Span, kind: MemoryKind, memory: Allocation) {
        self.figures.add(kind, memory.counted());
        let (flags, owner) = (PinnedFlags::empty(), Arc::new(memory));
        self.book.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
    }

    /// Removes memory of `kind` that starts at `address`.
    pub(crate) fn remove(
        &mut self,
        call: Call,
        address: Address,
        kind: MemoryKind,
    ) -> Result<Arc<Allocation>> {
        let memory = self.book.remove_memory(call, "address", address, kind)?;
        self.figures.subtract(kind, memory.owner.counted());
        Ok(memory.owner)
    }

    /// Whether all of `span` is pinned memory.
    pub(crate) fn is_pinned(&self, span: Span) -> bool {
        self.book.memory_of(span).is_some_and(|memory| memory.kind == MemoryKind::Pinned)
    }

    /// The memory that all of `span` lies in, where commands may use it.
    pub(crate) fn locate(
        &self,
        call: Call,
        argument: &'static str,
        span: Span,
    ) -> Result<BufferOffset> {
        let found = self.book.memory_of(span).filter(|memory| memory.kind != MemoryKind::Pinned);
        let Some(MemoryEntry { span: known, owner, .. }) = found else {
            let given = format!("{span}, which begins {}", self.book.describe(span.start()));
            let allowed = "plain or managed memory of this device, inside one allocation";
            return Err(invalid(call, argument, given, allowed));
        };
        let inside = span.start().offset_from(known.start()).unwrap_or_default();
        let offset = owner.first.saturating_add(inside);
        Ok(BufferOffset { memory: Arc::clone(owner), offset })
    }

    /// Takes all memory out. Gives what work may still use and only its owner keeps.
    pub(crate) fn take_host_memory(&mut self) -> Vec<Arc<Allocation>> {
        let book = core::mem::take(&mut self.book);
        let all = book.entries().filter_map(Entry::memory).map(|memory| &memory.owner);
        all.filter(|memory| memory.is_host_memory()).cloned().collect()
    }
}
