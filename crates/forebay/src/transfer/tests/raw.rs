//! Transfers of memory that is named by address, as the bindings make them.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::Address;
use forebay_hal::{Copy, Location};

use super::*;
use crate::Result;
use crate::transfer::raw::RawTicket;

fn up(array: &DeviceArray<u8>, from: &[u8]) -> Copy {
    let (to, size) = (Location::Device(array.address()), Bytes::new(from.len() as u64));
    Copy::linear(to, Location::Host(Address::of_pointer(from.as_ptr())), size).unwrap()
}

fn down(array: &DeviceArray<u8>, to: &mut [u8]) -> Copy {
    let (from, size) = (Location::Device(array.address()), Bytes::new(to.len() as u64));
    Copy::linear(Location::Host(Address::of_pointer(to.as_mut_ptr())), from, size).unwrap()
}

impl Bench {
    /// The tests keep the memory until the ticket is dropped.
    fn copy_raw(&self, copy: Copy, of: &DeviceArray<u8>) -> Result<RawTicket> {
        // SAFETY: as said above; pinned memory is of this device.
        unsafe { self.engine.copy_raw(copy, of.block().stream()) }.submit()
    }

    /// Enqueues work on the stream of an array, and returns whether it ran. The simulated device works when it is waited
    /// for.
    fn work_on(&self, array: &DeviceArray<u8>) -> Arc<AtomicBool> {
        let ran = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&ran);
        let work = Box::new(move || set.store(true, Ordering::Release));
        self.device.enqueue_host(work, array.block().stream()).unwrap();
        ran
    }
}

#[test]
fn memory_by_address_goes_there_and_comes_back() {
    let bench = Bench::new();
    for (seed, length) in [0, 1, 4096, 50_001].into_iter().enumerate() {
        let (from, array) = (data(length, seed as u64), bench.array(length));
        let ticket = bench.copy_raw(up(&array, &from), &array).unwrap();
        ticket.wait().unwrap();
        assert!(ticket.is_done() && !ticket.cancel());
        assert_eq!(ticket.progress().moved.get(), length as u64);
        let mut back = vec![0; length];
        bench.copy_raw(down(&array, &mut back), &array).unwrap().wait().unwrap();
        assert!(back == from, "{length} bytes");
    }
    bench.nothing_was_found();
}

/// Held up by earlier work of the stream, ordinary memory has been handed over only in part; pinned memory altogether.
#[test]
fn a_dropped_ticket_is_cancelled_and_uses_no_memory() {
    let bench = Bench::new();
    let pinned = PinnedPool::new(&bench.device).unwrap();
    let (mut ordinary, mut pinned) = (vec![0; 50_000], pinned.array::<u8>(50_000).unwrap());
    // Nothing notes the use of the pinned memory, so taking it does not wait.
    for (is_direct, from) in [(false, &mut ordinary[..]), (true, pinned.host_mut().unwrap())] {
        from.copy_from_slice(&data(50_000, 3));
        let array = bench.array(50_000);
        let ran = bench.work_on(&array);
        let ticket = bench.copy_raw(up(&array, from), &array).unwrap();
        assert_eq!(ticket.is_direct(), is_direct);
        drop(ticket);
        assert!(ran.load(Ordering::Acquire), "direct: {is_direct}");
        from.fill(0);
        let (found, wanted) = (array.to_vec().unwrap(), data(50_000, 3));
        assert!(
            found == wanted
                || !is_direct && found.iter().zip(&wanted).all(|(a, b)| [0, *b].contains(a)),
            "direct: {is_direct}"
        );
    }
    bench.nothing_was_found();
}

/// Ordinary memory is the caller's again after `order`, and neither that nor the drop waits for the device.
#[test]
fn an_ordered_ticket_does_not_wait_for_the_device() {
    let bench = Bench::new();
    let (mut from, array) = (data(4096, 5), bench.array(4096));
    let ran = bench.work_on(&array);
    let ticket = bench.copy_raw(up(&array, &from), &array).unwrap();
    ticket.order().unwrap();
    from.fill(0);
    drop(ticket);
    assert!(!ran.load(Ordering::Acquire));
    assert!(array.to_vec().unwrap() == data(4096, 5));

    let pinned = PinnedPool::new(&bench.device).unwrap().array::<u8>(4096).unwrap();
    let ran = bench.work_on(&array);
    let copy = up(&array, pinned.host().unwrap());
    let ticket = bench.copy_raw(copy, &array).unwrap();
    ticket.order().unwrap();
    assert!(!ran.load(Ordering::Acquire));
    drop(ticket);
    assert!(ran.load(Ordering::Acquire), "the device reads pinned memory until it is done");
    bench.nothing_was_found();
}

#[test]
fn every_thread_sees_the_same_outcome() {
    let bench = Bench::new();
    let (from, array) = (data(400_000, 1), bench.array(400_000));
    for round in 0..20 {
        let ticket = bench.copy_raw(up(&array, &from), &array).unwrap();
        let cancelled = round % 2 == 0 && ticket.cancel();
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| ticket.wait())).collect();
            waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
        });
        for outcome in outcomes.into_iter().chain([ticket.wait(), ticket.order()]) {
            assert_eq!(matches!(outcome, Err(Error::Cancelled { .. })), cancelled, "{outcome:?}");
        }
    }
    bench.nothing_was_found();
}

#[test]
fn a_batch_by_address_says_which_item_failed() {
    let bench = Bench::new();
    let (from, array) = (data(300, 1), bench.array(300));
    let mut back = vec![0; 300];
    let copies = vec![Ok(up(&array, &from)), Ok(down(&array, &mut back)), Ok(up(&array, &from))];
    // SAFETY: all of it is there until this returns.
    let results = unsafe { bench.engine.copy_all_raw(copies, array.block().stream()) }.unwrap();
    assert!(results[0].is_ok() && results[2].is_ok());
    assert!(results[1].as_ref().unwrap_err().to_string().contains("one direction"));
    assert!(array.to_vec().unwrap() == from);
    // SAFETY: nothing is copied.
    assert!(unsafe { bench.engine.copy_all_raw(Vec::new(), DEFAULT) }.unwrap().is_empty());
}

#[test]
fn a_copy_within_one_side_is_no_transfer() {
    let bench = Bench::new();
    let (a, b) = (bench.array(10), bench.array(10));
    let (to, from) = (Location::Device(a.address()), Location::Device(b.address()));
    let copy = Copy::linear(to, from, Bytes::new(10)).unwrap();
    let refused = bench.copy_raw(copy, &a).unwrap_err();
    assert!(refused.to_string().contains("between the host and the device"), "{refused}");
}
