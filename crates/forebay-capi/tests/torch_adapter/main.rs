//! What PyTorch's adapter calls, on the driver made of the simulated device, with two GPUs. Pools are the whole
//! process's, so one test runs at a time, and each ends with nothing live.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod private;

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::{null_mut, without_provenance, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use forebay_capi::error::forebay_last_error;
use forebay_capi::torch::*;
use libloading::Library;

const MIB: usize = 1 << 20;

const GPU_POOL: PoolNumber = PoolNumber { first: 0, second: 0 };

/// Where cargo has put the driver: beside the test, or a folder up.
fn fake_driver() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut paths = folders.map(|folder| folder.join("libforebay_cuda_fake_driver.so"));
    paths.find(|path| path.exists()).unwrap()
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Lets one test run at a time, with two GPUs.
fn alone() -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: no test runs that reads the environment, and all write the same.
    unsafe {
        std::env::set_var("FOREBAY_CUDA_DRIVER", fake_driver());
        std::env::set_var("FOREBAY_FAKE_GPUS", "2");
    }
    guard
}

fn last_error() -> String {
    // SAFETY: it is text that ends with a zero byte, until the next call that fails here.
    unsafe { CStr::from_ptr(forebay_last_error()) }.to_str().unwrap().to_owned()
}

#[track_caller]
fn ok(status: c_int) {
    assert_eq!(status, 0, "{}", last_error());
}

#[track_caller]
fn refused(status: c_int, words: &str) {
    assert_eq!(status, -1);
    assert!(last_error().contains(words), "{}", last_error());
}

/// A block, or null.
fn try_allocate(size: usize, device: c_int, stream: usize) -> *mut c_void {
    // SAFETY: the streams of these tests are never destroyed.
    unsafe { forebay_torch_allocate(size, device, without_provenance_mut(stream)) }
}

#[track_caller]
fn allocate(size: usize, device: c_int, stream: usize) -> *mut c_void {
    let block = try_allocate(size, device, stream);
    assert!(!block.is_null(), "{}", last_error());
    block
}

fn try_allocate_in(size: usize, device: c_int, pool: PoolNumber, capturing: bool) -> *mut c_void {
    // SAFETY: the default stream is there as long as the device.
    unsafe { forebay_torch_allocate_in(size, device, null_mut(), pool, c_int::from(capturing), 1) }
}

#[track_caller]
fn allocate_in(size: usize, device: c_int, pool: PoolNumber, capturing: bool) -> *mut c_void {
    let block = try_allocate_in(size, device, pool, capturing);
    assert!(!block.is_null(), "{}", last_error());
    block
}

fn free(block: *mut c_void) -> c_int {
    // SAFETY: what is enqueued does not outlive the test's own blocks.
    unsafe { forebay_torch_deallocate(block) }
}

fn record(block: *mut c_void, stream: usize) -> c_int {
    // SAFETY: as in `try_allocate`.
    unsafe { forebay_torch_record_stream(block, without_provenance_mut(stream)) }
}

fn find(address: usize, exact: bool) -> Option<BlockInfo> {
    let mut found = core::mem::MaybeUninit::uninit();
    // SAFETY: it can be written to, and is written where the call succeeds.
    unsafe {
        let told =
            forebay_torch_find(without_provenance(address), exact.into(), found.as_mut_ptr());
        (told == 0).then(|| found.assume_init())
    }
}

fn stats(device: c_int) -> DeviceStatistics {
    let mut figures = DeviceStatistics::default();
    // SAFETY: it can be written to.
    ok(unsafe { forebay_torch_stats(device, &raw mut figures) });
    figures
}

fn memory(device: c_int) -> DeviceMemory {
    let mut memory = DeviceMemory::default();
    // SAFETY: it can be written to.
    ok(unsafe { forebay_torch_memory(device, &raw mut memory) });
    memory
}

fn fraction(device: c_int) -> f64 {
    let mut told = -1.0;
    // SAFETY: it can be written to.
    ok(unsafe { forebay_torch_fraction(device, &raw mut told) });
    told
}

type Walked = Vec<(SegmentInfo, Vec<BlockInfo>)>;

fn walk(device: c_int) -> Walked {
    unsafe extern "C" fn visit(
        context: *mut c_void,
        segment: *const SegmentInfo,
        blocks: *const BlockInfo,
        count: usize,
    ) {
        // SAFETY: the context is the list below, and both pointers are those of what is visited.
        unsafe {
            let blocks = if count == 0 { &[] } else { core::slice::from_raw_parts(blocks, count) };
            (*context.cast::<Walked>()).push((*segment, blocks.to_vec()));
        }
    }
    let mut walked = Walked::new();
    // SAFETY: the function takes that context.
    ok(unsafe { forebay_torch_walk(device, visit, (&raw mut walked).cast()) });
    walked
}

/// The segments of one pool, and its live blocks.
fn walk_pool(device: c_int, pool: PoolNumber) -> (u64, Vec<BlockInfo>) {
    let of_pool = walk(device).into_iter().filter(|(segment, _)| segment.pool == pool);
    let parts: Walked = of_pool.collect();
    let held = parts.iter().map(|(segment, _)| segment.size).sum();
    (held, parts.into_iter().flat_map(|(_, blocks)| blocks).collect())
}

fn restore(device: c_int, pool: PoolNumber, blocks: &[BlockInfo]) -> c_int {
    // SAFETY: there are so many.
    unsafe { forebay_torch_restore(device, pool, blocks.as_ptr(), blocks.len()) }
}

fn export(block: *mut c_void) -> Result<(u64, Vec<(i32, u64)>), String> {
    unsafe extern "C" fn visit(context: *mut c_void, page: *const ExportedPage) {
        // SAFETY: the context is the list below, and the page is one.
        unsafe { (*context.cast::<Vec<(i32, u64)>>()).push(((*page).descriptor, (*page).size)) }
    }
    let (mut offset, mut pages) = (0, Vec::new());
    // SAFETY: the function takes that context, and the offset can be written to.
    let status =
        unsafe { forebay_torch_export(block, &raw mut offset, visit, (&raw mut pages).cast()) };
    if status == 0 { Ok((offset, pages)) } else { Err(last_error()) }
}

/// The driver as another library uses it.
struct Driver(Library);

impl Driver {
    fn open() -> Self {
        // SAFETY: the library that the pool uses too.
        Self(unsafe { Library::new(fake_driver()) }.unwrap())
    }

    /// Streams of a GPU that the device adopts at first use.
    fn streams<const N: usize>(&self, device: c_int) -> [usize; N] {
        type Handle = *mut c_void;
        // SAFETY: functions of those names are of those kinds, and all they write to can be written to.
        unsafe {
            let init = self.0.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit\0").unwrap();
            let retain = self.0.get::<unsafe extern "C" fn(*mut Handle, c_int) -> c_int>(
                b"cuDevicePrimaryCtxRetain\0",
            );
            let push =
                self.0.get::<unsafe extern "C" fn(Handle) -> c_int>(b"cuCtxPushCurrent_v2\0");
            let make = self.0.get::<unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> c_int>(
                b"cuStreamCreateWithPriority\0",
            );
            let mut context = null_mut();
            assert_eq!(init(0), 0);
            assert_eq!(retain.unwrap()(&raw mut context, device), 0);
            assert_eq!(push.unwrap()(context), 0);
            let make = make.unwrap();
            core::array::from_fn(|_| {
                let mut stream = null_mut();
                assert_eq!(make(&raw mut stream, 1, 0), 0);
                stream.addr()
            })
        }
    }

    /// Whether all work of a stream is done.
    fn is_done(&self, stream: usize) -> bool {
        type Query = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: the function of that name is of that kind, and the stream is not destroyed.
        let answer = unsafe {
            self.0.get::<Query>(b"cuStreamQuery\0").unwrap()(without_provenance_mut(stream))
        };
        assert!([0, 600].contains(&answer), "{answer}");
        answer == 0
    }

    /// Fills a block so many times, and does not wait for it.
    fn fill(&self, stream: usize, block: *mut c_void, size: usize, times: u32) {
        type Fill = unsafe extern "C" fn(u64, u8, usize, *mut c_void) -> c_int;
        // SAFETY: the function of that name is of that kind, and the block is live and so large.
        unsafe {
            let fill = self.0.get::<Fill>(b"cuMemsetD8Async\0").unwrap();
            for _ in 0..times {
                let address = block.addr() as u64;
                assert_eq!(fill(address, 7, size, without_provenance_mut(stream)), 0);
            }
        }
    }
}

#[test]
fn blocks_are_freed_on_the_gpu_and_stream_they_were_allocated_for() {
    let _alone = alone();
    let driver = Driver::open();
    let [one, two] = driver.streams(0);
    let [far] = driver.streams(1);
    let before = [0, 1].map(|device| stats(device).allocation[0].current);
    let blocks = [(0, 0), (0, one), (0, two), (1, 0), (1, far)];
    let blocks = blocks.map(|(device, stream)| (allocate(MIB, device, stream), device, stream));
    for (block, device, stream) in blocks {
        let found = find(block.addr(), true).unwrap();
        assert_eq!((found.device, found.stream), (device, stream as u64));
    }
    let live = [0, 1].map(|device| stats(device).allocation[0].current);
    assert_eq!(live, [before[0] + 3, before[1] + 2]);
    // Each comes back to its own stream at once.
    for (block, device, stream) in blocks {
        ok(free(block));
        assert_eq!(allocate(MIB, device, stream), block, "GPU {device}, stream {stream:#x}");
    }
    for (block, ..) in blocks {
        ok(free(block));
        refused(free(block), "");
    }
    assert_eq!([0, 1].map(|device| stats(device).allocation[0].current), before);
}

#[test]
fn a_block_that_another_stream_uses_waits_for_it() {
    let _alone = alone();
    let driver = Driver::open();
    let [one, two] = driver.streams(0);
    let block = allocate(8 * MIB, 0, one);
    ok(record(block, one));
    driver.fill(two, block, 8 * MIB, 50);
    ok(record(block, two));
    ok(record(null_mut(), two));
    ok(free(block));
    assert_ne!(allocate(8 * MIB, 0, one), block, "work on the other stream may use it");
    refused(record(block, two), "");
    for (segment, blocks) in walk(0) {
        for block in blocks {
            assert!(segment.address <= block.address);
            ok(free(without_provenance_mut(usize::try_from(block.address).unwrap())));
        }
    }
}

#[test]
fn a_block_that_another_stream_has_used_comes_back_before_the_pool_grows() {
    let _alone = alone();
    let driver = Driver::open();
    let [one, two] = driver.streams(0);
    ok(forebay_torch_empty_cache(GPU_POOL));
    let block = allocate(64 * MIB, 0, one);
    driver.fill(two, block, 64 * MIB, 1);
    ok(record(block, two));
    ok(free(block));
    while !driver.is_done(two) {
        std::thread::yield_now();
    }
    let reserved = stats(0).reserved_bytes[0].current;
    assert_eq!(allocate(64 * MIB, 0, one), block);
    assert_eq!(stats(0).reserved_bytes[0].current, reserved);
    ok(free(block));
}

#[test]
fn a_block_is_found_by_its_beginning_or_by_any_address_in_it() {
    let _alone = alone();
    let number = PoolNumber { first: 0, second: 5 };
    ok(forebay_torch_retain(1, number));
    let blocks =
        [(allocate(5000, 0, 0), GPU_POOL, 0), (allocate_in(MIB, 1, number, false), number, 1)];
    for (block, pool, device) in blocks {
        let at = block.addr();
        let found = find(at, true).unwrap();
        assert_eq!((found.address, found.pool, found.device), (at as u64, pool, device));
        let size = usize::try_from(found.size).unwrap();
        assert!(found.requested <= found.size);
        for inside in [at, at + 1, at + size - 1] {
            assert_eq!(find(inside, false).unwrap().address, at as u64);
        }
        assert!(find(at + 1, true).is_none() && find(at + size, true).is_none());
        assert!(last_error().contains("is not in a live block"), "{}", last_error());
        ok(free(block));
        assert!(find(at, true).is_none() && find(at, false).is_none());
    }
    assert!(find(0, false).is_none());
    ok(forebay_torch_release(1, number));
    ok(forebay_torch_empty_cache(GPU_POOL));
}

#[test]
fn a_pool_is_set_back_to_blocks_it_had() {
    let _alone = alone();
    let number = PoolNumber { first: 11, second: 0 };
    refused(restore(0, number, &[]), "no such pool");
    ok(forebay_torch_begin(0, number));
    let first = allocate_in(3 * MIB, 0, number, true);
    let second = allocate_in(2000, 0, number, true);
    let checkpoint = walk_pool(0, number).1;
    assert_eq!(checkpoint.len(), 2);
    ok(free(second));
    let third = allocate_in(MIB, 0, number, true);
    ok(restore(0, number, &checkpoint));
    let places = |blocks: &[BlockInfo]| -> BTreeSet<(u64, u64, u64)> {
        blocks.iter().map(|block| (block.address, block.size, block.requested)).collect()
    };
    assert_eq!(places(&walk_pool(0, number).1), places(&checkpoint));
    assert!(find(third.addr(), true).is_none_or(|found| found.requested != 1 << 20));
    assert_eq!(find(second.addr(), true).unwrap().requested, 2000);
    let fresh = allocate_in(MIB, 0, number, true);
    assert!(fresh != first && fresh != second);
    // To nothing, and back.
    let descriptor = export(first).unwrap().1[0].0;
    let is_open = || PathBuf::from(format!("/proc/self/fd/{descriptor}")).exists();
    let stays = checkpoint.iter().find(|block| block.address == first.addr() as u64).unwrap();
    ok(restore(0, number, &[*stays]));
    assert!(is_open());
    ok(restore(0, number, &[]));
    assert!(walk_pool(0, number).1.is_empty() && !is_open());
    refused(free(first), "");
    ok(restore(0, number, &checkpoint));
    ok(free(first));
    ok(free(second));
    ok(forebay_torch_end(0, number));
    ok(forebay_torch_release(0, number));
    ok(forebay_torch_empty_cache(GPU_POOL));
}

#[test]
fn pages_of_a_block_are_exported_once_and_closed_with_it() {
    let _alone = alone();
    let is_open = |descriptor: i32| PathBuf::from(format!("/proc/self/fd/{descriptor}")).exists();
    let number = PoolNumber { first: 0, second: 6 };
    ok(forebay_torch_retain(0, number));
    for block in [allocate(3 * MIB, 0, 0), allocate_in(3 * MIB, 0, number, false)] {
        let (offset, pages) = export(block).unwrap();
        assert_eq!(export(block).unwrap(), (offset, pages.clone()), "the same descriptors again");
        let size: u64 = pages.iter().map(|&(_, size)| size).sum();
        assert!(size - offset >= 3 << 20);
        assert!(pages.iter().all(|&(descriptor, _)| is_open(descriptor)));
        ok(free(block));
        assert!(!pages.iter().any(|&(descriptor, _)| is_open(descriptor)));
        assert!(!export(block).unwrap_err().is_empty());
    }
    assert!(export(null_mut()).is_err());
    ok(forebay_torch_release(0, number));
    ok(forebay_torch_empty_cache(GPU_POOL));
}

#[test]
fn a_peer_gets_access_to_all_pools_of_a_gpu() {
    let _alone = alone();
    let number = PoolNumber { first: 0, second: 8 };
    let block = allocate(MIB, 0, 0);
    ok(forebay_torch_retain(0, number));
    ok(forebay_torch_enable_peer(0, 1));
    ok(forebay_torch_enable_peer(0, 1));
    let peers: Vec<u32> = process_pool(0).unwrap().peers().into_iter().map(|peer| peer.0).collect();
    assert_eq!(peers, [1]);
    ok(free(allocate_in(4 * MIB, 0, number, false)));
    assert_eq!(forebay_torch_enable_peer(0, 63), -1);
    assert!(!last_error().is_empty());
    assert_eq!(forebay_torch_enable_peer(0, -1), -1);
    assert_eq!(forebay_torch_enable_peer(63, 0), -1);
    ok(free(block));
    ok(forebay_torch_release(0, number));
    ok(forebay_torch_empty_cache(GPU_POOL));
}

#[test]
fn figures_agree_with_the_segments_and_begin_anew() {
    let _alone = alone();
    let number = PoolNumber { first: 12, second: 0 };
    ok(forebay_torch_empty_cache(GPU_POOL));
    ok(forebay_torch_retain(1, number));
    ok(forebay_torch_reset_totals(1));
    ok(forebay_torch_reset_peaks(1));
    let growth = forebay_torch_growth(1);
    let blocks = [
        allocate(1000, 1, 0),
        allocate(5 * MIB, 1, 0),
        allocate_in(100, 1, number, false),
        allocate_in(20 * MIB, 1, number, false),
    ];
    assert_ne!(forebay_torch_growth(1), growth);
    let figures = stats(1);
    for side in 0..3 {
        let chosen = |large: i32| side == 0 || (side == 2) == (large != 0);
        let parts: Walked =
            walk(1).into_iter().filter(|(segment, _)| chosen(segment.large)).collect();
        let live: Vec<&BlockInfo> = parts.iter().flat_map(|(_, blocks)| blocks).collect();
        let sum = |of: &dyn Fn(&BlockInfo) -> u64| -> i64 {
            i64::try_from(live.iter().map(|block| of(block)).sum::<u64>()).unwrap()
        };
        let held: u64 = parts.iter().map(|(segment, _)| segment.size).sum();
        assert_eq!(figures.allocation[side].current, i64::try_from(live.len()).unwrap(), "{side}");
        assert_eq!(figures.allocated_bytes[side].current, sum(&|block| block.size), "{side}");
        assert_eq!(figures.requested_bytes[side].current, sum(&|block| block.requested), "{side}");
        assert_eq!(figures.reserved_bytes[side].current, i64::try_from(held).unwrap(), "{side}");
        for figure in [figures.allocation, figures.allocated_bytes, figures.requested_bytes] {
            assert_eq!(figure[side].allocated - figure[side].freed, figure[side].current);
            assert!(figure[side].peak >= figure[side].current);
        }
    }
    let all = figures.allocation;
    assert_eq!((all[0].current, all[1].current, all[2].current), (4, 2, 2));
    assert!(figures.device_alloc > 0 && figures.alloc_retries == 0);
    for block in blocks {
        ok(free(block));
    }
    let peak = stats(1).allocated_bytes[0].peak;
    assert!(peak >= 25 << 20, "{peak}");
    ok(forebay_torch_reset_totals(1));
    let figures = stats(1);
    assert_eq!((figures.allocation[0].allocated, figures.allocation[0].freed), (0, 0));
    assert_eq!((figures.device_alloc, figures.device_free), (0, 0));
    ok(forebay_torch_release(1, number));
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert_eq!(stats(1).reserved_bytes[0].current, 0);
    ok(forebay_torch_reset_peaks(1));
    let figures = stats(1);
    assert_eq!((figures.allocated_bytes[0].peak, figures.reserved_bytes[0].peak), (0, 0));
    // A GPU that is not there, or not used, has no figures; asking creates no pool.
    for device in [62, -1] {
        assert_eq!(stats(device).reserved_bytes[0].current, 0);
        ok(forebay_torch_reset_totals(device));
        ok(forebay_torch_reset_peaks(device));
        assert_eq!((forebay_torch_growth(device), forebay_face_has_pool(device)), (0, 0));
        assert!((fraction(device) - fraction(0)).abs() < 1e-6);
    }
    // SAFETY: null is not written to.
    ok(unsafe { forebay_torch_stats(62, null_mut()) });
}

#[test]
fn a_fraction_limits_all_pools_of_a_gpu() {
    let _alone = alone();
    let number = PoolNumber { first: 0, second: 9 };
    ok(forebay_torch_retain(0, number));
    let (before, total) = (fraction(0), memory(0).total);
    ok(forebay_torch_set_fraction(0, 0.25));
    assert!((fraction(0) - 0.25).abs() < 1e-6);
    assert_eq!(memory(0).limit, total / 4);
    let half = usize::try_from(total / 2).unwrap();
    assert!(try_allocate(half, 0, 0).is_null());
    assert_eq!(forebay_torch_is_out_of_memory(), 1);
    assert!(last_error().contains("out of memory"), "{}", last_error());
    assert!(try_allocate_in(half, 0, number, false).is_null());
    assert_eq!(forebay_torch_is_out_of_memory(), 1);
    // Together, too.
    let most = allocate_in(half / 2 - 16 * MIB, 0, number, false);
    assert!(try_allocate(32 * MIB, 0, 0).is_null());
    ok(free(most));
    assert_eq!(forebay_torch_set_fraction(0, 2.0), -1);
    assert_eq!(forebay_torch_set_fraction(0, f64::NAN), -1);
    ok(forebay_torch_set_fraction(0, before));
    ok(free(allocate(half, 0, 0)));
    assert!(try_allocate(usize::MAX, 0, 0).is_null());
    assert!(try_allocate(0, 0, 0).is_null());
    ok(free(null_mut()));
    ok(forebay_torch_release(0, number));
    ok(forebay_torch_empty_cache(GPU_POOL));
}

#[test]
fn threads_free_each_others_blocks_of_several_streams() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 400;
    let _alone = alone();
    let driver = Driver::open();
    let near: [usize; 2] = driver.streams(0);
    let far: [usize; 2] = driver.streams(1);
    let places = [(0, 0), (0, near[0]), (0, near[1]), (1, 0), (1, far[0]), (1, far[1])];
    let before = [0, 1].map(|device| stats(device).allocation[0].current);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    std::thread::scope(|scope| {
        for (thread, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(thread + 1) % THREADS].clone();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let (device, stream) = places[(thread + round) % places.len()];
                    let block = allocate(512 + (round % 37) * 4096, device, stream);
                    let found = find(block.addr(), true).unwrap();
                    assert_eq!((found.device, found.stream), (device, stream as u64));
                    next.send(block.addr()).unwrap();
                    for block in receiver.try_iter() {
                        ok(free(without_provenance_mut(block)));
                    }
                }
                drop(next);
                for block in receiver {
                    ok(free(without_provenance_mut(block)));
                }
            });
        }
        drop(senders);
    });
    assert_eq!([0, 1].map(|device| stats(device).allocation[0].current), before);
}
