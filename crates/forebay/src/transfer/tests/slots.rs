//! Who gets a slot while others wait, and what a refused transfer leaves behind.

use core::time::Duration;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use forebay_host::HostDevice;
use forebay_sim::{Fault, FaultKind, When};

use super::*;

/// A refused upload from pinned memory may have been enqueued: what the program does with the array comes after it.
#[test]
fn what_comes_after_a_refused_upload_is_not_overwritten() {
    let mut refused = 0;
    for (seed, at) in (0..20).flat_map(|seed| (5..8).map(move |at| (seed, at))) {
        let bench = Bench::with(own_memory().seed(seed), TransferOptions::new());
        let array = bench.array(20_000);
        let mut source = PinnedPool::new(&bench.device).unwrap().array::<u8>(20_000).unwrap();
        source.host_mut().unwrap().fill(9);
        let calls = bench.machine.calls().total();
        // The record of the event, and the wait instead of it.
        for number in 0..2 {
            let when = When::Call(calls + at + number);
            bench.machine.plan(Fault::new(when, FaultKind::Transient));
        }
        let submitted = bench.engine.upload(source, array).submit();
        bench.machine.clear_faults();
        let Err(error) = submitted else { continue };
        refused += 1;
        let (_, mut array) = error.into_handle();
        array.fill(1).unwrap();
        bench.nothing_was_found();
        assert!(array.to_vec().unwrap().iter().all(|&byte| byte == 1), "seed {seed}, call {at}");
    }
    assert!(refused > 10, "{refused} refusals tell little");
}

/// Keeps a stream of the host busy.
fn stall(device: &HostDevice, time: Duration) -> StreamHandle {
    let stream = device.create_stream(Priority::Normal).unwrap();
    device.enqueue_host(Box::new(move || std::thread::sleep(time)), stream).unwrap();
    stream
}

/// A slot is free for others before the program is told of the piece.
#[test]
fn an_observer_that_waits_keeps_no_slot() {
    for threads in 1..4 {
        let device = HostDevice::open().unwrap();
        let pool = Pool::new(&device).unwrap();
        let engine = small().slots(1).threads(threads).build(&device).unwrap();
        let (done, is_done) = mpsc::channel();
        let (is_done, pieces) = (Mutex::new(is_done), AtomicU64::new(0));
        let array =
            pool.on(stall(&device, Duration::from_millis(60))).uninit::<u8>(20_000).unwrap();
        let told = move |_| {
            if pieces.fetch_add(1, Ordering::SeqCst) == 1 {
                is_done.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            }
        };
        let first = engine.upload(vec![1_u8; 20_000], array).priority(Priority::High);
        let first = first.on_progress(told).submit().unwrap();
        std::thread::sleep(Duration::from_millis(10));
        let other = pool.on(DEFAULT).uninit::<u8>(20_000).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(engine.upload(vec![2_u8; 20_000], other).submit().unwrap().wait().unwrap());
                done.send(()).unwrap();
            });
        });
        drop(first.wait().unwrap());
    }
}

/// Slots, and memory for compressed bytes, are the engine's: a tag of the program counts what the program asked for.
#[test]
fn staging_memory_has_a_tag_of_its_own() {
    let bench = Bench::new();
    bench.pool.set("history", "100").unwrap();
    let scope = crate::tag("uploads of a test");
    let ticket = bench.engine.upload(data(20_000, 1), bench.array(20_000)).submit().unwrap();
    let (_, array) = ticket.wait().unwrap();
    let packed = Compressed::new(&data(20_000, 2)).unwrap();
    let ticket = bench.engine.upload_compressed(packed, array).decoded_by(Decoder::Device);
    drop(ticket.submit().unwrap().wait().unwrap());
    drop(scope);
    let tags = bench.engine.engine.pinned.statistics().tags;
    let pinned: Vec<String> = tags.into_iter().map(|of| of.tag).collect();
    assert_eq!(pinned, ["forebay.staging"]);
    let allocated = bench.pool.history().into_iter();
    let allocated = allocated.filter(|event| event.action == crate::report::EventAction::Allocate);
    let tags: Vec<String> = allocated.map(|event| event.tag.name()).collect();
    assert_eq!(tags, ["uploads of a test", "forebay.staging", "forebay.staging"]);
}
