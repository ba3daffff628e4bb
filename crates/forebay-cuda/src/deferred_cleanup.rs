//! Deferred cleanup of a device that is dropped while memory of it is still allocated.
//!
//! Work in progress may use that memory, and the driver's unmap and release calls do not wait for it. So a
//! thread waits for the work that the device's streams had when it was dropped, and only then frees
//! everything. If the device had per-thread default streams, the thread waits for the whole context, since
//! those of other threads cannot be recorded from here. Dropping the device itself does not wait.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_hal::Call;
use forebay_hal::address_book::MemoryKind;
use forebay_sync::lock;

use crate::context::Context;
use crate::device::CudaDevice;
use crate::event::EventCore;
use crate::space::{Entry, Space};
use crate::stream::StreamTable;
use crate::sys::{Outcome, Symbols};

/// Everything a device had allocated, and the events after which nothing uses it.
#[derive(Debug)]
struct DeferredCleanup {
    context: &'static Context,
    space: Arc<Mutex<Space>>,
    ends: Vec<EventCore>,
    /// Whether per-thread default streams may use it.
    per_thread: bool,
}

impl DeferredCleanup {
    /// Waits, then frees everything. Errors cannot be reported to anyone; memory that the driver refuses to
    /// free stays allocated.
    fn clear(self) {
        if self.per_thread && self.context.synchronize().is_err() {
            // The end of the work is unknown, so the memory stays allocated, and mapped.
            return core::mem::forget(self);
        }
        for end in &self.ends {
            if end.synchronize().is_err() {
                // The context is broken: all in it goes with the process.
                return core::mem::forget(self);
            }
        }
        // One at a time, and off the books only when the driver has it back: until then it is ours,
        // and the lock is not held while the driver waits.
        while let Some(entry) = self.first() {
            if self.context.call(|table| give_back(table, &entry)).is_err()
                && let Some(memory) = entry.memory()
            {
                memory.owner.leak_pages();
            }
            lock(&self.space).book.take(entry.span().start());
        }
        let space = lock(&self.space);
        let open = space.book.pages().filter(|page| page.is_open());
        let open: Vec<_> = open.map(|page| page.owner.raw).collect();
        drop(space);
        for page in open {
            // SAFETY: created or imported and not released; released pages went with their last mapping.
            let _ = self.context.call(|table| unsafe { table.mem_release(page) });
        }
    }

    fn first(&self) -> Option<Entry> {
        lock(&self.space).book.entries().next().cloned()
    }
}

/// Frees one entry.
fn give_back(table: &Symbols, entry: &Entry) -> Outcome {
    // SAFETY: all of it is the driver's, was not given back, and nothing uses it: its owner is gone
    // and the work is done. For every call in this block.
    unsafe {
        match entry {
            Entry::Memory(memory) => {
                let start = memory.owner.span.start().get();
                match memory.kind {
                    MemoryKind::Plain | MemoryKind::Managed => table.mem_free(start),
                    MemoryKind::Pinned if memory.owner.own_pages.is_none() => {
                        table.mem_free_host(start)
                    }
                    MemoryKind::Pinned | MemoryKind::Registered => table.mem_host_unregister(start),
                }
            }
            Entry::Region(region) => {
                for mapping in region.mappings() {
                    table.mem_unmap(mapping.span.start().get(), mapping.span.size().get())?;
                }
                let taken = region.owner;
                table.mem_address_free(taken.start().get(), taken.size().get())
            }
        }
    }
}

impl CudaDevice {
    /// Leaks the tables in a forked child: a thread of the parent may have been changing them, and dropping
    /// their contents takes locks.
    fn leak(&mut self) {
        let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        let none = StreamTable::new(&self.pools.default_stream);
        core::mem::forget(core::mem::replace(streams, none));
        let peers = self.enabled_peers.get_mut().unwrap_or_else(PoisonError::into_inner);
        core::mem::forget(core::mem::take(peers));
        core::mem::forget(Arc::clone(&self.space));
    }

    /// Unregisters what is the caller's memory: it may be unmapped as soon as the device is gone.
    /// This waits for the device, as the caller would have had to.
    fn unregister_all(&self) {
        let is_registered = |entry: &&Entry| {
            entry.memory().is_some_and(|memory| memory.kind == MemoryKind::Registered)
        };
        let space = self.space();
        let entries: Vec<_> = space.book.entries().filter(is_registered).cloned().collect();
        drop(space);
        for entry in entries {
            let _ = self.context.call(|table| give_back(table, &entry));
            self.space().book.take(entry.span().start());
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if self.descriptor.is_from_parent() {
            self.leak();
            return;
        }
        let serial = self.serial;
        let mut events = self.driver.events.write().unwrap_or_else(PoisonError::into_inner);
        events.retain(|_, event| !event.is_of(serial));
        drop(events);
        let peers = core::mem::take(&mut *lock(&self.enabled_peers));
        for peer in peers {
            let _ = self.let_go_of_peer(Call::DisablePeer, peer);
        }
        self.unregister_all();
        let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        for core in streams.foreign() {
            core.close(&self.pools.stages);
        }
        {
            let space = lock(&self.space);
            if space.book.entries().len() + space.book.pages().len() == 0 {
                return;
            }
        }
        let mut ends = Vec::new();
        for core in streams.all() {
            match self.pools.events.take_recorded(core.raw) {
                Ok(event) => ends.push(event),
                // No way to know when the work is done: what is left stays with the process, and mapped.
                Err(_) => return core::mem::forget(Arc::clone(&self.space)),
            }
        }
        let (context, space) = (self.context, Arc::clone(&self.space));
        let leftovers =
            DeferredCleanup { context, space, ends, per_thread: streams.has_per_thread() };
        // Without a thread they stay with the process, and mapped: nobody may be made to wait here.
        let name = "forebay-cuda-leftovers";
        if forebay_sync::thread::spawn(name, move || leftovers.clear()).is_err() {
            core::mem::forget(Arc::clone(&self.space));
        }
    }
}
