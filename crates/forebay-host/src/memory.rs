//! Plain memory.

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{Call, Memory, Result};

use crate::HostDevice;
use crate::space::{Account, Occupant};

// SAFETY: the system gives each mapping addresses that nothing else has, at whole pages, which are
// multiples of the device's alignment; `AddressRange::reserve` keeps the alignment asked for. The
// books are charged with whole pages before the memory is made, and errors carry what was asked.
unsafe impl Memory for HostDevice {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        self.descriptor.check_process(Call::Allocate)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let backing = self.space.obtain(Call::Allocate, size, alignment, Account::Held)?;
        Ok(self.space.enter(backing, size, Occupant::Plain))
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.descriptor.check_process(Call::Free)?;
        if address.is_null() {
            return Ok(());
        }
        let is_plain = |occupant: &Occupant| matches!(occupant, Occupant::Plain(_));
        let removed =
            self.space.table().remove(Call::Free, "address", address, "plain memory", is_plain)?;
        if let Occupant::Plain(backing) = removed {
            self.space.give_back(backing, Account::Held);
        }
        Ok(())
    }
}
