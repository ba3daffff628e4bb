//! Plain, pinned and managed memory.

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::address_book::{Entry, MemoryEntry, MemoryKind};
use forebay_hal::{
    Advice, Call, Capabilities, ManagedMemory, Memory, PinnedFlags, PinnedMemory, Result,
    StreamHandle, invalid, valid_span,
};

use super::SimDevice;
use crate::checker::{Removal, Uses};
use crate::engine::{Block, Job, State, Store, Work, system_refused, unknown_device};
use crate::machine::MemoryModel;

impl SimDevice {
    /// Gets memory and enters it in the table.
    fn add_block(
        &self,
        state: &mut State,
        call: Call,
        (kind, flags): (MemoryKind, PinnedFlags),
        (size, alignment): (Bytes, Alignment),
    ) -> Result<Address> {
        // Pinned memory is the host's: real even where the device's is phantom.
        let phantom = state.options.memory == MemoryModel::Phantom && kind == MemoryKind::Plain;
        let (store, address) = if phantom {
            let no_room = state.out_of_memory(self.ordinal, call, size);
            let address =
                state.space(call, self.ordinal)?.phantom(size, alignment).ok_or(no_room)?;
            (Store::phantom(), address)
        } else {
            let info = state.memory_info(self.ordinal);
            let store = Store::plain(size, alignment)
                .map_err(|errno| system_refused(call, size, info, errno))?;
            let address = store.address();
            (store, address)
        };
        let span = valid_span(call, "size", address, size)?;
        let space = state.space(call, self.ordinal)?;
        space.figures.add(kind, size);
        let owner = Block { store, uses: Uses::default() };
        space.book.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
        state.charge(call, size);
        Ok(address)
    }

    /// Takes a block out of the table, with the checker's word on it.
    fn take_block(
        &self,
        call: Call,
        argument: &'static str,
        address: Address,
        kind: MemoryKind,
    ) -> Result<()> {
        let (mut state, verdict) = self.engine.enter_release(self.ordinal, call)?;
        let space = state.space(call, self.ordinal)?;
        let block = space.book.remove_memory(call, argument, address, kind)?;
        let size = block.span.size();
        space.figures.subtract(kind, size);
        state.check_taken(call, block.span, Removal::All, &block.owner.uses);
        state.charge_wait(self.ordinal);
        state.charge(call, size);
        verdict
    }

    /// Refuses pinned memory of a sort this device does not have.
    fn check_pinned(&self, call: Call, flags: PinnedFlags) -> Result<()> {
        for (flag, capability) in [
            (PinnedFlags::MAPPED, Capabilities::PINNED_MAPPED),
            (PinnedFlags::WRITE_COMBINED, Capabilities::PINNED_WRITE_COMBINED),
        ] {
            if flags.contains(flag) {
                self.descriptor.check_capability(call, capability)?;
            }
        }
        Ok(())
    }
}

// SAFETY: blocks are ranges the system reserved for this store alone, or phantom addresses from a
// counter that only rises, so none overlap; both honour the alignment. Freeing removes the block
// from the table at once and waits for nothing.
unsafe impl Memory for SimDevice {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        let call = Call::Allocate;
        let mut state = self.engine.enter(self.ordinal, call, size)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        state.room(self.ordinal, call, size)?;
        let alignment = alignment.max(self.descriptor.alignment);
        let kind = (MemoryKind::Plain, PinnedFlags::empty());
        self.add_block(&mut state, call, kind, (size, alignment))
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        if address.is_null() {
            return self.engine.enter_release(self.ordinal, Call::Free)?.1;
        }
        self.take_block(Call::Free, "address", address, MemoryKind::Plain)
    }
}

// SAFETY: pinned memory is a range of the process, readable and writable and page-aligned; flags
// the device lacks are refused before anything is done; overlap of registered spans is looked up.
unsafe impl PinnedMemory for SimDevice {
    fn allocate_pinned(&self, size: Bytes, flags: PinnedFlags) -> Result<Address> {
        let call = Call::AllocatePinned;
        let mut state = self.engine.enter(self.ordinal, call, size)?;
        self.check_pinned(call, flags)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let shape = (size, Alignment::HOST_PAGE);
        self.add_block(&mut state, call, (MemoryKind::Pinned, flags), shape)
    }

    unsafe fn free_pinned(&self, address: Address) -> Result<()> {
        if address.is_null() {
            return self.engine.enter_release(self.ordinal, Call::FreePinned)?.1;
        }
        self.take_block(Call::FreePinned, "address", address, MemoryKind::Pinned)
    }

    unsafe fn register(&self, span: Span, flags: PinnedFlags) -> Result<()> {
        let call = Call::Register;
        let mut state = self.engine.enter(self.ordinal, call, span.size())?;
        self.descriptor.check_capability(call, Capabilities::REGISTER)?;
        self.check_pinned(call, flags)?;
        if span.is_empty() || span.start().is_null() {
            return Err(invalid(call, "span", span, "1 byte or more of mapped host memory"));
        }
        let space = state.space(call, self.ordinal)?;
        space.book.check_apart(span)?;
        // SAFETY: the caller promised that the span stays mapped until it is unregistered, and that
        // no operation uses it by then.
        let store = unsafe { Store::registered(span) };
        let (kind, owner) = (MemoryKind::Registered, Block { store, uses: Uses::default() });
        space.book.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
        state.charge(call, span.size());
        Ok(())
    }

    unsafe fn unregister(&self, start: Address) -> Result<()> {
        self.take_block(Call::Unregister, "start", start, MemoryKind::Registered)
    }

    fn device_address(&self, host: Address) -> Result<Address> {
        let call = Call::DeviceAddress;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        state.space(call, self.ordinal)?.book.mapped_host(host).map(|_| host)
    }
}

impl SimDevice {
    /// Checks that `span` lies in one managed allocation, and that `place` is a device or the host.
    fn managed_span(
        &self,
        state: &mut State,
        call: Call,
        span: Span,
        place: Option<DeviceOrdinal>,
    ) -> Result<()> {
        let count = state.spaces.len();
        if let Some(device) = place.filter(|device| device.0 as usize >= count) {
            return Err(unknown_device(call, device, count));
        }
        state.space(call, self.ordinal)?.book.check_managed(call, span)
    }
}

// SAFETY: managed memory is a range of the process, and the simulated device uses that very range:
// there is nowhere else for the data to be, so advice and prefetching cannot change it.
unsafe impl ManagedMemory for SimDevice {
    fn allocate_managed(&self, size: Bytes) -> Result<Address> {
        let call = Call::AllocateManaged;
        let mut state = self.engine.enter(self.ordinal, call, size)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        state.room(self.ordinal, call, size)?;
        let shape = (size, Alignment::HOST_PAGE);
        let kind = (MemoryKind::Managed, PinnedFlags::empty());
        self.add_block(&mut state, call, kind, shape)
    }

    unsafe fn free_managed(&self, address: Address) -> Result<()> {
        if address.is_null() {
            return self.engine.enter_release(self.ordinal, Call::FreeManaged)?.1;
        }
        self.take_block(Call::FreeManaged, "address", address, MemoryKind::Managed)
    }

    fn prefetch(&self, span: Span, to: Option<DeviceOrdinal>, stream: StreamHandle) -> Result<()> {
        let call = Call::Prefetch;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let stream = state.stream(call, self.ordinal, stream)?;
        self.managed_span(&mut state, call, span, to)?;
        let job = Job::named(call.name());
        state.enqueue(stream, job, Work::Nothing);
        drop(self.engine.relieve(state, stream));
        Ok(())
    }

    fn advise(&self, span: Span, advice: Advice) -> Result<()> {
        let call = Call::Advise;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let place = match advice {
            Advice::PreferredLocation(place)
            | Advice::AccessedBy(place)
            | Advice::NotAccessedBy(place) => place,
            _ => None,
        };
        self.managed_span(&mut state, call, span, place)
    }
}
