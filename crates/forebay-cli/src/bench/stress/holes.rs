//! STRESS-HOLES: a heap with many holes.
//!
//! A long-lived program leaves holes of all sizes, and a request must find the best of them in a time that hardly grows
//! with their number, whether they belong to one stream or to four. The workload allocates blocks of 512 B to 32 KiB
//! and frees every second one; then each step frees a random block and allocates one of 512 B to 64 KiB. Only these
//! allocations are timed.

use forebay::{Block, Pool};
use forebay_core::{Bytes, Random};
use forebay_hal::StreamHandle;

use super::tools::{Deadline, counted, new_row, phantom, ratio};
use crate::bench::row::Row;
use crate::bench::setup::{BenchSetup, streams};
use crate::layout::grouped;
use crate::output::Fault;

/// How many holes, and how much longer than among the fewest an allocation may take: an index grows
/// by its depth.
const COUNTS: [(usize, f64); 4] = [(1_000, 1.0), (10_000, 4.0), (100_000, 4.0), (500_000, 4.0)];

const QUICK_COUNTS: [(usize, f64); 2] = [(100, 1.0), (1_000, 4.0)];

/// On how many streams.
const STREAMS: [usize; 2] = [1, 4];

/// How much longer than with the same holes on one stream an allocation may take.
const MORE_STREAMS: f64 = 4.0;

/// The step of sizes.
const STEP: u64 = 512;

type Laid = (Block, StreamHandle);

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let counts: &[(usize, f64)] = setup.effort.pick(&COUNTS, &QUICK_COUNTS);
    let mut rows: Vec<Row> = Vec::new();
    for &streams in &STREAMS {
        for (index, &(count, at_most)) in counts.iter().enumerate() {
            let mut row = among(setup, count, streams)?;
            let mean = row.ns_per_op;
            // The rows of one stream stand first, in the same order.
            let (one_stream, fewest) = (rows.get(index), rows.len().checked_sub(index));
            let of = |row: Option<&Row>| row.and_then(|row| row.ns_per_op);
            let fewest = of(fewest.and_then(|first| rows.get(first)));
            let one_stream = of(one_stream);
            if index > 0 {
                let least = grouped(counts.first().map_or(0, |&(least, _)| least));
                let what = format!("{} holes / {least} holes (mean)", grouped(count));
                row.aim(what, ratio(mean, fewest), at_most);
            }
            if streams > 1 {
                let what = format!("{streams} streams / 1 stream (mean)");
                row.aim(what, ratio(mean, one_stream), MORE_STREAMS);
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

fn among(setup: BenchSetup<'_>, holes: usize, stream_count: usize) -> Result<Row, Fault> {
    let case = format!("{}, {}", counted(holes, "hole"), counted(stream_count, "stream"));
    let mut row = new_row(setup, case);
    let (_machine, device) = phantom(192)?;
    let pool = setup.pool(&device, None)?;
    let streams = streams(&device, stream_count)?;
    let streams: Vec<StreamHandle> = streams.iter().map(forebay_hal::Stream::handle).collect();
    let mut random = Random::new(0x0123_4567);
    let filling = Deadline::after(setup.effort, 30);
    let (mut live, made) = lay(&pool, &streams, holes, &mut random, filling)?;
    if made < holes {
        row.cut_off(filling.cut(format_args!("{} holes were made", grouped(made))));
    }
    let most = setup.effort.pick(50_000, 1_000);
    let times = row.time(setup, 10, most, |_, times| {
        let Some(laid) = random.index(live.len()).and_then(|index| live.get_mut(index)) else {
            return Ok(());
        };
        pool.free(laid.0.address(), laid.1)?;
        let size = Bytes::new(STEP * random.between(1, 128));
        let stream = random.pick(&streams).copied().unwrap_or(StreamHandle::DEFAULT);
        let block = times.time(|| pool.allocate(size, stream))?;
        *laid = (block, stream);
        Ok(())
    })?;
    times.enter(&mut row);
    Ok(row)
}

/// Makes so many holes with a live block after each, on random streams; gives the live blocks, and how
/// many holes there was time for.
fn lay(
    pool: &Pool,
    streams: &[StreamHandle],
    holes: usize,
    random: &mut Random,
    deadline: Deadline,
) -> Result<(Vec<Laid>, usize), Fault> {
    let (mut to_free, mut live): (Vec<Laid>, Vec<Laid>) = (Vec::new(), Vec::new());
    while live.len() < holes && !deadline.is_over() {
        for laid in [&mut to_free, &mut live] {
            let stream = random.pick(streams).copied().unwrap_or(StreamHandle::DEFAULT);
            let size = Bytes::new(STEP * random.between(1, 64));
            laid.push((pool.allocate(size, stream)?, stream));
        }
    }
    let mut made = 0;
    for (block, stream) in to_free {
        if deadline.is_over() {
            break;
        }
        pool.free(block.address(), stream)?;
        made += 1;
    }
    Ok((live, made))
}
