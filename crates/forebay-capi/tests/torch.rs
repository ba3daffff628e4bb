//! The entry points PyTorch calls, on the driver made of the simulated device.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::ptr::{null_mut, without_provenance_mut};

use forebay_capi::error::forebay_last_error;
use forebay_capi::torch::{forebay_torch_alloc, forebay_torch_free};

/// Where cargo has put the driver: beside the test, or a folder up.
fn fake_driver() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut paths = folders.map(|folder| folder.join("libforebay_cuda_fake_driver.so"));
    paths.find(|path| path.exists()).unwrap()
}

fn last_error() -> String {
    // SAFETY: it is text that ends with a zero byte, until the next call that fails here.
    unsafe { CStr::from_ptr(forebay_last_error()) }.to_str().unwrap().to_owned()
}

fn allocate(size: isize, device: i32) -> *mut c_void {
    // SAFETY: the default stream is there as long as the device.
    unsafe { forebay_torch_alloc(size, device, null_mut()) }
}

/// Likewise, on a stream that the driver knows by a value with a meaning of its own.
fn allocate_on(value: usize) -> *mut c_void {
    // SAFETY: both default streams are there as long as the device and the thread.
    unsafe { forebay_torch_alloc(1 << 20, 0, without_provenance_mut(value)) }
}

fn free_on(block: *mut c_void, value: usize) {
    // SAFETY: likewise; nothing was ever enqueued.
    unsafe { forebay_torch_free(block, 0, 0, without_provenance_mut(value)) }
}

/// What a thread frees on its own default stream it gets again there, by whichever way it comes.
fn own_stream() {
    for _ in 0..3 {
        let block = allocate_on(2);
        assert!(!block.is_null(), "{}", last_error());
        free_on(block, 2);
        assert_eq!(allocate_on(2), block, "{}", last_error());
        free_on(block, 2);
    }
}

fn free(block: *mut c_void, device: i32) {
    // SAFETY: likewise; nothing was ever enqueued.
    unsafe { forebay_torch_free(block, 0, device, null_mut()) }
}

/// One test: which driver there is is the whole process's.
#[test]
fn blocks_come_and_go_and_wrong_use_is_told() {
    // SAFETY: no other thread runs yet that reads the environment.
    unsafe { std::env::set_var("FOREBAY_CUDA_DRIVER", fake_driver()) };
    assert_eq!(last_error(), "");

    let first = allocate(1 << 20, 0);
    assert!(!first.is_null(), "{}", last_error());
    let second = allocate(1 << 20, 0);
    assert!(!second.is_null() && second != first);
    free(first, 0);
    assert_eq!(allocate(1 << 20, 0), first, "what was freed on a stream is given out there again");
    free(first, 0);
    assert_eq!(last_error(), "");

    free(first, 0);
    assert!(last_error().contains("freed already"), "{}", last_error());
    free(std::ptr::without_provenance_mut(4096), 0);
    assert!(last_error().contains("is not a block"), "{}", last_error());
    free(null_mut(), 0);

    assert!(allocate(0, 0).is_null());
    assert!(allocate(-1, 0).is_null());
    assert!(last_error().contains("-1 bytes"), "{}", last_error());
    assert!(allocate(isize::MAX, 0).is_null());
    assert!(
        last_error().contains("no memory") || last_error().contains("requested"),
        "{}",
        last_error()
    );
    for device in [-1, 63, 64] {
        assert!(allocate(512, device).is_null());
        assert!(!last_error().is_empty());
    }

    // The default stream by its other name, and each thread's own.
    let block = allocate_on(1);
    free_on(block, 0);
    assert_eq!(allocate_on(1), block, "one stream under two values");
    free_on(block, 1);
    own_stream();
    let elsewhere = || {
        own_stream();
        assert_eq!(last_error(), "");
    };
    std::thread::spawn(elsewhere).join().unwrap();

    let threads: Vec<_> = (0..4_usize)
        .map(|_| {
            std::thread::spawn(|| {
                for _ in 0..1000 {
                    let block = allocate(64 << 10, 0);
                    assert!(!block.is_null(), "{}", last_error());
                    free(block, 0);
                }
                assert_eq!(last_error(), "", "errors are each thread's own");
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    free(second, 0);
}
