//! STRESS-POOLS: as many pools as one process can have.
//!
//! Each captured graph needs a private pool of stable memory, and a server has hundreds of graphs. A pool that reserves
//! addresses in proportion to the device's memory exhausts the process's addresses long before memory runs out. An
//! operation creates a pool.

use std::sync::Arc;

use forebay::{MemoryClass, Pool};
use forebay_core::{Bytes, TIB};
use forebay_hal::{Call, Device, StreamHandle};
use forebay_host::HostOptions;

use super::tools::{Deadline, Times, counted, new_row, phantom, pool_of, process_bytes, ratio};
use crate::bench::row::Row;
use crate::bench::setup::BenchSetup;
use crate::layout::grouped;
use crate::output::Fault;
use crate::replay::DeviceName;

/// The addresses of a process on x86-64 with four levels of page tables, which a GPU's addresses share.
/// The simulated device has more, so what is reserved there is set against this.
const ADDRESSES: f64 = 128.0 * TIB as f64;

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let host: Arc<dyn Device> = HostOptions::new().open()?;
    let on_host = many(setup, "on the host", DeviceName::HOST, &host)?;
    drop(host);
    let (_machine, device) = phantom(140)?;
    Ok(vec![on_host, many(setup, "simulated, 140 GiB", DeviceName::SIM, &device)?])
}

fn many(
    setup: BenchSetup<'_>,
    case: &str,
    place: DeviceName,
    device: &Arc<dyn Device>,
) -> Result<Row, Fault> {
    let wanted: usize = setup.effort.pick(2_000, 8);
    let mut row = new_row(setup, case);
    row.device = place;
    let before = process_bytes("VmSize");
    let deadline = Deadline::after(setup.effort, 30);
    let mut times = Times::default();
    let mut pools: Vec<Pool> = Vec::new();
    while pools.len() < wanted {
        let made = times.time(|| {
            let pool = pool_of(setup, device, MemoryClass::STABLE)?;
            // A pool that serves nothing might reserve nothing.
            pool.allocate(Bytes::new(512), StreamHandle::DEFAULT)?;
            Ok::<Pool, Fault>(pool)
        });
        match made {
            Ok(pool) => pools.push(pool),
            Err(error) => {
                let cut = format!("pool {} was refused: {error}", pools.len() + 1);
                row.figures().cut_off = Some(cut);
                break;
            }
        }
        if deadline.is_over() && pools.len() < wanted {
            row.figures().cut_off = Some(deadline.cut(counted(pools.len(), "pool")));
            break;
        }
    }
    let count = pools.len() as u64;
    let grown = process_bytes("VmSize").zip(before);
    let grown = grown.map(|(after, before)| after.saturating_sub(before));
    let figures = row.figures();
    figures.pools = Some(count);
    figures.virtual_bytes_per_pool = grown.and_then(|grown| grown.checked_div(count));
    let reserved = pools.first().map(reserved);
    figures.reserved_bytes_per_pool = reserved;
    let what = format!("{} / pools made", grouped(wanted));
    row.aim(what, ratio(Some(wanted as f64), Some(count as f64)), 1.0);
    let share = reserved.map(|reserved| reserved as f64 * wanted as f64 / ADDRESSES);
    row.aim(format!("addresses of {} pools / 128 TiB", grouped(wanted)), share, 1.0);
    times.enter(&mut row);
    Ok(row)
}

/// The addresses of the device that a pool reserved.
fn reserved(pool: &Pool) -> u64 {
    let calls = pool.statistics().driver;
    let reserves = calls.entries().filter(|&(call, ..)| call == Call::Reserve);
    reserves.map(|(_, size, count)| size.get().saturating_mul(count)).sum()
}
