//! Locked memory: limits, shared pages, overlaps.

use forebay_hal::{Copy, Device, Location, PointerKind, StreamHandle, Streams, Transfers};
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

use super::*;

/// How much of the mappings that overlap `span` is locked, in KiB, as `/proc/self/smaps` tells.
fn locked_kib(span: Span) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((from, to)) = range
            && let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        {
            inside = from < span.end().get() && span.start().get() < to;
        }
        if let Some(rest) = line.strip_prefix("Locked:").filter(|_| inside) {
            sum += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    sum
}

/// Four pages of the test's own, apart from everything else.
fn pages() -> crate::mapping::AddressRange {
    let range = crate::mapping::AddressRange::reserve(Bytes::new(1 << 16), Alignment::ONE).unwrap();
    // SAFETY: the range is this test's own.
    unsafe {
        range.commit(Bytes::new(1 << 14), Bytes::new(1 << 14), forebay_hal::Access::ReadWrite)
    }
    .unwrap();
    range
}

fn span(start: Address, from: u64, size: u64) -> Span {
    Span::new(start.checked_add(Bytes::new(from)).unwrap(), Bytes::new(size)).unwrap()
}

#[test]
fn pinned_memory_is_locked_and_mapped_where_asked() {
    let device = HostDevice::open().unwrap();
    let pinned = device.allocate_pinned(Bytes::new(8192), PinnedFlags::MAPPED).unwrap();
    let all = span(pinned, 0, 8192);
    assert!(locked_kib(all) >= 8);
    let inside = span(pinned, 100, 1).start();
    assert_eq!(device.device_address(inside).unwrap(), inside);
    assert_eq!(device.classify(inside).unwrap().unwrap().kind, PointerKind::Pinned);

    let unmapped = device.allocate_pinned(Bytes::new(8192), PinnedFlags::PORTABLE).unwrap();
    assert!(device.device_address(unmapped).is_err());
    let size = Bytes::new(8192);
    let refused = Copy::linear(Location::Device(unmapped), Location::Device(pinned), size).unwrap();
    // SAFETY: both are memory, and live until the device has done.
    let error = unsafe { device.copy(&refused, StreamHandle::DEFAULT) }.unwrap_err();
    assert!(error.to_string().contains("not asked to be mapped"), "{error}");
    let allowed = Copy::linear(Location::Host(unmapped), Location::Device(pinned), size).unwrap();
    // SAFETY: as above.
    unsafe { device.copy(&allowed, StreamHandle::DEFAULT) }.unwrap();
    device.synchronize_device().unwrap();
    let error = device.allocate_pinned(Bytes::new(1), PinnedFlags::WRITE_COMBINED).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    // SAFETY: the work was waited for.
    unsafe {
        device.free_pinned(pinned).unwrap();
        device.free_pinned(unmapped).unwrap();
    }
    assert_eq!(device.census(), crate::Census::default());
}

#[test]
fn a_page_of_two_registrations_stays_locked_until_the_last_goes() {
    let (first, second) = (HostDevice::open().unwrap(), HostDevice::open().unwrap());
    let range = pages();
    let start = range.span().start().checked_add(Bytes::new(1 << 14)).unwrap();
    let all = span(start, 0, 1 << 14);
    // SAFETY: the pages outlive the registrations.
    unsafe {
        first.register(span(start, 0, 4196), PinnedFlags::empty()).unwrap();
        first.register(span(start, 4196, 100), PinnedFlags::empty()).unwrap();
        second.register(span(start, 5000, 8192), PinnedFlags::empty()).unwrap();
        assert_eq!(locked_kib(all), 16);
        for (from, size) in [(0, 1), (4195, 2), (4295, 1), (0, 1 << 14)] {
            assert!(first.register(span(start, from, size), PinnedFlags::empty()).is_err());
        }
        assert_eq!(locked_kib(all), 16, "a refused registration changes nothing");
        first.unregister(start).unwrap();
        assert_eq!(locked_kib(all), 12);
        second.unregister(span(start, 5000, 1).start()).unwrap();
        assert_eq!(locked_kib(all), 4);
        assert!(first.unregister(start).is_err(), "unregistered twice");
    }
    drop(first);
    assert_eq!(locked_kib(all), 0, "a dropped device lets go");
}

#[test]
fn memory_that_is_not_there_is_not_registered() {
    let device = HostDevice::open().unwrap();
    let range = pages();
    // SAFETY: refused, whatever is there.
    let error = unsafe {
        device.register(Span::new(Address::NULL, Bytes::new(4096)).unwrap(), PinnedFlags::empty())
    }
    .unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    drop(range);
    // SAFETY: as above.
    assert!(unsafe { device.register(Span::default(), PinnedFlags::empty()) }.is_err());
    assert_eq!(device.census().registered, 0);
}

#[test]
fn the_systems_limit_on_locked_memory_is_told() {
    let device = HostDevice::open().unwrap();
    let now = rustix::process::getrlimit(Resource::Memlock);
    let soft = now.current.unwrap_or(u64::MAX).min(8 << 20);
    let limit = Rlimit { current: Some(soft), maximum: now.maximum };
    rustix::process::setrlimit(Resource::Memlock, limit).unwrap();
    // In a thread of its own, because leave to pass the limit is a thread's and is given up here.
    let error = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::IPC_LOCK);
            rustix::thread::set_capabilities(None, sets).unwrap();
            device.allocate_pinned(Bytes::new(soft + 4096), PinnedFlags::empty()).unwrap_err()
        });
        asking.join().unwrap()
    });
    let Error::OutOfMemory { requested, free, total, .. } = error else { panic!("{error}") };
    assert_eq!((requested, total), (Bytes::new(soft + 4096), Bytes::new(soft)));
    assert!(free <= total);
    let books = device.space.table().book.overlapping(span(Address::NULL, 0, u64::MAX)).is_none();
    assert!(books, "nothing was changed");
}
