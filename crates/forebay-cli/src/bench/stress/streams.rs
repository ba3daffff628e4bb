//! STRESS-STREAMS: one thread that uses many streams in turn.
//!
//! Inference servers and data loaders have a stream for each request. A pool that caches for a fixed number of them
//! becomes slow past that number, and one that waits for the device to make room stalls the host. Pairs are timed
//! individually, so that both show: the first in p50, the second in p99 and in the host's waits.

use forebay_hal::{Stream, StreamHandle};

use super::tools::{PAIR, counted, host_waits, new_row, pairs, phantom, ratio};
use crate::bench::row::Row;
use crate::bench::setup::{BenchSetup, streams};
use crate::layout::grouped;
use crate::output::Fault;

/// How many streams, around the numbers at which caches end.
const COUNTS: [usize; 7] = [1, 8, 9, 64, 65, 256, 1024];

/// What the middle pair on so many streams is set against, and the most it may be of that.
const BOUNDS: [(usize, usize, f64); 5] =
    [(9, 8, 3.0), (64, 8, 3.0), (65, 64, 2.0), (256, 64, 2.0), (1024, 64, 3.0)];

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let mut rows: Vec<Row> =
        COUNTS.iter().map(|&count| in_turn(setup, count)).collect::<Result<_, _>>()?;
    let medians: Vec<(usize, Option<f64>)> =
        COUNTS.iter().copied().zip(rows.iter().map(Row::median_ns)).collect();
    let median = |count| medians.iter().find(|&&(of, _)| of == count).and_then(|&(_, ns)| ns);
    for (row, &count) in rows.iter_mut().zip(&COUNTS) {
        for (_, than, at_most) in BOUNDS.into_iter().filter(|&(of, ..)| of == count) {
            let what = format!("{} streams / {than} streams (p50)", grouped(count));
            row.aim(what, ratio(median(count), median(than)), at_most);
        }
        let waits = row.figures().host_waits.map(|waits| waits as f64);
        row.aim("host waits", waits, 0.0);
    }
    Ok(rows)
}

fn in_turn(setup: BenchSetup<'_>, count: usize) -> Result<Row, Fault> {
    let mut row = new_row(setup, counted(count, "stream"));
    let most = setup.effort.pick(200_000, 2_000);
    let (machine, device) = phantom(64)?;
    let pool = setup.pool(&device, None)?;
    let streams = streams(&device, count)?;
    for stream in &streams {
        pairs(&pool, stream.handle(), 1)?;
    }
    let before = host_waits(&machine.calls());
    let times = row.time(setup, 5, most, |number, times| {
        let stream = streams.get(number % count).map_or(StreamHandle::DEFAULT, Stream::handle);
        Ok(times.time(|| {
            let block = pool.allocate(PAIR, stream)?;
            pool.free(block.address(), stream)
        })?)
    })?;
    row.figures().host_waits = Some(host_waits(&machine.calls()) - before);
    times.enter(&mut row);
    Ok(row)
}
