//! The address books of a device.
//!
//! Plain memory is keyed by the GPU's addresses, pinned and registered memory by the host's. The GPU has addresses for
//! the latter too, which copies may name. Generic over the buffer, so that it can be tested without Metal.

use forebay_core::{Address, Bytes, Span};
use forebay_hal::address_book::{AddressBook, Entry, MemoryEntry, MemoryKind};
use forebay_hal::{Call, PinnedFlags, PointerClass, PointerKind, Result};

/// A place in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BufferOffset<B> {
    pub(crate) buffer: B,
    /// From the buffer's first byte.
    pub(crate) offset: u64,
}

/// Host memory, and the GPU's address of its first byte.
#[derive(Debug)]
struct HostBuffer<B> {
    location: BufferOffset<B>,
    device: Address,
}

/// What a device has.
#[derive(Debug)]
pub(crate) struct Space<B> {
    /// By the GPU's addresses: plain memory, and host memory that is mapped.
    device: AddressBook<BufferOffset<B>>,
    /// Pinned and registered memory, by the host's addresses.
    host: AddressBook<HostBuffer<B>>,
    held: Bytes,
}

impl<B> Default for Space<B> {
    fn default() -> Self {
        Self { device: AddressBook::default(), host: AddressBook::default(), held: Bytes::ZERO }
    }
}

impl<B: Clone> BufferOffset<B> {
    /// The place of `address` in memory that begins at `start`, here.
    fn advance(&self, start: Address, address: Address) -> Option<Self> {
        let offset = self.offset.checked_add(address.offset_from(start)?.get())?;
        Some(Self { buffer: self.buffer.clone(), offset })
    }
}

impl<B: Clone> Space<B> {
    /// What the device holds of its memory.
    pub(crate) fn held(&self) -> Bytes {
        self.held
    }

    /// Enters plain memory at the GPU's addresses `span`.
    pub(crate) fn insert_plain(&mut self, span: Span, owner: BufferOffset<B>) {
        self.held = self.held.saturating_add(span.size());
        let (kind, flags) = (MemoryKind::Plain, PinnedFlags::empty());
        self.device.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
    }

    /// Takes plain memory out, by its first address.
    pub(crate) fn remove_plain(&mut self, address: Address) -> Result<B> {
        let kind = MemoryKind::Plain;
        let memory = self.device.remove_memory(Call::Free, "address", address, kind)?;
        self.held = self.held.saturating_sub(memory.span.size());
        Ok(memory.owner.buffer)
    }

    /// Refuses host memory that shares a byte with what the device knows.
    pub(crate) fn check_apart(&self, span: Span) -> Result<()> {
        self.host.check_apart(span)
    }

    /// Enters host memory `span` that the GPU knows at `device`.
    pub(crate) fn insert_host(
        &mut self,
        span: Span,
        device: Address,
        location: BufferOffset<B>,
        flags: PinnedFlags,
        kind: MemoryKind,
    ) {
        if flags.contains(PinnedFlags::MAPPED)
            && let Ok(span) = Span::new(device, span.size())
        {
            let owner = location.clone();
            self.device.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
        }
        let owner = HostBuffer { location, device };
        self.host.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
    }

    /// Takes host memory out, by its first address.
    pub(crate) fn remove_host(
        &mut self,
        call: Call,
        start: Address,
        kind: MemoryKind,
    ) -> Result<B> {
        let argument = if call == Call::Unregister { "start" } else { "address" };
        let memory = self.host.remove_memory(call, argument, start, kind)?;
        self.device.take_memory(memory.owner.device, kind);
        Ok(memory.owner.location.buffer)
    }

    /// Where memory at the GPU's addresses `span` is: plain, or pinned and mapped.
    pub(crate) fn on_device(&self, span: Span) -> Option<BufferOffset<B>> {
        let memory = self.device.memory_of(span)?;
        memory.owner.advance(memory.span.start(), span.start())
    }

    /// Where host memory is, if the device reaches all of it in one piece.
    pub(crate) fn on_host(&self, span: Span) -> Option<BufferOffset<B>> {
        let memory = self.host.memory_of(span)?;
        memory.owner.location.advance(memory.span.start(), span.start())
    }

    /// The GPU's address of mapped host memory.
    pub(crate) fn device_address(&self, host: Address) -> Result<Address> {
        let memory = self.host.mapped_host(host)?;
        let inside = host.offset_from(memory.span.start()).unwrap_or_default();
        Ok(memory.owner.device.checked_add(inside).unwrap_or(memory.owner.device))
    }

    /// What the device knows of an address: of the GPU's for plain memory, of the host's for pinned.
    pub(crate) fn classify(&self, address: Address) -> Option<PointerClass> {
        let plain = self.device.classify(address);
        let plain = plain.filter(|class| class.kind == PointerKind::Device);
        plain.or_else(|| self.host.classify(address))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

    use super::*;

    fn span(start: u64, size: u64) -> Span {
        Span::new(Address::new(start), Bytes::new(size)).unwrap()
    }

    fn location(buffer: &'static str, offset: u64) -> BufferOffset<&'static str> {
        BufferOffset { buffer, offset }
    }

    #[test]
    fn plain_memory_is_found_by_any_part_of_it_until_it_is_freed() {
        let mut space = Space::default();
        space.insert_plain(span(0x1000, 0x100), location("a", 16));
        space.insert_plain(span(0x1100, 0x100), location("b", 0));
        assert_eq!(space.held(), Bytes::new(0x200));
        assert_eq!(space.on_device(span(0x1000, 0x100)), Some(location("a", 16)));
        assert_eq!(space.on_device(span(0x10ff, 1)), Some(location("a", 16 + 0xff)));
        assert_eq!(space.on_device(span(0x10ff, 2)), None, "it ends in another buffer");
        assert_eq!(space.on_device(span(0xfff, 1)), None);
        assert_eq!(space.classify(Address::new(0x11ff)).unwrap().span, span(0x1100, 0x100));
        assert!(space.remove_plain(Address::new(0x1001)).is_err(), "not its first byte");
        assert_eq!(space.remove_plain(Address::new(0x1000)), Ok("a"));
        assert!(space.remove_plain(Address::new(0x1000)).is_err(), "freed already");
        assert_eq!(space.on_device(span(0x1000, 1)), None);
        assert_eq!(space.held(), Bytes::new(0x100));
    }

    #[test]
    fn pinned_memory_is_found_by_both_addresses_where_it_is_mapped() {
        let mut space = Space::default();
        let (mapped, plain) = (PinnedFlags::MAPPED, PinnedFlags::empty());
        space.insert_host(
            span(0x8000, 0x100),
            Address::new(0x10),
            location("m", 4),
            mapped,
            MemoryKind::Pinned,
        );
        space.insert_host(
            span(0x9000, 0x100),
            Address::new(0x500),
            location("p", 0),
            plain,
            MemoryKind::Pinned,
        );
        assert_eq!(space.on_host(span(0x8010, 0xf0)), Some(location("m", 0x14)));
        assert_eq!(space.on_device(span(0x20, 0xf0)), Some(location("m", 0x14)));
        assert_eq!(space.on_device(span(0x20, 0xf1)), None);
        assert_eq!(space.device_address(Address::new(0x8001)), Ok(Address::new(0x11)));
        assert_eq!(space.on_device(span(0x500, 1)), None, "it is not mapped");
        assert!(space.device_address(Address::new(0x9000)).is_err());
        assert!(space.device_address(Address::new(0x8100)).is_err(), "past its end");
        assert_eq!(space.classify(Address::new(0x8000)).unwrap().kind, PointerKind::Pinned);
        assert_eq!(space.held(), Bytes::ZERO, "the host's memory is not the device's");
        assert!(space.check_apart(span(0x80ff, 1)).is_err(), "it is pinned already");
        assert_eq!(space.check_apart(span(0x8100, 1)), Ok(()));
        let free = |space: &mut Space<_>, kind| {
            space.remove_host(Call::FreePinned, Address::new(0x8000), kind)
        };
        assert!(free(&mut space, MemoryKind::Registered).is_err(), "it was not registered");
        assert_eq!(free(&mut space, MemoryKind::Pinned), Ok("m"));
        assert!(free(&mut space, MemoryKind::Pinned).is_err());
        assert_eq!(space.on_device(span(0x20, 1)), None);
    }
}
