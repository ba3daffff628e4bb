//! Data with a host side and a device side: copied when a use needs it, and only what it needs.
//!
//! `cargo run -p forebay --example 05_buffers --features sim`

use std::error::Error;
use std::sync::Arc;

use forebay::buffer::{BufferManager, BufferStatistics, Replica};
use forebay::hal::Capabilities;
use forebay::sim::SimMachine;
use forebay::{Device, StreamHandle};

fn main() -> Result<(), Box<dyn Error>> {
    // A simulated accelerator with memory of its own. On the host, or on a GPU, all below is the same.
    let machine = SimMachine::builder().without(Capabilities::HOST_VISIBLE).build()?;
    let device: Arc<dyn Device> = machine.device(0).ok_or("there is one device")?;
    let memory = BufferManager::new(&device)?;
    let stream = StreamHandle::DEFAULT;

    let mut buffer = memory.buffer::<f32>(1_000_000)?;
    say(format_args!("new: {:?}, {}", buffer.state(), moved(buffer.statistics())));

    buffer.host_mut()?.fill(2.0);
    let address = buffer.on_device(stream)?.address();
    say(format_args!(
        "on the device at {address}: {:?}, {}",
        buffer.state(),
        moved(buffer.statistics())
    ));

    buffer.slice_mut(500..510)?.host_mut()?.fill(3.0);
    let _ = buffer.on_device_mut(stream)?;
    say(format_args!("ten of a million: {:?}, {}", buffer.state(), moved(buffer.statistics())));

    let sum: f32 = buffer.slice(..1000)?.host()?.iter().sum();
    say(format_args!("the first thousand add up to {sum}: {}", moved(buffer.statistics())));

    let freed = buffer.compact(Replica::Device, stream)?;
    say(format_args!("compacted: {freed} freed, {:?}", buffer.state()));
    for live in memory.live_buffers() {
        say(format_args!("live: {} x {} from {}", live.length, live.element, live.created_at));
    }
    Ok(())
}

fn moved(statistics: BufferStatistics) -> String {
    format!("{} B to the device, {} B back", statistics.to_device.bytes, statistics.to_host.bytes)
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
