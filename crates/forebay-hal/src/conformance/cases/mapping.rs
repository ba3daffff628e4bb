//! Mapping pages.

use forebay_core::{Address, Bytes, Span};

use super::prelude::*;
use crate::{Call, StreamHandle};

cases! { Virtual "virtual":
    one_page_at_two_places needs VIRTUAL_MEMORY | DATA,
    one_page_in_two_regions needs VIRTUAL_MEMORY | DATA,
    two_pages_stay_apart needs VIRTUAL_MEMORY | DATA,
    a_copy_across_mappings needs VIRTUAL_MEMORY | DATA,
    pages_can_be_put_in_any_order needs VIRTUAL_MEMORY | DATA,
    a_page_keeps_its_bytes_when_moved needs VIRTUAL_MEMORY | DATA,
    map_over_a_mapping_is_refused needs VIRTUAL_MEMORY | DATA,
    map_outside_a_region_is_refused needs VIRTUAL_MEMORY,
    map_across_the_end_is_refused needs VIRTUAL_MEMORY,
    map_across_two_regions_is_refused needs VIRTUAL_MEMORY,
    map_at_an_uneven_place_is_refused needs VIRTUAL_MEMORY,
    unmap_takes_several_side_by_side needs VIRTUAL_MEMORY | DATA,
    unmap_of_a_part_is_refused needs VIRTUAL_MEMORY | DATA,
    unmap_of_a_hole_is_refused needs VIRTUAL_MEMORY,
    unmap_of_nothing_is_refused needs VIRTUAL_MEMORY,
    a_place_can_be_used_again needs VIRTUAL_MEMORY | DATA,
    a_copy_into_a_hole_is_refused needs VIRTUAL_MEMORY wants AddressChecks,
}

/// Unmaps by a call that must be refused.
fn raw_unmap(bench: &Bench, span: Span) -> crate::Result<()> {
    let Some(memory) = bench.device().virtual_memory() else { return Ok(()) };
    // SAFETY: no work is under way, and the case uses the span on only where this was refused.
    unsafe { memory.unmap(span) }
}

/// What is written through `one` is read through `two`, and the other way round.
fn ensure_one_memory(bench: &Bench, one: Address, two: Address, size: u64) -> Verdict {
    for (round, (to, from)) in (0..).zip([(one, two), (two, one), (one, two)]) {
        bench.write(to, &picture(round, size))?;
        bench.ensure_holds("a page, through its other place", from, &picture(round, size))?;
    }
    // A byte at a time, to see that the places agree and not merely the contents.
    bench.write(at(one, size - 1), &[0x17])?;
    ensure_equal!("its last byte", bench.read(at(two, size - 1), 1)?, vec![0x17]);
    bench.write(two, &[0x71])?;
    ensure_equal!("its first byte", bench.read(one, 1)?, vec![0x71]);
    Ok(())
}

fn one_page_at_two_places(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(6 * grain)?, bench.page(2 * grain)?);
    let one = bench.map_open(region.start(), page, 2 * grain)?;
    let two = bench.map_open(at(region.start(), 3 * grain), page, 2 * grain)?;
    ensure_one_memory(bench, one.start(), two.start(), 2 * grain)
}

fn one_page_in_two_regions(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (near, far) = (bench.region(2 * grain)?, bench.region(4 * grain)?);
    let page = bench.page(grain)?;
    let one = bench.map_open(at(near.start(), grain), page, grain)?;
    let two = bench.map_open(at(far.start(), 3 * grain), page, grain)?;
    ensure_one_memory(bench, one.start(), two.start(), grain)
}

/// Maps `count` pages of one grain side by side from the start of a new region, each filled with
/// the picture of its number.
fn row_of_pages(bench: &Bench, count: u64) -> Step<(Span, Vec<Span>)> {
    let grain = bench.grain()?;
    let region = bench.region((count + 1) * grain)?;
    let mut mappings = Vec::new();
    for number in 0..count {
        let page = bench.page(grain)?;
        let mapping = bench.map_open(at(region.start(), number * grain), page, grain)?;
        bench.write(mapping.start(), &picture(number, grain))?;
        mappings.push(mapping);
    }
    Ok((region, mappings))
}

fn two_pages_stay_apart(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (_, mappings) = row_of_pages(bench, 8)?;
    for (number, mapping) in (0..).zip(&mappings) {
        bench.ensure_holds(
            &format!("page {number} of 8"),
            mapping.start(),
            &picture(number, grain),
        )?;
    }
    Ok(())
}

fn a_copy_across_mappings(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, _) = row_of_pages(bench, 4)?;
    // In, from the middle of the first page to the middle of the last.
    let (start, size) = (at(region.start(), grain / 2 + 1), 3 * grain - 3);
    let bytes = picture(77, size);
    bench.write(start, &bytes)?;
    bench.ensure_holds("bytes across four pages", start, &bytes)?;
    // What lies around them stays.
    let before = bench.read(region.start(), grain / 2 + 1)?;
    ensure_bytes("before them", &before, &picture(0, grain)[..index(grain / 2 + 1)?])?;
    // On the device, from across two to across two others.
    let (to, from) = (at(region.start(), grain / 2), at(region.start(), 2 * grain + grain / 2));
    let right = bench.read(from, grain)?;
    bench.copy(device(to, 0), device(from, 0), grain, StreamHandle::DEFAULT)?;
    bench.ensure_holds("from across two to across two", to, &right)?;
    bench.fill(at(region.start(), grain - 5), 10, 0xb1, StreamHandle::DEFAULT)?;
    bench.ensure_holds("a fill across a border", at(region.start(), grain - 5), &[0xb1; 10])
}

fn pages_can_be_put_in_any_order(bench: &Bench) -> Verdict {
    // The pages of one row, mapped backwards in another: the memory is the same.
    let grain = bench.grain()?;
    let pages = [bench.page(grain)?, bench.page(grain)?, bench.page(grain)?];
    let (one, two) = (bench.region(3 * grain)?, bench.region(3 * grain)?);
    for (number, page) in (0..).zip(pages) {
        bench.map_open(at(one.start(), number * grain), page, grain)?;
        bench.map_open(at(two.start(), (2 - number) * grain), page, grain)?;
    }
    let bytes = picture(9, 3 * grain);
    bench.write(one.start(), &bytes)?;
    let mut right = Vec::new();
    for page in bytes.chunks(index(grain)?).rev() {
        right.extend_from_slice(page);
    }
    bench.ensure_holds("the pages backwards", two.start(), &right)
}

fn a_page_keeps_its_bytes_when_moved(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(4 * grain)?, bench.page(grain)?);
    let mut mapping = bench.map_open(region.start(), page, grain)?;
    bench.write(mapping.start(), &picture(1, grain))?;
    for place in 1..4 {
        bench.unmap(mapping)?;
        mapping = bench.map_open(at(region.start(), place * grain), page, grain)?;
        bench.ensure_holds(
            &format!("a page at its place {place}"),
            mapping.start(),
            &picture(1, grain),
        )?;
    }
    Ok(())
}

fn map_over_a_mapping_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, mappings) = row_of_pages(bench, 3)?;
    let (small, large) = (bench.page(grain)?, bench.page(2 * grain)?);
    let memory = bench.virtual_memory()?;
    for (what, place, page) in [
        ("the first page's place", 0, small),
        ("the last page's place", 2, small),
        ("two places in use", 0, large),
        ("a place in use and a free one", 2, large),
    ] {
        refused(Call::Map, what, memory.map(at(region.start(), place * grain), page))?;
    }
    let found = bench.device().classify(region.start())?.map(|class| class.span);
    ensure_equal!("the first mapping", found, mappings.first().copied());
    for (number, mapping) in (0..).zip(&mappings) {
        let what = format!("page {number} after the refusals");
        bench.ensure_holds(&what, mapping.start(), &picture(number, grain))?;
    }
    Ok(())
}

fn map_outside_a_region_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (page, memory) = (bench.page(grain)?, bench.allocate(2 * grain)?);
    let region = bench.region(grain)?;
    let inside = memory.checked_align_up(forebay_core::Alignment::new(grain)?);
    for (what, place) in [
        ("null", Address::NULL),
        ("no region's addresses", Address::new(grain)),
        ("the end of a region", region.end()),
        ("plain memory", inside.unwrap_or(Address::NULL)),
        ("the end of the addresses", Address::new(u64::MAX - (grain - 1))),
    ] {
        invalid(Call::Map, what, bench.virtual_memory()?.map(place, page))?;
    }
    Ok(())
}

fn map_across_the_end_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(3 * grain)?, bench.page(2 * grain)?);
    let before = bench.device().classify(at(region.start(), 2 * grain))?;
    let result = bench.virtual_memory()?.map(at(region.start(), 2 * grain), page);
    invalid(Call::Map, "a page half in a region", result)?;
    let after = bench.device().classify(at(region.start(), 2 * grain))?;
    ensure_equal!("the last place afterwards", after, before);
    // Where it fits, it is mapped.
    bench.map(at(region.start(), grain), page, 2 * grain)?;
    Ok(())
}

fn map_across_two_regions_is_refused(bench: &Bench) -> Verdict {
    // Many regions, so that two are likely to lie side by side; a page may not join them.
    let (grain, page) = (bench.grain()?, bench.page(2 * bench.grain()?)?);
    let mut regions = Vec::new();
    for _ in 0..32 {
        regions.push(bench.region(grain)?);
    }
    for region in regions {
        let result = bench.virtual_memory()?.map(region.start(), page);
        invalid(Call::Map, "a page larger than its region", result)?;
    }
    Ok(())
}

fn map_at_an_uneven_place_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(4 * grain)?, bench.page(grain)?);
    for offset in [1, 512, grain / 2, grain - 1, grain + 1] {
        let result = bench.virtual_memory()?.map(at(region.start(), offset), page);
        invalid(Call::Map, &format!("{offset} B into a region"), result)?;
    }
    Ok(())
}

fn unmap_takes_several_side_by_side(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, _) = row_of_pages(bench, 6)?;
    bench.unmap(span(at(region.start(), grain), 3 * grain)?)?;
    for kept in [0, 4, 5] {
        bench.ensure_holds(
            &format!("page {kept}, which stayed"),
            at(region.start(), kept * grain),
            &picture(kept, grain),
        )?;
    }
    for gone in 1..4 {
        let class = bench.device().classify(at(region.start(), gone * grain))?;
        let kind = class.map(|class| class.kind);
        ensure_equal!("the kind of what was unmapped", kind, Some(crate::PointerKind::Reserved));
    }
    Ok(())
}

fn unmap_of_a_part_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(8 * grain)?, bench.page(4 * grain)?);
    let mapping = bench.map_open(region.start(), page, 4 * grain)?;
    let next = bench.page(grain)?;
    bench.map_open(at(region.start(), 4 * grain), next, grain)?;
    bench.write(region.start(), &picture(1, 5 * grain))?;
    for (what, offset, size) in [
        ("its first half", 0, 2 * grain),
        ("its last half", 2 * grain, 2 * grain),
        ("its middle", grain, 2 * grain),
        ("its half and the next", 2 * grain, 3 * grain),
    ] {
        let part = span(at(region.start(), offset), size)?;
        invalid(Call::Unmap, what, raw_unmap(bench, part))?;
    }
    ensure_equal!(
        "the mapping after the refusals",
        bench.device().classify(region.start())?.map(|class| class.span),
        Some(mapping)
    );
    bench.ensure_holds("its bytes after the refusals", region.start(), &picture(1, 5 * grain))
}

fn unmap_of_a_hole_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(8 * grain)?, bench.page(grain)?);
    bench.map(at(region.start(), grain), page, grain)?;
    bench.map(at(region.start(), 3 * grain), page, grain)?;
    for (what, offset, size) in [
        ("an empty place", 0, grain),
        ("an empty place and a mapping", 0, 2 * grain),
        ("a mapping and an empty place", grain, 2 * grain),
        ("two mappings and the hole between", grain, 3 * grain),
        ("the whole region", 0, 8 * grain),
        ("a mapping, past the region's end", 3 * grain, 6 * grain),
    ] {
        let part = span(at(region.start(), offset), size)?;
        invalid(Call::Unmap, what, raw_unmap(bench, part))?;
    }
    Ok(())
}

fn unmap_of_nothing_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(2 * grain)?, bench.page(grain)?);
    let mapping = bench.map(region.start(), page, grain)?;
    let nothing = raw_unmap(bench, span(region.start(), 0)?);
    invalid(Call::Unmap, "no bytes of a mapping", nothing)?;
    invalid(Call::Unmap, "null", raw_unmap(bench, span(Address::NULL, grain)?))?;
    let memory = bench.allocate(grain)?;
    invalid(Call::Unmap, "plain memory", raw_unmap(bench, span(memory, grain)?))?;
    bench.unmap(mapping)?;
    invalid(Call::Unmap, "what was unmapped", raw_unmap(bench, mapping))
}

fn a_place_can_be_used_again(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let region = bench.region(grain)?;
    let pages = [bench.page(grain)?, bench.page(grain)?];
    for round in 0..20_u64 {
        let page = pages[index(round % 2)?];
        let mapping = bench.map_open(region.start(), page, grain)?;
        if round >= 2 {
            let what = format!("round {round}: the bytes this page had");
            bench.ensure_holds(&what, region.start(), &picture(round - 2, grain))?;
        }
        bench.write(region.start(), &picture(round, grain))?;
        bench.unmap(mapping)?;
    }
    Ok(())
}

fn a_copy_into_a_hole_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(3 * grain)?, bench.page(grain)?);
    let mapping = bench.map_open(region.start(), page, grain)?;
    let host = bench.blank(grain, 1)?;
    let tries = |what: &str, offset: u64| -> Verdict {
        let to = device(region.start(), offset);
        let copy = crate::Copy::linear(to, host.location(), Bytes::new(grain))?;
        // SAFETY: the fixture says that the device looks at addresses when the call is made.
        let result = unsafe { bench.device().copy(&copy, StreamHandle::DEFAULT) };
        invalid(Call::Copy, what, result)
    };
    tries("an empty place of a region", grain)?;
    tries("a mapping and the empty place behind it", grain / 2)?;
    bench.unmap(mapping)?;
    tries("a place just unmapped", 0)
}
