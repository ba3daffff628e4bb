//! Pinned memory for PyTorch, on the driver made of the simulated device. The figures are the whole process's, so one test
//! runs at a time, and each ends with nothing live.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_capi::error::forebay_last_error;
use forebay_capi::torch::*;

const MIB: usize = 1 << 20;

/// Stands for a GPU where figures of pinned memory are asked for.
const PINNED: c_int = -1;

/// Where cargo has put the driver: beside the test, or a folder up.
fn fake_driver() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut paths = folders.map(|folder| folder.join("libforebay_cuda_fake_driver.so"));
    paths.find(|path| path.exists()).unwrap()
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Lets one test run at a time, with nothing pinned and figures that begin at 0.
fn alone() -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: no test runs that reads the environment, and all write the same.
    unsafe { std::env::set_var("FOREBAY_CUDA_DRIVER", fake_driver()) };
    ok(forebay_torch_pinned_trim());
    ok(forebay_torch_reset_totals(PINNED));
    ok(forebay_torch_reset_peaks(PINNED));
    guard
}

#[track_caller]
fn ok(status: c_int) {
    // SAFETY: it is text that ends with a zero byte, until the next call that fails here.
    let error = || unsafe { CStr::from_ptr(forebay_last_error()) }.to_str().unwrap().to_owned();
    assert_eq!(status, 0, "{}", error());
}

#[track_caller]
fn pin(size: usize) -> *mut c_void {
    let memory = forebay_torch_pinned_alloc(size, 0);
    assert!(!memory.is_null());
    memory
}

fn free(memory: *mut c_void) -> c_int {
    // SAFETY: what the tests use is recorded.
    unsafe { forebay_torch_pinned_free(memory) }
}

fn figures() -> DeviceStatistics {
    let mut told = DeviceStatistics::default();
    // SAFETY: it can be written to.
    ok(unsafe { forebay_torch_stats(PINNED, &raw mut told) });
    told
}

fn numbers(figure: Figure) -> (i64, i64, i64) {
    (figure.current, figure.allocated, figure.freed)
}

#[test]
fn requests_and_what_the_driver_pinned_are_counted_apart() {
    let _alone = alone();
    let held: Vec<_> = (0..4).map(|_| pin(MIB)).collect();
    let first = figures();
    assert_eq!(numbers(first.allocation[0]), (4, 4, 0));
    assert_eq!(first.allocated_bytes[0].current, 4 * MIB as i64);
    let made = first.device_alloc;
    assert!(made >= 1);
    assert_eq!(numbers(first.segment[0]), (made, made, 0));
    held.into_iter().for_each(|memory| ok(free(memory)));
    for _ in 0..100 {
        ok(free(pin(MIB)));
    }
    let again = figures();
    assert_eq!(numbers(again.allocation[0]), (0, 104, 104));
    assert_eq!(again.allocation[0].peak, 4, "the most that was seen");
    assert_eq!(numbers(again.segment[0]), (made, made, 0), "nothing more was pinned");
    let bytes = again.reserved_bytes[0];
    assert!(bytes.current >= 4 * MIB as i64 && bytes.allocated == bytes.current, "{bytes:?}");
    ok(forebay_torch_pinned_trim());
    let last = figures();
    assert_eq!(numbers(last.segment[0]), (0, made, made));
    assert_eq!(numbers(last.reserved_bytes[0]), (0, bytes.allocated, bytes.allocated));
    assert_eq!(last.device_free, made);
    ok(forebay_torch_reset_totals(PINNED));
    ok(forebay_torch_reset_peaks(PINNED));
    assert_eq!(numbers(figures().segment[0]), (0, 0, 0));
    assert_eq!(figures().reserved_bytes[0].peak, 0);
}

#[test]
fn what_a_capture_used_is_kept_until_the_cache_is_emptied() {
    let _alone = alone();
    let (captured, other) = (pin(MIB), pin(MIB));
    ok(forebay_torch_pinned_record(captured, 0, null_mut(), 1));
    ok(free(captured));
    ok(free(other));
    let served: BTreeSet<usize> = (0..8).map(|_| pin(MIB).addr()).collect();
    assert!(!served.contains(&captured.addr()), "a graph may read it");
    assert!(served.contains(&other.addr()));
    for address in served {
        ok(free(core::ptr::with_exposed_provenance_mut(address)));
    }
    ok(forebay_torch_pinned_trim());
    assert_eq!(figures().allocation[0].current, 0);
    assert_eq!(figures().segment[0].current, 0);
    // Captured memory is forgotten, so that frees take no lock and the same address serves again.
    let memory = pin(MIB);
    ok(free(memory));
    assert_eq!(pin(MIB), memory);
    ok(free(memory));
}

#[test]
fn memory_of_another_allocator_is_left_to_it() {
    let _alone = alone();
    let mut other = 0_u64;
    let memory = (&raw mut other).cast();
    assert_eq!(free(memory), 1);
    assert_eq!(forebay_torch_pinned_record(memory, 0, null_mut(), 0), 1);
    let ours = pin(MIB);
    ok(free(ours));
    assert_eq!(free(ours), 1, "freed already");
}
