//! The books of a device: which memory it has, and where.
//!
//! Plain memory goes by the GPU's addresses, pinned and registered memory by the host's; the GPU has addresses for that
//! too, which copies may name. Generic over the buffer, so that it is tested where there is no Metal.

use core::ops::Bound::{Included, Unbounded};
use std::collections::BTreeMap;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Call, PinnedFlags, PointerClass, PointerKind, Result, invalid};

/// A place in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BufferOffset<B> {
    pub(crate) buffer: B,
    /// From the buffer's first byte.
    pub(crate) offset: u64,
}

/// Memory that was given out.
#[derive(Debug)]
struct Piece<B> {
    span: Span,
    location: BufferOffset<B>,
}

/// Host memory that the device reaches.
#[derive(Debug)]
struct HostPiece<B> {
    piece: Piece<B>,
    /// The GPU's address of its first byte.
    device: Address,
    flags: PinnedFlags,
    whose: Whose,
}

/// Who allocated host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This device.
    Ours,
    /// The program, which registered it.
    Theirs,
}

/// What a device has.
#[derive(Debug)]
pub(crate) struct Space<B> {
    plain: BTreeMap<Address, Piece<B>>,
    host: BTreeMap<Address, HostPiece<B>>,
    /// The host's address by the GPU's, of all in `host`.
    mapped: BTreeMap<Address, Address>,
    held: Bytes,
}

impl<B> Default for Space<B> {
    fn default() -> Self {
        Self {
            plain: BTreeMap::new(),
            host: BTreeMap::new(),
            mapped: BTreeMap::new(),
            held: Bytes::ZERO,
        }
    }
}

/// The last entry that begins at `address` or before.
fn before<V>(map: &BTreeMap<Address, V>, address: Address) -> Option<(&Address, &V)> {
    map.range((Unbounded, Included(address))).next_back()
}

impl<B: Clone> Piece<B> {
    /// Where `span` is, if all of it lies in the piece.
    fn locate(&self, span: Span) -> Option<BufferOffset<B>> {
        let offset = span.start().offset_from(self.span.start())?;
        let offset = self.location.offset.checked_add(offset.get())?;
        let inside = self.span.contains_span(span);
        inside.then(|| BufferOffset { buffer: self.location.buffer.clone(), offset })
    }
}

impl<B: Clone> Space<B> {
    /// What the device holds of its memory.
    pub(crate) fn held(&self) -> Bytes {
        self.held
    }

    /// Enters plain memory at the GPU's addresses `span`.
    pub(crate) fn insert_plain(&mut self, span: Span, location: BufferOffset<B>) {
        self.held = self.held.saturating_add(span.size());
        self.plain.insert(span.start(), Piece { span, location });
    }

    /// Takes plain memory out, by its first address.
    pub(crate) fn remove_plain(&mut self, address: Address) -> Result<B> {
        let Some(piece) = self.plain.remove(&address) else {
            let allowed = "the address of live memory that allocate returned";
            return Err(invalid(Call::Free, "address", address, allowed));
        };
        self.held = self.held.saturating_sub(piece.span.size());
        Ok(piece.location.buffer)
    }

    /// Refuses host memory that shares a byte with what the device knows.
    pub(crate) fn check_apart(&self, span: Span) -> Result<()> {
        let last = Address::new(span.end().get().saturating_sub(1));
        match before(&self.host, last) {
            Some((_, other)) if other.piece.span.overlaps(span) => {
                let given = format!("{span}, of which {} is pinned", other.piece.span);
                let allowed = "memory that this device has not pinned";
                Err(invalid(Call::Register, "span", given, allowed))
            }
            _ => Ok(()),
        }
    }

    /// Enters host memory `span` that the GPU knows at `device`.
    pub(crate) fn insert_host(
        &mut self,
        span: Span,
        device: Address,
        location: BufferOffset<B>,
        flags: PinnedFlags,
        whose: Whose,
    ) {
        let piece = Piece { span, location };
        self.mapped.insert(device, span.start());
        self.host.insert(span.start(), HostPiece { piece, device, flags, whose });
    }

    /// Takes host memory out, by its first address.
    pub(crate) fn remove_host(&mut self, call: Call, start: Address, whose: Whose) -> Result<B> {
        if self.host.get(&start).is_none_or(|piece| piece.whose != whose) {
            let (argument, allowed) = match whose {
                Whose::Ours => {
                    ("address", "the address of live memory that allocate_pinned returned")
                }
                Whose::Theirs => ("start", "the first address of memory that is registered"),
            };
            return Err(invalid(call, argument, start, allowed));
        }
        let removed = self.host.remove(&start).map(|piece| {
            self.mapped.remove(&piece.device);
            piece.piece.location.buffer
        });
        removed.ok_or_else(|| invalid(call, "address", start, "live memory"))
    }

    /// Where memory at the GPU's addresses `span` is: plain, or pinned and mapped.
    pub(crate) fn on_device(&self, span: Span) -> Option<BufferOffset<B>> {
        let plain = before(&self.plain, span.start()).and_then(|(_, piece)| piece.locate(span));
        plain.or_else(|| {
            let (device, host) = before(&self.mapped, span.start())?;
            let offset = span.start().offset_from(*device)?;
            let found = self.host.get(host)?;
            if !found.flags.contains(PinnedFlags::MAPPED) {
                return None;
            }
            let span = Span::new(host.checked_add(offset)?, span.size()).ok()?;
            found.piece.locate(span)
        })
    }

    /// Where host memory is, if the device reaches all of it in one piece.
    pub(crate) fn on_host(&self, span: Span) -> Option<BufferOffset<B>> {
        before(&self.host, span.start()).and_then(|(_, found)| found.piece.locate(span))
    }

    /// The GPU's address of mapped host memory.
    pub(crate) fn device_address(&self, host: Address) -> Result<Address> {
        let found = before(&self.host, host).map(|(_, found)| found).filter(|found| {
            found.piece.span.contains(host) && found.flags.contains(PinnedFlags::MAPPED)
        });
        let device = found.and_then(|found| {
            found.device.checked_add(host.offset_from(found.piece.span.start())?)
        });
        let allowed = "an address inside pinned or registered memory that is mapped";
        device.ok_or_else(|| invalid(Call::DeviceAddress, "host", host, allowed))
    }

    /// What the device knows of an address: of the GPU's for plain memory, of the host's for pinned.
    pub(crate) fn classify(&self, address: Address) -> Option<PointerClass> {
        let class =
            |kind, span: Span| span.contains(address).then_some(PointerClass { kind, span });
        let plain = before(&self.plain, address);
        plain.and_then(|(_, piece)| class(PointerKind::Device, piece.span)).or_else(|| {
            let (_, found) = before(&self.host, address)?;
            class(PointerKind::Pinned, found.piece.span)
        })
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
            Whose::Ours,
        );
        space.insert_host(
            span(0x9000, 0x100),
            Address::new(0x500),
            location("p", 0),
            plain,
            Whose::Ours,
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
        let free = |space: &mut Space<_>, whose| {
            space.remove_host(Call::FreePinned, Address::new(0x8000), whose)
        };
        assert!(free(&mut space, Whose::Theirs).is_err(), "it was not registered");
        assert_eq!(free(&mut space, Whose::Ours), Ok("m"));
        assert!(free(&mut space, Whose::Ours).is_err());
        assert_eq!(space.on_device(span(0x20, 1)), None);
    }

    #[test]
    fn memory_is_registered_once() {
        let mut space = Space::default();
        let flags = PinnedFlags::empty();
        space.insert_host(
            span(0x4000, 0x1000),
            Address::new(1),
            location("r", 0),
            flags,
            Whose::Theirs,
        );
        for taken in [span(0x4000, 1), span(0x3fff, 2), span(0x4fff, 1), span(0x3000, 0x4000)] {
            assert!(space.check_apart(taken).is_err(), "{taken}");
        }
        for free in [span(0x3fff, 1), span(0x5000, 1)] {
            assert_eq!(space.check_apart(free), Ok(()), "{free}");
        }
    }
}
