//! Nothing is left behind: memory, descriptors, streams and events are as before after many rounds
//! of opening a device, making a pool, using it on three streams and dropping all of it.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay::cuda::{CreatedCounts, CudaDriver};
use forebay::hal::{Fill, Pattern, Transfers};
use forebay::{Bytes, CudaDevice, Device, Pool, PoolOptions, Priority, Stream};

use crate::{Step, as_device, ensure};

/// Rounds before the first look: what is pooled for good is made by then.
const WARM: u64 = 20;

/// How long the rounds may take in all.
const LONGEST: Duration = Duration::from_secs(60);

/// Streams and events are given out again once their work is done and their device's last thread has
/// let them go, so a round may find the last one's still busy. What may be made beyond the first
/// rounds does not depend on how many there are.
const SLACK: u64 = 8;

/// How a process and its device stand.
#[derive(Debug, PartialEq, Eq)]
struct Stand {
    free: Bytes,
    descriptors: usize,
}

fn stand(device: &Arc<CudaDevice>) -> Step<Stand> {
    let descriptors = std::fs::read_dir("/proc/self/fd")?.count();
    Ok(Stand { free: device.memory_info()?.free, descriptors })
}

/// One of everything, on three streams.
fn round(driver: &'static CudaDriver) -> Step {
    let cuda = CudaDevice::open_with(driver, 0)?;
    let device: Arc<dyn Device> = as_device(&cuda);
    let made = || Stream::new(&device, Priority::Normal);
    let streams = [made()?, made()?, made()?];
    let pool: Pool = PoolOptions::new().build(&device)?;
    for (stream, next) in streams.iter().zip(streams.iter().cycle().skip(1)) {
        let mut blocks = Vec::new();
        for size in [Bytes::new(512), Bytes::mib(1), Bytes::mib(6)] {
            let block = pool.allocate(size, stream.handle())?;
            let part = size.min(Bytes::new(64 << 10));
            let fill = Fill::linear(block.address(), part, Pattern::U32(7))?;
            // SAFETY: the block is ours, in the order of the stream.
            unsafe { cuda.fill(&fill, stream.handle()) }?;
            blocks.push(block);
        }
        for block in blocks {
            pool.record_use(block.address(), next.handle())?;
            pool.free_block(block, stream.handle())?;
        }
    }
    for stream in &streams {
        stream.synchronize()?;
    }
    pool.process_deferred()?;
    Ok(())
}

fn rounds(real: bool) -> u64 {
    let said = std::env::var("FOREBAY_CYCLES").ok().and_then(|text| text.parse().ok());
    said.unwrap_or(if real { 10_000 } else { 200 })
}

/// The stand, once what a dropped device left to its last thread is gone; or after a while.
fn settled(device: &Arc<CudaDevice>, wanted: &Stand) -> Step<Stand> {
    let begun = Instant::now();
    loop {
        let now = stand(device)?;
        if now == *wanted || begun.elapsed() > Duration::from_secs(5) {
            return Ok(now);
        }
        sleep(Duration::from_millis(5));
    }
}

pub(crate) fn nothing_is_left(driver: &'static CudaDriver, real: bool) -> Step {
    // Looks on, and holds nothing.
    let device = CudaDevice::open_with(driver, 0)?;
    for _ in 0..WARM {
        round(driver)?;
    }
    sleep(Duration::from_millis(200));
    let (before, made) = (stand(&device)?, driver.made());
    let (begun, wanted, mut done) = (Instant::now(), rounds(real), 0_u64);
    while done < wanted && begun.elapsed() < LONGEST {
        round(driver)?;
        done += 1;
    }
    let took = begun.elapsed();
    let after = settled(&device, &before)?;
    let CreatedCounts { streams, events, .. } = driver.made();
    let (more_streams, more_events) = (streams - made.streams, events - made.events);
    println!(
        "record: {{\"case\":\"nothing left behind\",\"cycles\":{done},\"wanted\":{wanted},\
         \"seconds\":{:.1},\"free_before\":{},\"free_after\":{},\"descriptors_before\":{},\
         \"descriptors_after\":{},\"streams_made\":{more_streams},\"events_made\":{more_events}}}",
        took.as_secs_f64(),
        before.free.get(),
        after.free.get(),
        before.descriptors,
        after.descriptors
    );
    ensure!(after == before, "after {done} rounds: {after:?}, before: {before:?}");
    let few = more_streams <= SLACK && more_events <= SLACK;
    ensure!(few, "{done} rounds made {more_streams} more streams and {more_events} more events");
    Ok(())
}
