//! What is the host's own: limits, huge pages, NUMA, and the words of refusals.

use std::fs;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal};
use forebay_hal::{
    Access, Advice, Capabilities, Copy, Device, Error, Fill, Location, ManagedMemory, Memory,
    PageOptions, Pattern, PinnedFlags, PinnedMemory, PointerKind, StreamHandle, Streams, Transfers,
    VirtualMemory,
};
use rustix::mm::MapFlags;

use super::*;
use crate::{Census, HugePages, NumaPolicy, numa};

const PAGE: Bytes = Bytes::mib(2);

fn limited(limit: Bytes) -> Arc<HostDevice> {
    HostOptions::new().memory_limit(limit).open().unwrap()
}

/// The flags the system keeps for the mapping at `address`, as in `/proc/self/smaps`.
fn mapping_flags(address: Address) -> String {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((from, to)) = range
            && let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        {
            inside = (from..to).contains(&address.get());
        }
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            return format!("{flags} ");
        }
    }
    panic!("{address} is not mapped");
}

#[test]
fn the_limit_holds_for_everything_together_and_the_books_are_exact() {
    let device = limited(Bytes::mib(16));
    let info = || device.memory_info().unwrap();
    assert_eq!((info().total, info().held), (Bytes::mib(16), Bytes::ZERO));
    let plain = device.allocate(Bytes::new(1), Alignment::ONE).unwrap();
    assert_eq!(info().held, crate::mapping::system_page().bytes(), "a byte costs a page");
    let managed = device.allocate_managed(Bytes::mib(6)).unwrap();
    let pinned = device.allocate_pinned(Bytes::new(4096), PinnedFlags::empty()).unwrap();
    let page = device.create_page(PAGE, PageOptions::default()).unwrap();
    assert_eq!(info().held, Bytes::new((2 << 20) + 4096), "plain memory and pages are held");
    assert_eq!(info().managed, Bytes::mib(6));
    assert!(info().free <= Bytes::new((8 << 20) - 8192), "but it is not free either");

    let error = device.allocate(Bytes::mib(8), Alignment::ONE).unwrap_err();
    let Error::OutOfMemory { requested, free, total, .. } = error else { panic!("{error}") };
    assert_eq!((requested, total), (Bytes::mib(8), Bytes::mib(16)));
    assert_eq!(free, Bytes::new((8 << 20) - 8192));
    assert!(device.create_page(Bytes::mib(8), PageOptions::shareable()).is_err());
    assert!(device.allocate_managed(Bytes::mib(8)).is_err());
    assert!(device.allocate_pinned(Bytes::mib(8), PinnedFlags::empty()).is_err());
    for size in [Bytes::MAX, Bytes::new(u64::MAX - 4095), Bytes::gib(1 << 20)] {
        let error = device.allocate(size, Alignment::ONE).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { requested, .. } if requested == size));
    }
    let far = device.allocate(Bytes::new(1), Alignment::new(1 << 63).unwrap()).unwrap_err();
    assert!(matches!(far, Error::OutOfMemory { .. }), "{far}");

    // SAFETY: nothing uses the memory.
    unsafe {
        device.free(plain).unwrap();
        device.free_managed(managed).unwrap();
        device.free_pinned(pinned).unwrap();
        assert!(device.free(plain).is_err(), "freed twice");
    }
    device.release_page(page).unwrap();
    assert_eq!(info().held, Bytes::ZERO);
    assert_eq!(device.census(), Census::default());
}

#[test]
fn more_than_the_system_has_is_refused_before_it_kills() {
    let device = HostDevice::open().unwrap();
    let info = device.memory_info().unwrap();
    assert!(info.free.saturating_add(info.held) <= info.total);
    let error = device.allocate(info.total.saturating_add(Bytes::new(1)), Alignment::ONE);
    assert!(matches!(error, Err(Error::OutOfMemory { .. })));
    assert_eq!(limited(Bytes::MAX).memory_info().unwrap().total, info.total);
    let nothing = HostOptions::new().memory_limit(Bytes::ZERO).open().unwrap_err();
    assert!(nothing.to_string().contains("invalid memory_limit: 0 B"), "{nothing}");
}

#[test]
fn any_alignment_is_kept() {
    let device = limited(Bytes::mib(64));
    for shift in [0, 6, 9, 12, 16, 21, 26, 32] {
        let alignment = Alignment::new(1 << shift).unwrap();
        let address = device.allocate(Bytes::new(100), alignment).unwrap();
        assert!(address.is_aligned_to(alignment) && address.is_aligned_to(Alignment::CACHE_LINE));
        // SAFETY: nothing uses the memory.
        unsafe { device.free(address) }.unwrap();
    }
}

#[test]
fn transparent_huge_pages_are_asked_for_and_never_is_never() {
    for (wish, flag) in [(HugePages::Transparent, " hg "), (HugePages::Never, " nh ")] {
        let device = HostOptions::new().huge_pages(wish).open().unwrap();
        let transparent = System::here().huge_pages().transparent;
        let granted = matches!(
            transparent,
            Ok(crate::system::TransparentHuge::Always | crate::system::TransparentHuge::Madvise)
        );
        let bit = device.descriptor().capabilities.contains(Capabilities::HUGE_PAGES);
        assert_eq!(bit, granted && wish == HugePages::Transparent);
        let address = device.allocate(Bytes::mib(5), Alignment::ONE).unwrap();
        if transparent.is_ok() {
            let flags = mapping_flags(address);
            assert!(flags.contains(flag), "{wish:?}: {flags}");
        }
        if wish == HugePages::Transparent {
            assert!(address.is_aligned_to(Alignment::DEVICE_PAGE));
        }
    }
}

/// A machine laid out in a directory, whose pool of 2 MiB pages has `pages`.
fn machine(pages: u64) -> (tempfile::TempDir, System) {
    let root = tempfile::tempdir().unwrap();
    let pool = root.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
    fs::create_dir_all(&pool).unwrap();
    fs::write(pool.join("nr_hugepages"), format!("{pages}\n")).unwrap();
    fs::write(pool.join("free_hugepages"), format!("{pages}\n")).unwrap();
    let node = root.path().join("sys/devices/system/node");
    fs::create_dir_all(node.join("node0")).unwrap();
    fs::write(node.join("online"), "0\n").unwrap();
    let system = System::at(root.path());
    (root, system)
}

#[test]
fn explicit_huge_pages_are_refused_with_the_cure_where_the_pool_is_empty() {
    let (_root, system) = machine(0);
    let options = HostOptions::new().huge_pages(HugePages::Explicit2M);
    let error = HostDevice::open_on(&options, &system).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    for word in ["2.00 MiB", "is empty", "/proc/sys/vm/nr_hugepages", "hugepages-2048kB"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    let options = HostOptions::new().huge_pages(HugePages::Explicit1G);
    let error = HostDevice::open_on(&options, &system).unwrap_err();
    assert!(error.to_string().contains("no huge pages of 1.00 GiB"), "{error}");
}

#[test]
fn explicit_huge_pages_are_real_or_refused() {
    // The machine in the directory has them, whatever this one has.
    let (_root, system) = machine(4);
    let options = HostOptions::new().huge_pages(HugePages::Explicit2M);
    let device = HostDevice::open_on(&options, &system).unwrap();
    assert_eq!(device.granularity().minimum.bytes(), PAGE);
    assert_eq!(device.memory_info().unwrap().total, Bytes::mib(8));
    assert!(device.reserve(Bytes::new(4096), Alignment::ONE).is_err());
    let region = device.reserve(PAGE, Alignment::ONE).unwrap();
    assert!(region.start().is_aligned_to(Alignment::DEVICE_PAGE));

    let here = System::here().huge_pages();
    let obtainable = here.pool(PAGE).and_then(|pool| pool.obtainable().ok()).unwrap_or(0);
    let (plain, page) = (
        device.allocate(Bytes::new(1), Alignment::ONE),
        device.create_page(PAGE, PageOptions::default()),
    );
    if obtainable < 4 {
        for error in [plain.unwrap_err(), page.unwrap_err()] {
            let Error::OutOfMemory { free, total, .. } = error else { panic!("{error}") };
            assert!(free < Bytes::mib(8) && total == Bytes::mib(8));
        }
        assert_eq!(device.memory_info().unwrap().held, Bytes::ZERO, "nothing was changed");
    } else {
        let (plain, page) = (plain.unwrap(), page.unwrap());
        assert!(mapping_flags(plain).contains(" ht "), "{}", mapping_flags(plain));
        device.map(region.start(), page).unwrap();
        // SAFETY: nothing uses the memory.
        unsafe {
            device.set_access(region, Access::ReadWrite, DeviceOrdinal(0)).unwrap();
            let fill = Fill::linear(region.start(), PAGE, Pattern::U8(1)).unwrap();
            device.fill(&fill, StreamHandle::DEFAULT).unwrap();
            device.synchronize_device().unwrap();
            device.unmap(region).unwrap();
            device.free(plain).unwrap();
        }
        device.release_page(page).unwrap();
    }
    // SAFETY: nothing is mapped there.
    unsafe { device.release_region(region.start()) }.unwrap();
    assert_eq!(device.census(), Census::default());
}

#[test]
fn a_numa_policy_is_in_force_on_every_kind_of_memory() {
    let node = System::here().topology().nodes[0].id;
    for policy in [
        NumaPolicy::Default,
        NumaPolicy::Prefer(node),
        NumaPolicy::Bind(vec![node]),
        NumaPolicy::Interleave(vec![node]),
    ] {
        let device = match HostOptions::new().numa(policy.clone()).open() {
            Ok(device) => device,
            // A container may forbid it: then the refusal must say so, and that is the test.
            Err(error) => {
                assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                continue;
            }
        };
        let region = device.reserve(Bytes::mib(4), Alignment::ONE).unwrap();
        let shared = device.create_page(PAGE, PageOptions::shareable()).unwrap();
        let private = device.create_page(PAGE, PageOptions::default()).unwrap();
        let second = region.start().checked_add(PAGE).unwrap();
        device.map(region.start(), shared).unwrap();
        device.map(second, private).unwrap();
        // SAFETY: the region is this test's own.
        unsafe { device.set_access(region, Access::ReadWrite, DeviceOrdinal(0)) }.unwrap();
        for (what, address) in [
            ("plain", device.allocate(Bytes::new(10), Alignment::ONE).unwrap()),
            ("managed", device.allocate_managed(Bytes::new(10)).unwrap()),
            ("pinned", device.allocate_pinned(Bytes::new(10), PinnedFlags::empty()).unwrap()),
            ("a shareable page", region.start()),
            ("a private page", second),
        ] {
            assert_eq!(numa::policy_at(address), Ok(policy.clone()), "{what}");
        }
    }
}

#[test]
fn nodes_that_do_not_exist_are_named_with_those_that_do() {
    let (_root, system) = machine(0);
    for (policy, given) in [
        (NumaPolicy::Prefer(77), "node 77"),
        (NumaPolicy::Bind(vec![0, u32::MAX]), "node 4294967295"),
        (NumaPolicy::Interleave(vec![]), "no node"),
    ] {
        let options = HostOptions::new().numa(policy);
        let text = HostDevice::open_on(&options, &system).unwrap_err().to_string();
        assert!(text.contains(given) && text.contains("the nodes of this machine: 0"), "{text}");
    }
}

#[test]
fn every_address_is_known_for_what_it_is() {
    let device = limited(Bytes::mib(64));
    let kind = |address: Address| device.classify(address).unwrap().map(|class| class.kind);
    let plain = device.allocate(Bytes::new(100), Alignment::ONE).unwrap();
    let class = device.classify(plain.checked_add(Bytes::new(99)).unwrap()).unwrap().unwrap();
    assert_eq!((class.kind, class.span.size()), (PointerKind::Device, Bytes::new(100)));
    assert_eq!(kind(plain.checked_add(Bytes::new(100)).unwrap()), None);
    assert_eq!(kind(Address::NULL), None);
    let managed = device.allocate_managed(Bytes::new(1)).unwrap();
    assert_eq!(kind(managed), Some(PointerKind::Managed));
    let region = device.reserve(Bytes::mib(4), Alignment::ONE).unwrap();
    assert_eq!(kind(region.start()), Some(PointerKind::Reserved));
    let page = device.create_page(PAGE, PageOptions::default()).unwrap();
    device.map(region.start(), page).unwrap();
    let class = device.classify(region.start()).unwrap().unwrap();
    assert_eq!((class.kind, class.span.size()), (PointerKind::Mapped, PAGE));
}

#[test]
fn managed_memory_knows_its_spans_and_places() {
    let device = limited(Bytes::mib(64));
    let address = device.allocate_managed(Bytes::mib(1)).unwrap();
    let span = forebay_core::Span::new(address, Bytes::mib(1)).unwrap();
    let beyond = forebay_core::Span::new(address, Bytes::new((1 << 20) + 1)).unwrap();
    let fill = Fill::linear(address, Bytes::mib(1), Pattern::U16(0x0102)).unwrap();
    // SAFETY: the memory lives to the end of the test.
    unsafe { device.fill(&fill, StreamHandle::DEFAULT) }.unwrap();
    for to in [None, Some(DeviceOrdinal(0))] {
        device.prefetch(span, to, StreamHandle::DEFAULT).unwrap();
        device.advise(span, Advice::PreferredLocation(to)).unwrap();
    }
    device.synchronize_stream(StreamHandle::DEFAULT).unwrap();
    // SAFETY: filled and waited for.
    let value = unsafe { crate::mapping::pointer(address).cast::<u16>().add(77).read() };
    assert_eq!(value, 0x0102);
    assert!(device.prefetch(beyond, None, StreamHandle::DEFAULT).is_err());
    assert!(device.advise(beyond, Advice::ReadMostly).is_err());
    assert!(device.prefetch(span, Some(DeviceOrdinal(1)), StreamHandle::DEFAULT).is_err());
    assert!(device.advise(span, Advice::AccessedBy(Some(DeviceOrdinal(7)))).is_err());
}

#[test]
fn a_dropped_device_leaves_its_memory_to_the_work_and_then_to_the_system() {
    let device = limited(Bytes::mib(64));
    let address = device.allocate(PAGE, Alignment::ONE).unwrap();
    let stream = device.create_stream(forebay_hal::Priority::Normal).unwrap();
    let mut back = vec![0_u8; 1 << 20];
    let host = Location::Host(Address::of_pointer(back.as_mut_ptr()));
    let (send, receive) = std::sync::mpsc::channel();
    let wait = move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(receive);
    };
    device.enqueue_host(Box::new(wait), stream).unwrap();
    let fill = Fill::linear(address, PAGE, Pattern::U8(9)).unwrap();
    let copy = Copy::linear(host, Location::Device(address), Bytes::mib(1)).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    // SAFETY: the vector outlives the work, which is waited for below.
    unsafe {
        device.fill(&fill, stream).unwrap();
        device.copy(&copy, stream).unwrap();
    }
    device.enqueue_host(Box::new(move || done.send(()).unwrap()), stream).unwrap();
    drop(device);
    assert!(send.send(()).is_ok(), "the drop did not wait for the work");
    is_done.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
    assert!(back.iter().all(|&byte| byte == 9));
    // The worker ends right after: then the system has the addresses again.
    for _ in 0..1000 {
        if place_free(address) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{address} is still mapped");
}

/// Whether nothing is mapped at `address`.
fn place_free(address: Address) -> bool {
    let pointer = crate::mapping::pointer(address).cast();
    // SAFETY: NOREPLACE maps nothing over what is there; what it maps is unmapped at once.
    unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        match rustix::mm::mmap_anonymous(pointer, 4096, rustix::mm::ProtFlags::empty(), flags) {
            Ok(mapped) => rustix::mm::munmap(mapped, 4096).is_ok(),
            Err(_) => false,
        }
    }
}
