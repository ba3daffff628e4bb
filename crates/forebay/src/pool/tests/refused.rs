//! A request is refused only where it cannot be had, and a stream that goes while the driver refuses is still
//! known to have gone.

use forebay_hal::Stream;
use forebay_sim::HandleReuse;

use super::*;

/// A random program near its limit on four streams. Whatever is refused is asked for again after a wait for
/// the device and a trim, and must be refused again. Gives how many were refused.
fn refusals_of(seed: u64) -> u64 {
    let options = SimMachine::builder().capacity(Bytes::mib(16)).granularity(PageSize::HOST);
    let (machine, device, shared) = open(options.seed(seed));
    let mut growth = Growth::default();
    growth.largest_page = Bytes::new(256 << 10);
    let pool = PoolOptions::new().growth(growth).max_bytes(Bytes::mib(12)).build(&shared).unwrap();
    let streams = [(); 4].map(|()| device.create_stream(Priority::Normal).unwrap());
    let mut random = Random::new(seed);
    let mut live: Vec<(Block, StreamHandle)> = Vec::new();
    let mut refused = 0;
    for step in 0..500 {
        let stream = *random.pick(&streams).unwrap();
        if random.below(17) < 10 {
            let size = Bytes::new(size_up_to(&mut random, 9, 23));
            match pool.allocate(size, stream) {
                Ok(block) => {
                    write(&device, block, 1, stream);
                    live.push((block, stream));
                }
                Err(error) => {
                    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
                    refused += 1;
                    device.synchronize_device().unwrap();
                    pool.process_deferred().unwrap();
                    pool.trim(Bytes::ZERO).unwrap();
                    let again = pool.allocate(size, stream);
                    assert!(
                        again.is_err(),
                        "seed {seed}, step {step}: {size} were refused: {error}"
                    );
                }
            }
        } else if let Some(index) = random.index(live.len()) {
            let (block, freed_on) = live.swap_remove(index);
            if random.below(3) == 0 {
                pool.record_use(block.address(), *random.pick(&streams).unwrap()).unwrap();
            }
            pool.free_block(block, freed_on).unwrap();
        }
    }
    assert_eq!(machine.finding_count(), 0);
    refused
}

#[test]
fn what_is_refused_cannot_be_had_by_waiting_and_trimming() {
    let refused: u64 = (0..24).map(refusals_of).sum();
    assert!(refused > 100, "{refused} refusals tell little");
}

/// An owned stream goes while the driver makes and records no event, and the driver gives its handle to the
/// next: what was freed on the first, and what it was said to use, waits for its work all the same.
#[test]
fn a_stream_that_goes_while_the_driver_refuses_is_known_to_have_gone() {
    for call in [Call::RecordEvent, Call::CreateEvent] {
        for (size, used) in [(4 << 10, false), (1 << 20, false), (4 << 10, true), (1 << 20, true)] {
            let options = SimMachine::builder().capacity(Bytes::mib(64));
            let (machine, device, shared) = open(options.handles(HandleReuse::AtOnce));
            let pool = PoolOptions::new().build(&shared).unwrap();
            let stream = Stream::new(&shared, Priority::Normal).unwrap();
            let on = if used { DEFAULT } else { stream.handle() };
            let block = pool.allocate(Bytes::new(size), on).unwrap();
            write(&device, block, 1, stream.handle());
            if used {
                pool.record_use(block.address(), stream.handle()).unwrap();
            } else {
                pool.free_block(block, on).unwrap();
            }
            machine.plan(Fault::new(When::Every(call), FaultKind::Transient));
            drop(stream);
            machine.clear_faults();
            if used {
                pool.free_block(block, DEFAULT).unwrap();
                pool.process_deferred().unwrap();
            }
            let next = Stream::new(&shared, Priority::Normal).unwrap();
            let block = pool.allocate(Bytes::new(size), next.handle()).unwrap();
            write(&device, block, 2, next.handle());
            device.synchronize_device().unwrap();
            assert_eq!(machine.finding_count(), 0, "{call:?}, {size} B, used elsewhere: {used}");
        }
    }
}
