//! Blocks that end where nothing is mapped.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, PageSize, Span};
use forebay_hal::{Capabilities, Device, PointerKind, Priority, StreamHandle, Streams};
use forebay_host::HostDevice;
use forebay_sim::{Finding, Kernel, SimMachine};

use super::{Change, DEFAULT, Stage, part, small_machine, small_pages, span, span_of};
use crate::config::{Preset, SettingsBuilder, Zeroing};
use crate::{Error, MemoryClass, PoolOptions, Request};

fn guarded(settings: SettingsBuilder) -> SettingsBuilder {
    settings.guard_pages(true)
}

/// Whether the device lets a kernel use `span` at all.
fn reachable(stage: &Stage, span: Span, stream: StreamHandle) -> bool {
    let kernel = Kernel::new("touch").reads(span);
    // SAFETY: whether it is memory of the device is the question, and the simulation answers it.
    unsafe { stage.device.launch(kernel, stream) }.is_ok()
}

fn kind_at(stage: &Stage, address: Address) -> PointerKind {
    stage.device.classify(address).unwrap().unwrap().kind
}

#[test]
fn a_block_ends_where_nothing_is_mapped() {
    let stage = Stage::new(small_machine(1), small_pages().set(guarded));
    for size in [1, 512, 4096, 5000, 70_000] {
        let block = stage.pool.allocate(Bytes::new(size), DEFAULT).unwrap();
        stage.write(span_of(block), 1, DEFAULT);
        let end = span_of(block).end();
        assert!(end.is_aligned_to(PageSize::HOST.alignment()), "{end}");
        assert_eq!(kind_at(&stage, end), PointerKind::Reserved);
        assert!(!reachable(&stage, part(block, 0, block.size().get() + 1), DEFAULT));
        assert_eq!(stage.pool.block_at(block.address()), Some(block));
    }
    assert_eq!(stage.pool.statistics().held, stage.machine.census().held);
    stage.assert_no_findings();
}

#[test]
fn alignment_is_kept() {
    let stage = Stage::new(small_machine(1), small_pages().set(guarded));
    for log in [3, 9, 12, 16] {
        let alignment = Alignment::of_log2(log).unwrap();
        let request = Request::new(Bytes::new(6000), DEFAULT).aligned_to(alignment);
        let block = stage.pool.allocate_request(request).unwrap();
        assert!(block.address().is_aligned_to(alignment));
        stage.write(span_of(block), 1, DEFAULT);
        stage.pool.free(block.address(), DEFAULT).unwrap();
    }
    stage.assert_no_findings();
}

#[test]
fn a_freed_block_is_unmapped_once_its_stream_is_done() {
    let stage = Stage::with(guarded);
    let stream = stage.device.create_stream(Priority::Normal).unwrap();
    let block = stage.pool.allocate(Bytes::new(5000), stream).unwrap();
    // More than runs while the pool asks whether it is done.
    for byte in 0..100 {
        stage.write(span_of(block), byte, stream);
    }
    stage.pool.free(block.address(), stream).unwrap();
    assert_eq!(kind_at(&stage, block.address()), PointerKind::Mapped, "its work has not run");
    stage.device.synchronize_stream(stream).unwrap();
    stage.pool.process_deferred().unwrap();
    assert_eq!(kind_at(&stage, block.address()), PointerKind::Reserved);
    assert!(!reachable(&stage, part(block, 0, 1), stream));
    assert_eq!(stage.pool.held(), Bytes::ZERO);
    assert!(matches!(stage.pool.free(block.address(), stream), Err(Error::DoubleFree { .. })));
    stage.assert_no_findings();
}

/// Work that comes after the free and before the pages go is not stopped by the device; the checker
/// tells of it.
#[test]
fn a_use_after_a_free_that_is_under_way_is_told_by_the_checker() {
    let stage = Stage::with(guarded);
    let block = stage.pool.allocate(Bytes::new(5000), DEFAULT).unwrap();
    stage.pool.free(block.address(), DEFAULT).unwrap();
    let other = stage.device.create_stream(Priority::Normal).unwrap();
    if reachable(&stage, span_of(block), other) {
        stage.device.synchronize_stream(DEFAULT).unwrap();
        stage.pool.process_deferred().unwrap();
        assert!(matches!(stage.machine.findings()[..], [Finding::TakenInUse { .. }]));
    } else {
        assert_eq!(kind_at(&stage, block.address()), PointerKind::Reserved);
    }
}

#[test]
fn addresses_do_not_come_again_soon() {
    let stage = Stage::new(small_machine(1), small_pages().set(guarded));
    let mut seen = BTreeSet::new();
    for round in 0..2000_u64 {
        let block = stage.pool.allocate(Bytes::new(1 + round % 9000), DEFAULT).unwrap();
        assert!(seen.insert(block.address()), "{} again", block.address());
        stage.pool.free(block.address(), DEFAULT).unwrap();
    }
}

#[test]
fn a_write_before_the_start_is_found() {
    let stage = Stage::with(|settings| settings.guard_pages(true).canaries(true));
    let block = stage.pool.allocate(Bytes::new(5000), DEFAULT).unwrap();
    let before = Address::new(block.address().get() - 4);
    stage.write(span(before, 4), 9, DEFAULT);
    let error = stage.pool.free(block.address(), DEFAULT).unwrap_err();
    let Error::Overrun { written, found: 9, .. } = error else { panic!("{error}") };
    assert!((before.get()..before.get() + 4).contains(&written.get()));
    assert!(error.to_string().contains("B before the start of the block of 5120 B"), "{error}");
    // Its pages are its own, and go as any other's.
    stage.device.synchronize_device().unwrap();
    stage.pool.process_deferred().unwrap();
    assert_eq!(stage.pool.held(), Bytes::ZERO);
}

#[test]
fn a_limit_is_kept_and_freed_pages_come_back_before_it_is_told() {
    let options = PoolOptions::new().max_bytes(Bytes::mib(8)).set(guarded);
    let stage = Stage::new(SimMachine::builder(), options);
    let block = stage.pool.allocate(Bytes::mib(6), DEFAULT).unwrap();
    stage.write(span_of(block), 1, DEFAULT);
    let error = stage.pool.allocate(Bytes::mib(4), DEFAULT).unwrap_err();
    let Error::OutOfMemory(shortage) = error else { panic!("{error}") };
    assert_eq!((shortage.limit, shortage.held), (Bytes::mib(8), Bytes::mib(6)));
    stage.pool.free(block.address(), DEFAULT).unwrap();
    let next = stage.pool.allocate(Bytes::mib(4), DEFAULT).unwrap();
    assert_eq!(stage.pool.statistics().peak_held, Bytes::mib(6));
    stage.pool.free(next.address(), DEFAULT).unwrap();
    assert!(stage.pool.trim(Bytes::ZERO).unwrap() <= Bytes::mib(4));
    assert_eq!(stage.machine.census().held, Bytes::ZERO);
    stage.assert_no_findings();
}

#[test]
fn new_blocks_hold_what_was_asked_for() {
    for (zero, poison, byte) in
        [(Zeroing::Pages, false, 0), (Zeroing::Never, true, 0xCB), (Zeroing::Blocks, true, 0)]
    {
        let options = PoolOptions::new();
        let options = options.set(|settings| guarded(settings).zero(zero).poison(poison));
        let stage = Stage::new(SimMachine::builder(), options);
        let block = stage.pool.allocate(Bytes::new(5000), DEFAULT).unwrap();
        assert_eq!(stage.count_other(span_of(block), byte, DEFAULT), 0);
    }
}

#[test]
fn a_device_that_maps_no_pages_is_refused() {
    let machine = SimMachine::builder().without(Capabilities::VIRTUAL_MEMORY).build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    let error = PoolOptions::new().set(guarded).build(&device).unwrap_err();
    let Error::AidUnavailable { aid: "guard_pages", .. } = error else { panic!("{error}") };
    assert!(error.to_string().ends_with("set guard_pages to off, or use canaries"), "{error}");
}

/// Each block takes pages of its own from the driver: nothing of it came from a magazine.
#[test]
fn every_block_on_pages_of_its_own_is_a_miss() {
    let stage = Stage::with(guarded);
    for _ in 0..10 {
        let block = stage.pool.allocate(Bytes::new(5000), DEFAULT).unwrap();
        stage.pool.free(block.address(), DEFAULT).unwrap();
    }
    let figures = stage.pool.statistics();
    assert_eq!((figures.misses, figures.hits, figures.magazine_hits), (10, 0, 0));
    assert_eq!(figures.hit_rate(), Some(0.0));
}

/// A plain loop of pairs holds no more than is on its way out at the most, however long it runs and
/// however far its stream is behind.
#[test]
fn pairs_without_end_hold_no_more_and_more() {
    let preset: Change = |settings| settings.preset(Preset::Debug);
    let poison: Change = |settings| settings.guard_pages(true).poison(true);
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    // Small ones, and some whose filling takes the stream longer than the next request.
    for (change, size, pairs) in
        [(preset, 5000, 10_000), (preset, 8 << 20, 60), (poison, 8 << 20, 60)]
    {
        let pool = PoolOptions::new().set(change).build(&device).unwrap();
        for _ in 0..pairs {
            let block = pool.allocate(Bytes::new(size), DEFAULT).unwrap();
            pool.free(block.address(), DEFAULT).unwrap();
        }
        let most = pool.statistics().peak_held;
        // The bound, the block that goes beyond it, and the one that is live.
        assert!(most <= Bytes::mib(64 + 8 + 8), "{size} B: {most} at the most");
    }
}

/// Pages of their own are of no class: a pool that is to be of one cannot have them.
#[test]
fn a_class_and_guard_pages_do_not_go_together() {
    let machine = SimMachine::builder().devices(2).build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    for class in [MemoryClass::PLAIN, MemoryClass::STABLE, MemoryClass::SHAREABLE] {
        let error = PoolOptions::new().class(class).set(guarded).build(&device).unwrap_err();
        assert!(error.to_string().contains("guard_pages"), "{error}");
        assert!(error.to_string().contains(&class.to_string()), "{error}");
    }
}
