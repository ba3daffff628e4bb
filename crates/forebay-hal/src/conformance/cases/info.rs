//! What the device reports about itself and about addresses.

use forebay_core::{Address, Bytes, MIB, Span};

use super::prelude::*;
use crate::{Capabilities, PointerClass, PointerKind};

cases! { Info "info":
    the_descriptor_is_filled_in_and_fixed,
    groups_are_given_exactly_where_their_bits_are,
    total_is_constant_and_not_zero,
    free_and_held_never_exceed_total,
    free_shrinks_by_what_is_held,
    plain_memory_is_classified_to_its_last_byte,
    memory_of_others_is_not_classified,
    freed_memory_is_not_classified,
    neighbours_are_classified_apart,
    regions_are_classified_by_what_is_mapped needs VIRTUAL_MEMORY,
    pinned_memory_is_classified needs PINNED,
    registered_memory_is_classified needs PINNED | REGISTER,
    managed_memory_is_classified needs MANAGED,
    a_fresh_device_holds_nothing,
}

/// What the device knows of an address that must be known.
fn class(bench: &Bench, address: Address) -> Step<PointerClass> {
    bench
        .device()
        .classify(address)?
        .ok_or_else(|| Failure::new(format!("the device does not know {address}, which it gave")))
}

/// Every one of `size` bytes from `start` is of `kind`, in one span that begins there.
fn ensure_known(bench: &Bench, kind: PointerKind, start: Address, size: u64) -> Verdict {
    for offset in [0, size / 2, size - 1] {
        let address = Address::new(start.get() + offset);
        let found = class(bench, address)?;
        ensure_equal!(format!("the kind of byte {offset}"), found.kind, kind);
        ensure_equal!(format!("the start of what byte {offset} is in"), found.span.start(), start);
        ensure!(
            found.span.size() >= Bytes::new(size),
            "{size} B at {start} lie in a span of only {}",
            found.span
        );
        let beyond = bench.device().classify(found.span.end())?;
        ensure!(
            beyond.is_none_or(|beyond| beyond.kind != kind || !beyond.span.overlaps(found.span)),
            "the byte after {} is said to lie in {beyond:?}",
            found.span
        );
    }
    Ok(())
}

fn ensure_unknown(bench: &Bench, what: &str, address: Address) -> Verdict {
    let found = bench.device().classify(address)?;
    ensure!(found.is_none(), "{what} at {address} is said to be {found:?}");
    Ok(())
}

fn the_descriptor_is_filled_in_and_fixed(bench: &Bench) -> Verdict {
    let before = bench.device().descriptor().clone();
    ensure!(!before.name.is_empty(), "the device has no name");
    let memory = bench.allocate(MIB)?;
    bench.free(memory)?;
    ensure_equal!("the descriptor after some use", bench.device().descriptor(), &before);
    let kind = before.kind.name();
    ensure!(before.to_string().starts_with(kind), "{before} does not begin with its kind, {kind}");
    Ok(())
}

fn groups_are_given_exactly_where_their_bits_are(bench: &Bench) -> Verdict {
    let device = bench.device();
    let bits = device.descriptor().capabilities;
    let given = [
        (Capabilities::VIRTUAL_MEMORY, device.virtual_memory().is_some()),
        (Capabilities::PINNED, device.pinned_memory().is_some()),
        (Capabilities::MANAGED, device.managed_memory().is_some()),
        (Capabilities::PEERS, device.peers().is_some()),
        (Capabilities::DECOMPRESSION, device.decompression().is_some()),
        (Capabilities::FOREIGN_STREAMS, device.foreign_streams().is_some()),
        #[cfg(unix)]
        (Capabilities::SHARE_BY_FD, device.sharing().is_some()),
    ];
    for (bit, given) in given {
        ensure_equal!(format!("the bit of \"{bit}\", beside the group"), bits.contains(bit), given);
    }
    let of_pinned =
        Capabilities::PINNED_MAPPED | Capabilities::PINNED_WRITE_COMBINED | Capabilities::REGISTER;
    ensure!(
        bits.contains(Capabilities::PINNED) || !bits.intersects(of_pinned),
        "there are bits of pinned memory without pinned memory: {bits}"
    );
    Ok(())
}

fn total_is_constant_and_not_zero(bench: &Bench) -> Verdict {
    let total = bench.info()?.total;
    ensure!(!total.is_zero(), "the device says it has no memory at all");
    let memory = bench.allocate(8 * MIB)?;
    ensure_equal!("the total with 8 MiB given out", bench.info()?.total, total);
    bench.free(memory)?;
    ensure_equal!("the total with all back", bench.info()?.total, total);
    Ok(())
}

fn free_and_held_never_exceed_total(bench: &Bench) -> Verdict {
    // The bench looks at each figure it reads; here it reads after every step.
    let mut memory = Vec::new();
    for size in [1, 513, MIB, 3 * MIB, 8 * MIB] {
        memory.push(bench.allocate(size)?);
        bench.info()?;
    }
    for address in memory {
        bench.free(address)?;
        bench.info()?;
    }
    Ok(())
}

fn free_shrinks_by_what_is_held(bench: &Bench) -> Verdict {
    // Others may take and give memory meanwhile, so only the bound is certain: what is held is not
    // free. An eighth of all shows it even where much is in use by others.
    let total = bench.info()?.total.get();
    let size = (total / 8).min(128 * MIB);
    let memory = bench.allocate(size)?;
    let info = bench.info()?;
    ensure!(
        info.held >= Bytes::new(size),
        "{size} B were given out and only {} B are held",
        info.held.get()
    );
    ensure!(
        info.free <= Bytes::new(total - size),
        "{} B are said to be free of {total} B with {size} B given out",
        info.free.get()
    );
    bench.free(memory)
}

fn plain_memory_is_classified_to_its_last_byte(bench: &Bench) -> Verdict {
    for size in [1, 3, 511, 513, 4095, 4097, MIB + 1] {
        let memory = bench.allocate(size)?;
        ensure_known(bench, PointerKind::Device, memory, size)?;
    }
    Ok(())
}

fn memory_of_others_is_not_classified(bench: &Bench) -> Verdict {
    let on_the_heap = bench.blank(4096, 0)?;
    let on_the_stack = 0_u64;
    static STATIC: u64 = 7;
    for (what, address) in [
        ("null", Address::NULL),
        ("the first byte", Address::new(1)),
        ("the end of the addresses", Address::new(u64::MAX)),
        ("memory of the heap", on_the_heap.address()),
        ("memory of the stack", Address::of_pointer(&raw const on_the_stack)),
        ("a static", Address::of_pointer(&raw const STATIC)),
    ] {
        ensure_unknown(bench, what, address)?;
    }
    Ok(())
}

fn freed_memory_is_not_classified(bench: &Bench) -> Verdict {
    let (kept, freed) = (bench.allocate(4097)?, bench.allocate(4097)?);
    bench.free(freed)?;
    ensure_unknown(bench, "freed memory", freed)?;
    ensure_unknown(bench, "the inside of freed memory", Address::new(freed.get() + 4096))?;
    ensure_known(bench, PointerKind::Device, kept, 4097)
}

fn neighbours_are_classified_apart(bench: &Bench) -> Verdict {
    let mut spans: Vec<Span> = Vec::new();
    for _ in 0..64 {
        let memory = bench.allocate(777)?;
        ensure_known(bench, PointerKind::Device, memory, 777)?;
        spans.push(class(bench, memory)?.span);
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if let [left, right] = pair {
            ensure!(!left.overlaps(*right), "two allocations share bytes: {left} and {right}");
        }
    }
    Ok(())
}

fn regions_are_classified_by_what_is_mapped(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let region = bench.region(4 * grain)?;
    let start = region.start().get();
    let found = class(bench, region.start())?;
    ensure_equal!("the kind of an empty region", found.kind, PointerKind::Reserved);
    let page = bench.page(grain)?;
    let mapping = bench.map(Address::new(start + grain), page, grain)?;
    ensure_known(bench, PointerKind::Mapped, mapping.start(), grain)?;
    ensure_equal!("the mapping", class(bench, mapping.start())?.span, mapping);
    for offset in [0, grain - 1, 2 * grain, 4 * grain - 1] {
        let found = class(bench, Address::new(start + offset))?;
        ensure_equal!("the kind beside a mapping", found.kind, PointerKind::Reserved);
        ensure!(
            found.span.contains(Address::new(start + offset)),
            "byte {offset} of {region} is said to lie in {}",
            found.span
        );
    }
    bench.unmap(mapping)?;
    let found = class(bench, mapping.start())?;
    ensure_equal!("the kind after unmap", found.kind, PointerKind::Reserved);
    bench.release_region(region)?;
    ensure_unknown(bench, "a released region", region.start())
}

fn pinned_memory_is_classified(bench: &Bench) -> Verdict {
    let memory = bench.allocate_pinned(4097, crate::PinnedFlags::empty())?;
    ensure_known(bench, PointerKind::Pinned, memory, 4097)?;
    bench.free_pinned(memory)?;
    ensure_unknown(bench, "freed pinned memory", memory)
}

fn registered_memory_is_classified(bench: &Bench) -> Verdict {
    let bytes = bench.blank(64 << 10, 0)?;
    ensure_unknown(bench, "memory not yet registered", bytes.address())?;
    let span = bench.register(&bytes)?;
    ensure_known(bench, PointerKind::Pinned, span.start(), span.size().get())?;
    bench.unregister(span.start())?;
    ensure_unknown(bench, "memory no longer registered", span.start())
}

fn managed_memory_is_classified(bench: &Bench) -> Verdict {
    let memory = bench.allocate_managed(4097)?;
    ensure_known(bench, PointerKind::Managed, memory, 4097)?;
    bench.free_managed(memory)?;
    ensure_unknown(bench, "freed managed memory", memory)
}

fn a_fresh_device_holds_nothing(bench: &Bench) -> Verdict {
    ensure_equal!("bytes held by a fresh device", bench.held()?, Bytes::ZERO);
    Ok(())
}
