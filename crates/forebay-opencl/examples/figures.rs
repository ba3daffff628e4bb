//! What copies, allocations, host functions and events take on every OpenCL device of this machine.
//!
//! `cargo run --release -p forebay-opencl --example figures`

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{
    Copy, EventKind, Location, Memory, PinnedFlags, PinnedMemory, StreamHandle, Streams, Transfers,
};
use forebay_opencl::{OpenClDevice, OpenClDriver};

type Outcome<T> = Result<T, Box<dyn Error>>;

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// The bytes of each copy, and how often it is made: the quickest counts.
const SIZE: u64 = 256 << 20;
const ROUNDS: u32 = 6;

/// The microseconds that `work` takes, over `count` times.
fn micros(count: u32, mut work: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let begin = Instant::now();
    for _ in 0..count {
        work()?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

fn measure(ordinal: u32, out: &mut impl Write) -> Outcome<()> {
    let (device, size) = (OpenClDevice::open(ordinal)?, Bytes::new(SIZE));
    let one = device.allocate(size, Alignment::BLOCK)?;
    let two = device.allocate(size, Alignment::BLOCK)?;
    let pinned = Location::Host(device.allocate_pinned(size, PinnedFlags::empty())?);
    let mut bytes = vec![1_u8; size.to_usize()?];
    let ordinary = Location::Host(Address::of_pointer(bytes.as_mut_ptr()));
    let [here, there] = [one, two].map(Location::Device);
    for (name, to, from) in [
        ("pinned memory to the device", here, pinned),
        ("the device to pinned memory", pinned, here),
        ("ordinary memory to the device", here, ordinary),
        ("the device to ordinary memory", ordinary, here),
        ("on the device", there, here),
    ] {
        let copy = Copy::linear(to, from, size)?;
        let (mut call, mut whole) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            // SAFETY: the memory of both sides is kept until the stream was waited for.
            unsafe { device.copy(&copy, STREAM) }?;
            call = call.min(begin.elapsed().as_secs_f64());
            device.synchronize_stream(STREAM)?;
            whole = whole.min(begin.elapsed().as_secs_f64());
        }
        let speed = SIZE as f64 / whole / 1e9;
        writeln!(out, "  {name:<30} {speed:>8.1} GB/s, the call {:.0} us", call * 1e6)?;
    }
    let event = device.create_event(EventKind::Order)?;
    let record = micros(100_000, || Ok(device.record_event(event, STREAM)?))?;
    let query = micros(100_000, || Ok(device.query_event(event).map(|_| ())?))?;
    let task = micros(1000, || {
        device.enqueue_host(Box::new(|| ()), STREAM)?;
        Ok(device.synchronize_stream(STREAM)?)
    })?;
    let pair = micros(200, || {
        let memory = device.allocate(Bytes::mib(2), Alignment::BLOCK)?;
        // SAFETY: no work uses it.
        Ok(unsafe { device.free(memory) }?)
    })?;
    writeln!(out, "  record {record:.2} us, query {query:.2} us, host function {task:.0} us")?;
    writeln!(out, "  allocate and free 2 MiB {pair:.0} us")?;
    Ok(())
}

fn main() -> Outcome<()> {
    let mut out = std::io::stdout();
    match OpenClDriver::load() {
        Ok(driver) => {
            for info in driver.devices() {
                writeln!(out, "{info}")?;
                measure(info.ordinal, &mut out)?;
            }
        }
        // Nothing to measure is no failure.
        Err(missing) => writeln!(out, "{missing}")?,
    }
    Ok(())
}
