//! Plain memory.

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::address_book::MemoryKind;
use forebay_hal::{Call, Memory, Result};

use crate::HostDevice;

// SAFETY: the system gives each mapping addresses that nothing else has, at whole pages, which are
// multiples of the device's alignment; `AddressRange::reserve` keeps the alignment asked for. The
// books are charged with whole pages before the memory is made, and errors carry what was asked.
unsafe impl Memory for HostDevice {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        self.descriptor.check_process(Call::Allocate)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let backing = self.space.obtain(Call::Allocate, size, alignment, MemoryKind::Plain)?;
        Ok(self.space.enter(backing, size, MemoryKind::Plain, None))
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.descriptor.check_process(Call::Free)?;
        if address.is_null() {
            return Ok(());
        }
        self.space.free((Call::Free, "address"), address, MemoryKind::Plain)
    }
}
