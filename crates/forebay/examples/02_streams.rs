//! Streams: memory freed on a stream serves the next request there at once, and another stream after one event on the
//! device. The simulated device of this example reports operations that race.
//!
//! `cargo run -p forebay --features sim --example 02_streams`

use std::error::Error;

use forebay::sim::{Kernel, SimMachine};
use forebay::{Bytes, Pool, Priority, Span, Stream};

fn main() -> Result<(), Box<dyn Error>> {
    let machine = SimMachine::builder().capacity(Bytes::mib(64)).build()?;
    let sim = machine.device(0).ok_or("a machine has a device")?;
    let pool = Pool::new(&sim)?;
    let (one, two) = (Stream::new(&sim, Priority::Normal)?, Stream::new(&sim, Priority::Normal)?);

    // Enqueue work on the first stream, and free the block before the work has run.
    let block = pool.allocate(Bytes::mib(40), &one)?;
    let span = Span::new(block.address(), block.size())?;
    let work = Kernel::new("first").writes(span);
    // SAFETY: the pool keeps the memory until what is enqueued before the free has run.
    unsafe { sim.launch(work, one.handle())? };
    pool.free(block.address(), &one)?;

    // There is no room for another 40 MiB. The second stream takes this memory and waits for the first one, on the
    // device.
    let other = pool.allocate(Bytes::mib(40), &two)?;
    let span = Span::new(other.address(), other.size())?;
    let work = Kernel::new("second").writes(span);
    // SAFETY: likewise.
    unsafe { sim.launch(work, two.handle())? };
    pool.free(other.address(), &two)?;
    pool.device().synchronize_device()?;

    let statistics = pool.statistics();
    say(format_args!(
        "{} waits between streams, {} races found",
        statistics.waits,
        machine.finding_count()
    ));
    Ok(()) // dropping the streams makes the pool forget them
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
