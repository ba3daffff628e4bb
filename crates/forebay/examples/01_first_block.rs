//! A pool, a block, and the pool's statistics.
//!
//! `cargo run -p forebay --example 01_first_block`

use std::error::Error;

use forebay::{Bytes, HostDevice, Pool, StreamHandle};

fn main() -> Result<(), Box<dyn Error>> {
    // The host is a device like any other, and every machine has it.
    let device = HostDevice::open()?;
    let pool = Pool::new(&device)?;

    // A block is plain data. You use and free it in the order of a stream.
    let stream = StreamHandle::DEFAULT;
    let block = pool.allocate(Bytes::mib(1), stream)?;
    say(format_args!("{} at {}", block.size(), block.address()));
    pool.free(block.address(), stream)?;

    // The next request gets the same memory, without a driver call.
    let again = pool.allocate(Bytes::mib(1), stream)?;
    assert_eq!(again.address(), block.address());
    pool.free_block(again, stream)?;

    // A second free is an error and changes nothing.
    if let Err(error) = pool.free_block(again, stream) {
        say(format_args!("refused: {error}"));
    }
    say(pool.statistics());
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
