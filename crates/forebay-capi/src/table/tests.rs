use std::sync::Barrier;

use forebay::{Address, Bytes, HostDevice};

use super::*;
use crate::device::{forebay_device, forebay_device_open};
use crate::pool::{PoolEntry, forebay_pool, forebay_pool_close, forebay_pool_create};
use crate::status::forebay_status;

fn device() -> u64 {
    let mut device = forebay_device { id: 0 };
    // SAFETY: a text and a place for a handle.
    let status = unsafe { forebay_device_open(c"host".as_ptr(), &raw mut device) };
    assert_eq!(status, forebay_status::Ok);
    device.id
}

fn pool(device: u64) -> u64 {
    let (device, mut pool) = (forebay_device { id: device }, forebay_pool { id: 0 });
    // SAFETY: no settings, and a place for a handle.
    let status = unsafe { forebay_pool_create(device, core::ptr::null(), &raw mut pool) };
    assert_eq!(status, forebay_status::Ok);
    pool.id
}

fn close_pool(id: u64) -> forebay_status {
    // SAFETY: nobody wants to know what was left.
    unsafe { forebay_pool_close(forebay_pool { id }, core::ptr::null_mut()) }
}

fn find_pool(id: u64) -> Result<Arc<PoolEntry>, Failure> {
    find(forebay_pool { id })
}

fn words<T>(result: Result<T, Failure>) -> String {
    result.err().map(|failure| failure.to_string()).unwrap_or_default()
}

/// Whether an object goes. Tests share one table: it may be another's thread that is just ending it, and
/// nobody waits for that but here.
fn goes<E>(object: &std::sync::Weak<E>) -> bool {
    let begun = std::time::Instant::now();
    while object.upgrade().is_some() && begun.elapsed() < std::time::Duration::from_secs(30) {
        std::thread::yield_now();
    }
    object.upgrade().is_none()
}

#[test]
fn what_is_wrong_with_a_handle_is_told() {
    assert!(HostDevice::open().is_ok());
    let device = device();
    let closed = pool(device);
    assert_eq!(close_pool(closed), forebay_status::Ok);
    assert!(words(find_pool(0)).contains("is null"));
    assert!(words(find_pool(device)).contains("is the handle of a device"));
    assert!(words(find_pool(closed)).contains("was closed"));
    assert!(words(close(forebay_pool { id: closed })).contains("was closed"));
    let moved_from = words(find_pool(NO_HANDLE));
    assert!(moved_from.starts_with("there is no pool: its owner was moved from"), "{moved_from}");
    for made_up in [1, u64::MAX, closed ^ (1 << 40), device & !(0xff << KIND_SHIFT)] {
        let said = words(find_pool(made_up));
        assert!(said.contains("not a handle") || said.contains("is the handle of"), "{said}");
    }
    let none = |id| with(forebay_pool { id }, |_| ());
    for wrong in [0, 1, u64::MAX, NO_HANDLE, device, closed] {
        assert!(none(wrong).is_none(), "{wrong:#x}");
        assert!(stream(wrong).is_none_or(|(_, device)| device == 0), "{wrong:#x}");
    }
    assert!(close(forebay_device { id: device }).is_ok());
}

#[test]
fn a_slot_that_is_used_again_has_another_handle() {
    let device = device();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..200 {
        let id = pool(device);
        assert!(seen.insert(id), "{id:#x} came twice");
        assert_eq!(close_pool(id), forebay_status::Ok);
    }
    assert!(seen.iter().all(|&id| find_pool(id).is_err()));
    assert!(close(forebay_device { id: device }).is_ok());
}

#[test]
fn a_pool_that_someone_is_inside_goes_when_they_leave() {
    let device = device();
    let id = pool(device);
    // The first call finds it by the registry, and has a place from then on.
    assert!(find_pool(id).is_ok());
    let weak = Arc::downgrade(&find_pool(id).unwrap());
    let (inside, closed) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = find_pool(id);
            let visited = with(forebay_pool { id }, |entry| {
                inside.wait();
                closed.wait();
                // Closed meanwhile, and whole.
                let stream = StreamHandle::DEFAULT;
                let block = entry.pool().allocate(Bytes::new(512), stream).unwrap();
                assert_ne!(block.address(), Address::NULL);
                entry.pool().free(block.address(), stream).unwrap();
            });
            assert!(visited.is_some());
        });
        inside.wait();
        assert_eq!(close_pool(id), forebay_status::Ok);
        assert!(weak.upgrade().is_some(), "someone is inside");
        assert!(with(forebay_pool { id }, |_| ()).is_none(), "nobody else gets in");
        closed.wait();
    });
    assert!(goes(&weak), "whoever left last has ended it");
    assert!(close(forebay_device { id: device }).is_ok());
}

#[test]
fn a_pool_can_be_closed_from_inside_itself() {
    let device = device();
    let id = pool(device);
    let weak = Arc::downgrade(&find_pool(id).unwrap());
    let visited = with(forebay_pool { id }, |entry| {
        assert_eq!(close_pool(id), forebay_status::Ok);
        // Inside something already: nobody gets in, by either way.
        assert!(with(forebay_pool { id }, |_| ()).is_none() && find_pool(id).is_err());
        entry.pool().statistics().blocks
    });
    assert_eq!(visited.unwrap(), 0);
    assert!(goes(&weak));
    assert!(close(forebay_device { id: device }).is_ok());
}

#[test]
fn threads_that_use_a_pool_while_it_is_closed_get_errors_alone() {
    let device = device();
    for _ in 0..50 {
        let id = pool(device);
        let weak = Arc::downgrade(&find_pool(id).unwrap());
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    let _ = find_pool(id);
                    let mut done = 0_u64;
                    let stream = StreamHandle::DEFAULT;
                    while with(forebay_pool { id }, |entry| {
                        let block = entry.pool().allocate(Bytes::new(4096), stream).unwrap();
                        entry.pool().free(block.address(), stream).unwrap();
                    })
                    .is_some()
                    {
                        done += 1;
                    }
                    done
                });
            }
            start.wait();
            std::thread::yield_now();
            assert_eq!(close_pool(id), forebay_status::Ok);
        });
        assert!(goes(&weak), "nothing is left of it");
    }
    assert!(close(forebay_device { id: device }).is_ok());
}

#[test]
fn a_device_that_someone_is_inside_goes_when_they_leave() {
    let mut device = forebay_device { id: 0 };
    // SAFETY: a text and a place for a handle.
    let status = unsafe { forebay_device_open(c"sim:9190".as_ptr(), &raw mut device) };
    assert_eq!(status, forebay_status::Ok);
    let weak = Arc::downgrade(&find(device).unwrap());
    let visited = with(device, |entry| {
        assert!(close(device).is_ok());
        assert!(weak.upgrade().is_some(), "someone is inside");
        entry.number()
    });
    assert_ne!(visited, None);
    assert!(goes(&weak));
}

/// Pinned memory is allocated by the handle of its device, which may be closed meanwhile.
#[test]
fn threads_that_pin_memory_of_a_device_while_it_is_closed_get_errors_alone() {
    use crate::pinned::{forebay_pinned_alloc, forebay_pinned_free};

    for _ in 0..20 {
        let mut device = forebay_device { id: 0 };
        // SAFETY: a text and a place for a handle.
        let status = unsafe { forebay_device_open(c"sim:9191".as_ptr(), &raw mut device) };
        assert_eq!(status, forebay_status::Ok);
        let weak = Arc::downgrade(&find(device).unwrap());
        let (start, pinned) = (Barrier::new(3), Barrier::new(3));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut memory = core::ptr::null_mut();
                    start.wait();
                    for round in 0.. {
                        // SAFETY: a place of our own; and what was allocated there, which nobody uses.
                        let (allocated, freed) = unsafe {
                            let allocated = forebay_pinned_alloc(device, 4096, &raw mut memory);
                            (allocated, forebay_pinned_free(device, memory))
                        };
                        if allocated != forebay_status::Ok {
                            assert_eq!(allocated, forebay_status::InvalidHandle);
                            assert!(memory.is_null() && round > 2);
                            break;
                        }
                        if freed != forebay_status::Ok {
                            // The memory went with the device.
                            assert_eq!(freed, forebay_status::InvalidHandle);
                            break;
                        }
                        if round == 2 {
                            pinned.wait();
                        }
                    }
                });
            }
            start.wait();
            pinned.wait();
            assert!(close(device).is_ok());
        });
        assert!(goes(&weak), "nothing is left of it");
    }
}
