//! STRESS-PROBE: a step that requests too much and falls back.
//!
//! In every step, libraries try a large workspace first, and a small one if that is refused. A pool that returns
//! everything to the device before it refuses must take it again in the next step. Of 40 GiB allowed, 20 are weights; a
//! step takes and frees 15 GiB of activations, then requests 24 GiB, which cannot fit. An operation is a step.

use core::time::Duration;

use forebay::{Block, PoolOptions};
use forebay_core::Bytes;
use forebay_hal::StreamHandle;

use super::tools::{Times, new_row, phantom, ratio};
use crate::bench::row::Row;
use crate::bench::setup::BenchSetup;
use crate::output::Fault;

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// How many calls of the driver a step may make: a question for the device's free memory and a few
/// more, whatever the pool holds.
const CALLS: f64 = 1.0;

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let steps = setup.effort.pick(10, 2);
    let mut rows = vec![step(setup, "without a probe", false, steps)?];
    let mut probing = step(setup, "with a probe", true, steps)?;
    let calls = probing.figures().driver_calls_per_op;
    probing.aim("driver calls a step", calls, CALLS);
    rows.push(probing);
    Ok(rows)
}

fn step(setup: BenchSetup<'_>, case: &str, probe: bool, steps: u32) -> Result<Row, Fault> {
    let mut row = new_row(setup, case);
    let (machine, device) = phantom(80)?;
    let options = PoolOptions::with(setup.settings.clone()).max_bytes(Bytes::gib(40));
    let pool = options.build(&device)?;
    for _ in 0..20 {
        pool.allocate(Bytes::gib(1), STREAM)?;
    }
    let mut times = Times::default();
    let (mut calls, mut price) = (0, Duration::ZERO);
    // As many steps before, until the pool has come to rest.
    for index in 0..2 * steps {
        if index == steps {
            times = Times::default();
            (calls, price) = (machine.calls().total(), machine.driver_time());
        }
        times.time(|| {
            let sizes = (0..150).map(|index| Bytes::mib(100 + index % 7));
            let activations: Vec<Block> =
                sizes.map(|size| pool.allocate(size, STREAM)).collect::<Result<_, _>>()?;
            for block in activations {
                pool.free(block.address(), STREAM)?;
            }
            if probe && pool.allocate(Bytes::gib(24), STREAM).is_ok() {
                return Err("24 GiB fit where 20 GiB were left".into());
            }
            Ok::<_, Fault>(())
        })?;
    }
    let count = Some(f64::from(steps));
    let made = machine.calls().total() - calls;
    row.figures().driver_calls_per_op = ratio(Some(made as f64), count);
    let price = machine.driver_time().saturating_sub(price);
    row.driver_ns_per_op = ratio(Some(price.as_nanos() as f64), count);
    times.enter(&mut row);
    Ok(row)
}
