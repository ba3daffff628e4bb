//! Access to mapped addresses.

use forebay_core::{Address, Bytes, DeviceOrdinal, Span};

use super::prelude::*;
use crate::{Access, Call, Copy, Fill, Pattern, StreamHandle};

cases! { Virtual "virtual":
    access_can_be_granted_over_several_mappings needs VIRTUAL_MEMORY | DATA,
    access_can_be_granted_again needs VIRTUAL_MEMORY | DATA,
    access_is_each_mappings_own needs VIRTUAL_MEMORY | DATA wants AddressChecks,
    without_access_nothing_is_read_or_written needs VIRTUAL_MEMORY wants AddressChecks,
    read_access_refuses_writes needs VIRTUAL_MEMORY | DATA wants AddressChecks,
    access_can_be_taken_away needs VIRTUAL_MEMORY | DATA wants AddressChecks,
    access_does_not_survive_unmap needs VIRTUAL_MEMORY wants AddressChecks,
    a_copy_half_without_access_is_refused needs VIRTUAL_MEMORY | DATA wants AddressChecks,
    access_over_a_part_is_refused needs VIRTUAL_MEMORY,
    access_over_a_hole_is_refused needs VIRTUAL_MEMORY,
    access_outside_mappings_is_refused needs VIRTUAL_MEMORY,
    access_for_no_device_is_refused needs VIRTUAL_MEMORY,
}

/// Sets access by a call that must be refused.
fn raw_access(bench: &Bench, span: Span, access: Access) -> crate::Result<()> {
    let Some(memory) = bench.device().virtual_memory() else { return Ok(()) };
    // SAFETY: no work is under way.
    unsafe { memory.set_access(span, access, bench.ordinal()) }
}

/// Writing there, by copy and by fill, is refused.
fn ensure_not_written(bench: &Bench, what: &str, to: Address, size: u64) -> Verdict {
    let (host, size) = (bench.blank(size, 1)?, Bytes::new(size));
    let copy = Copy::linear(device(to, 0), host.location(), size)?;
    // SAFETY: the fixture says that the device looks at addresses when the call is made.
    invalid(Call::Copy, what, unsafe { bench.device().copy(&copy, StreamHandle::DEFAULT) })?;
    let fill = Fill::linear(to, size, Pattern::U8(1))?;
    // SAFETY: as above.
    invalid(Call::Fill, what, unsafe { bench.device().fill(&fill, StreamHandle::DEFAULT) })
}

/// Reading there is refused.
fn ensure_not_read(bench: &Bench, what: &str, from: Address, size: u64) -> Verdict {
    let host = bench.blank(size, 1)?;
    let copy = Copy::linear(host.location(), device(from, 0), Bytes::new(size))?;
    // SAFETY: the fixture says that the device looks at addresses when the call is made.
    invalid(Call::Copy, what, unsafe { bench.device().copy(&copy, StreamHandle::DEFAULT) })
}

/// A region of four places, with pages at the first two that nobody may use yet.
fn two_closed(bench: &Bench) -> Step<(Span, Span, Span)> {
    let grain = bench.grain()?;
    let region = bench.region(4 * grain)?;
    let (left, right) = (bench.page(grain)?, bench.page(grain)?);
    let left = bench.map(region.start(), left, grain)?;
    let right = bench.map(at(region.start(), grain), right, grain)?;
    Ok((region, left, right))
}

fn access_can_be_granted_over_several_mappings(bench: &Bench) -> Verdict {
    let (region, ..) = two_closed(bench)?;
    let size = 2 * bench.grain()?;
    bench.grant(span(region.start(), size)?, Access::ReadWrite)?;
    bench.write(region.start(), &picture(1, size))?;
    bench.ensure_holds("both pages", region.start(), &picture(1, size))
}

fn access_can_be_granted_again(bench: &Bench) -> Verdict {
    let (_, left, _) = two_closed(bench)?;
    let size = left.size().get();
    for round in 0..3 {
        bench.grant(left, Access::ReadWrite)?;
        bench.write(left.start(), &picture(round, size))?;
        bench.grant(left, Access::Read)?;
        bench.ensure_holds(&format!("round {round}"), left.start(), &picture(round, size))?;
    }
    Ok(())
}

fn access_is_each_mappings_own(bench: &Bench) -> Verdict {
    // One page at two places: open at one, closed at the other.
    let grain = bench.grain()?;
    let (region, page) = (bench.region(2 * grain)?, bench.page(grain)?);
    let open = bench.map_open(region.start(), page, grain)?;
    let closed = bench.map(at(region.start(), grain), page, grain)?;
    bench.write(open.start(), &picture(1, grain))?;
    ensure_not_written(bench, "the closed place of an open page", closed.start(), grain)?;
    bench.grant(closed, Access::Read)?;
    bench.ensure_holds(
        "the page through the place opened for reading",
        closed.start(),
        &picture(1, grain),
    )?;
    ensure_not_written(bench, "a place open for reading", closed.start(), grain)?;
    bench.write(open.start(), &picture(2, grain))
}

fn without_access_nothing_is_read_or_written(bench: &Bench) -> Verdict {
    let (_, left, right) = two_closed(bench)?;
    for mapping in [left, right] {
        let (start, last) = (mapping.start(), at(mapping.start(), mapping.size().get() - 1));
        ensure_not_written(bench, "a mapping without access", start, mapping.size().get())?;
        ensure_not_read(bench, "a mapping without access", start, mapping.size().get())?;
        ensure_not_written(bench, "its last byte", last, 1)?;
        ensure_not_read(bench, "its last byte", last, 1)?;
    }
    Ok(())
}

fn read_access_refuses_writes(bench: &Bench) -> Verdict {
    let (_, left, _) = two_closed(bench)?;
    let size = left.size().get();
    bench.grant(left, Access::ReadWrite)?;
    bench.write(left.start(), &picture(3, size))?;
    bench.grant(left, Access::Read)?;
    ensure_not_written(bench, "a mapping for reading", left.start(), size)?;
    ensure_not_written(bench, "one byte of it", at(left.start(), size / 2), 1)?;
    bench.ensure_holds("its bytes after the refusals", left.start(), &picture(3, size))
}

fn access_can_be_taken_away(bench: &Bench) -> Verdict {
    let (_, left, _) = two_closed(bench)?;
    let size = left.size().get();
    bench.grant(left, Access::ReadWrite)?;
    bench.write(left.start(), &picture(4, size))?;
    bench.grant(left, Access::None)?;
    ensure_not_read(bench, "a mapping closed again", left.start(), size)?;
    ensure_not_written(bench, "a mapping closed again", left.start(), size)?;
    bench.grant(left, Access::Read)?;
    bench.ensure_holds("its bytes", left.start(), &picture(4, size))
}

fn access_does_not_survive_unmap(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(grain)?, bench.page(grain)?);
    let mapping = bench.map_open(region.start(), page, grain)?;
    bench.unmap(mapping)?;
    let mapping = bench.map(region.start(), page, grain)?;
    ensure_not_written(bench, "a page mapped anew", mapping.start(), grain)?;
    ensure_not_read(bench, "a page mapped anew", mapping.start(), grain)
}

fn a_copy_half_without_access_is_refused(bench: &Bench) -> Verdict {
    let (_, left, right) = two_closed(bench)?;
    let grain = bench.grain()?;
    bench.grant(left, Access::ReadWrite)?;
    bench.write(left.start(), &picture(5, grain))?;
    let middle = at(left.start(), grain / 2);
    ensure_not_written(bench, "an open page and a closed one", middle, grain)?;
    ensure_not_read(bench, "an open page and a closed one", middle, grain)?;
    bench.grant(right, Access::Read)?;
    ensure_not_written(bench, "an open page and one for reading", middle, grain)?;
    bench.ensure_holds("the open page after the refusals", left.start(), &picture(5, grain))
}

fn access_over_a_part_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(4 * grain)?, bench.page(2 * grain)?);
    bench.map(region.start(), page, 2 * grain)?;
    for (what, offset, size) in [
        ("the first half of a mapping", 0, grain),
        ("its last half", grain, grain),
        ("less than a page", 0, grain / 2),
        ("no bytes of it", 0, 0),
        ("all of it but a byte", 0, 2 * grain - 1),
    ] {
        let part = span(at(region.start(), offset), size)?;
        invalid(Call::SetAccess, what, raw_access(bench, part, Access::ReadWrite))?;
    }
    Ok(())
}

fn access_over_a_hole_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(4 * grain)?, bench.page(grain)?);
    bench.map(region.start(), page, grain)?;
    bench.map(at(region.start(), 2 * grain), page, grain)?;
    for (what, offset, size) in [
        ("a mapping and the hole behind it", 0, 2 * grain),
        ("two mappings and the hole between", 0, 3 * grain),
        ("the whole region", 0, 4 * grain),
        ("a hole", grain, grain),
    ] {
        let part = span(at(region.start(), offset), size)?;
        invalid(Call::SetAccess, what, raw_access(bench, part, Access::ReadWrite))?;
    }
    Ok(())
}

fn access_outside_mappings_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (memory, region) = (bench.allocate(grain)?, bench.region(grain)?);
    for (what, start) in
        [("null", Address::NULL), ("plain memory", memory), ("an empty region", region.start())]
    {
        let part = span(start, grain)?;
        invalid(Call::SetAccess, what, raw_access(bench, part, Access::Read))?;
    }
    Ok(())
}

fn access_for_no_device_is_refused(bench: &Bench) -> Verdict {
    let (_, left, _) = two_closed(bench)?;
    // SAFETY: no work is under way.
    let result = unsafe {
        bench.virtual_memory()?.set_access(left, Access::ReadWrite, DeviceOrdinal(u32::MAX - 1))
    };
    invalid(Call::SetAccess, "a device that is not there", result)
}
