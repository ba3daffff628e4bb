//! STRESS-SNAPSHOT: snapshots of a full pool that grows meanwhile.
//!
//! A monitor takes a snapshot every few seconds, and must not stall any request. The cost of a snapshot must depend on
//! the number of blocks, not on the bytes they span, and so must the size of the address map in main memory: plain
//! memory of 117 GiB in 3,000 blocks is where the two differ most. Stitched memory of the same blocks stands beside it.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread::scope;

use forebay::MemoryClass;
use forebay_core::{Bytes, MIB};
use forebay_hal::StreamHandle;

use super::tools::{Times, counted, grow, new_row, phantom, pool_of, process_bytes, ratio};
use crate::bench::row::Row;
use crate::bench::setup::BenchSetup;
use crate::output::Fault;

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// The size of the blocks, and of each growth.
const BLOCK: Bytes = Bytes::mib(40);

/// Between two growths.
const PAUSE: Duration = Duration::from_micros(500);

#[derive(Clone, Copy)]
struct Extent {
    blocks: u32,
    snapshots: u32,
    growths: u32,
}

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let extent = setup.effort.pick(
        Extent { blocks: 3_000, snapshots: 5, growths: 200 },
        Extent { blocks: 100, snapshots: 2, growths: 10 },
    );
    let stitched = of_class(setup, "stitched", MemoryClass::STITCHED, &extent)?;
    let mut plain = of_class(setup, "plain", MemoryClass::PLAIN, &extent)?;
    // A small map may fit into memory that the process has already: 1 MiB counts in any case.
    let resident = |row: &mut Row| row.figures().resident_bytes.map(|bytes| bytes.max(MIB) as f64);
    let [mut stitched_filled, stitched_snapshot, stitched_alone, stitched_meanwhile] = stitched;
    let [filled, snapshot, ..] = &mut plain;
    let quotient = ratio(resident(filled), resident(&mut stitched_filled));
    filled.aim("resident memory, plain / stitched", quotient, 2.0);
    let least = |row: &Row| row.each.map(|each| each.min_ns as f64);
    let quotient = ratio(least(snapshot), least(&stitched_snapshot));
    snapshot.aim("snapshot, plain / stitched (best)", quotient, 3.0);
    let stitched = [stitched_filled, stitched_snapshot, stitched_alone, stitched_meanwhile];
    Ok(stitched.into_iter().chain(plain).collect())
}

/// Filling, snapshots, growing alone, and growing while snapshots are taken.
fn of_class(
    setup: BenchSetup<'_>,
    name: &str,
    class: MemoryClass,
    extent: &Extent,
) -> Result<[Row; 4], Fault> {
    let (_machine, device) = phantom(192)?;
    let pool = pool_of(setup, &device, class)?;
    let case = format!("{name}, {}", counted(extent.blocks as usize, "block"));
    let mut filled = new_row(setup, case);
    let before = process_bytes("VmRSS");
    let mut times = Times::default();
    for _ in 0..extent.blocks {
        times.time(|| pool.allocate(BLOCK, STREAM))?;
    }
    let resident = process_bytes("VmRSS").zip(before);
    filled.figures().resident_bytes = resident.map(|(after, before)| after.saturating_sub(before));
    times.enter(&mut filled);

    let mut snapshot = new_row(setup, format!("{name}, snapshot"));
    let mut times = Times::default();
    for _ in 0..extent.snapshots {
        times.time(|| drop(pool.snapshot()));
    }
    times.enter(&mut snapshot);

    let growth = (BLOCK, extent.growths, PAUSE);
    let mut alone = new_row(setup, format!("{name}, growing alone"));
    grow(setup, &pool, growth, &mut alone)?.enter(&mut alone);

    let mut meanwhile = new_row(setup, format!("{name}, growing meanwhile"));
    meanwhile.threads = 2;
    let ended = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                drop(pool.snapshot());
            }
        });
        let grown = grow(setup, &pool, growth, &mut meanwhile);
        ended.store(true, Ordering::Relaxed);
        grown
    })?
    .enter(&mut meanwhile);
    let stall = |row: &Row| row.each.map(|each| each.max_ns as f64);
    let quotient = ratio(stall(&meanwhile), stall(&alone));
    meanwhile.aim("longest stall, with snapshots / without", quotient, 10.0);
    Ok([filled, snapshot, alone, meanwhile])
}
