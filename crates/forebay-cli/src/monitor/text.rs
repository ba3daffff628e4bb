//! A sample as lines, for pipes, files and `--once`.

use std::io::{self, Write};

use forebay::monitor::ProcessPool;
use forebay_core::{Bytes, counted};

use super::sample::{Process, Sample, is_tight, part};
use crate::layout::{
    BAD, Cell, Column, NOTE, QUIET, Table, WhenNarrow, paragraph, plain, shortened,
};
use crate::output::Width;

/// From this width on, processes and devices stand in full; below it they have so many letters, for a line or two.
const WIDE: usize = 110;
const SHORT: (usize, usize) = (14, 24);

/// The message if there is nothing to watch.
pub(super) const NOBODY: &str = "no process of this user can be watched. Start the program with FOREBAY_MONITOR=on, or set monitor in its code or \
     file of settings; it appears once it has made a pool";

/// The message if the filter leaves nothing.
pub(super) const UNMATCHED: &str = "no pool matches the filter";

/// Writes the GPUs, a row for each pool with its owners, and the warnings.
pub(super) fn write(sample: &Sample, width: Width, out: &mut dyn Write) -> io::Result<()> {
    if let Some(missing) = &sample.devices_missing {
        paragraph(QUIET, missing, 0, width, out)?;
    }
    for gpu in &sample.devices {
        let busy = gpu.busy_percent.map_or(String::new(), |busy| format!(", {busy} % busy"));
        let style = if gpu.is_tight() { BAD } else { anstyle::Style::new() };
        let [used, total] = [gpu.used_bytes, gpu.total_bytes].map(Bytes::new);
        let percent = part(gpu.used_bytes, gpu.total_bytes) * 100.0;
        let (index, name) = (gpu.index, &gpu.name);
        let line = format!("GPU {index} {name}: {used} of {total} used ({percent:.0} %){busy}");
        paragraph(style, &line, 0, width, out)?;
    }
    if sample.processes.is_empty() {
        let nobody = if sample.is_filtered { UNMATCHED } else { NOBODY };
        paragraph(NOTE, nobody, 0, width, out)?;
    }
    if sample.processes.iter().any(|process| !process.snapshot.pools.is_empty()) {
        pools(sample, width, out)?;
    }
    for line in without_pools(sample) {
        paragraph(NOTE, &line, 0, width, out)?;
    }
    for unreadable in &sample.unreadable {
        paragraph(NOTE, &unreadable.reason, 0, width, out)?;
    }
    for warning in &sample.warnings {
        paragraph(BAD, &format!("warning: {warning}"), 0, width, out)?;
    }
    writeln!(out)
}

/// Processes that answer and have no pool any more, a line for each, with what else they have.
pub(super) fn without_pools(sample: &Sample) -> impl Iterator<Item = String> {
    let without = sample.processes.iter().filter(|process| process.snapshot.pools.is_empty());
    without.map(|process| {
        let (of, more) = (&process.snapshot, others(process));
        let more = if more.is_empty() { String::new() } else { format!("; {}", more.join("; ")) };
        format!("process {} {} has no pool now{more}", of.pid, process.title)
    })
}

fn pools(sample: &Sample, width: Width, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new([
        Column::words("process", WhenNarrow::Break),
        Column::figures("rank", WhenNarrow::Keep),
        Column::figures("pool", WhenNarrow::Keep),
        Column::words("device", WhenNarrow::Break),
        Column::figures("live", WhenNarrow::Keep),
        Column::figures("held", WhenNarrow::Keep),
        Column::figures("limit", WhenNarrow::Drop(1)),
        Column::figures("of limit", WhenNarrow::Keep),
        Column::figures("waste", WhenNarrow::Drop(2)),
        Column::figures("blocks", WhenNarrow::Drop(5)),
        Column::figures("allocations/s", WhenNarrow::Drop(4)),
        Column::words("pressure", WhenNarrow::Drop(6)),
    ]);
    let full = width.full();
    let (longest, longest_device) = if full < WIDE { SHORT } else { (full, full) };
    let mut window = 0;
    for process in sample.processes.iter().filter(|process| !process.snapshot.pools.is_empty()) {
        let of = &process.snapshot;
        for (pool, rates) in of.pools.iter().zip(&process.rates) {
            window = rates.waste_window_ms.max(window);
            let percent = part(pool.group_held_bytes, pool.limit_bytes) * 100.0;
            let tight = if is_tight(pool) { BAD } else { anstyle::Style::new() };
            table.row([
                Cell::from(format!("{} {}", of.pid, shortened(&process.title, longest))),
                Cell::from(of.rank.map_or(String::new(), |rank| rank.to_string())),
                Cell::from(pool.pool.to_string()),
                Cell::from(device(pool).chars().take(longest_device).collect::<String>()),
                Cell::from(Bytes::new(pool.live_bytes).to_string()),
                Cell::from(Bytes::new(pool.held_bytes).to_string()),
                Cell::from(Bytes::new(pool.limit_bytes).to_string()),
                Cell::styled(format!("{percent:.0} %"), tight),
                Cell::from(format!("{:.1} %", rates.waste * 100.0)),
                Cell::from(pool.blocks.to_string()),
                Cell::from(rates.allocations.map_or(String::new(), rate)),
                Cell::from(pool.pressure.clone()),
            ]);
            if let Some(owners) = owners(pool) {
                table.below([Cell::styled(owners, QUIET)]);
            }
        }
        for line in others(process) {
            table.below([Cell::styled(line, QUIET)]);
        }
    }
    let left_out = table.write(width, out)?;
    if left_out.contains(&"waste") {
        return Ok(());
    }
    paragraph(QUIET, &format!("waste: {}", over(window)), 0, width, out)
}

/// Over what time waste is that of.
pub(super) fn over(window_ms: u64) -> String {
    match window_ms {
        0 => "at this moment".to_owned(),
        1..1000 => format!("mean of the last {window_ms} ms"),
        _ => format!("mean of the last {} s", window_ms.div_ceil(1000)),
    }
}

/// The kind of a pool's device and which it is, then the pool's name, and that of the memory: a pool of pinned memory has
/// the same device.
pub(super) fn device(pool: &ProcessPool) -> String {
    let (kind, memory, name) = (plain(&pool.kind), plain(&pool.device), plain(&pool.name));
    let name = if name.is_empty() { name } else { format!("{name}, ") };
    format!("{kind}:{} {name}{memory}", pool.ordinal)
}

/// A rate in few letters.
pub(super) fn rate(rate: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| rate >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", rate / unit),
        None => format!("{rate:.0}"),
    }
}

/// The tags and streams that have most, where there is more than one.
pub(super) fn owners(pool: &ProcessPool) -> Option<String> {
    let more = |count: u64| if count > 0 { format!(" and {count} more") } else { String::new() };
    let tags =
        pool.tags.iter().map(|of| format!("{} {}", plain(&of.tag), Bytes::new(of.live_bytes)));
    let tags: Vec<String> = tags.collect();
    let only_untagged = pool.tags.iter().all(|of| of.tag == "untagged");
    let tags =
        (!only_untagged).then(|| format!("tags: {}{}", tags.join(", "), more(pool.tags_left_out)));
    let streams = pool.streams.iter();
    let streams =
        streams.map(|of| format!("{:#x} {}", of.stream, counted(of.allocations, "allocation")));
    let streams: Vec<String> = streams.collect();
    let streams = (streams.len() > 1)
        .then(|| format!("streams: {}{}", streams.join(", "), more(pool.streams_left_out)));
    let both: Vec<String> = tags.into_iter().chain(streams).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

/// The engines and buffers of a process, a line for each.
pub(super) fn others(process: &Process) -> Vec<String> {
    let of = &process.snapshot;
    let engines = of.engines.iter().map(|engine| {
        let [up, down] = [&engine.uploads, &engine.downloads].map(|of| {
            let failed =
                if of.failures > 0 { format!(", {} failed", of.failures) } else { String::new() };
            format!("{} in {}{failed}", Bytes::new(of.bytes), counted(of.transfers, "transfer"))
        });
        let pinned = Bytes::new(engine.pinned_bytes);
        format!(
            "transfers {}:{}: to the device {up}; to the host {down}; {pinned} pinned",
            plain(&engine.kind),
            engine.ordinal
        )
    });
    let buffers = of.buffers.iter().filter(|manager| manager.created.max(manager.shared) > 0);
    let buffers = buffers.map(|of| {
        let [host, device, shared] = [of.host_bytes, of.device_bytes, of.shared_bytes].map(Bytes::new);
        let [up, down] = [of.to_device.bytes, of.to_host.bytes].map(Bytes::new);
        let count = counted(of.buffers, "buffer");
        format!(
            "{count}: {host} on the host, {device} on the device; copied {up} to the device, {down} to the host; {shared} shared"
        )
    });
    engines.chain(buffers).collect()
}
