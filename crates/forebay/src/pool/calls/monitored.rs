//! The pools of the process, as [`monitor`](crate::monitor) shows them.

use core::cmp::Reverse;
use core::time::Duration;

use crate::monitor::{
    LatencyBucket, ProcessPool, ProcessSnapshot, StreamTotals, TagTotals, shown_name,
};
use crate::pool::calls::registry;
use crate::pool::inner::PoolInner;
use crate::pool::turn::with_turn;
use crate::pool::views::statistics;

pub(in crate::pool) fn read(snapshot: &mut ProcessSnapshot) {
    let pools = registry::all();
    let left_out = pools.len().saturating_sub(ProcessSnapshot::MAX_POOLS);
    snapshot.pools_left_out = left_out as u64;
    let listed = pools.iter().take(ProcessSnapshot::MAX_POOLS);
    snapshot.pools.extend(listed.filter_map(|(id, pool)| with_turn(*id, pool, figures_of)));
}

/// Makes no driver calls: they could wait.
fn figures_of(shared: &PoolInner) -> ProcessPool {
    let mut figures = statistics::of(shared);
    figures.streams.sort_unstable_by_key(|of| (Reverse(of.allocations), of.stream.0));
    // Stable: tags with as many bytes stay in the order of their numbers.
    figures.tags.sort_by_key(|of| Reverse(of.live));
    let left_out = |count: usize| count.saturating_sub(ProcessSnapshot::MAX_OWNERS) as u64;
    let streams = figures.streams.iter().map(|of| StreamTotals {
        stream: of.stream.0,
        allocations: of.allocations,
        frees: of.frees,
    });
    let tags = figures
        .tags
        .iter()
        .map(|of| TagTotals { tag: shown_name(&of.tag), live_bytes: of.live.get() });
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let latency = figures
        .driver
        .latencies()
        .map(|(longest, count)| LatencyBucket { at_most_ns: nanoseconds(longest), count });
    let descriptor = shared.source.descriptor();
    let settings = shared.settings().clone();
    ProcessPool {
        pool: shared.id.0,
        name: settings.name().get().unwrap_or_default().to_owned(),
        kind: descriptor.kind.name().to_owned(),
        ordinal: u64::from(descriptor.ordinal.0),
        device: shown_name(&descriptor.name),
        class: shared.options.class.to_string(),
        limit_bytes: shared.group.limits.limit().get(),
        group_held_bytes: shared.group.held().get(),
        pressure: shared.pressure().to_string(),
        live_bytes: figures.live.get(),
        requested_bytes: figures.requested.get(),
        cached_bytes: figures.cached.get(),
        held_bytes: figures.held.get(),
        peak_held_bytes: figures.peak_held.get(),
        largest_free_bytes: figures.largest_free.get(),
        blocks: figures.blocks,
        holes: figures.pieces,
        allocations: figures.allocations,
        frees: figures.frees,
        magazine_hits: figures.magazine_hits,
        misses: figures.misses,
        waits: figures.waits,
        driver_calls: figures.driver.entries().map(|(.., count)| count).sum(),
        driver_ns: nanoseconds(figures.driver.time()),
        driver_latency: latency.collect(),
        streams: streams.take(ProcessSnapshot::MAX_OWNERS).collect(),
        streams_left_out: left_out(figures.streams.len()),
        tags: tags.take(ProcessSnapshot::MAX_OWNERS).collect(),
        tags_left_out: left_out(figures.tags.len()),
    }
}
