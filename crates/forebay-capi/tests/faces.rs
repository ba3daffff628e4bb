//! What the Python package calls, on the driver made of the simulated device: the functions for CuPy, Numba and RMM,
//! and figures.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use forebay::Tag;
use forebay_capi::error::forebay_last_error;
use forebay_capi::text::forebay_string_free;
use forebay_capi::torch::*;
use serde_json::Value;

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

fn allocate(size: usize, tag: Option<&CStr>) -> *mut c_void {
    let tag = tag.map_or(null(), CStr::as_ptr);
    // SAFETY: the default stream is there as long as the device; the tag ends with a zero byte.
    unsafe { forebay_face_alloc(size, 0, null_mut(), tag) }
}

fn free(block: *mut c_void) -> c_int {
    // SAFETY: nothing was ever enqueued.
    unsafe { forebay_face_free(block, 0, null_mut()) }
}

fn configure(text: &str) -> c_int {
    let text = CString::new(text).unwrap();
    // SAFETY: it ends with a zero byte.
    unsafe { forebay_face_configure(text.as_ptr()) }
}

fn told(give: extern "C" fn(c_int) -> *mut c_char, device: c_int) -> Option<Value> {
    let text = give(device);
    if text.is_null() {
        return None;
    }
    // SAFETY: it ends with a zero byte, and is taken back once.
    let value = serde_json::from_slice(unsafe { CStr::from_ptr(text) }.to_bytes()).unwrap();
    // SAFETY: likewise.
    unsafe { forebay_string_free(text) };
    Some(value)
}

fn figures() -> Value {
    told(forebay_torch_statistics, 0).unwrap()
}

fn held_by(tag: &str) -> u64 {
    let figures = figures();
    let tags = figures["statistics"]["tags"].as_array().unwrap();
    let found = tags.iter().find(|one| one["tag"] == tag);
    found.map_or(0, |one| one["live_bytes"].as_u64().unwrap())
}

fn address_of(block: *mut c_void) -> forebay::Address {
    forebay::Address::new(block.addr() as u64)
}

/// One test: pools and the driver are the whole process's.
#[test]
fn the_process_has_one_pool_and_says_all_of_it() {
    // SAFETY: no other thread runs yet that reads the environment.
    unsafe { std::env::set_var("FOREBAY_CUDA_DRIVER", fake_driver()) };
    assert_eq!(forebay_face_has_pool(0), 0);
    assert_eq!(configure("max_bytes:64MiB,size_classes:exact"), 0, "{}", last_error());
    assert_eq!(configure("max_bites:1"), -1);
    assert!(last_error().contains("max_bites"), "{}", last_error());
    assert_eq!(configure("min_bytes:128MiB"), -1, "more than the most");
    // SAFETY: no settings are none.
    assert_eq!(unsafe { forebay_face_configure(null()) }, -1);
    assert_eq!(forebay_face_has_pool(0), 0, "asking and setting make none");

    // Tags: that of the library, unless the program has one.
    let one = allocate(1000, Some(c"cupy"));
    assert!(!one.is_null(), "{}", last_error());
    assert_eq!((held_by("cupy"), forebay_face_has_pool(0)), (1024, 1));
    let two = {
        let _scope = Tag::named("the program's").enter();
        allocate(2 << 20, Some(c"cupy"))
    };
    assert_eq!((held_by("cupy"), held_by("the program's")), (1024, 2 << 20));
    let three = allocate(100, None);
    assert_eq!(held_by("untagged"), 512);
    // SAFETY: the default stream is there as long as the device.
    let four = unsafe { forebay_torch_alloc(100, 0, null_mut()) };
    assert_eq!(held_by("torch"), 512);
    assert_eq!(Tag::current(), Tag::NONE);

    assert_eq!(process_pool(0).unwrap().block_at(address_of(one)).unwrap().size().get(), 1024);
    assert!(process_pool(64).is_err());

    // Settings in force, and what can change.
    assert_eq!(figures()["limit_bytes"], 64 << 20);
    assert_eq!(figures()["settings"]["max_bytes"], "64MiB");
    assert_eq!(configure("max_bytes:32MiB"), 0);
    assert_eq!(figures()["limit_bytes"], 32 << 20);
    assert_eq!(configure("size_classes:pow2"), -1, "not while there is a pool");

    // Refusals are counted.
    assert!(allocate(1 << 30, Some(c"cupy")).is_null());
    assert!(last_error().contains("out of memory"), "{}", last_error());
    assert_eq!(figures()["refusals"], 1);
    assert!(allocate(usize::MAX, None).is_null());
    assert!(allocate(0, None).is_null());

    assert_eq!((free(two), free(two)), (0, -1), "freed once");

    // Peaks begin anew.
    let large = allocate(20 << 20, None);
    assert_eq!(free(large), 0);
    assert!(figures()["peak_out_bytes"].as_u64().unwrap() >= 20 << 20);
    assert_eq!(forebay_face_trim(0), 0);
    assert_eq!(forebay_torch_reset_peaks(0), 0);
    assert!(figures()["peak_out_bytes"].as_u64().unwrap() < 20 << 20);
    assert!(figures()["peak_held_bytes"].as_u64().unwrap() < 20 << 20);
    let less = allocate(10 << 20, None);
    assert_eq!(free(less), 0);
    let peak = figures()["peak_out_bytes"].as_u64().unwrap();
    assert!((10 << 20..20 << 20).contains(&peak), "{peak}");
    assert_eq!(figures()["peak_out_bytes"].as_u64(), Some(peak), "asking changes nothing");

    // Settings change all together or not at all, and can be taken back once.
    let settings = || figures()["settings"].clone();
    let before = settings();
    assert_eq!(configure("history:7,max_bytes:48MiB,size_classes:powers_of_two"), -1);
    assert!(last_error().contains("size_classes"), "{}", last_error());
    assert_eq!(settings(), before);
    assert_eq!(configure("history:7,max_bytes:48MiB"), 0, "{}", last_error());
    assert_eq!((&settings()["history"], &settings()["max_bytes"]), (&"7".into(), &"48MiB".into()));
    for _ in 0..2 {
        assert_eq!(forebay_face_configure_undo(), 0);
        assert_eq!(settings(), before);
        let process = forebay::Pool::process_settings().unwrap();
        assert_eq!(before["max_bytes"], process.get("max_bytes").unwrap().value);
    }

    // What is no GPU, and what is no block.
    assert!(told(forebay_torch_statistics, 63).is_none());
    assert!(told(forebay_torch_statistics, -1).is_none());
    assert_eq!((forebay_torch_reset_peaks(64), forebay_face_trim(64)), (0, -1));
    // SAFETY: the default stream is there; what is no block is looked up and not followed.
    unsafe {
        assert_eq!(forebay_face_record_use(null_mut(), 0, null_mut()), -1);
        assert_eq!(forebay_face_record_use(one, 0, null_mut()), 0);
        assert_eq!(forebay_face_forget_stream(0, null_mut()), 0, "{}", last_error());
        forebay_string_free(null_mut());
    }
    let (mut left, mut total) = (0, 0);
    // SAFETY: both can be written to.
    assert_eq!(unsafe { forebay_face_memory_info(0, &raw mut left, &raw mut total) }, 0);
    assert!(0 < left && left < total);
    // SAFETY: null is not written to.
    assert_eq!(unsafe { forebay_face_memory_info(0, null_mut(), null_mut()) }, 0);
    for block in [one, three, four, null_mut()] {
        assert_eq!(free(block), 0, "{}", last_error());
    }
    assert_eq!(figures()["statistics"]["live_bytes"], 0);
    assert_eq!(forebay_face_trim(0), 0);
    assert_eq!(
        (&figures()["pages"], &figures()["statistics"]["held_bytes"]),
        (&Value::from(0), &Value::from(0))
    );
}
