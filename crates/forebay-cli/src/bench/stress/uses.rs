//! STRESS-USES: blocks freed while other streams still use them.
//!
//! Such a block can be reused once an event shows that the other stream has finished with it. A pool that queries every
//! pending event each time it grows slows down with their number. So blocks are freed while a task holds the other
//! stream back, and then requests make the pool grow. The device is the host: its streams are threads, which a task can
//! really hold.

use std::sync::Arc;

use forebay::{Block, Pool};
use forebay_core::Bytes;
use forebay_hal::{Call, Device, Priority, Stream};
use forebay_host::HostOptions;

use super::tools::{Deadline, Latch, OpensAtEnd, new_row, ratio};
use crate::bench::row::Row;
use crate::bench::setup::BenchSetup;
use crate::layout::grouped;
use crate::output::Fault;
use crate::replay::DeviceName;

/// How many uses are pending; the first is what the others are set against.
const COUNTS: [usize; 4] = [0, 1_000, 10_000, 50_000];

const QUICK_COUNTS: [usize; 2] = [0, 200];

/// How often the pool grows.
const GROWTHS: usize = 20;

/// Each request is larger than any before, so that nothing that was freed serves it.
const LEAST_MIB: u64 = 40;

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let counts: &[usize] = setup.effort.pick(&COUNTS, &QUICK_COUNTS);
    let mut rows: Vec<Row> = Vec::new();
    for &count in counts {
        let mut row = pending(setup, count)?;
        if let Some(none) = rows.first() {
            let what = format!("{} uses / none (mean)", grouped(count));
            row.aim(what, ratio(row.ns_per_op, none.ns_per_op), 2.0);
            let asked = row.figures().query_events_per_op;
            row.aim("event queries an allocation", asked, 4.0);
        }
        rows.push(row);
    }
    Ok(rows)
}

fn pending(setup: BenchSetup<'_>, count: usize) -> Result<Row, Fault> {
    let mut row = new_row(setup, format!("{} uses pending", grouped(count)));
    row.device = DeviceName::HOST;
    let device: Arc<dyn Device> = HostOptions::new().open()?;
    let pool = setup.pool(&device, None)?;
    let own = Stream::new(&device, Priority::Normal)?;
    let other = Stream::new(&device, Priority::Normal)?;
    let gate = Arc::new(Latch::default());
    let _opens = OpensAtEnd(&gate);
    let held = Arc::clone(&gate);
    let small = Bytes::new(512);
    let blocks: Vec<Block> =
        (0..count).map(|_| pool.allocate(small, own.handle())).collect::<Result<_, _>>()?;
    device.enqueue_host(Box::new(move || held.wait()), other.handle())?;
    let deadline = Deadline::after(setup.effort, 30);
    for (index, block) in blocks.iter().enumerate() {
        pool.record_use(block.address(), other.handle())?;
        pool.free(block.address(), own.handle())?;
        if deadline.is_over() {
            row.cut_off(deadline.cut(format_args!("{index} uses were pending")));
            break;
        }
    }
    let before = queries(&pool);
    let times = row.time(setup, 20, GROWTHS, |step, times| {
        let size = Bytes::mib(LEAST_MIB + step as u64);
        times.time(|| pool.allocate(size, own.handle()))?;
        Ok(())
    })?;
    let asked = queries(&pool) - before;
    row.figures().query_events_per_op = ratio(Some(asked as f64), Some(times.count() as f64));
    times.enter(&mut row);
    Ok(row)
}

/// How often the pool asked whether an event has happened.
fn queries(pool: &Pool) -> u64 {
    pool.statistics().driver.of(Call::QueryEvent)
}
