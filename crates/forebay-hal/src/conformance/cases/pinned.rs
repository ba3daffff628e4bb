//! Pinned host memory.

use forebay_core::{Address, Alignment, Bytes, Span};

use super::prelude::*;
use crate::{
    Access, Call, Capabilities, Copy, Location, PageOptions, PinnedFlags, PointerKind, StreamHandle,
};

cases! { Pinned "pinned":
    zero_pinned_bytes_is_null needs PINNED,
    the_host_reads_and_writes_pinned_memory needs PINNED,
    copies_to_and_from_pinned_memory needs PINNED | DATA,
    many_copies_at_once_are_each_of_them needs PINNED | DATA,
    pinned_memory_is_known_as_such needs PINNED,
    pinned_memory_is_not_held needs PINNED,
    flags_are_honoured_or_refused needs PINNED,
    mapped_memory_has_a_device_address needs PINNED | PINNED_MAPPED | DATA,
    device_address_of_other_memory_is_refused needs PINNED | PINNED_MAPPED,
    double_free_of_pinned_memory_is_refused needs PINNED,
    free_of_other_memory_as_pinned_is_refused needs PINNED,
    absurd_pinned_sizes_are_refused needs PINNED,
    registered_memory_can_be_copied needs PINNED | REGISTER | DATA,
    registering_twice_is_refused needs PINNED | REGISTER | DATA,
    unregistering_what_is_not_is_refused needs PINNED | REGISTER,
    registering_is_refused_where_it_is_not_supported needs PINNED,
    pinned_pages_are_host_memory needs PINNED | VIRTUAL_MEMORY | DATA,
}

/// All flags there are, with the capability each needs.
const FLAGS: [(PinnedFlags, Capabilities); 3] = [
    (PinnedFlags::MAPPED, Capabilities::PINNED_MAPPED),
    (PinnedFlags::WRITE_COMBINED, Capabilities::PINNED_WRITE_COMBINED),
    (PinnedFlags::PORTABLE, Capabilities::PINNED),
];

fn raw_free(bench: &Bench, address: Address) -> crate::Result<()> {
    let Some(memory) = bench.device().pinned_memory() else { return Ok(()) };
    // SAFETY: no work uses the address; where the call must be refused, it is none of its own.
    unsafe { memory.free_pinned(address) }
}

fn raw_register(bench: &Bench, span: Span) -> crate::Result<()> {
    let Some(memory) = bench.device().pinned_memory() else { return Ok(()) };
    // SAFETY: cases pass spans of host memory that the bench keeps to their end, and the call must
    // be refused.
    unsafe { memory.register(span, PinnedFlags::empty()) }
}

fn raw_unregister(bench: &Bench, start: Address) -> crate::Result<()> {
    let Some(memory) = bench.device().pinned_memory() else { return Ok(()) };
    // SAFETY: no work is under way.
    unsafe { memory.unregister(start) }
}

fn zero_pinned_bytes_is_null(bench: &Bench) -> Verdict {
    let memory = bench.pinned_memory()?.allocate_pinned(Bytes::ZERO, PinnedFlags::empty())?;
    ensure_equal!("the address of no bytes", memory, Address::NULL);
    raw_free(bench, Address::NULL)?;
    raw_free(bench, Address::NULL)?;
    Ok(())
}

fn the_host_reads_and_writes_pinned_memory(bench: &Bench) -> Verdict {
    for size in [1, 511, 4095, 4097, 100_003] {
        let memory = bench.allocate_pinned(size, PinnedFlags::empty())?;
        ensure!(
            memory.is_aligned_to(Alignment::HOST_PAGE),
            "{size} B of pinned memory are at {memory}, which is no page's start"
        );
        host_write(memory, &picture(size, size))?;
        ensure_bytes("pinned memory", &host_read(memory, size)?, &picture(size, size))?;
    }
    Ok(())
}

fn copies_to_and_from_pinned_memory(bench: &Bench) -> Verdict {
    let (size, stream) = (100_003, bench.stream()?);
    let from = bench.allocate_pinned(size, PinnedFlags::empty())?;
    let to = bench.allocate_pinned(size, PinnedFlags::empty())?;
    let memory = bench.allocate(size)?;
    for round in 0..5 {
        host_write(from, &picture(round, size))?;
        bench.copy(device(memory, 0), Location::Host(from), size, stream)?;
        bench.copy(Location::Host(to), device(memory, 0), size, stream)?;
        bench.synchronize(stream)?;
        let found = host_read(to, size)?;
        ensure_bytes(&format!("round {round}"), &found, &picture(round, size))?;
    }
    Ok(())
}

fn many_copies_at_once_are_each_of_them(bench: &Bench) -> Verdict {
    // Every other block of `SIZE`, to places in the opposite order; then a copy of nothing, and one alone.
    const COUNT: u64 = 300;
    const SIZE: u64 = 97;
    let (stream, total) = (bench.stream()?, 2 * COUNT * SIZE);
    for stream in [stream, StreamHandle::DEFAULT] {
        let (background, bytes) = (picture(31, total), picture(32, total));
        let memory = bench.allocate(total)?;
        let (from, to) = (
            bench.allocate_pinned(total, PinnedFlags::empty())?,
            bench.allocate_pinned(total, PinnedFlags::empty())?,
        );
        host_write(from, &bytes)?;
        host_write(to, &background)?;
        bench.write(memory, &background)?;
        let there = |block: u64| (COUNT - 1 - block) * 2 * SIZE;
        let host = |address, offset| Location::Host(at(address, offset));
        let size = Bytes::new(SIZE);
        let up = |block: u64| {
            Copy::linear(device(memory, there(block)), host(from, block * 2 * SIZE), size)
        };
        let down = |block: u64| {
            Copy::linear(host(to, there(block)), device(memory, block * 2 * SIZE), size)
        };
        let nothing = Copy::linear(device(memory, 0), host(from, 0), Bytes::ZERO)?;
        let mut ups = (0..COUNT).map(up).collect::<crate::Result<Vec<_>>>()?;
        ups.push(nothing);
        let downs = (0..COUNT).map(down).collect::<crate::Result<Vec<_>>>()?;
        for copies in [ups.as_slice(), downs.as_slice(), &ups[..1], &[nothing], &[]] {
            // SAFETY: memory of the bench, which is kept to the end of the case, and of which each byte is written by
            // one copy at most.
            unsafe { bench.device().copy_all(copies, stream) }?;
        }
        bench.synchronize(stream)?;
        let mut right = (background.clone(), background);
        let block = |offset: u64| Ok::<_, Failure>(index(offset)?..index(offset + SIZE)?);
        for number in 0..COUNT {
            let bytes = &bytes[block(number * 2 * SIZE)?];
            right.0[block(there(number))?].copy_from_slice(bytes);
            right.1[block((number * 2) * SIZE)?].copy_from_slice(bytes);
        }
        bench.ensure_holds("on the device", memory, &right.0)?;
        ensure_bytes("on the host", &host_read(to, total)?, &right.1)?;
    }
    Ok(())
}

fn pinned_memory_is_known_as_such(bench: &Bench) -> Verdict {
    let size = 10_000;
    let memory = bench.allocate_pinned(size, PinnedFlags::empty())?;
    let known = |start: Address, size: u64| -> Step<bool> {
        let span = Span::new(start, Bytes::new(size))
            .map_err(|error| crate::Error::quantity(Call::Classify, "span", &error))?;
        Ok(bench.device().is_pinned(span))
    };
    ensure!(known(memory, size)?, "all of it is pinned, and not known to be");
    ensure!(known(at(memory, 4097), size - 4097)?, "a part of it is pinned, and not known to be");
    ensure!(!known(memory, 0)?, "no memory is known as pinned");
    ensure!(!known(memory, 1 << 40)?, "what reaches past it is known as pinned");
    let ordinary = bench.host(&picture(41, size));
    ensure!(!known(ordinary.location().address(), size)?, "ordinary memory is known as pinned");
    Ok(())
}

fn pinned_memory_is_not_held(bench: &Bench) -> Verdict {
    // It is the host's memory: the device has not given any of its own.
    let memory = bench.allocate_pinned(1 << 20, PinnedFlags::empty())?;
    ensure_equal!("bytes held for pinned memory", bench.held()?, Bytes::ZERO);
    bench.free_pinned(memory)
}

fn flags_are_honoured_or_refused(bench: &Bench) -> Verdict {
    let capabilities = bench.device().descriptor().capabilities;
    for (flag, capability) in FLAGS {
        let result = bench.pinned_memory()?.allocate_pinned(Bytes::new(4096), flag);
        if capabilities.contains(capability) {
            raw_free(bench, result?)?;
        } else {
            unsupported(Call::AllocatePinned, &format!("{flag:?}"), result)?;
        }
    }
    Ok(())
}

fn mapped_memory_has_a_device_address(bench: &Bench) -> Verdict {
    let size = 70_001;
    let host = bench.allocate_pinned(size, PinnedFlags::MAPPED)?;
    let there = bench.pinned_memory()?.device_address(host)?;
    let last = bench.pinned_memory()?.device_address(at(host, size - 1))?;
    ensure_equal!("the device's address of the last byte", last, at(there, size - 1));
    // The device reads what the host wrote, and the host what the device wrote.
    host_write(host, &picture(1, size))?;
    bench.ensure_holds("seen by the device", there, &picture(1, size))?;
    bench.write(there, &picture(2, size))?;
    ensure_bytes("seen by the host", &host_read(host, size)?, &picture(2, size))?;
    bench.fill(there, size, 0x66, StreamHandle::DEFAULT)?;
    bench.synchronize(StreamHandle::DEFAULT)?;
    let found = host_read(host, size)?;
    ensure_bytes("filled by the device", &found, &vec![0x66; found.len()])
}

fn device_address_of_other_memory_is_refused(bench: &Bench) -> Verdict {
    let (memory, ordinary) = (bench.allocate(4096)?, bench.blank(64, 0)?);
    let freed = bench.allocate_pinned(4096, PinnedFlags::MAPPED)?;
    bench.free_pinned(freed)?;
    for (what, address) in [
        ("null", Address::NULL),
        ("plain device memory", memory),
        ("ordinary host memory", ordinary.address()),
        ("freed pinned memory", freed),
    ] {
        invalid(Call::DeviceAddress, what, bench.pinned_memory()?.device_address(address))?;
    }
    Ok(())
}

fn double_free_of_pinned_memory_is_refused(bench: &Bench) -> Verdict {
    let memory = bench.allocate_pinned(8192, PinnedFlags::empty())?;
    let inner = raw_free(bench, at(memory, 4096));
    invalid(Call::FreePinned, "the inside of pinned memory", inner)?;
    bench.free_pinned(memory)?;
    invalid(Call::FreePinned, "freed pinned memory", raw_free(bench, memory))
}

fn free_of_other_memory_as_pinned_is_refused(bench: &Bench) -> Verdict {
    let (memory, ordinary) = (bench.allocate(4096)?, bench.blank(64, 0)?);
    let pinned = bench.allocate_pinned(4096, PinnedFlags::empty())?;
    invalid(Call::FreePinned, "plain device memory", raw_free(bench, memory))?;
    invalid(Call::FreePinned, "ordinary host memory", raw_free(bench, ordinary.address()))?;
    // SAFETY: no work uses it; the call must be refused.
    let freed = unsafe { bench.device().free(pinned) };
    invalid(Call::Free, "pinned memory", freed)
}

fn absurd_pinned_sizes_are_refused(bench: &Bench) -> Verdict {
    for size in [u64::MAX, u64::MAX - 4095, 1 << 63, 1 << 60] {
        let size = Bytes::new(size);
        let result = bench.pinned_memory()?.allocate_pinned(size, PinnedFlags::empty());
        if let Err(crate::Error::OutOfMemory { requested, .. }) = &result {
            ensure_equal!("the size in the error", *requested, size);
        }
        refused(Call::AllocatePinned, &format!("{} B", size.get()), result)?;
    }
    Ok(())
}

fn registered_memory_can_be_copied(bench: &Bench) -> Verdict {
    let (size, memory) = (70_001, bench.allocate(70_001)?);
    let (from, to) = (bench.host(&picture(1, size)), bench.blank(size, 0)?);
    for bytes in [&from, &to] {
        bench.register(bytes)?;
    }
    bench.copy(device(memory, 0), from.location(), size, StreamHandle::DEFAULT)?;
    bench.copy(to.location(), device(memory, 0), size, StreamHandle::DEFAULT)?;
    bench.synchronize(StreamHandle::DEFAULT)?;
    to.ensure("through registered memory", &picture(1, size))?;
    // It is the owner's again afterwards, bytes and all.
    for bytes in [&from, &to] {
        bench.unregister(bytes.address())?;
    }
    from.ensure("no longer registered", &picture(1, size))
}

fn registering_twice_is_refused(bench: &Bench) -> Verdict {
    let bytes = bench.host(&picture(1, 64 << 10));
    let whole = bench.register(&bytes)?;
    let inner = Span::new(at(whole.start(), 4096), Bytes::new(8192))?;
    for (what, span) in [("registered memory", whole), ("a part of registered memory", inner)] {
        invalid(Call::Register, what, raw_register(bench, span))?;
    }
    // The first stands as it was: known, and undone once.
    let class = bench.device().classify(whole.start())?;
    ensure_equal!("its span", class.map(|class| class.span), Some(whole));
    bytes.ensure("its bytes", &picture(1, 64 << 10))?;
    bench.unregister(whole.start())?;
    bench.register(&bytes)?;
    Ok(())
}

fn unregistering_what_is_not_is_refused(bench: &Bench) -> Verdict {
    let (bytes, ordinary) = (bench.blank(64 << 10, 0)?, bench.blank(64, 0)?);
    let span = bench.register(&bytes)?;
    let inner = raw_unregister(bench, at(span.start(), 4096));
    invalid(Call::Unregister, "the inside of registered memory", inner)?;
    let ordinary = raw_unregister(bench, ordinary.address());
    invalid(Call::Unregister, "memory never registered", ordinary)?;
    invalid(Call::FreePinned, "registered memory", raw_free(bench, span.start()))?;
    bench.unregister(span.start())?;
    let again = raw_unregister(bench, span.start());
    invalid(Call::Unregister, "memory no longer registered", again)?;
    let pinned = bench.allocate_pinned(4096, PinnedFlags::empty())?;
    invalid(Call::Unregister, "pinned memory", raw_unregister(bench, pinned))
}

fn registering_is_refused_where_it_is_not_supported(bench: &Bench) -> Verdict {
    let capabilities = bench.device().descriptor().capabilities;
    let bytes = bench.blank(64 << 10, 0)?;
    let span = Span::new(bytes.address(), bytes.size())?;
    if !capabilities.contains(Capabilities::REGISTER) {
        return unsupported(Call::Register, "host memory", raw_register(bench, span));
    }
    for (flag, capability) in FLAGS {
        // SAFETY: the bench keeps the bytes to the end of the case, and they are unregistered
        // before.
        let result = unsafe { bench.pinned_memory()?.register(span, flag) };
        // Memory that exists was not born write-combined: few devices can make it so, and the
        // capability is about memory they allocate.
        let may_refuse = flag == PinnedFlags::WRITE_COMBINED;
        if capabilities.contains(capability) && !(may_refuse && result.is_err()) {
            result?;
            raw_unregister(bench, span.start())?;
        } else {
            unsupported(Call::Register, &format!("{flag:?}"), result)?;
        }
    }
    Ok(())
}

fn pinned_pages_are_host_memory(bench: &Bench) -> Verdict {
    let Some(memory) = bench.device().virtual_memory() else { return Ok(()) };
    let (grain, ordinal) = (bench.grain()?, bench.device().descriptor().ordinal);
    let make = || memory.create_page(Bytes::new(grain), PageOptions::pinned());
    if !bench.device().descriptor().capabilities.contains(Capabilities::PINNED_PAGES) {
        return unsupported(Call::CreatePage, "a pinned page", make());
    }
    let (region, there) = (bench.region(2 * grain)?, bench.allocate(10_000)?);
    let held = bench.device().memory_info()?.held;
    let pages = [make()?, make()?];
    ensure_equal!("the bytes held", bench.device().memory_info()?.held, held);
    for (page, start) in pages.into_iter().zip([region.start(), at(region.start(), grain)]) {
        memory.map(start, page)?;
    }
    let span = Span::new(region.start(), Bytes::new(2 * grain))?;
    // SAFETY: nobody uses the mappings yet.
    unsafe { memory.set_access(span, Access::ReadWrite, ordinal) }?;
    let class = bench.device().classify(region.start())?;
    let known = class.map(|class| (class.kind, class.span.size()));
    ensure_equal!("what lies there", known, Some((PointerKind::Pinned, Bytes::new(grain))));
    // Across the border of the two pages, as it is at least 4 KiB long.
    let (size, stream) = (6000, StreamHandle::DEFAULT);
    let from = at(region.start(), grain - 3000);
    host_write(from, &picture(1, size))?;
    bench.copy(device(there, 0), Location::Host(from), size, stream)?;
    bench.synchronize(stream)?;
    host_write(from, &picture(2, size))?;
    bench.copy(Location::Host(from), device(there, 0), size, stream)?;
    bench.synchronize(stream)?;
    ensure_bytes("what came back", &host_read(from, size)?, &picture(1, size))?;
    // SAFETY: no work uses the mappings any more.
    unsafe { memory.unmap(span) }?;
    pages.into_iter().try_for_each(|page| memory.release_page(page))?;
    Ok(())
}
