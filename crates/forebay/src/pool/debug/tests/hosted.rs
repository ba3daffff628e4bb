//! The same on the host's own memory.

use std::sync::Arc;

use forebay_core::{Address, Bytes};
use forebay_hal::{Copy, Device, Fill, Location, Pattern, Priority, StreamHandle};
use forebay_host::HostDevice;

use super::super::UNWRITTEN;
use super::{COMBINATIONS, Change, DEFAULT};
use crate::config::Zeroing;
use crate::{Block, Error, Pool, PoolOptions};

fn open(change: Change) -> (Arc<dyn Device>, Pool) {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let pool = PoolOptions::new().max_bytes(Bytes::mib(256)).set(change).build(&device).unwrap();
    (device, pool)
}

/// Fills `size` bytes, `offset` bytes into a block.
fn fill(device: &dyn Device, block: Block, offset: u64, size: u64, stream: StreamHandle) {
    let at = block.address().checked_add(Bytes::new(offset)).unwrap();
    let fill = Fill::linear(at, Bytes::new(size), Pattern::U8(5)).unwrap();
    // SAFETY: the pool keeps what is mapped there until the stream is done with it.
    unsafe { device.fill(&fill, stream) }.unwrap();
}

/// The first bytes of a block.
fn read(device: &dyn Device, block: Block, stream: StreamHandle) -> forebay_hal::Result<Vec<u8>> {
    let mut bytes = vec![1; 64];
    let to = Location::Host(Address::of_pointer(bytes.as_mut_ptr()));
    let copy = Copy::linear(to, Location::Device(block.address()), Bytes::new(64))?;
    // SAFETY: the bytes are this function's, and the copy is waited for.
    unsafe { device.copy(&copy, stream) }?;
    device.synchronize_stream(stream)?;
    Ok(bytes)
}

#[test]
fn right_programs_pass() {
    for &(name, change) in COMBINATIONS {
        let (device, pool) = open(change);
        let streams = [DEFAULT, device.create_stream(Priority::Normal).unwrap()];
        for round in 1..40_u64 {
            let stream = streams[usize::try_from(round % 2).unwrap()];
            let [a, b] = [round * 1000, round * 9999]
                .map(|size| pool.allocate(Bytes::new(size), stream).unwrap());
            for block in [a, b] {
                fill(&*device, block, 0, block.size().get(), stream);
                pool.free(block.address(), stream).unwrap();
            }
        }
        pool.check().unwrap();
        assert_eq!(pool.findings(), [], "{name}");
        assert_eq!(pool.statistics().live, Bytes::ZERO);
        device.destroy_stream(streams[1]).unwrap();
    }
}

#[test]
fn mistakes_are_found() {
    let (device, pool) = open(|settings| settings.canaries(true).poison(true));
    let block = pool.allocate(Bytes::new(4096), DEFAULT).unwrap();
    assert_eq!(read(&*device, block, DEFAULT).unwrap(), [UNWRITTEN; 64]);
    fill(&*device, block, 4090, 10, DEFAULT);
    let error = pool.free(block.address(), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::Overrun { found: 5, .. }), "{error}");
    let block = pool.allocate(Bytes::new(4096), DEFAULT).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    fill(&*device, block, 10, 1, DEFAULT);
    let error = pool.allocate(Bytes::new(4096), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::WrittenAfterFree { found: 5, .. }), "{error}");
}

#[test]
fn freed_blocks_are_unmapped() {
    let (device, pool) = open(|settings| settings.guard_pages(true).zero(Zeroing::Blocks));
    let block = pool.allocate(Bytes::new(4096), DEFAULT).unwrap();
    assert_eq!(read(&*device, block, DEFAULT).unwrap(), [0; 64]);
    let past = Fill::linear(block.address(), Bytes::new(4097), Pattern::U8(1)).unwrap();
    // SAFETY: the device looks whether it is memory, which is the question.
    assert!(unsafe { device.fill(&past, DEFAULT) }.is_err());
    pool.free(block.address(), DEFAULT).unwrap();
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    assert!(read(&*device, block, DEFAULT).is_err());
    assert_eq!(pool.held(), Bytes::ZERO);
}
