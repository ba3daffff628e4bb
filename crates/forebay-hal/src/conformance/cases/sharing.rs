//! Pages shared between processes, tested in one process: what is exported is imported again.

use std::os::fd::{AsFd, OwnedFd};

use forebay_core::Bytes;

use super::prelude::*;
use crate::{Call, PageHandle, PageOptions};

cases! { Sharing "sharing":
    an_imported_page_is_the_exported_one needs SHARE_BY_FD | VIRTUAL_MEMORY | DATA,
    a_shared_page_outlives_its_exporter needs SHARE_BY_FD | VIRTUAL_MEMORY | DATA,
    a_descriptor_can_be_imported_twice needs SHARE_BY_FD | VIRTUAL_MEMORY | DATA,
    an_imported_page_is_its_creators needs SHARE_BY_FD | VIRTUAL_MEMORY,
    a_page_not_shareable_is_refused needs SHARE_BY_FD | VIRTUAL_MEMORY,
    a_page_that_is_none_is_refused needs SHARE_BY_FD | VIRTUAL_MEMORY,
    a_wrong_size_is_refused needs SHARE_BY_FD | VIRTUAL_MEMORY,
    a_descriptor_that_is_no_page_is_refused needs SHARE_BY_FD | VIRTUAL_MEMORY,
    a_descriptor_closes_on_exec needs SHARE_BY_FD | VIRTUAL_MEMORY,
    an_imported_page_is_a_page needs SHARE_BY_FD | VIRTUAL_MEMORY,
}

/// A shareable page of `size` bytes, and a descriptor of it.
fn exported(bench: &Bench, size: u64) -> Step<(PageHandle, OwnedFd)> {
    let page = bench.page_with(size, PageOptions::shareable())?;
    Ok((page, bench.sharing()?.export_page(page)?))
}

fn imported(bench: &Bench, descriptor: &OwnedFd, size: u64) -> Step<PageHandle> {
    Ok(bench.adopt(bench.sharing()?.import_page(descriptor.as_fd(), Bytes::new(size))?))
}

fn an_imported_page_is_the_exported_one(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    for size in [grain, 3 * grain] {
        let (page, descriptor) = exported(bench, size)?;
        let twin = imported(bench, &descriptor, size)?;
        ensure!(page != twin, "the import has the handle of the page itself, {page}");
        let region = bench.region(2 * size)?;
        let one = bench.map_open(region.start(), page, size)?;
        let two = bench.map_open(at(region.start(), size), twin, size)?;
        for (round, (to, from)) in (0..).zip([(one, two), (two, one)]) {
            bench.write(to.start(), &picture(round, size))?;
            bench.ensure_holds("the page's other side", from.start(), &picture(round, size))?;
        }
    }
    Ok(())
}

fn a_shared_page_outlives_its_exporter(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (page, descriptor) = exported(bench, grain)?;
    let region = bench.region(2 * grain)?;
    let mapping = bench.map_open(region.start(), page, grain)?;
    bench.write(mapping.start(), &picture(1, grain))?;
    bench.unmap(mapping)?;
    bench.release_page(page)?;
    // Only the descriptor keeps it now; then only the import does.
    let twin = imported(bench, &descriptor, grain)?;
    drop(descriptor);
    let mapping = bench.map_open(at(region.start(), grain), twin, grain)?;
    bench.ensure_holds("a page whose exporter is gone", mapping.start(), &picture(1, grain))
}

fn an_imported_page_is_its_creators(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let page = bench.page_with(grain, PageOptions::shareable())?;
    let descriptor = bench.sharing()?.export_page(page)?;
    let held = bench.held()?;
    let twin = imported(bench, &descriptor, grain)?;
    ensure_equal!("bytes held with a twin of the page", bench.held()?, held);
    bench.release_page(twin)?;
    ensure_equal!("bytes held when the twin is gone", bench.held()?, held);
    Ok(())
}

fn a_descriptor_can_be_imported_twice(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (_, descriptor) = exported(bench, grain)?;
    let twins = [imported(bench, &descriptor, grain)?, imported(bench, &descriptor, grain)?];
    let region = bench.region(2 * grain)?;
    let one = bench.map_open(region.start(), twins[0], grain)?;
    let two = bench.map_open(at(region.start(), grain), twins[1], grain)?;
    bench.write(one.start(), &picture(5, grain))?;
    bench.ensure_holds("the second import", two.start(), &picture(5, grain))
}

fn a_page_not_shareable_is_refused(bench: &Bench) -> Verdict {
    let page = bench.page(bench.grain()?)?;
    invalid(Call::ExportPage, "a page not made shareable", bench.sharing()?.export_page(page))
}

fn a_page_that_is_none_is_refused(bench: &Bench) -> Verdict {
    let page = bench.page_with(bench.grain()?, PageOptions::shareable())?;
    bench.release_page(page)?;
    invalid(Call::ExportPage, "a released page", bench.sharing()?.export_page(page))?;
    let never = bench.sharing()?.export_page(PageHandle(u64::MAX - 9));
    invalid(Call::ExportPage, "a page never made", never)
}

fn a_wrong_size_is_refused(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (_, descriptor) = exported(bench, 2 * grain)?;
    let held = bench.held()?;
    for size in [0, 1, grain, 2 * grain - 1, 2 * grain + 1, 3 * grain, u64::MAX] {
        let result = bench.sharing()?.import_page(descriptor.as_fd(), Bytes::new(size));
        invalid(Call::ImportPage, &format!("a page of {} B as {size} B", 2 * grain), result)?;
    }
    ensure_equal!("bytes held after the refusals", bench.held()?, held);
    imported(bench, &descriptor, 2 * grain)?;
    Ok(())
}

fn a_descriptor_that_is_no_page_is_refused(bench: &Bench) -> Verdict {
    let grain = Bytes::new(bench.grain()?);
    let broken = |error| Failure::new(format!("the system gives no descriptor: {error}"));
    let null = std::fs::File::open("/dev/null").map_err(broken)?;
    let folder = std::fs::File::open("/").map_err(broken)?;
    let (socket, _other) = std::os::unix::net::UnixStream::pair().map_err(broken)?;
    for (what, descriptor) in [
        ("the null device", null.as_fd()),
        ("a folder", folder.as_fd()),
        ("a socket", socket.as_fd()),
    ] {
        let result = bench.sharing()?.import_page(descriptor, grain);
        invalid(Call::ImportPage, what, result)?;
    }
    Ok(())
}

fn a_descriptor_closes_on_exec(bench: &Bench) -> Verdict {
    use std::os::fd::AsRawFd;

    let (_, descriptor) = exported(bench, bench.grain()?)?;
    // Linux tells the flags of a descriptor in octal; close-on-exec is 0o2000000.
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let Ok(text) = std::fs::read_to_string(&path) else {
        // No other system that devices run on tells it without a call this crate has not.
        return Ok(());
    };
    let flags = text
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|flags| u64::from_str_radix(flags.trim(), 8).ok())
        .ok_or_else(|| Failure::new(format!("{path} has no flags: {text}")))?;
    ensure!(flags & 0o2_000_000 != 0, "flags {flags:#o}: the descriptor stays open on exec");
    Ok(())
}

fn an_imported_page_is_a_page(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (_, descriptor) = exported(bench, grain)?;
    let twin = imported(bench, &descriptor, grain)?;
    let region = bench.region(grain)?;
    let mapping = bench.map(region.start(), twin, grain)?;
    bench.release_page(twin)?;
    let again = bench.virtual_memory()?.release_page(twin);
    invalid(Call::ReleasePage, "a released import", again)?;
    bench.unmap(mapping)?;
    let mapped = bench.virtual_memory()?.map(region.start(), twin);
    invalid(Call::Map, "a released import", mapped)
}
