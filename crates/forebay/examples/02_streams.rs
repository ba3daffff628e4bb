//! Streams: memory freed on one serves the next request there at once, and another stream after one
//! event, on the device. On the simulated device, whose checker would name any two operations that race.
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

    // Work on the first stream, which runs late; and the block is freed before it has run.
    let block = pool.allocate(Bytes::mib(40), one.handle())?;
    let span = Span::new(block.address(), block.size())?;
    let work = Kernel::new("first").writes(span);
    // SAFETY: the pool keeps the memory until what is enqueued before the free has run.
    unsafe { sim.launch(work, one.handle())? };
    pool.free(block.address(), one.handle())?;

    // There is no room for another 40 MiB beside it: the second stream waits for the first, on the
    // device, and takes its memory.
    let other = pool.allocate(Bytes::mib(40), two.handle())?;
    let span = Span::new(other.address(), other.size())?;
    let work = Kernel::new("second").writes(span);
    // SAFETY: likewise.
    unsafe { sim.launch(work, two.handle())? };
    pool.free(other.address(), two.handle())?;
    pool.device().synchronize_device()?;

    let figures = pool.statistics();
    say(format_args!(
        "{} waits between streams, {} races found",
        figures.waits,
        machine.finding_count()
    ));

    // Before a stream is destroyed the pool is told, so that nothing is stranded there.
    pool.forget_stream(one.handle())?;
    pool.forget_stream(two.handle())?;
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
