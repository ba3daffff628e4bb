//! Physical memory without an address.

use forebay_core::{Bytes, MIB};

use super::prelude::*;
use crate::{Access, Call, PageHandle, PageOptions};

cases! { Virtual "virtual":
    held_counts_pages_exactly needs VIRTUAL_MEMORY,
    pages_of_several_sizes needs VIRTUAL_MEMORY | DATA,
    uneven_pages_are_refused needs VIRTUAL_MEMORY,
    a_page_too_many_is_out_of_memory needs VIRTUAL_MEMORY,
    absurd_pages_are_refused needs VIRTUAL_MEMORY,
    double_release_of_a_page_is_refused needs VIRTUAL_MEMORY,
    release_of_no_page_is_refused needs VIRTUAL_MEMORY,
    a_released_page_cannot_be_mapped needs VIRTUAL_MEMORY,
    a_released_page_lives_while_mapped needs VIRTUAL_MEMORY | DATA,
    a_released_page_goes_with_its_last_mapping needs VIRTUAL_MEMORY,
}

fn held_counts_pages_exactly(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (one, three) = (bench.page(grain)?, bench.page(3 * grain)?);
    ensure_equal!("bytes held for two pages", bench.held()?.get(), 4 * grain);
    let memory = bench.allocate(2 * MIB)?;
    ensure_equal!("with plain memory", bench.held()?.get(), 4 * grain + 2 * MIB);
    bench.release_page(three)?;
    ensure_equal!("after one release", bench.held()?.get(), grain + 2 * MIB);
    let region = bench.region(2 * grain)?;
    bench.map(region.start(), one, grain)?;
    bench.map(at(region.start(), grain), one, grain)?;
    ensure_equal!("with a page mapped twice", bench.held()?.get(), grain + 2 * MIB);
    bench.free(memory)?;
    ensure_equal!("with the page alone", bench.held()?.get(), grain);
    Ok(())
}

fn pages_of_several_sizes(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let region = bench.region(32 * grain)?;
    let mut offset = 0;
    for count in [1, 2, 3, 5, 8] {
        let size = count * grain;
        let page = bench.page(size)?;
        let mapping = bench.map_open(at(region.start(), offset), page, size)?;
        bench.write(mapping.start(), &picture(count, size))?;
        offset += size;
    }
    offset = 0;
    for count in [1, 2, 3, 5, 8] {
        let size = count * grain;
        bench.ensure_holds(
            &format!("a page of {size} B"),
            at(region.start(), offset),
            &picture(count, size),
        )?;
        offset += size;
    }
    Ok(())
}

fn uneven_pages_are_refused(bench: &Bench) -> Verdict {
    let (memory, grain) = (bench.virtual_memory()?, bench.grain()?);
    for size in [0, 1, 511, grain - 1, grain + 1, 3 * grain / 2] {
        let result = memory.create_page(Bytes::new(size), PageOptions::default());
        invalid(Call::CreatePage, &format!("{size} B, with pages of {grain} B"), result)?;
    }
    ensure_equal!("bytes held after the refusals", bench.held()?, Bytes::ZERO);
    Ok(())
}

fn a_page_too_many_is_out_of_memory(bench: &Bench) -> Verdict {
    let (memory, grain) = (bench.virtual_memory()?, bench.grain()?);
    let kept = bench.page(16 * grain)?;
    let info = bench.info()?;
    let left = info.total.get() - info.held.get();
    for size in [left / grain * grain + grain, info.total.get().next_multiple_of(grain) + grain] {
        let size = Bytes::new(size);
        let result = memory.create_page(size, PageOptions::default());
        let shortage = out_of_memory(Call::CreatePage, size, result)?;
        ensure_equal!("the total in the error", shortage.total, info.total);
        ensure!(
            shortage.free.get() <= left,
            "{} B are free in the error, of {} B with {} B held",
            shortage.free.get(),
            info.total.get(),
            info.held.get()
        );
        ensure_equal!("bytes held after the refusal", bench.held()?, info.held);
    }
    bench.release_page(kept)
}

fn absurd_pages_are_refused(bench: &Bench) -> Verdict {
    let (memory, grain) = (bench.virtual_memory()?, bench.grain()?);
    for size in [u64::MAX - (grain - 1), 1 << 63, 1 << 62] {
        let result = memory.create_page(Bytes::new(size), PageOptions::default());
        refused(Call::CreatePage, &format!("{size} B"), result)?;
    }
    Ok(())
}

fn double_release_of_a_page_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (kept, gone) = (bench.page(grain)?, bench.page(grain)?);
    bench.release_page(gone)?;
    let again = bench.virtual_memory()?.release_page(gone);
    invalid(Call::ReleasePage, "a released page", again)?;
    // Also where a mapping keeps the memory: the handle is gone all the same.
    let region = bench.region(grain)?;
    bench.map(region.start(), kept, grain)?;
    bench.release_page(kept)?;
    let again = bench.virtual_memory()?.release_page(kept);
    invalid(Call::ReleasePage, "a released page that is mapped", again)?;
    ensure_equal!("bytes held, of the mapped one", bench.held()?.get(), grain);
    Ok(())
}

fn release_of_no_page_is_refused(bench: &Bench) -> Verdict {
    for handle in [u64::MAX, u64::MAX - 99, 0xdead_0000_beef] {
        let result = bench.virtual_memory()?.release_page(PageHandle(handle));
        invalid(Call::ReleasePage, "a page never made", result)?;
    }
    Ok(())
}

fn a_released_page_cannot_be_mapped(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(2 * grain)?, bench.page(grain)?);
    let mapping = bench.map(region.start(), page, grain)?;
    bench.release_page(page)?;
    let beside = at(region.start(), grain);
    let result = bench.virtual_memory()?.map(beside, page);
    invalid(Call::Map, "a released page that is mapped elsewhere", result)?;
    bench.unmap(mapping)?;
    let result = bench.virtual_memory()?.map(beside, page);
    invalid(Call::Map, "a released page", result)?;
    let result = bench.virtual_memory()?.map(beside, PageHandle(u64::MAX - 3));
    invalid(Call::Map, "a page never made", result)
}

fn a_released_page_lives_while_mapped(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, page) = (bench.region(2 * grain)?, bench.page(grain)?);
    let one = bench.map_open(region.start(), page, grain)?;
    let two = bench.map_open(at(region.start(), grain), page, grain)?;
    bench.write(one.start(), &picture(1, grain))?;
    bench.release_page(page)?;
    ensure_equal!("bytes held", bench.held()?.get(), grain);
    let found = bench.read(two.start(), grain)?;
    ensure_bytes("a released page, through its second mapping", &found, &picture(1, grain))?;
    // Nothing that comes after takes its place.
    let next = bench.page(grain)?;
    let other = bench.region(grain)?;
    let fresh = bench.map_open(other.start(), next, grain)?;
    bench.write(fresh.start(), &picture(2, grain))?;
    let found = bench.read(one.start(), grain)?;
    ensure_bytes("a released page, when another was written", &found, &picture(1, grain))?;
    bench.grant(one, Access::Read)?;
    bench.unmap(one)?;
    bench.ensure_holds("a released page, one mapping less", two.start(), &picture(1, grain))
}

fn a_released_page_goes_with_its_last_mapping(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let region = bench.region(2 * grain)?;
    for _ in 0..5 {
        let page = bench.page(grain)?;
        let one = bench.map(region.start(), page, grain)?;
        let two = bench.map(at(region.start(), grain), page, grain)?;
        bench.release_page(page)?;
        ensure_equal!("bytes held, mapped twice", bench.held()?.get(), grain);
        bench.unmap(two)?;
        ensure_equal!("bytes held, mapped once", bench.held()?.get(), grain);
        bench.unmap(one)?;
        ensure_equal!("bytes held, mapped nowhere", bench.held()?, Bytes::ZERO);
    }
    Ok(())
}
