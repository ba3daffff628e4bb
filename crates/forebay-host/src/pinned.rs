//! Pinned memory: locked in place, so that nothing copies it out to disk.
//!
//! On the host every address is its own device address. What the flags still decide is whether the
//! device's side of a copy may name the memory.

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{Call, Error, PinnedFlags, PinnedMemory, Result, invalid, nonzero};
use rustix::io::Errno;

use crate::lock::{LockedSpan, limit_reached};
use crate::space::{Account, Entry, Occupant, Table};
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
        let backing = self.space.obtain(call, size, Alignment::ONE, Account::Pinned)?;
        match LockedSpan::new(backing.span()) {
            Ok(lock) => Ok(self
                .space
                .enter(backing, size, |backing| Occupant::Pinned(lock, backing, flags))),
            Err(errno) => {
                let error = limit_reached(call, size, errno)
                    .unwrap_or_else(|| errno::no_memory(call, size, self.space.info(), errno));
                self.space.give_back(backing, Account::Pinned);
                Err(error)
            }
        }
    }

    unsafe fn free_pinned(&self, address: Address) -> Result<()> {
        self.descriptor.check_process(Call::FreePinned)?;
        if address.is_null() {
            return Ok(());
        }
        let is_pinned = |occupant: &Occupant| matches!(occupant, Occupant::Pinned(..));
        let call = Call::FreePinned;
        let removed =
            self.space.table().remove(call, "address", address, "pinned memory", is_pinned)?;
        if let Occupant::Pinned(lock, backing, _) = removed {
            drop(lock);
            self.space.give_back(backing, Account::Pinned);
        }
        Ok(())
    }

    unsafe fn register(&self, span: Span, flags: PinnedFlags) -> Result<()> {
        let call = Call::Register;
        self.descriptor.check_process(call)?;
        check_flags(call, flags)?;
        nonzero(call, "span", span.size())?;
        check_apart(&self.space.table(), span)?;
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
        check_apart(&table, span)?;
        table.insert(Entry { span, occupant: Occupant::Registered(lock, flags) });
        Ok(())
    }

    unsafe fn unregister(&self, start: Address) -> Result<()> {
        self.descriptor.check_process(Call::Unregister)?;
        let is_registered = |occupant: &Occupant| matches!(occupant, Occupant::Registered(..));
        let removed = self.space.table().remove(
            Call::Unregister,
            "start",
            start,
            "registered memory",
            is_registered,
        )?;
        // Outside the table's lock: here the pages are unlocked.
        if let Occupant::Registered(lock, _) = removed {
            drop(lock);
        }
        Ok(())
    }

    fn device_address(&self, host: Address) -> Result<Address> {
        self.descriptor.check_process(Call::DeviceAddress)?;
        let table = self.space.table();
        match table.find(host).map(|entry| &entry.occupant) {
            Some(Occupant::Pinned(_, _, flags) | Occupant::Registered(_, flags))
                if flags.contains(PinnedFlags::MAPPED) =>
            {
                Ok(host)
            }
            _ => {
                let given = format!("{host}, {}", table.describe(host));
                let allowed = "an address inside pinned or registered memory that is mapped";
                Err(invalid(Call::DeviceAddress, "host", given, allowed))
            }
        }
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

/// Refuses a span that shares a byte with something the device knows.
fn check_apart(table: &Table, span: Span) -> Result<()> {
    match table.overlapping(span) {
        None => Ok(()),
        Some(other) => {
            let at = other.span.start().max(span.start());
            let given = format!("{span}, of which {at} is {}", table.describe(at));
            let allowed = "memory that is not this device's and not registered yet";
            Err(invalid(Call::Register, "span", given, allowed))
        }
    }
}

#[cfg(test)]
mod tests;
