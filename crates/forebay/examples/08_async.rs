//! An asynchronous service under tokio: requests wait for memory, are copied without blocking a thread, and are cancelled.
//!
//! `cargo run -p forebay --example 08_async --features sim`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use forebay::hal::Capabilities;
use forebay::handle::DeviceArray;
use forebay::sim::SimMachine;
use forebay::transfer::{TransferEngine, TransferOptions};
use forebay::{Bytes, Device, Pool, PoolOptions};
use tokio::task::JoinSet;
use tokio::time::timeout;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let machine = SimMachine::builder().without(Capabilities::HOST_VISIBLE).build()?;
    let device: Arc<dyn Device> = machine.device(0).ok_or("there is one device")?;
    // Room for two requests of 8 MiB at a time.
    let pool =
        PoolOptions::new().set(|settings| settings.max_bytes(Bytes::mib(16))).build(&device)?;
    let engine = Arc::new(TransferOptions::new().threads(1).build(&device)?);

    // Six requests arrive at once. Four of them wait until memory is free; none fails.
    let mut requests = JoinSet::new();
    for number in 0..6 {
        requests.spawn(serve(pool.clone(), Arc::clone(&engine), number));
    }
    while let Some(served) = requests.join_next().await {
        let (number, sum) = served??;
        assert_eq!(sum, u64::from(number) * (2 << 20));
    }
    say(format_args!("six requests served, {} live", pool.statistics().live));

    // A request that gives up: the timeout drops the future, which cancels the allocation. The next one is served.
    let gpu = pool.default_stream();
    let taken = gpu.owned(Bytes::mib(16))?;
    let hour = Duration::from_secs(3600);
    let waiting = gpu.owned_async(Bytes::mib(8), hour);
    let gave_up = timeout(Duration::from_millis(20), waiting).await.is_err();
    drop(taken);
    let block = gpu.owned_async(Bytes::mib(8), hour).await?;
    say(format_args!("gave up: {gave_up}; the next one has {}", block.size()));
    Ok(())
}

/// Copies 8 MiB to the device and back, and adds it up.
async fn serve(
    pool: Pool,
    engine: Arc<TransferEngine>,
    number: u32,
) -> Result<(u32, u64), forebay::Error> {
    let data = vec![number; 2 << 20];
    let block = pool.default_stream().owned_async(Bytes::mib(8), Duration::from_secs(60)).await?;
    let array = DeviceArray::from_block(block, data.len())?;
    let (data, array) = engine.upload(data, array).submit()?.await?;
    let (_array, data) = engine.download(array, data).submit()?.await?;
    Ok((number, data.iter().map(|&value| u64::from(value)).sum()))
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
