//! Arenas: memory that is allocated piece by piece and freed all at once.

use core::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::arena::{Arena, ArenaOptions, BumpGrowth, Checkpoint};
use forebay::bindings::Counted;
use forebay::{Alignment, Bytes, Pool};

use crate::error::status_of;
use crate::pool::forebay_pool;
use crate::sized::{SizedOut, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::stream::{self, StreamEntry, forebay_stream};
use crate::table::{self, entry};
use crate::text::Out;

/// An arena. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_arena {
    /// Not to be looked at.
    pub id: u64,
}

/// A position in an arena to rewind to. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_checkpoint {
    /// Not to be looked at.
    pub id: u64,
}

/// The usage of an arena.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_arena_usage {
    /// `sizeof(forebay_arena_usage)`, set before the call; after it, how many bytes were filled.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes in blocks, and in the gaps between them.
    pub used_bytes: u64,
    /// The rest of the capacity.
    pub available_bytes: u64,
    /// All its bytes.
    pub capacity_bytes: u64,
    /// The most bytes ever in use.
    pub high_water_bytes: u64,
    /// How many blocks of the pool it consists of.
    pub chunks: u64,
}

versioned_struct!(forebay_arena_usage: 48);

/// A checkpoint that C may rewind to.
struct SavedCheckpoint {
    number: u64,
    /// The bytes in use at the checkpoint.
    used: Bytes,
    checkpoint: Checkpoint,
}

/// An arena, and its checkpoints.
struct State {
    arena: Arena<Pool>,
    /// The valid checkpoints, by growing number and position. Taking memory back drops its checkpoints, and a
    /// position has one checkpoint, so there are never more than blocks.
    saved: Vec<SavedCheckpoint>,
}

impl State {
    /// Drops the checkpoints beyond the present position.
    fn drop_lapsed(&mut self) {
        let used = self.arena.usage().used;
        self.saved.retain(|mark| mark.used <= used);
    }

    fn checkpoint(&mut self) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let used = self.arena.usage().used;
        if let Some(mark) = self.saved.last().filter(|mark| mark.used == used) {
            return mark.number;
        }
        // Unique in the process, so that a checkpoint of another arena is not found.
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.saved.push(SavedCheckpoint { number, used, checkpoint: self.arena.checkpoint() });
        number
    }

    fn rewind(&mut self, number: u64) -> Result<(), Failure> {
        let found = self.saved.binary_search_by_key(&number, |mark| mark.number);
        let mark = found.ok().and_then(|index| self.saved.get(index)).ok_or_else(|| {
            Failure::new(
                forebay_status::Lapsed,
                "the checkpoint is of another arena, or what it names was taken back: take a new one",
            )
        })?;
        self.arena.rewind(mark.checkpoint)?;
        self.drop_lapsed();
        Ok(())
    }

    fn reset(&mut self) {
        self.arena.reset();
        self.saved.clear();
    }
}

/// The object of an arena handle.
pub(crate) struct ArenaEntry {
    state: Counted<State>,
    /// Keeps the arena's stream alive.
    _stream: Option<Arc<StreamEntry>>,
}

entry!(forebay_arena: ArenaEntry, Arena);

/// Calls `work` with an arena, which no other call uses meanwhile.
fn with_arena<R>(
    arena: forebay_arena,
    work: impl FnOnce(&mut State) -> Result<R, Failure>,
) -> Result<R, Failure> {
    table::find(arena)?.state.with(work)
}

/// Creates an arena of `capacity` bytes from a pool, to be used in the order of `stream`. Where `most` is
/// above `capacity` it grows up to that by doubling; else it does not grow.
#[must_use = "there is no arena where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_arena_create(
    pool: forebay_pool,
    capacity: u64,
    most: u64,
    stream: forebay_stream,
    arena: *mut forebay_arena,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(arena, "arena") };
    to.result(|| {
        let entry = table::find(pool)?;
        let kept = stream::entry(stream)?;
        let stream = stream::on_device(stream, entry.device())?;
        let mut options = ArenaOptions::new(Bytes::new(capacity));
        if most > capacity {
            options = options.growth(BumpGrowth::Doubling { most: Bytes::new(most) });
        }
        let arena = options.build(entry.pool().clone(), stream)?;
        let state = Counted::new("arena", State { arena, saved: Vec::new() });
        table::open(Arc::new(ArenaEntry { state, _stream: kept }))
    })
}

/// Allocates `size` bytes of an arena, at a multiple of `alignment`, a power of two; 0 stands for 512.
/// They are valid until `forebay_arena_rewind`, `forebay_arena_reset` or `forebay_arena_close` takes them
/// back.
#[must_use = "there is no memory where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_arena_alloc(
    arena: forebay_arena,
    size: u64,
    alignment: u64,
    block: *mut *mut c_void,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(block, "block") };
    to.pointer(|| {
        let alignment = if alignment == 0 { Alignment::BLOCK } else { Alignment::new(alignment)? };
        with_arena(arena, |state| {
            Ok(state.arena.allocate_aligned(Bytes::new(size), alignment)?.address())
        })
    })
}

/// The present position of an arena, to rewind to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_arena_checkpoint(
    arena: forebay_arena,
    checkpoint: *mut forebay_checkpoint,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(checkpoint, "checkpoint") };
    to.result(|| {
        let id = with_arena(arena, |state| Ok(state.checkpoint()))?;
        Ok(forebay_checkpoint { id })
    })
}

/// Takes back everything that was allocated since the checkpoint, which can be used again.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_arena_rewind(
    arena: forebay_arena,
    checkpoint: forebay_checkpoint,
) -> forebay_status {
    status_of(|| with_arena(arena, |state| state.rewind(checkpoint.id)))
}

/// Takes back everything that was allocated. The memory stays the arena's; checkpoints lapse.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_arena_reset(arena: forebay_arena) -> forebay_status {
    status_of(|| {
        with_arena(arena, |state| {
            state.reset();
            Ok(())
        })
    })
}

/// The usage of an arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_arena_statistics(
    arena: forebay_arena,
    usage: *mut forebay_arena_usage,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { SizedOut::new(usage, "usage") };
    to.result(|| {
        let statistics = with_arena(arena, |state| Ok(state.arena.usage()))?;
        Ok(forebay_arena_usage {
            struct_size: 0,
            reserved: 0,
            used_bytes: statistics.used.get(),
            available_bytes: statistics.available.get(),
            capacity_bytes: statistics.capacity.get(),
            high_water_bytes: statistics.high_water.get(),
            chunks: statistics.chunks as u64,
        })
    })
}

/// Closes an arena and frees its memory to its pool, in the order of its stream.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_arena_close(arena: forebay_arena) -> forebay_status {
    status_of(|| {
        let entry = table::close(arena)?;
        Ok(entry.state.close()?.arena.close()?)
    })
}
