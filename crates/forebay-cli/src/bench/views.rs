//! HOST-VIEW: the host's zero-copy view of a buffer, on a device with its own memory and on one that uses the host's,
//! compared with a view of a vector behind a lock.

use core::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay::buffer::{Buffer, BufferManager};
use forebay::{Bytes, StreamHandle};
use forebay_hal::{Capabilities, Device};
use forebay_sim::SimMachine;
use forebay_trace::workload::size_name;

use super::hot::{Contestant, contest};
use super::row::Row;
use super::setup::BenchSetup;
use crate::output::Fault;
use crate::progress::Progress;

/// The name of the workload.
pub(super) const VIEWS: &str = "HOST-VIEW";

/// The size of the buffer. Views copy nothing, so that it does not matter.
const SIZE: Bytes = Bytes::mib(1);

/// A buffer that was used on both sides, of a simulated device.
fn buffer(own_memory: bool) -> Result<Buffer<u8>, forebay::Error> {
    let options = SimMachine::builder();
    let hidden = if own_memory { Capabilities::HOST_VISIBLE } else { Capabilities::empty() };
    let machine = options.without(hidden).build()?;
    let device = machine.device(0).ok_or(forebay::Error::Forked)?;
    let shared: Arc<dyn Device> = device;
    let length = usize::try_from(SIZE.get()).unwrap_or_default();
    let mut buffer = BufferManager::new(&shared)?.buffer(length)?;
    buffer.host_mut()?.fill(1);
    buffer.synchronize(StreamHandle::DEFAULT)?;
    buffer.host()?;
    Ok(buffer)
}

/// Views of buffers, and of a vector.
pub(super) fn of_buffers(setup: BenchSetup<'_>, progress: &Progress) -> Result<Vec<Row>, Fault> {
    let buffers = [("forebay", true), ("forebay, one replica", false)];
    let row = |allocator| Row::of(VIEWS, size_name(SIZE), setup, allocator);
    let mut contestants = Vec::new();
    for (allocator, own_memory) in buffers {
        let buffer = buffer(own_memory)?;
        contestants.push(Contestant::new(row(allocator), move |count| {
            let began = Instant::now();
            for _ in 0..count {
                black_box(black_box(&buffer).host()?);
            }
            Ok(began.elapsed())
        }));
    }
    let vector = Mutex::new(vec![1_u8; usize::try_from(SIZE.get()).unwrap_or_default()]);
    contestants.push(Contestant::new(row("Mutex<Vec>"), move |count| {
        let began = Instant::now();
        for _ in 0..count {
            let vector = vector.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            black_box(vector.as_slice());
        }
        Ok(began.elapsed())
    }));
    Ok(contest(contestants, setup.effort.threaded(), progress))
}
