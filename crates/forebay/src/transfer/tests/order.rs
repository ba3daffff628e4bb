//! Stream order, cancelling, dropping, waiting.

use core::future::{Future, IntoFuture};
use core::task::{Context, Poll, Waker};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::handle::tests::task::block_on;
use crate::sync::lock;

/// Work that is enqueued after `order` sees what was uploaded, without a wait on the host.
#[test]
fn later_work_on_the_stream_comes_after_the_transfer() {
    let bench = Bench::new();
    for seed in 0..20 {
        let from = data(20_000, seed);
        let ticket = bench.engine.upload(from.clone(), bench.array(20_000)).submit().unwrap();
        let (_, array) = ticket.order().unwrap();
        assert_eq!(array.to_vec().unwrap(), from);
    }
    bench.nothing_was_found();
}

/// A slot is filled again only after the device has read it: many more pieces than slots, on a device that is late.
#[test]
fn a_slot_is_not_used_before_its_copy_is_done() {
    let options = small().slots(1).threads(2);
    let bench = Bench::with(own_memory(), options);
    for seed in 0..5 {
        let from = data(200_000, seed);
        let (_, array) = bench
            .engine
            .upload(from.clone(), bench.array(200_000))
            .submit()
            .unwrap()
            .wait()
            .unwrap();
        let (_, back) =
            bench.engine.download(array, vec![0; 200_000]).submit().unwrap().wait().unwrap();
        assert!(back == from, "seed {seed}");
    }
    assert_eq!(bench.engine.statistics().pinned, Bytes::kib(8));
    bench.nothing_was_found();
}

/// The engine keeps the memory of a dropped ticket until its transfer is done, and no longer.
#[test]
fn memory_of_dropped_tickets_is_freed_after_the_transfer() {
    let bench = Bench::new();
    for seed in 0..30 {
        let ticket = bench.engine.upload(data(30_000, seed), bench.array(30_000)).submit().unwrap();
        drop(ticket);
        let ticket = bench.engine.download(bench.array(30_000), vec![0; 30_000]).submit().unwrap();
        drop(ticket);
    }
    drop(bench.engine);
    for _ in 0..2000 {
        if bench.pool.statistics().live == Bytes::ZERO {
            break;
        }
        std::thread::sleep(core::time::Duration::from_millis(5));
    }
    assert_eq!(bench.pool.statistics().live, Bytes::ZERO);
    bench.device.synchronize_device().unwrap();
    assert_eq!(bench.machine.finding_count(), 0, "{}", bench.machine.findings()[0]);
}

#[test]
fn cancelling_ends_in_a_defined_state_at_any_point() {
    for pieces in 0..12_u64 {
        let bench = Bench::with(own_memory(), small().threads(1));
        let seen = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&seen);
        let from = data(10 * 4096, pieces);
        let mut array = bench.array(from.len());
        array.fill(0xee).unwrap();
        let ticket = bench
            .engine
            .upload(from, array)
            .on_progress(move |_| _ = count.fetch_add(1, Ordering::SeqCst))
            .submit()
            .unwrap();
        while seen.load(Ordering::SeqCst) < pieces.min(10) {
            std::thread::yield_now();
        }
        let cancelled = ticket.cancel();
        assert!(!ticket.cancel());
        match ticket.wait() {
            Ok((from, array)) => {
                assert!(!cancelled);
                assert_eq!(array.to_vec().unwrap(), from);
            }
            Err(refused) => {
                let ((from, array), error) = refused.into_parts();
                assert!(cancelled && pieces < 10);
                let Error::Cancelled { moved, total } = error else { panic!("{error}") };
                assert!(moved >= Bytes::new(pieces * 4096) && total == Bytes::new(10 * 4096));
                for (there, sent) in array.to_vec().unwrap().iter().zip(&from) {
                    assert!(there == sent || *there == 0xee);
                }
            }
        }
        assert_eq!(bench.engine.statistics().under_way, 0);
        bench.nothing_was_found();
    }
}

/// Held up after its first piece, a transfer whose ticket is dropped ends there; a detached one goes on.
#[test]
fn a_dropped_ticket_cancels_and_a_detached_one_goes_on() {
    for is_detached in [false, true] {
        let bench = Bench::with(own_memory(), small().threads(1).slots(1));
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (begun, first) = std::sync::mpsc::channel();
        let gone = std::sync::Mutex::new(gone);
        let observer = move |_: Progress| {
            let _ = begun.send(());
            let _ = gone.lock().unwrap().recv();
        };
        let upload = bench.engine.upload(data(10 * 4096, 1), bench.array(10 * 4096));
        let ticket = upload.on_progress(observer).submit().unwrap();
        first.recv().unwrap();
        if is_detached {
            ticket.detach();
        } else {
            drop(ticket);
        }
        drop(go);
        let mut rounds = 0;
        while bench.pool.statistics().live > Bytes::ZERO {
            assert!(rounds < 20_000, "the memory is freed");
            rounds += 1;
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
        let moved = bench.engine.statistics().uploads.bytes;
        assert_eq!(moved == Bytes::new(10 * 4096), is_detached, "{moved}");
        bench.nothing_was_found();
    }
}

/// The first transfer is held up after its first piece; then the urgent one has all turns.
#[test]
fn an_urgent_transfer_is_held_up_by_one_piece_at_most() {
    let bench = Bench::with(own_memory(), small().threads(1).slots(2));
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(Some(gone));
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |name: &'static str, held: Option<std::sync::mpsc::Receiver<()>>| {
        let (order, held) = (Arc::clone(&order), std::sync::Mutex::new(held));
        move |_: Progress| {
            order.lock().unwrap().push(name);
            if let Some(held) = held.lock().unwrap().take() {
                let _ = held.recv();
            }
        }
    };
    let slow = bench.engine.upload(data(5 * 4096, 1), bench.array(5 * 4096));
    let held = gone.lock().unwrap().take();
    let slow = slow.on_progress(note("slow", held)).submit().unwrap();
    while order.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    let urgent = bench.engine.upload(data(3 * 4096, 2), bench.array(3 * 4096));
    let urgent = urgent.priority(Priority::High).on_progress(note("urgent", None));
    let urgent = urgent.submit().unwrap();
    go.send(()).unwrap();
    // Not waited for, since a thread that waits helps: two threads may note their pieces in another order than they
    // began them.
    while !(urgent.is_done() && slow.is_done()) {
        std::thread::yield_now();
    }
    let _ = (urgent.wait().unwrap(), slow.wait().unwrap());
    let order = order.lock().unwrap().clone();
    assert_eq!(order, ["slow", "urgent", "urgent", "urgent", "slow", "slow", "slow", "slow"]);
}

#[test]
fn a_ticket_is_a_future() {
    let bench = Bench::new();
    let ticket = bench.engine.upload(data(50_000, 4), bench.array(50_000)).submit().unwrap();
    let mut future = core::pin::pin!(ticket.into_future());
    let mut context = Context::from_waker(Waker::noop());
    let (from, array) = loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => break done.unwrap(),
            Poll::Pending => std::thread::yield_now(),
        }
    };
    assert_eq!(array.to_vec().unwrap(), from);
    assert!(future.as_mut().poll(&mut context).is_pending());
}

#[test]
fn a_future_is_woken() {
    let host = crate::HostDevice::open().unwrap();
    futures_are_woken(Pool::new(&host).unwrap(), small().build(&host).unwrap());
    let bench = Bench::new();
    futures_are_woken(bench.pool.clone(), small().build(&bench.device).unwrap());
}

/// No other thread calls the device.
fn futures_are_woken(pool: Pool, engine: TransferEngine) {
    for seed in 0..50 {
        let array = pool.on(DEFAULT).uninit::<u8>(40_000).unwrap();
        let ticket = engine.upload(data(40_000, seed), array).submit().unwrap();
        let (from, array) = block_on(ticket.into_future()).unwrap();
        let ticket = engine.download(array, vec![0; 40_000]).submit().unwrap();
        let (_, back) = block_on(ticket.into_future()).unwrap();
        assert_eq!(back, from);
    }
}

/// Uploads of some threads and downloads of others, with more transfers than slots and threads.
#[test]
fn many_threads_share_an_engine() {
    let bench = Bench::new();
    std::thread::scope(|scope| {
        for number in 0..6_u64 {
            let bench = &bench;
            scope.spawn(move || {
                for round in 0..10 {
                    let from = data(30_000, number * 100 + round);
                    let ticket =
                        bench.engine.upload(from.clone(), bench.array(30_000)).submit().unwrap();
                    let (_, array) = ticket.order().unwrap();
                    let mut back = vec![0; 30_000];
                    let scoped = bench.engine.scope(|transfers| {
                        transfers.download(&array, &mut back).submit().map(drop)
                    });
                    scoped.unwrap().unwrap();
                    assert!(back == from);
                }
            });
        }
    });
    assert!(bench.engine.statistics().pinned <= bench.engine.options().max_pinned());
    bench.nothing_was_found();
}

/// A panic in a scope waits for the transfers first.
#[test]
fn a_panic_in_a_scope_leaves_no_transfer_behind() {
    let bench = Bench::new();
    let mut back = vec![0; 10_000];
    let array = bench.array(10_000);
    let caught = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        bench.engine.scope(|transfers| {
            let _ticket = transfers.download(&array, &mut back).submit().unwrap();
            panic!("on purpose");
        })
    }));
    assert!(caught.is_err());
    assert_eq!(bench.engine.statistics().under_way, 0);
    let panics = |_: Progress| panic!("on purpose");
    let ticket = bench.engine.download(array, back).on_progress(panics).submit().unwrap();
    let _ = ticket.wait().unwrap();
}

/// A dropped ticket of pinned memory frees its array at once, in the order of its stream.
#[test]
fn a_dropped_ticket_of_pinned_memory_keeps_nothing() {
    let bench = Bench::new();
    let pinned = PinnedPool::new(&bench.device).unwrap();
    for seed in 0..10 {
        let mut source = pinned.array::<u8>(30_000).unwrap();
        source.host_mut().unwrap().copy_from_slice(&data(30_000, seed));
        drop(bench.engine.upload(source, bench.array(30_000)).submit().unwrap());
        assert_eq!(bench.pool.statistics().live, Bytes::ZERO);
    }
    bench.nothing_was_found();
}

/// A waker that owns a ticket of the same engine, dropped with it.
#[test]
fn what_the_program_hands_over_is_dropped_without_the_lock() {
    let bench = Bench::new();
    let inner = bench.engine.upload(data(30_000, 1), bench.array(30_000)).submit().unwrap();
    let held = std::sync::Mutex::new(Some(inner));
    let observer = move |_: Progress| _ = held.lock().unwrap().as_ref().map(Ticket::progress);
    let ticket = bench.engine.upload(data(30_000, 2), bench.array(30_000)).on_progress(observer);
    let _ = ticket.submit().unwrap().wait().unwrap();
    drop(bench.engine);
    bench.device.synchronize_device().unwrap();
}

/// An observer that uses the engine itself, for every piece of a long transfer.
#[test]
fn an_observer_may_wait_for_a_transfer_of_its_own() {
    let bench = Arc::new(Bench::with(own_memory(), small().threads(1).slots(2)));
    let inner = Arc::downgrade(&bench);
    let observer = move |_: Progress| {
        let Some(bench) = inner.upgrade() else { return };
        let ticket = bench.engine.upload(data(10, 1), bench.array(10)).submit().unwrap();
        let _ = ticket.wait().unwrap();
    };
    let from = data(400 * 4096, 1);
    let array = bench.array(from.len());
    let ticket = bench.engine.upload(from, array).on_progress(observer).submit().unwrap();
    let (from, array) = ticket.wait().unwrap();
    assert!(array.to_vec().unwrap() == from);
    bench.nothing_was_found();
}

#[test]
fn an_observer_may_wait_for_its_own_transfer() {
    type Kept = std::sync::Mutex<Option<Ticket<(Vec<u8>, DeviceArray<u8>)>>>;
    for length in [1000, 40 * 4096] {
        let bench = Bench::with(own_memory(), small().threads(1).slots(2));
        let (cell, inner) = {
            let cell: Arc<Kept> = Arc::default();
            (Arc::clone(&cell), cell)
        };
        let (done, is_done) = std::sync::mpsc::channel();
        let observer = move |progress: Progress| {
            // The ticket may not be there yet.
            let ticket = loop {
                match lock(&cell).take() {
                    None if progress.moved == progress.total => std::thread::yield_now(),
                    other => break other,
                }
            };
            if progress.moved == progress.total {
                done.send(ticket.map(|ticket| ticket.wait().is_ok())).unwrap();
            } else {
                *lock(&cell) = ticket;
            }
        };
        let array = bench.array(length);
        let transfer = bench.engine.upload(data(length, 1), array).on_progress(observer);
        let ticket = transfer.submit().unwrap();
        *lock(&inner) = Some(ticket);
        let waited = is_done.recv_timeout(core::time::Duration::from_secs(60));
        assert_eq!(waited, Ok(Some(true)), "{length}");
        // The engine goes on.
        drop(bench.engine.upload(data(10, 1), bench.array(10)).submit().unwrap().wait().unwrap());
    }
}

/// Threads stay while there is work, also if others hold all slots for longer than an idle thread waits.
#[test]
fn no_transfer_is_left_without_a_thread() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            panic!("on purpose, when the observer is dropped");
        }
    }
    let bench = Bench::with(own_memory(), small().threads(1).slots(1));
    let slow = Slow;
    let wait = move |_: Progress| {
        let _ = &slow;
        std::thread::sleep(core::time::Duration::from_millis(150));
    };
    let mut back = vec![0; 3 * 4096];
    let array = bench.array(3 * 4096);
    let awaited = bench.engine.upload(data(5000, 1), bench.array(5000));
    bench
        .engine
        .scope(|transfers| {
            let _ = transfers.download(&array, &mut back).on_progress(wait).submit().unwrap();
        })
        .unwrap();
    let awaited = awaited.submit().unwrap();
    for _ in 0..2000 {
        if awaited.progress().moved == awaited.progress().total {
            break;
        }
        std::thread::sleep(core::time::Duration::from_millis(2));
    }
    assert_eq!(awaited.progress().moved, Bytes::new(5000));
    let _ = awaited.wait().unwrap();
    assert_eq!(bench.engine.statistics().under_way, 0);
}
