//! What a device leaves behind when it is dropped with things still alive.
//!
//! Work under way may use them, and the driver's calls that take pages away do not wait for it. So a
//! thread waits for the device's streams, as they stood when it went, and only then gives everything
//! back. Dropping the device itself waits for nothing.

use std::sync::PoisonError;

use forebay_hal::EventKind;

use crate::CudaDevice;
use crate::context::Context;
use crate::event::EventCore;
use crate::space::{Entry, Occupant, PageState, Space};
use crate::stream::lock;

/// Everything a device had given out, and the points after which nothing uses it.
#[derive(Debug)]
struct Leftovers {
    context: &'static Context,
    space: Space,
    ends: Vec<EventCore>,
}

impl Leftovers {
    /// Waits, then gives everything back. Errors have nobody to go to: what the driver does not take
    /// it keeps.
    fn clear(self) {
        for end in &self.ends {
            if end.synchronize().is_err() {
                // The context is broken: all in it goes with the process.
                return;
            }
        }
        let _ = self.context.call(|table| {
            for entry in self.space.entries.values() {
                let (start, size) = (entry.taken.start().get(), entry.taken.size().get());
                // SAFETY: all of it is the driver's, was not given back, and nothing uses it: its
                // owner is gone and the work is done. For every call in this block.
                unsafe {
                    let _ = match &entry.occupant {
                        Occupant::Plain | Occupant::Managed => table.mem_free(start),
                        Occupant::Pinned(_) => table.mem_free_host(start),
                        Occupant::Registered(_) => table.mem_host_unregister(start),
                        Occupant::Region(mappings) => {
                            for mapping in mappings.values() {
                                let span = mapping.span;
                                let _ = table.mem_unmap(span.start().get(), span.size().get());
                            }
                            table.mem_address_free(start, size)
                        }
                    };
                }
            }
            for page in self.space.pages.values().filter(|page| page.state == PageState::Open) {
                // SAFETY: as above; released pages went with their last mapping.
                let _ = unsafe { table.mem_release(page.raw) };
            }
            Ok(())
        });
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let mut events = self.context.driver.events.write().unwrap_or_else(PoisonError::into_inner);
        let serial = self.serial;
        events.retain(|_, event| !event.is_of(serial));
        drop(events);
        let peers = core::mem::take(&mut *lock(&self.enabled_peers));
        for peer in peers {
            let _ = self.let_go_of_peer(forebay_hal::Call::DisablePeer, peer);
        }
        let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        for core in streams.foreign() {
            core.close(self.context);
        }
        let space = core::mem::take(&mut *lock(&self.space));
        if space.entries.is_empty() && space.pages.is_empty() {
            return;
        }
        // Registered memory is the caller's: it may be unmapped as soon as this returns, so it is
        // unregistered now, which waits for the device as the caller would have had to.
        let mut space = space;
        let is_registered = |entry: &Entry| matches!(entry.occupant, Occupant::Registered(_));
        for entry in space.entries.values().filter(|entry| is_registered(entry)) {
            // SAFETY: it was registered and not unregistered.
            let _ = self
                .context
                .call(|table| unsafe { table.mem_host_unregister(entry.taken.start().get()) });
        }
        space.entries.retain(|_, entry| !is_registered(entry));
        let mut ends = Vec::new();
        for core in streams.all() {
            let marked = EventCore::take(self.context, EventKind::Order, 0)
                .and_then(|event| event.record(core.raw).map(|()| event));
            match marked {
                Ok(event) => ends.push(event),
                // No way to know when the work is done: what is left stays with the process.
                Err(_) => return,
            }
        }
        let leftovers = Leftovers { context: self.context, space, ends };
        let thread = std::thread::Builder::new().name("forebay-cuda-leftovers".to_owned());
        // Without a thread they stay with the process: nobody may be made to wait here.
        let _ = thread.spawn(move || leftovers.clear());
    }
}
