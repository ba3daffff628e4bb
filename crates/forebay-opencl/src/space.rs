//! What lies where: the books of a device.
//!
//! OpenCL's buffers have no addresses. Each gets a range of its own out of the host's address space, reserved
//! without access, so that no two buffers and nothing else of the process share one:
//!
//! ```text
//!   addresses   ──[ buffer A, 2 MiB ]────[ buffer B ]──────[ pinned: the mapped pointer ]──
//!   books          start ─> cl_mem, first byte in it
//! ```
//!
//! Pinned and shared virtual memory have pointers of their own, which serve as their addresses. The lock is
//! held for a moment only: never across a call of OpenCL.

use core::ffi::c_void;
use std::collections::BTreeMap;
use std::sync::Arc;

use cl3::command_queue::enqueue_unmap_mem_object;
use cl3::memory::svm_free;
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Call, PointerClass, PointerKind, Result, invalid};
use forebay_host::mapping::AddressRange;

use crate::code::Made;
use crate::context::{Context, Reservation};
use crate::object::{Buffer, Event};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Plain,
    Managed,
    Pinned,
}

impl MemoryKind {
    /// In words, for errors.
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain memory",
            Self::Managed => "managed memory",
            Self::Pinned => "pinned memory",
        }
    }

    const fn class(self) -> PointerKind {
        match self {
            Self::Plain => PointerKind::Device,
            Self::Managed => PointerKind::Managed,
            Self::Pinned => PointerKind::Pinned,
        }
    }
}

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

/// Memory of a device. The fields go in this order.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) kind: MemoryKind,
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

/// What lies where.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// By first address; no two overlap.
    entries: BTreeMap<Address, (Span, Arc<Allocation>)>,
    pub(crate) held: Bytes,
    pub(crate) managed: Bytes,
}

impl Space {
    fn find(&self, address: Address) -> Option<(Span, &Arc<Allocation>)> {
        let (_, (span, memory)) = self.entries.range(..=address).next_back()?;
        span.contains(address).then_some((*span, memory))
    }

    /// Enters memory, and counts it.
    pub(crate) fn insert(&mut self, span: Span, memory: Allocation) {
        let counted = memory.counted();
        match memory.kind {
            MemoryKind::Plain => self.held = self.held.saturating_add(counted),
            MemoryKind::Managed => self.managed = self.managed.saturating_add(counted),
            MemoryKind::Pinned => {}
        }
        self.entries.insert(span.start(), (span, Arc::new(memory)));
    }

    /// Removes memory of `kind` that starts at `address`.
    pub(crate) fn remove(
        &mut self,
        call: Call,
        address: Address,
        kind: MemoryKind,
    ) -> Result<Arc<Allocation>> {
        let right = self.entries.get(&address).is_some_and(|(_, memory)| memory.kind == kind);
        let Some((_, memory)) = (if right { self.entries.remove(&address) } else { None }) else {
            let given = format!("{address}, {}", self.describe(address));
            let allowed =
                format!("the first address of {} that was allocated and not freed", kind.name());
            return Err(invalid(call, "address", given, allowed));
        };
        let counted = memory.counted();
        match kind {
            MemoryKind::Plain => self.held = self.held.saturating_sub(counted),
            MemoryKind::Managed => self.managed = self.managed.saturating_sub(counted),
            MemoryKind::Pinned => {}
        }
        Ok(memory)
    }

    /// What is at `address`, in words.
    fn describe(&self, address: Address) -> String {
        let Some((span, memory)) = self.find(address) else {
            return "where this device has no memory".to_owned();
        };
        let offset = address.offset_from(span.start()).unwrap_or_default().get();
        format!("{offset} B into {} {span}", memory.kind.name())
    }

    pub(crate) fn classify(&self, address: Address) -> Option<PointerClass> {
        let (span, memory) = self.find(address)?;
        Some(PointerClass { kind: memory.kind.class(), span })
    }

    /// Whether all of `span` is pinned memory.
    pub(crate) fn is_pinned(&self, span: Span) -> bool {
        self.find(span.start()).is_some_and(|(known, memory)| {
            memory.kind == MemoryKind::Pinned && known.contains_span(span)
        })
    }

    /// The memory that all of `span` lies in, where commands may use it.
    pub(crate) fn locate(
        &self,
        call: Call,
        argument: &'static str,
        span: Span,
    ) -> Result<BufferOffset> {
        let found = self.find(span.start()).filter(|(known, memory)| {
            known.contains_span(span) && memory.kind != MemoryKind::Pinned
        });
        let Some((known, memory)) = found else {
            let given = format!("{span}, which begins {}", self.describe(span.start()));
            let allowed = "plain or managed memory of this device, inside one allocation";
            return Err(invalid(call, argument, given, allowed));
        };
        let inside = span.start().offset_from(known.start()).unwrap_or_default();
        let offset = memory.first.saturating_add(inside);
        Ok(BufferOffset { memory: Arc::clone(memory), offset })
    }

    /// Refuses a span that does not lie in one managed allocation.
    pub(crate) fn check_managed(&self, call: Call, span: Span) -> Result<()> {
        let inside = self.find(span.start()).is_some_and(|(known, memory)| {
            memory.kind == MemoryKind::Managed && known.contains_span(span)
        });
        if inside {
            return Ok(());
        }
        let given = format!("{span}, which begins {}", self.describe(span.start()));
        Err(invalid(call, "span", given, "a part of one managed allocation"))
    }

    /// Takes all memory out. Gives what work may still use and only its owner keeps.
    pub(crate) fn take_host_memory(&mut self) -> Vec<Arc<Allocation>> {
        let all = core::mem::take(&mut self.entries).into_values().map(|(_, memory)| memory);
        all.filter(|memory| memory.is_host_memory()).collect()
    }
}
