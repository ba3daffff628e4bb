//! A pool beside others: who is refused leaves no memory taken, and who waits holds nobody up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use forebay::hal::Memory;
use forebay::{Address, Alignment, Bytes, CudaDevice, Device, PoolOptions};

use crate::hands::Hands;
use crate::{Step, ensure};

/// What one page of a device has, which may come or go by the driver's own doing.
const PAGE: Bytes = Bytes::mib(2);

/// What the other consumer leaves, and what it asks for later.
fn portions(hands: &Hands) -> (Bytes, Bytes) {
    if hands.real { (Bytes::gib(4), Bytes::gib(1)) } else { (Bytes::mib(256), Bytes::mib(64)) }
}

pub(crate) fn refused(hands: &Hands) -> Step {
    let (left, later) = portions(hands);
    let other = CudaDevice::open_with(hands.device.driver(), 0)?;
    let pool = PoolOptions::new().build(&hands.pool_device())?;
    let most = other.memory_info()?.free.saturating_sub(left);
    let mut taken = vec![other.allocate(most, Alignment::BLOCK)?];
    let seen = refuse(hands, &pool, &other, later, &mut taken);
    for address in taken {
        // SAFETY: nothing ever used it.
        unsafe { other.free(address) }?;
    }
    seen
}

fn refuse(
    hands: &Hands,
    pool: &forebay::Pool,
    other: &CudaDevice,
    later: Bytes,
    taken: &mut Vec<Address>,
) -> Step {
    let stream = hands.stream()?;
    let free = || -> Step<Bytes> { Ok(hands.device.memory_info()?.free) };
    let before = free()?;
    for more in [PAGE, Bytes::mib(64), before] {
        let size = before.checked_add(more).ok_or("too much to ask for")?;
        let given = pool.allocate(size, stream.handle());
        ensure!(given.is_err(), "{size} were given where {before} are free: {given:?}");
        let after = free()?;
        ensure!(
            after.saturating_add(PAGE) >= before,
            "{before} were free before {size} were refused, and {after} are after it"
        );
    }
    taken.push(other.allocate(later, Alignment::BLOCK)?);
    Ok(())
}

/// How long the stream is held at the most; a request that has to wait for that has waited in vain.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn grown_meanwhile(hands: &Hands) -> Step {
    let pool = PoolOptions::new().build(&hands.pool_device())?;
    let (busy, other) = (hands.stream()?, hands.stream()?);
    let size = Bytes::mib(32);
    let block = pool.allocate(size, busy.handle())?;
    let set: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let task = move || {
        let begun = Instant::now();
        while !set.load(Ordering::Acquire) && begun.elapsed() < PATIENCE {
            sleep(Duration::from_millis(1));
        }
    };
    forebay::hal::Streams::enqueue_host(&*hands.device, Box::new(task), busy.handle())?;
    hands.write(&busy, (block.address(), block.size()), 1, Duration::ZERO)?;
    pool.free_block(block, busy.handle())?;
    let (trimmed, given, took) = scope(|scope| {
        let trims = scope.spawn(|| pool.trim(Bytes::ZERO));
        // Long enough for it to begin to wait.
        sleep(Duration::from_millis(100));
        let begun = Instant::now();
        let given = pool.allocate(Bytes::mib(64), other.handle());
        let took = begun.elapsed();
        // The flag that the stream waits for: set only now.
        set.store(true, Ordering::Release);
        (trims.join(), given, took)
    });
    let trimmed = trimmed.map_err(|_| "the thread that trims panicked")?;
    let given = given?;
    busy.synchronize()?;
    pool.free_block(given, other.handle())?;
    trimmed?;
    println!(
        "record: {{\"case\":\"a request that grows while trim waits\",\"work\":\"{}\",\
         \"microseconds\":{}}}",
        hands.work,
        took.as_micros()
    );
    ensure!(
        took < PATIENCE / 2,
        "the request took {took:?}: it waited for a stream that waits for it"
    );
    Ok(())
}
