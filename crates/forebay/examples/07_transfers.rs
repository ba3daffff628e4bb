//! Ordinary memory to and from a device, by several threads: owned, borrowed, in rows, in a batch, cancelled.
//!
//! `cargo run -p forebay --example 07_transfers --features sim`

use std::error::Error;
use std::sync::Arc;

use forebay::hal::Capabilities;
use forebay::sim::SimMachine;
use forebay::transfer::{Region, TransferOptions};
use forebay::{Bytes, Device, Pool, Priority, StreamHandle};

fn main() -> Result<(), Box<dyn Error>> {
    // A simulated accelerator with memory of its own. On the host, or on a GPU, all below is the same.
    let machine = SimMachine::builder().without(Capabilities::HOST_VISIBLE).build()?;
    let device: Arc<dyn Device> = machine.device(0).ok_or("there is one device")?;
    let pool = Pool::new(&device)?;
    let engine = TransferOptions::new().chunk(Bytes::kib(64)).slots(4).threads(2).build(&device)?;
    let stream = StreamHandle::DEFAULT;

    let data: Vec<u32> = (0..250_000).collect();
    let array = pool.on(stream).uninit::<u32>(data.len())?;
    let ticket = engine.upload(data, array).priority(Priority::High).submit()?;
    let (data, array) = ticket.order()?; // later work on the stream comes after it
    say(format_args!("uploaded: {}", engine.statistics().uploads.bytes));

    let mut back = vec![0; data.len()];
    engine.scope(|transfers| transfers.download(&array, &mut back).submit().map(drop))??;
    say(format_args!("the same came back: {}", back == data));

    // The first hundred columns of a picture of 500 x 500.
    let mut columns = pool.on(stream).uninit::<u32>(100 * 500)?;
    let region = Region::rows(100, 500).host_pitch(500, 0);
    engine.scope(|transfers| {
        transfers.upload(&data, &mut columns).region(region).submit()?.wait()
    })??;
    say(format_args!("row 2 begins with {}", columns.to_vec()?[200]));

    // Small ones are staged together, and each has a result of its own.
    let mut small = Vec::new();
    for length in [1000, 10, 1000] {
        small.push(pool.on(stream).uninit::<u32>(length)?);
    }
    let results = engine.scope(|transfers| {
        let items = small.iter_mut().map(|array| (&data[..1000], array)).collect();
        transfers.upload_all(items).wait()
    })?;
    for (number, result) in results.iter().enumerate() {
        match result {
            Ok(()) => say(format_args!("item {number}: done")),
            Err(error) => say(format_args!("item {number}: {error}")),
        }
    }

    let ticket = engine.download(array, back).submit()?;
    if ticket.cancel()
        && let Err(refused) = ticket.wait()
    {
        say(format_args!("{}; the memory came back", refused.error()));
    }
    say(format_args!(
        "pinned: {} of at most {}",
        engine.statistics().pinned,
        engine.options().max_pinned()
    ));
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
