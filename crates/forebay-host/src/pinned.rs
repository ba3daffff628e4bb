//! Pinned memory: locked in place, so that it is never swapped out.
//!
//! On the host every address is its own device address. The flags still decide whether the device's side of a copy may
//! name the memory.

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::address_book::{Entry, MemoryEntry, MemoryKind};
use forebay_hal::{Call, Error, PinnedFlags, PinnedMemory, Result, invalid, nonzero};
use rustix::io::Errno;

use crate::lock::{LockedSpan, limit_reached};
use crate::space::MemoryBacking;
use crate::{HostDevice, errno};

// SAFETY: pinned memory is ordinary memory of the process in whole pages, locked by the system
// before its address is given out. Overlaps with anything of this device are refused under the
// table's lock.
unsafe impl PinnedMemory for HostDevice {
    fn allocate_pinned(&self, size: Bytes, flags: PinnedFlags) -> Result<Address> {
        let call = Call::AllocatePinned;
        self.descriptor.check_process(call)?;
        check_flags(call, flags)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let backing = self.space.obtain(call, size, Alignment::ONE, MemoryKind::Pinned)?;
        match LockedSpan::new(backing.span()) {
            Ok(lock) => {
                Ok(self.space.enter(backing, size, MemoryKind::Pinned, Some((lock, flags))))
            }
            Err(errno) => {
                let error = limit_reached(call, size, errno)
                    .unwrap_or_else(|| errno::no_memory(call, size, self.space.info(), errno));
                self.space.give_back(backing, MemoryKind::Pinned);
                Err(error)
            }
        }
    }

    unsafe fn free_pinned(&self, address: Address) -> Result<()> {
        self.descriptor.check_process(Call::FreePinned)?;
        if address.is_null() {
            return Ok(());
        }
        self.space.free((Call::FreePinned, "address"), address, MemoryKind::Pinned)
    }

    unsafe fn register(&self, span: Span, flags: PinnedFlags) -> Result<()> {
        let call = Call::Register;
        self.descriptor.check_process(call)?;
        check_flags(call, flags)?;
        nonzero(call, "span", span.size())?;
        self.space.table().book.check_apart(span)?;
        let lock = LockedSpan::new(span).map_err(|errno| {
            limit_reached(call, span.size(), errno).unwrap_or_else(|| match errno {
                Errno::NOMEM | Errno::INVAL => {
                    invalid(call, "span", span, "memory that is mapped from end to end")
                }
                _ => errno::refused(call, errno),
            })
        })?;
        let mut table = self.space.table();
        // Locking took its time: another thread may have been first.
        table.book.check_apart(span)?;
        let (kind, owner) =
            (MemoryKind::Registered, MemoryBacking { lock: Some(lock), backing: None });
        table.book.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
        Ok(())
    }

    unsafe fn unregister(&self, start: Address) -> Result<()> {
        self.descriptor.check_process(Call::Unregister)?;
        self.space.free((Call::Unregister, "start"), start, MemoryKind::Registered)
    }

    fn device_address(&self, host: Address) -> Result<Address> {
        self.descriptor.check_process(Call::DeviceAddress)?;
        self.space.table().book.mapped_host(host).map(|_| host)
    }
}

/// Refuses what the host cannot do.
fn check_flags(call: Call, flags: PinnedFlags) -> Result<()> {
    let able = PinnedFlags::MAPPED | PinnedFlags::PORTABLE;
    if able.contains(flags) {
        return Ok(());
    }
    let missing = format!(
        "pinned memory with {:?}: the host's memory always goes through its caches; without that \
         flag it can be had",
        flags.difference(able)
    );
    Err(Error::Unsupported { call, missing: missing.into() })
}

#[cfg(test)]
mod tests;
