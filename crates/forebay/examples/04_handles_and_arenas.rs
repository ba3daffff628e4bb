//! Handles that free themselves, and an arena for blocks that are freed together.
//!
//! `cargo run -p forebay --example 04_handles_and_arenas`

use std::error::Error;

use forebay::arena::Arena;
use forebay::{Bytes, HostDevice, Pool, StreamHandle};

fn main() -> Result<(), Box<dyn Error>> {
    let device = HostDevice::open()?;
    let pool = Pool::new(&device)?;
    let stream = StreamHandle::DEFAULT;

    // An array of numbers on the device, freed when it is dropped.
    let mut array = pool.on(stream).uninit::<f32>(1024)?;
    array.copy_from_slice(&vec![2.5; 1024])?;
    let mut back = vec![0.0; 1024];
    array.copy_to_slice(&mut back)?;
    assert!(back.iter().all(|&number| number == 2.5));
    say(format_args!("{} live while the array is", pool.statistics().live));
    drop(array);
    say(format_args!("{} live after", pool.statistics().live));

    // An arena hands out parts of one block and takes all of them back at once.
    let mut arena = Arena::new(pool.clone(), Bytes::mib(1), stream)?;
    for step in 0..3 {
        let a = arena.allocate(Bytes::new(100_000))?;
        let b = arena.allocate(Bytes::new(200_000))?;
        say(format_args!("step {step}: {} and {}", a.address(), b.address()));
        // The borrow checker refuses any use of the parts from here on.
        arena.reset();
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
