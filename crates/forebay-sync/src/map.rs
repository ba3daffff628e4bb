//! The address map: the state of the block that begins at an address, found without a search and
//! without a lock.
//!
//! ```text
//!   address    [ the rest ][ 21 bits: which leaf ][ 26 bits: where in the leaf's 64 MiB ]
//!
//!   leaf of a region      slots for all its 64 MiB, of one side
//!   leaf of segments      32 chunks of 2 MiB ── slots for a run of chunks, of either side
//!
//!   slots                 small: one for every 512 B      large: one for every 256 KiB
//! ```
//!
//! Blocks on the large side are larger than 256 KiB, so no two of them begin in the same 256 KiB, and
//! one slot that records where its block begins is enough: a full H200 takes 9 MB of slots. Slots are
//! created with the memory and live as long as the map; a slot that no block ever began in is never
//! touched.
//!
//! In a region that the pool reserved, sides begin at multiples of 64 MiB, so each leaf is of one side.
//! Segments lie where the device puts them, and those of both sides may share a leaf: there the kind is
//! chosen for each chunk. A chunk is coarse only where one large segment covers it, so no other
//! memory can come to lie in it while that segment lives. When the segment is gone and something else
//! comes, the chunk gets fine slots, which continue the generations of the coarse ones. The coarse ones
//! stay, for threads that still look at them, and are used no more: at most one set for each chunk.
//!
//! A slot's state is changed by the owner of the block: the allocator that allocates it, and the one
//! caller whose free changes it from live to free. That is the only atomic exchange of an allocation and
//! its free, and it is what makes every double free an error.

use core::ptr::NonNull;
use core::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Address, Alignment, Bytes, Span};

use crate::atomic::Ordering;
use crate::zeroed::ZeroedSlice;
use crate::{cold_path, lock};

mod directory;
mod slot;
#[cfg(test)]
mod tests;

pub use directory::owners_near;
pub use slot::{BlockState, RequestInfo, Slot, SlotRef, is_wide, tagged};

/// The range of addresses that a leaf covers.
pub const LEAF: Alignment = match Alignment::of_log2(26) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// How many bits of an address select the leaf. With the bits inside a leaf they are 47, as many as hosts
/// and devices use. A leaf stores its full address, so addresses that differ only in the bits above are
/// told apart, but one pool cannot contain both.
///
/// Few under Miri, which checks the whole array on every access.
const LEAF_BITS: u32 = if cfg!(miri) { 8 } else { 21 };

/// Log 2 of the size of a chunk: devices allocate segments in multiples of it.
const CHUNK_SHIFT: u32 = 21;

/// The chunks of a leaf.
const CHUNKS: usize = 1 << (LEAF.log2() as u32 - CHUNK_SHIFT);

/// Log 2 of the granularity of blocks.
pub const UNIT_SHIFT: u32 = Alignment::BLOCK.log2() as u32;

/// Log 2 of the bytes per slot on the large side.
const LARGE_SHIFT: u32 = 18;

/// Blocks on the large side are larger than this.
pub const SMALL: Bytes = Bytes::new(1 << LARGE_SHIFT);

/// The same, in units of 512 B.
pub const SMALL_UNITS: u64 = 1 << (LARGE_SHIFT - UNIT_SHIFT);

/// The largest possible block: 32 bits of 512 B units, just under 2 TiB.
pub const LARGEST: Bytes = Bytes::new(((1 << slot::SIZE_BITS) - 1) << UNIT_SHIFT);

/// One of the two address ranges of a pool: small and large blocks are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Blocks up to 256 KiB, so that they do not pin pages that large blocks need.
    Small,
    /// All others.
    Large,
}

impl Side {
    /// The side of a block of this size, rounding included.
    #[inline]
    pub fn of(size: Bytes) -> Self {
        if size <= SMALL { Self::Small } else { Self::Large }
    }

    const fn shift(self) -> u32 {
        match self {
            Self::Small => UNIT_SHIFT,
            Self::Large => LARGE_SHIFT,
        }
    }
}

/// The slots of a leaf or of a run of its chunks. A leaf of segments has no slots itself, only pointers
/// to the tables of its chunks.
#[derive(Debug)]
struct SlotTable {
    /// Its first address.
    start: u64,
    /// Log 2 of the bytes per slot.
    shift: u32,
    slots: ZeroedSlice<Slot>,
    /// Each is null or points to a table in the map's list.
    chunks: Box<[AtomicPtr<SlotTable>]>,
}

impl SlotTable {
    /// Slots for `size` bytes from `start`.
    fn of_slots(start: u64, size: u64, side: Side) -> Self {
        let count = usize::try_from(size >> side.shift()).unwrap_or(0);
        // SAFETY: a slot is two integers, of any bits.
        let slots = unsafe { ZeroedSlice::new(count) };
        Self { start, shift: side.shift(), slots, chunks: Box::default() }
    }

    /// A leaf whose chunks have no slots yet.
    fn of_chunks(start: u64) -> Self {
        let chunks = (0..CHUNKS).map(|_| AtomicPtr::default()).collect();
        // SAFETY: likewise.
        let slots = unsafe { ZeroedSlice::new(0) };
        Self { start, shift: 0, slots, chunks }
    }

    /// The slots of a chunk.
    fn chunk(&self, index: usize) -> Option<&Self> {
        let chunk = self.chunks.get(index)?.load(Ordering::Acquire);
        // SAFETY: null, or a table of the map's list, which keeps it until the map is dropped.
        unsafe { chunk.as_ref() }
    }

    /// The slots for `size` bytes from `start`, which lie within its range.
    fn slots_of(&self, start: u64, size: u64) -> &[Slot] {
        let first = usize::try_from((start - self.start) >> self.shift).unwrap_or(0);
        let count = usize::try_from(size >> self.shift).unwrap_or(0);
        self.slots.get(first..first + count).unwrap_or_default()
    }

    /// Lets the slots continue the generations of `other`, the slots that covered the same addresses, which
    /// are not more.
    fn continue_generations(slots: &[Slot], other: &[Slot]) {
        let each = slots.len() / other.len().max(1);
        for (slots, other) in slots.chunks(each.max(1)).zip(other) {
            if other.was_used() {
                slots.iter().for_each(|slot| slot.continue_generations(other));
            }
        }
    }
}

/// All slots of a pool. Clones share the slots, so that the owner of an address can be looked up without
/// keeping the pool alive.
#[derive(Clone, Debug)]
pub struct AddressMap {
    /// The leaves of `all`, so that a look-up reads one pointer less.
    leaves: NonNull<AtomicPtr<SlotTable>>,
    all: Arc<LeafTable>,
}

// SAFETY: the pointer is into `all`, whose entries are atomics.
unsafe impl Send for AddressMap {}
// SAFETY: likewise.
unsafe impl Sync for AddressMap {}

/// The leaves, by number.
#[derive(Debug)]
struct LeafTable {
    /// The pool's number, by which the directory lists its leaves.
    owner: u64,
    /// Each is null or points to a table in `made`.
    leaves: ZeroedSlice<AtomicPtr<SlotTable>>,
    /// All tables, including those of chunks. None is removed before the map is dropped, so the pointers
    /// stay valid. Locked to add tables; readers lock it only to copy the list.
    made: Mutex<Vec<Arc<SlotTable>>>,
}

/// Adds a table to the list, then publishes it in `entries`.
fn publish(made: &mut Vec<Arc<SlotTable>>, table: SlotTable, entries: &[AtomicPtr<SlotTable>]) {
    let table = Arc::new(table);
    let pointer = Arc::as_ptr(&table).cast_mut();
    made.push(table);
    for entry in entries {
        // The list is locked, so no other thread publishes here.
        entry.store(pointer, Ordering::Release);
    }
}

/// A live block, as recorded in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Where it begins.
    pub address: Address,
    /// How large it is.
    pub size: Bytes,
    /// The requested size.
    pub requested: Bytes,
}

/// The kind of leaf to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeafKind {
    /// All slots of one side.
    Region,
    /// A table for each chunk.
    Segment,
}

impl Drop for LeafTable {
    fn drop(&mut self) {
        let made = self.made.get_mut().unwrap_or_else(PoisonError::into_inner);
        directory::remove(made.iter().map(|table| table.start >> LEAF.log2()), self.owner);
    }
}

impl AddressMap {
    /// An empty map of the pool with number `owner`.
    pub fn new(owner: u64) -> Self {
        // SAFETY: zero bits are null pointers.
        let leaves = unsafe { ZeroedSlice::new(1 << LEAF_BITS) };
        let all = Arc::new(LeafTable { owner, leaves, made: Mutex::default() });
        Self { leaves: all.leaves.start(), all }
    }

    /// The entry of a leaf.
    #[inline(always)]
    fn entry(&self, number: u64) -> &AtomicPtr<SlotTable> {
        // As many bits as there are entries.
        #[allow(clippy::cast_possible_truncation)]
        let index = number as usize % (1 << LEAF_BITS);
        // SAFETY: `all` has so many entries there, and keeps them.
        unsafe { self.leaves.add(index).as_ref() }
    }

    /// Whether a block begins at `address`, live or freed.
    pub fn knows(&self, address: Address) -> bool {
        self.at(address).is_some()
    }

    /// Whether a live block begins at `address`.
    pub fn has(&self, address: Address) -> bool {
        self.at(address).is_some_and(BlockState::live)
    }

    fn at(&self, address: Address) -> Option<BlockState> {
        self.slot(address)?.state_at(address)
    }

    /// The slot of a block at `address`. `None` if the pool has no memory there, or if no block can begin
    /// at that address.
    #[inline(always)]
    pub fn slot(&self, address: Address) -> Option<&Slot> {
        let leaf = self.entry(address.get() >> LEAF.log2()).load(Ordering::Acquire);
        // SAFETY: null, or a table of the list, which keeps it until the map is dropped.
        let leaf = unsafe { leaf.as_ref() }?;
        // The offset in the leaf. Higher bits mean another leaf, and lower bits than 512 B mean that no
        // block begins there.
        let within = address.get() ^ leaf.start;
        if within & !(LEAF.get() - Alignment::BLOCK.get()) != 0 {
            return None;
        }
        match leaf.slots.get(usize::try_from(within >> leaf.shift).ok()?) {
            Some(slot) => Some(slot),
            // A leaf of segments has no slots itself.
            None => {
                cold_path();
                self.slot_in_chunk(address)
            }
        }
    }

    /// [`slot`](Self::slot) in a leaf of segments, which is known to contain the address. Looks the leaf up
    /// again, so that the common path need not keep it in a register.
    #[inline(always)]
    fn slot_in_chunk(&self, address: Address) -> Option<&Slot> {
        let leaf = self.entry(address.get() >> LEAF.log2()).load(Ordering::Acquire);
        // SAFETY: null, or a table of the list, which keeps it until the map is dropped.
        let leaf = unsafe { leaf.as_ref() }?;
        // As many bits as there are chunks.
        #[allow(clippy::cast_possible_truncation)]
        let chunk = leaf.chunk((address.get() >> CHUNK_SHIFT) as usize % CHUNKS)?;
        let within = address.get().checked_sub(chunk.start)?;
        chunk.slots.get(usize::try_from(within >> chunk.shift).ok()?)
    }

    /// Creates the slots for `span` of a region, in which every leaf is of one side. Returns `false` if part
    /// of it belongs to the other side, or if the pool has an indistinguishable address.
    pub fn make(&self, span: Span, side: Side) -> bool {
        self.make_for(span, side, LeafKind::Region)
    }

    /// Creates the slots for `span`, a segment, which may share its leaves with segments of the other
    /// side. Returns `false` if the pool has an indistinguishable address.
    pub fn make_segment(&self, span: Span, side: Side) -> bool {
        self.make_for(span, side, LeafKind::Segment)
    }

    fn make_for(&self, span: Span, side: Side, memory: LeafKind) -> bool {
        let Some(last) = span.end().get().checked_sub(1) else { return true };
        let mut made = lock(&self.all.made);
        for number in span.start().get() >> LEAF.log2()..=last >> LEAF.log2() {
            let (entry, start) = (self.entry(number), number << LEAF.log2());
            if entry.load(Ordering::Acquire).is_null() {
                let leaf = match memory {
                    LeafKind::Region => SlotTable::of_slots(start, LEAF.get(), side),
                    LeafKind::Segment => SlotTable::of_chunks(start),
                };
                directory::add(number, self.all.owner);
                publish(&mut made, leaf, core::slice::from_ref(entry));
            }
            // SAFETY: a table of the list, which keeps it until the map is dropped.
            let Some(leaf) = (unsafe { entry.load(Ordering::Acquire).as_ref() }) else {
                return false;
            };
            if leaf.start != start {
                return false;
            }
            if !leaf.chunks.is_empty() {
                make_chunks(leaf, &mut made, span, side);
            } else if leaf.shift != side.shift()
                // Fine slots work for either side.
                && (memory == LeafKind::Region || leaf.shift != UNIT_SHIFT)
            {
                return false;
            }
        }
        true
    }

    /// Every live block. Scans all slots without a lock; memory added during the scan may be missing.
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        let made = lock(&self.all.made).clone();
        let mut found = Vec::new();
        for table in made {
            for (index, slot) in (0_u64..).zip(table.slots.iter()) {
                let Some(known) = slot.live() else { continue };
                // The start of the slot's range, plus the offset of the block in it.
                let within = known.start() & ((1 << table.shift) - 1);
                let address = Address::new(table.start + (index << table.shift) + within);
                let requested = Bytes::new(known.requested());
                found.push(LiveBlock { address, size: known.size(), requested });
            }
        }
        found
    }
}

/// Creates the slots for the part of `span` that lies in a leaf of segments.
fn make_chunks(leaf: &SlotTable, made: &mut Vec<Arc<SlotTable>>, span: Span, side: Side) {
    // Offsets from the start of the leaf, which overlaps the span.
    let from = span.start().get().saturating_sub(leaf.start);
    let to = span.end().get().saturating_sub(leaf.start).min(LEAF.get());
    // The kind of slots that a chunk needs; `None` if it has suitable ones.
    let wanted = |chunk: u64| {
        let (start, end) = (chunk << CHUNK_SHIFT, (chunk + 1) << CHUNK_SHIFT);
        let whole = from <= start && end <= to;
        let side = if whole { side } else { Side::Small };
        let there = usize::try_from(chunk).ok().and_then(|chunk| leaf.chunk(chunk));
        there.is_none_or(|there| there.shift > side.shift()).then_some(side)
    };
    let chunks = from >> CHUNK_SHIFT..to.div_ceil(1 << CHUNK_SHIFT);
    let mut next = chunks.start;
    while next < chunks.end {
        let (first, kind) = (next, wanted(next));
        next = (first + 1..chunks.end).find(|&chunk| wanted(chunk) != kind).unwrap_or(chunks.end);
        let Some(side) = kind else { continue };
        let start = leaf.start + (first << CHUNK_SHIFT);
        let table = SlotTable::of_slots(start, (next - first) << CHUNK_SHIFT, side);
        for chunk in first..next {
            let Some(old) = usize::try_from(chunk).ok().and_then(|chunk| leaf.chunk(chunk)) else {
                continue;
            };
            let (start, size) = (leaf.start + (chunk << CHUNK_SHIFT), 1 << CHUNK_SHIFT);
            SlotTable::continue_generations(table.slots_of(start, size), old.slots_of(start, size));
        }
        let entries = usize::try_from(first).unwrap_or(0)..usize::try_from(next).unwrap_or(0);
        publish(made, table, leaf.chunks.get(entries).unwrap_or_default());
    }
}
