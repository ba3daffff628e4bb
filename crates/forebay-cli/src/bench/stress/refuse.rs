//! STRESS-REFUSE: one request that the device cannot grant.
//!
//! A pool that takes page after page until the device has no more, and then refuses, holds all of the device's memory
//! for nothing, and starves everything else on the device. Here another consumer has 80 of 140 GiB, the pool has 1 MiB,
//! and the request is for 100 GiB. Nothing should change.

use forebay::MemoryClass;
use forebay_core::{Alignment, Bytes};
use forebay_hal::StreamHandle;

use super::tools::{Times, new_row, phantom, pool_of, ratio};
use crate::bench::row::Row;
use crate::bench::setup::BenchSetup;
use crate::output::Fault;

/// How many calls of the driver a refusal may make.
const CALLS: f64 = 16.0;

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let stitched = refused(setup, "stitched", MemoryClass::STITCHED)?;
    Ok(vec![stitched, refused(setup, "stable", MemoryClass::STABLE)?])
}

fn refused(setup: BenchSetup<'_>, case: &str, class: MemoryClass) -> Result<Row, Fault> {
    let mut row = new_row(setup, case);
    let (machine, device) = phantom(140)?;
    let stream = StreamHandle::DEFAULT;
    device.allocate(Bytes::gib(80), Alignment::DEVICE_PAGE)?;
    let pool = pool_of(setup, &device, class)?;
    pool.allocate(Bytes::mib(1), stream)?;
    let free = || device.memory_info().map(|info| info.free.get());
    let (held, device_free) = (pool.held().get(), free()?);
    let (calls, price) = (machine.calls().total(), machine.driver_time());
    let mut times = Times::default();
    if times.time(|| pool.allocate(Bytes::gib(100), stream)).is_ok() {
        return Err("100 GiB fit where 60 GiB were left".into());
    }
    let calls = (machine.calls().total() - calls) as f64;
    let price = machine.driver_time().saturating_sub(price);
    row.driver_ns_per_op = Some(price.as_nanos() as f64);
    let held_after = pool.held().get();
    let figures = row.figures();
    figures.driver_calls_per_op = Some(calls);
    (figures.held_before_bytes, figures.held_after_bytes) = (Some(held), Some(held_after));
    figures.device_free_before_bytes = Some(device_free);
    figures.device_free_after_bytes = Some(free()?);
    row.aim("driver calls", Some(calls), CALLS);
    let grown = ratio(Some(held_after as f64), Some(held as f64));
    row.aim("bytes held after / before", grown, 1.0);
    times.enter(&mut row);
    // One call: it has no quantiles.
    row.each = None;
    Ok(row)
}
