//! The statistics of a pool as the plain data of a snapshot.

use forebay_core::Bytes;

use super::{
    CallSnapshot, ClassSnapshot, SideSnapshot, StatisticsSnapshot, StreamSnapshot, TagSnapshot,
};
use crate::pool::views::statistics::{SideFigures, Statistics};

impl From<&SideFigures> for SideSnapshot {
    fn from(figures: &SideFigures) -> Self {
        Self {
            blocks: figures.blocks,
            live_bytes: figures.live.get(),
            requested_bytes: figures.requested.get(),
            allocations: figures.allocations,
            frees: figures.frees,
            allocated_bytes: figures.allocated.get(),
            freed_bytes: figures.freed.get(),
            requested_allocated_bytes: figures.requested_allocated.get(),
            requested_freed_bytes: figures.requested_freed.get(),
            held_bytes: figures.held.get(),
            in_holes_bytes: figures.in_holes.get(),
            pieces: figures.pieces,
            pages: figures.pages,
        }
    }
}

impl From<&Statistics> for StatisticsSnapshot {
    fn from(figures: &Statistics) -> Self {
        let classes = figures.classes.iter().map(|class| ClassSnapshot {
            from_bytes: class.from.get(),
            allocations: class.allocations,
            frees: class.frees,
            live_bytes: class.live.get(),
        });
        let streams = figures.streams.iter().map(|stream| StreamSnapshot {
            stream: stream.stream.0,
            allocations: stream.allocations,
            frees: stream.frees,
        });
        let tags = figures.tags.iter();
        let tags = tags.map(|tag| TagSnapshot { tag: tag.tag.name(), live_bytes: tag.live.get() });
        let driver = figures.driver.entries().map(|(call, size, count)| CallSnapshot {
            call: call.name(),
            size_bytes: size.get(),
            count,
        });
        Self {
            live_bytes: figures.live.get(),
            requested_bytes: figures.requested.get(),
            blocks: figures.blocks,
            peak_out_bytes: figures.peak_out.get(),
            peak_live_bytes: figures.peak_live.map(Bytes::get),
            cached_bytes: figures.cached.get(),
            quarantined_bytes: figures.quarantined.get(),
            retired_bytes: figures.retired.get(),
            held_bytes: figures.held.get(),
            peak_held_bytes: figures.peak_held.get(),
            free_bytes: figures.free.get(),
            largest_free_bytes: figures.largest_free.get(),
            pieces: figures.pieces,
            allocations: figures.allocations,
            frees: figures.frees,
            hits: figures.hits,
            magazine_hits: figures.magazine_hits,
            misses: figures.misses,
            waits: figures.waits,
            callback_panics: figures.callback_panics,
            small: (&figures.small).into(),
            large: (&figures.large).into(),
            classes: classes.collect(),
            streams: streams.collect(),
            forgotten_allocations: figures.forgotten_allocations,
            forgotten_frees: figures.forgotten_frees,
            tags: tags.collect(),
            driver: driver.collect(),
            driver_ns: u64::try_from(figures.driver.time().as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
