//! A buffer that two processes have at once, found by its name.
//!
//! `cargo run -p forebay --example 06_shared`
//!
//! The program starts itself a second time, and the second process adds up what the first has written.

use std::error::Error;
use std::fmt::Display;
use std::process::Command;

use forebay::SharedBuffer;
use forebay::buffer::BufferManager;

fn main() -> Result<(), Box<dyn Error>> {
    // BufferManager::new(&CudaDevice::open(0)?)? for memory of the first GPU: all below is the same.
    let memory = BufferManager::host()?;
    match std::env::args().nth(1) {
        Some(name) => second(&memory, &name),
        None => first(&memory),
    }
}

fn first(memory: &BufferManager) -> Result<(), Box<dyn Error>> {
    let name = format!("example-{}", std::process::id());
    let numbers: SharedBuffer<u64> = memory.shared(&name, 1_000_001)?;
    for first in (0..1_000_000).step_by(1000) {
        let chunk: Vec<u64> = (first as u64..first as u64 + 1000).collect();
        numbers.write(first, &chunk)?;
    }
    say(format_args!("process {} created {name}: {}", std::process::id(), numbers.size()));

    // Another type is refused, with both types in the message.
    if let Err(error) = memory.open_shared::<f32>(&name) {
        say(format_args!("as f32: {error}"));
    }

    let status = Command::new(std::env::current_exe()?).arg(&name).status()?;
    let mut sum = [0];
    numbers.read(1_000_000, &mut sum)?;
    say(format_args!("the second process ended with {status}; it left the sum {}", sum[0]));

    // The name goes with the last handle, in whichever process.
    drop(numbers);
    if let Err(error) = memory.open_shared::<u64>(&name) {
        say(format_args!("afterwards: {error}"));
    }
    Ok(())
}

fn second(memory: &BufferManager, name: &str) -> Result<(), Box<dyn Error>> {
    let numbers = memory.open_shared::<u64>(name)?;
    say(format_args!("process {} opened {numbers:?}", std::process::id()));
    // Free again when this process ends, even by kill -9.
    let _lock = numbers.lock()?;
    let sum = numbers.to_vec()?.iter().take(1_000_000).sum();
    numbers.write(1_000_000, &[sum])?;
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl Display) {
    println!("{what}");
}
