//! Reserved addresses.

use forebay_core::{Address, Alignment, Bytes, GIB, PageSize};

use super::prelude::*;
use crate::Call;

cases! { Virtual "virtual":
    granularity_is_sound needs VIRTUAL_MEMORY,
    regions_take_no_memory needs VIRTUAL_MEMORY,
    regions_overlap_nothing needs VIRTUAL_MEMORY,
    region_alignment_is_kept needs VIRTUAL_MEMORY,
    uneven_regions_are_refused needs VIRTUAL_MEMORY,
    absurd_regions_are_refused needs VIRTUAL_MEMORY,
    addresses_beyond_four_and_eight_gibibytes_work needs VIRTUAL_MEMORY | DATA,
    a_region_with_mappings_is_busy needs VIRTUAL_MEMORY,
    double_release_of_a_region_is_refused needs VIRTUAL_MEMORY,
    release_of_no_region_is_refused needs VIRTUAL_MEMORY,
}

/// Gives a region back by a call that must be refused.
fn raw_release(bench: &Bench, start: Address) -> crate::Result<()> {
    let Some(memory) = bench.device().virtual_memory() else { return Ok(()) };
    // SAFETY: no work uses the region, and the case uses it on only where this was refused.
    unsafe { memory.release_region(start) }
}

fn granularity_is_sound(bench: &Bench) -> Verdict {
    let granularity = bench.virtual_memory()?.granularity();
    ensure!(
        granularity.minimum <= granularity.recommended,
        "the least page, {}, is larger than the recommended one, {}",
        granularity.minimum,
        granularity.recommended
    );
    ensure!(
        granularity.minimum >= PageSize::HOST,
        "pages of {} are smaller than any processor's",
        granularity.minimum
    );
    ensure_equal!("granularity, asked again", bench.virtual_memory()?.granularity(), granularity);
    for size in [granularity.minimum, granularity.recommended] {
        let page = bench.page(size.bytes().get())?;
        bench.release_page(page)?;
    }
    Ok(())
}

fn regions_take_no_memory(bench: &Bench) -> Verdict {
    let before = bench.info()?;
    // More addresses than the device has memory.
    let size = before.total.get().next_power_of_two().saturating_mul(2).clamp(64 * GIB, 1 << 42);
    let region = bench.region(size)?;
    ensure_equal!("the region's size", region.size().get(), size);
    ensure_equal!("bytes held for addresses", bench.held()?, before.held);
    bench.release_region(region)
}

fn regions_overlap_nothing(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let mut spans = Vec::new();
    for count in 1..20 {
        spans.push(bench.region(count * grain)?);
        let memory = bench.allocate(grain)?;
        spans.push(forebay_core::Span::new(memory, Bytes::new(grain))?);
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        ensure!(!pair[0].overlaps(pair[1]), "{} and {} overlap", pair[0], pair[1]);
    }
    Ok(())
}

fn region_alignment_is_kept(bench: &Bench) -> Verdict {
    let (memory, grain) = (bench.virtual_memory()?, bench.grain()?);
    for alignment in [Alignment::ONE, Alignment::HOST_PAGE, Alignment::DEVICE_PAGE, Alignment::GIB]
    {
        for count in [1, 3] {
            let region = memory.reserve(Bytes::new(count * grain), alignment)?;
            let start = region.start();
            ensure!(start.is_aligned_to(alignment), "asked at {alignment}, reserved {region}");
            ensure!(
                start.get().is_multiple_of(grain),
                "{region} does not begin at a multiple of {grain} B"
            );
            ensure_equal!("the region's size", region.size().get(), count * grain);
            raw_release(bench, start)?;
        }
    }
    Ok(())
}

fn uneven_regions_are_refused(bench: &Bench) -> Verdict {
    let (memory, grain) = (bench.virtual_memory()?, bench.grain()?);
    for size in [0, 1, grain - 1, grain + 1, 3 * grain / 2] {
        let result = memory.reserve(Bytes::new(size), Alignment::ONE);
        invalid(Call::Reserve, &format!("{size} B, with pages of {grain} B"), result)?;
    }
    Ok(())
}

fn absurd_regions_are_refused(bench: &Bench) -> Verdict {
    let (memory, grain) = (bench.virtual_memory()?, bench.grain()?);
    for size in [u64::MAX - (grain - 1), 1 << 63, 1 << 60] {
        let result = memory.reserve(Bytes::new(size), Alignment::ONE);
        refused(Call::Reserve, &format!("{size} B"), result)?;
    }
    let far = memory.reserve(Bytes::new(grain), Alignment::new(1 << 63)?);
    refused(Call::Reserve, "a start at a multiple of 2^63", far)
}

fn addresses_beyond_four_and_eight_gibibytes_work(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let region = bench.region(64 * GIB)?;
    let offsets = [0, 4 * GIB - grain, 4 * GIB, 8 * GIB + grain, 64 * GIB - grain];
    for (seed, offset) in (0..).zip(offsets) {
        let page = bench.page(grain)?;
        let mapping = bench.map_open(at(region.start(), offset), page, grain)?;
        bench.write(mapping.start(), &picture(seed, grain))?;
    }
    for (seed, offset) in (0..).zip(offsets) {
        let found = bench.read(at(region.start(), offset), grain)?;
        let what = format!("a page at {offset} B of 64 GiB");
        ensure_bytes(&what, &found, &picture(seed, grain))?;
    }
    // From one end of the region to the other, by fill and by copy.
    let (first, last) = (region.start(), at(region.start(), 64 * GIB - grain));
    let stream = bench.stream()?;
    bench.fill(last, grain, 0x42, stream)?;
    bench.copy(crate::Location::Device(first), crate::Location::Device(last), grain, stream)?;
    bench.synchronize(stream)?;
    let found = bench.read(first, grain)?;
    ensure_bytes("64 GiB back", &found, &vec![0x42; found.len()])
}

fn a_region_with_mappings_is_busy(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(3 * grain)?, bench.page(grain)?);
    let mapping = bench.map(at(region.start(), grain), page, grain)?;
    let before = bench.device().classify(mapping.start())?;
    busy(Call::ReleaseRegion, "a region in use", raw_release(bench, region.start()))?;
    // A page given back does not empty the region while its mapping stands.
    bench.release_page(page)?;
    busy(Call::ReleaseRegion, "a region in use", raw_release(bench, region.start()))?;
    ensure_equal!("the mapping afterwards", bench.device().classify(mapping.start())?, before);
    bench.unmap(mapping)?;
    bench.release_region(region)
}

fn double_release_of_a_region_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (kept, gone) = (bench.region(grain)?, bench.region(grain)?);
    bench.release_region(gone)?;
    let again = raw_release(bench, gone.start());
    invalid(Call::ReleaseRegion, "a released region", again)?;
    let page = bench.page(grain)?;
    let mapped = bench.virtual_memory()?.map(gone.start(), page);
    invalid(Call::Map, "a place in a released region", mapped)?;
    bench.map(kept.start(), page, grain)?;
    Ok(())
}

fn release_of_no_region_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, memory) = (bench.region(4 * grain)?, bench.allocate(grain)?);
    for (what, start) in [
        ("null", Address::NULL),
        ("the inside of a region", at(region.start(), grain)),
        ("the end of a region", region.end()),
        ("plain memory", memory),
    ] {
        invalid(Call::ReleaseRegion, what, raw_release(bench, start))?;
    }
    // And a region is no plain memory either.
    // SAFETY: nobody uses the region; the call must be refused.
    let freed = unsafe { bench.device().free(region.start()) };
    invalid(Call::Free, "a region", freed)
}
