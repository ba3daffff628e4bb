//! Pages across devices and processes; the words of refusals. The rules of the contract are the
//! conformance suite's.

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use forebay_hal::{
    Copy, Device, Fill, Location, Memory, Pattern, Sharing, StreamHandle, Streams, Transfers,
};

use super::*;
use crate::{Census, HostOptions};

const PAGE: Bytes = Bytes::mib(2);
const HERE: DeviceOrdinal = DeviceOrdinal(0);

fn device() -> Arc<HostDevice> {
    HostOptions::new().memory_limit(Bytes::gib(1)).open().unwrap()
}

/// A region with `page` mapped at its start, for reading and writing.
fn mapped(device: &HostDevice, page: PageHandle) -> Span {
    let region = device.reserve(PAGE, Alignment::ONE).unwrap();
    device.map(region.start(), page).unwrap();
    // SAFETY: the region is the test's own.
    unsafe { device.set_access(region, Access::ReadWrite, HERE) }.unwrap();
    region
}

fn read(address: Address, offset: usize) -> u8 {
    // SAFETY: the tests read mapped pages that nobody writes meanwhile.
    unsafe { crate::mapping::pointer(address).add(offset).read_volatile() }
}

fn write(address: Address, offset: usize, value: u8) {
    // SAFETY: the tests write mapped pages that nobody else uses meanwhile.
    unsafe { crate::mapping::pointer(address).add(offset).write_volatile(value) };
}

#[test]
fn an_imported_page_is_the_exported_one_and_outlives_its_exporter() {
    let (giver, taker) = (device(), device());
    let page = giver.create_page(PAGE, PageOptions::shareable()).unwrap();
    let there = mapped(&giver, page);
    write(there.start(), 5, 42);
    let sent = giver.export_page(page).unwrap();
    let error = taker.import_page(sent.as_fd(), Bytes::mib(4)).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let got = taker.import_page(sent.as_fd(), PAGE).unwrap();
    let here = mapped(&taker, got);
    assert_eq!(read(here.start(), 5), 42);
    write(here.start(), 6, 43);
    assert_eq!(read(there.start(), 6), 43);
    drop((giver, sent));
    assert_eq!(read(here.start(), 5), 42, "the giver went with its mapping, the memory did not");
    assert!(taker.export_page(got).is_ok(), "what came can go on");

    let private = taker.create_page(PAGE, PageOptions::default()).unwrap();
    let error = taker.export_page(private).unwrap_err();
    assert!(error.to_string().contains("created shareable"), "{error}");
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE.get()).unwrap();
    assert!(taker.import_page(file.as_fd(), PAGE).is_err(), "a file is no page");
}

/// Runs one test of this file again, in a process of its own that finds `value` in its environment.
fn in_another_process(test: &str, variable: &str, value: &str) {
    let other = Command::new(std::env::current_exe().unwrap())
        .args([&format!("virtual_memory::tests::{test}"), "--exact"])
        .env(variable, value)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success() && output.contains("1 passed"), "{output}");
}

#[test]
fn another_process_reads_a_page_and_answers_in_it() {
    const VARIABLE: &str = "FOREBAY_TEST_IMPORT";
    if let Ok(path) = std::env::var(VARIABLE) {
        // The other process: the descriptor comes through the first one's directory of them.
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let device = device();
        let page = device.import_page(file.as_fd(), PAGE).unwrap();
        let region = mapped(&device, page);
        assert_eq!(read(region.start(), 1000), 42);
        write(region.start(), 1001, 24);
        return;
    }
    let device = device();
    let page = device.create_page(PAGE, PageOptions::shareable()).unwrap();
    let region = mapped(&device, page);
    write(region.start(), 1000, 42);
    let sent = device.export_page(page).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), sent.as_raw_fd());
    in_another_process("another_process_reads_a_page_and_answers_in_it", VARIABLE, &path);
    assert_eq!(read(region.start(), 1001), 24);
}

#[test]
fn running_out_of_open_files_is_told_with_the_cure() {
    const VARIABLE: &str = "FOREBAY_TEST_FEW_FILES";
    if std::env::var_os(VARIABLE).is_none() {
        // The limit is a process's, and other tests open files too.
        in_another_process("running_out_of_open_files_is_told_with_the_cure", VARIABLE, "1");
        return;
    }
    let device = device();
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let few = rustix::process::Rlimit { current: Some(32), maximum };
    rustix::process::setrlimit(Resource::Nofile, few).unwrap();
    let mut pages = Vec::new();
    let error = loop {
        match device.create_page(PAGE, PageOptions::shareable()) {
            Ok(page) => pages.push(page),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Transient { .. }), "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    assert_eq!(device.census().pages, pages.len(), "nothing was changed");
    assert_eq!(device.memory_info().unwrap().held, Bytes::mib(2 * pages.len() as u64));
    device.release_page(pages[0]).unwrap();
    device.create_page(PAGE, PageOptions::shareable()).unwrap();
}

#[test]
fn pages_take_no_open_files_and_give_their_memory_back() {
    let device = device();
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let first = device.create_page(PAGE, PageOptions::default()).unwrap();
    let before = open_files();
    let pages: Vec<_> =
        (0..200).map(|_| device.create_page(PAGE, PageOptions::default()).unwrap()).collect();
    // Other tests open and close files meanwhile, but not two hundred.
    assert!(open_files() < before + 100, "{} files for 200 pages", open_files() - before);
    for page in pages {
        device.release_page(page).unwrap();
    }
    let region = mapped(&device, first);
    let fill = Fill::linear(region.start(), PAGE, Pattern::U8(7)).unwrap();
    // SAFETY: the page is mapped until the fill was waited for.
    unsafe { device.fill(&fill, StreamHandle::DEFAULT) }.unwrap();
    device.synchronize_device().unwrap();
    device.release_page(first).unwrap();
    assert_eq!(device.memory_info().unwrap().held, PAGE, "it lives while it is mapped");
    assert_eq!(device.census().pages, 1);
    // SAFETY: nobody uses it.
    unsafe { device.unmap(region) }.unwrap();
    assert_eq!(device.memory_info().unwrap().held, Bytes::ZERO);
    // The next page takes its place in the store, and finds it empty.
    let again = device.create_page(PAGE, PageOptions::default()).unwrap();
    device.map(region.start(), again).unwrap();
    // SAFETY: the region is the test's own.
    unsafe { device.set_access(region, Access::Read, HERE) }.unwrap();
    assert_eq!(read(region.start(), 0), 0, "its memory went back to the system");
}

#[test]
fn a_copy_may_cross_mappings_but_no_hole_and_no_closed_door() {
    let device = device();
    let region = device.reserve(Bytes::mib(8), Alignment::ONE).unwrap();
    let at = |mib: u64| region.start().checked_add(Bytes::mib(mib)).unwrap();
    let span = |mib: u64, size: u64| Span::new(at(mib), Bytes::mib(size)).unwrap();
    let page = device.create_page(PAGE, PageOptions::default()).unwrap();
    for mib in [0, 2, 6] {
        device.map(at(mib), page).unwrap();
    }
    // SAFETY: the region is the test's own.
    unsafe {
        device.set_access(span(0, 4), Access::ReadWrite, HERE).unwrap();
        device.set_access(span(6, 2), Access::Read, HERE).unwrap();
    }
    let mut host = vec![0_u8; 8 << 20];
    let place = Location::Host(Address::of_pointer(host.as_mut_ptr()));
    let copy = |mib, size| {
        let copy = Copy::linear(place, Location::Device(at(mib)), Bytes::mib(size)).unwrap();
        // SAFETY: the vector outlives the work, which is waited for below.
        unsafe { device.copy(&copy, StreamHandle::DEFAULT) }
    };
    copy(0, 4).unwrap();
    copy(6, 2).unwrap();
    let hole = copy(0, 6).unwrap_err().to_string();
    assert!(hole.contains(&at(4).to_string()) && hole.contains("nothing is mapped"), "{hole}");
    let fill = Fill::linear(at(6), Bytes::new(8), Pattern::U8(0)).unwrap();
    // SAFETY: refused.
    let closed = unsafe { device.fill(&fill, StreamHandle::DEFAULT) }.unwrap_err().to_string();
    assert!(closed.contains("not accessible"), "{closed}");
    let rows = Fill::plane(at(0), Bytes::mib(3), (Bytes::mib(1), 2), Pattern::U8(3)).unwrap();
    // SAFETY: the rows are mapped; the gap between them need not be.
    unsafe { device.fill(&rows, StreamHandle::DEFAULT) }.unwrap();
    device.synchronize_device().unwrap();
    let elsewhere = Location::Device(Address::of_pointer(host.as_ptr()));
    let foreign = Copy::linear(elsewhere, Location::Device(at(0)), Bytes::new(8)).unwrap();
    // SAFETY: refused.
    let foreign = unsafe { device.copy(&foreign, StreamHandle::DEFAULT) }.unwrap_err();
    assert!(foreign.to_string().contains("this device has no memory"), "{foreign}");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let device = device();
    let region = device.reserve(Bytes::mib(8), Alignment::DEVICE_PAGE).unwrap();
    let page = device.create_page(PAGE, PageOptions::default()).unwrap();
    let at = |bytes: u64| region.start().checked_add(Bytes::new(bytes)).unwrap();
    let span = |from: u64, size: u64| Span::new(at(from), Bytes::new(size)).unwrap();
    device.map(at(0), page).unwrap();
    let before = device.census();
    let (granule, mib) = (4096, 1 << 20);
    assert!(device.map(at(granule), page).is_err(), "over the end of a mapping");
    assert!(device.map(at(2 * mib + 1), page).is_err(), "between granules");
    assert!(device.map(at(7 * mib), page).is_err(), "over the end of the region");
    assert!(device.map(at(2 * mib), PageHandle(u64::MAX)).is_err(), "no page");
    let plain = device.allocate(PAGE, Alignment::DEVICE_PAGE).unwrap();
    assert!(device.map(plain, page).is_err(), "no region");
    // SAFETY: all of it is refused.
    unsafe {
        for cut in [span(0, granule), span(granule, 2 * mib), span(0, 4 * mib), span(0, 0)] {
            assert!(device.unmap(cut).is_err(), "{cut}");
            assert!(device.set_access(cut, Access::Read, HERE).is_err(), "{cut}");
        }
        assert!(device.set_access(span(0, 2 * mib), Access::Read, DeviceOrdinal(1)).is_err());
        let busy = device.release_region(region.start()).unwrap_err();
        assert!(matches!(busy, Error::Busy { .. }), "{busy}");
        assert!(device.release_region(at(granule)).is_err(), "not its start");
        device.free(plain).unwrap();
    }
    for size in [0, 1, granule + 1] {
        let size = Bytes::new(size);
        assert!(device.create_page(size, PageOptions::default()).is_err());
        assert!(device.reserve(size, Alignment::ONE).is_err());
    }
    let far = device.reserve(Bytes::new(1 << 62), Alignment::ONE).unwrap_err();
    let Error::OutOfMemory { requested, free, total, .. } = far else { panic!("{far}") };
    assert!(requested == Bytes::new(1 << 62) && free < total);
    assert_eq!(device.census(), before);
    device.release_page(page).unwrap();
    assert!(device.release_page(page).is_err(), "released twice");
    assert!(device.map(at(2 * mib), page).is_err(), "released");
    assert!(device.export_page(page).is_err(), "released");
    // SAFETY: nobody uses it.
    unsafe {
        device.unmap(span(0, 2 * mib)).unwrap();
        device.release_region(region.start()).unwrap();
    }
    assert_eq!(device.census(), Census::default());
}

/// Growing a file past `ulimit -f` ends a process with a signal; a page that would is refused.
#[test]
fn a_limit_on_file_sizes_is_an_error_and_no_signal() {
    // In a process of its own: the limit is the whole process's.
    if std::env::var_os("FOREBAY_TEST_FILE_LIMIT").is_none() {
        let test = "virtual_memory::tests::a_limit_on_file_sizes_is_an_error_and_no_signal";
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("FOREBAY_TEST_FILE_LIMIT", "1")
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        return;
    }
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Some(8 << 20);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let device = crate::HostDevice::open().unwrap();
    let page = device.create_page(Bytes::mib(8), PageOptions::default()).unwrap();
    let error = device.create_page(Bytes::mib(2), PageOptions::default()).unwrap_err();
    assert!(error.to_string().contains("ulimit -f"), "{error}");
    let error = device.create_page(Bytes::mib(16), PageOptions::shareable()).unwrap_err();
    assert!(error.to_string().contains("ulimit -f"), "{error}");
    device.release_page(page).unwrap();
    assert_eq!(device.census().pages, 0);
}
