//! The address map: what the pool knows of the block that begins at an address, found without a
//! search and without a lock.
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
//! a slot that notes where in them its block begins is enough: a full H200 takes 9 MB of slots.
//! Slots are made when memory is and stay as long as the map; slots that no block ever began in are
//! never touched.
//!
//! In a region that the pool reserved, sides begin at multiples of 64 MiB, so each leaf is of one side.
//! Segments lie where the device puts them, and those of both sides may share a leaf: there the kind is
//! chosen for each chunk. A chunk is coarse only where one large segment covers it, so no other
//! memory can come to lie in it while that segment lives. When the segment is gone and something else
//! comes, the chunk gets fine slots, which continue the generations of the coarse ones. The coarse ones
//! stay, for threads that still look at them, and are used no more: at most one set for each chunk.
//!
//! A slot's state is changed by whoever has the block: the allocator that hands it out, and the one
//! caller whose free turns it from live to free. That turn is the one atomic exchange of a pair, and
//! what makes a second free an error wherever and whenever it comes.

use core::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex};

use forebay_core::{Address, Alignment, Bytes, Span};

use crate::atomic::Ordering;
use crate::lock;

mod slot;
#[cfg(test)]
mod tests;

pub use slot::{Asked, BlockState, Slot, SlotRef, is_wide, tagged};

/// The addresses a leaf stands for.
pub const LEAF: Alignment = match Alignment::of_log2(26) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// How many bits of an address choose the leaf: with those inside it 47, as many as hosts and
/// devices use. A leaf notes the rest, so that addresses that differ there alone are told apart; they
/// cannot be in one pool.
///
/// Under Miri, which looks at every place of the array each time it is reached, there are few.
const LEAF_BITS: u32 = if cfg!(miri) { 8 } else { 21 };

/// Log 2 of the bytes to a chunk: what devices give segments in multiples of.
const CHUNK_SHIFT: u32 = 21;

/// The chunks of a leaf.
const CHUNKS: usize = 1 << (LEAF.log2() as u32 - CHUNK_SHIFT);

/// Log 2 of what blocks are multiples of.
pub const UNIT_SHIFT: u32 = Alignment::BLOCK.log2() as u32;

/// Log 2 of the bytes to a slot on the large side.
const LARGE_SHIFT: u32 = 18;

/// What lies on the large side is larger than this.
pub const SMALL: Bytes = Bytes::new(1 << LARGE_SHIFT);

/// The same, in units of 512 B.
pub const SMALL_UNITS: u64 = 1 << (LARGE_SHIFT - UNIT_SHIFT);

/// The largest block there can be: 32 bits of 512 B, a little less than 2 TiB.
pub const LARGEST: Bytes = Bytes::new(((1 << slot::SIZE_BITS) - 1) << UNIT_SHIFT);

/// Which line of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Blocks up to 256 KiB, so that they do not keep large pages in use.
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

/// The slots of some addresses: of a leaf, or of a run of its chunks. Or, for a leaf of segments, no
/// slots and where those of each chunk are.
#[derive(Debug)]
struct Table {
    /// Its first address.
    start: u64,
    /// Log 2 of the bytes to a slot.
    shift: u32,
    slots: Box<[Slot]>,
    /// Each null or a table of the map's list.
    chunks: Box<[AtomicPtr<Table>]>,
}

/// A slice of values for which all bits zero is one: asked for as zero from the system, so that what
/// is never written takes no memory.
///
/// # Safety
///
/// * All bits zero is a value of `T`.
unsafe fn zeroed<T>(count: usize) -> Box<[T]> {
    // SAFETY: the caller promises it.
    unsafe { Box::new_zeroed_slice(count).assume_init() }
}

impl Table {
    /// Slots for `size` bytes from `start`.
    fn of_slots(start: u64, size: u64, side: Side) -> Self {
        let count = usize::try_from(size >> side.shift()).unwrap_or(0);
        // SAFETY: a slot is two integers, of any bits.
        let slots = unsafe { zeroed(count) };
        Self { start, shift: side.shift(), slots, chunks: Box::default() }
    }

    /// A leaf whose chunks have no slots yet.
    fn of_chunks(start: u64) -> Self {
        let chunks = (0..CHUNKS).map(|_| AtomicPtr::default()).collect();
        Self { start, shift: 0, slots: Box::default(), chunks }
    }

    /// The slots of a chunk.
    fn chunk(&self, index: usize) -> Option<&Self> {
        let chunk = self.chunks.get(index)?.load(Ordering::Acquire);
        // SAFETY: null, or a table of the map's list, which keeps it until the map is dropped.
        unsafe { chunk.as_ref() }
    }

    /// The slots for `size` bytes from `start`, which are among its addresses.
    fn slots_of(&self, start: u64, size: u64) -> &[Slot] {
        let first = usize::try_from((start - self.start) >> self.shift).unwrap_or(0);
        let count = usize::try_from(size >> self.shift).unwrap_or(0);
        self.slots.get(first..first + count).unwrap_or_default()
    }

    /// Lets the slots continue the generations of those of `other`, which are for the same addresses and
    /// not more.
    fn succeed(slots: &[Slot], other: &[Slot]) {
        let each = slots.len() / other.len().max(1);
        for (slots, other) in slots.chunks(each.max(1)).zip(other) {
            if other.was_used() {
                slots.iter().for_each(|slot| slot.succeed(other));
            }
        }
    }
}

/// All slots of a pool. Clones are the same: who wants to know whose an address is has one, and need
/// not keep the pool itself.
#[derive(Clone, Debug)]
pub struct AddressMap {
    all: Arc<Leaves>,
}

/// The leaves, by number.
#[derive(Debug)]
struct Leaves {
    /// Each null or a table of `made`.
    leaves: [AtomicPtr<Table>; 1 << LEAF_BITS],
    /// All tables, those of chunks too. None is taken out, so what the map points to stays until it is
    /// dropped. Locked to make more of them, and by readers only to copy the list.
    made: Mutex<Vec<Arc<Table>>>,
}

impl Leaves {
    /// The place of a leaf.
    #[inline(always)]
    fn place(&self, number: u64) -> &AtomicPtr<Table> {
        // As many bits as there are places.
        #[allow(clippy::cast_possible_truncation)]
        let index = number as usize % (1 << LEAF_BITS);
        &self.leaves[index]
    }
}

/// Puts a table into the list, and then where it is found.
fn publish(made: &mut Vec<Arc<Table>>, table: Table, places: &[AtomicPtr<Table>]) {
    let table = Arc::new(table);
    let pointer = Arc::as_ptr(&table).cast_mut();
    made.push(table);
    for place in places {
        // The list is locked, so nobody else puts one there.
        place.store(pointer, Ordering::Release);
    }
}

/// A live block, as its slot has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Where it begins.
    pub address: Address,
    /// How large it is.
    pub size: Bytes,
    /// What was asked for.
    pub requested: Bytes,
}

/// What a leaf that is not there yet is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// Of one side.
    Region,
    /// Of chunks.
    Segment,
}

impl Default for AddressMap {
    fn default() -> Self {
        Self::new()
    }
}

impl AddressMap {
    /// A map of no memory.
    pub fn new() -> Self {
        // Zero from the system: what is never written takes no memory.
        let mut all = Arc::<Leaves>::new_zeroed();
        if let Some(leaves) = Arc::get_mut(&mut all) {
            // SAFETY: the place is there, and nothing was in it.
            unsafe { (&raw mut (*leaves.as_mut_ptr()).made).write(Mutex::default()) };
        }
        // SAFETY: nobody else had the value, so the one field that may not be zero was written; of the
        // other all bits zero are null pointers.
        Self { all: unsafe { all.assume_init() } }
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
        self.slot(address)?.look(address)
    }

    /// The slot that a block at `address` has. `None` where the pool has no memory, and for addresses
    /// that no block begins at.
    #[inline(always)]
    pub fn slot(&self, address: Address) -> Option<&Slot> {
        let leaf = self.all.place(address.get() >> LEAF.log2()).load(Ordering::Acquire);
        // SAFETY: null, or a table of the list, which keeps it until the map is dropped.
        let leaf = unsafe { leaf.as_ref() }?;
        // Where in the leaf: nothing above it, or it is another's; nothing below 512 B, or no block
        // begins there.
        let within = address.get() ^ leaf.start;
        if within & !(LEAF.get() - Alignment::BLOCK.get()) != 0 {
            return None;
        }
        match leaf.slots.get(usize::try_from(within >> leaf.shift).ok()?) {
            Some(slot) => Some(slot),
            // A leaf of segments has no slots itself.
            None => {
                core::hint::cold_path();
                self.slot_in_chunk(address)
            }
        }
    }

    /// The same in a leaf of segments, which is known to be that of the address. Looks for it once more,
    /// so that the other way need not keep it.
    #[inline(always)]
    fn slot_in_chunk(&self, address: Address) -> Option<&Slot> {
        let leaf = self.all.place(address.get() >> LEAF.log2()).load(Ordering::Acquire);
        // SAFETY: null, or a table of the list, which keeps it until the map is dropped.
        let leaf = unsafe { leaf.as_ref() }?;
        // As many bits as there are chunks.
        #[allow(clippy::cast_possible_truncation)]
        let chunk = leaf.chunk((address.get() >> CHUNK_SHIFT) as usize % CHUNKS)?;
        let within = address.get().checked_sub(chunk.start)?;
        chunk.slots.get(usize::try_from(within >> chunk.shift).ok()?)
    }

    /// Makes the slots for `span` of a region, in which every leaf is of one side. `false` where the
    /// other side has some of it, or where addresses that cannot be told from it are in the pool.
    pub fn make(&self, span: Span, side: Side) -> bool {
        self.make_for(span, side, Memory::Region)
    }

    /// Makes the slots for `span`, a segment, which may share its leaves with segments of the other
    /// side. `false` where addresses that cannot be told from it are in the pool.
    pub fn make_segment(&self, span: Span, side: Side) -> bool {
        self.make_for(span, side, Memory::Segment)
    }

    fn make_for(&self, span: Span, side: Side, memory: Memory) -> bool {
        let Some(last) = span.end().get().checked_sub(1) else { return true };
        let mut made = lock(&self.all.made);
        for number in span.start().get() >> LEAF.log2()..=last >> LEAF.log2() {
            let (place, start) = (self.all.place(number), number << LEAF.log2());
            if place.load(Ordering::Acquire).is_null() {
                let leaf = match memory {
                    Memory::Region => Table::of_slots(start, LEAF.get(), side),
                    Memory::Segment => Table::of_chunks(start),
                };
                publish(&mut made, leaf, core::slice::from_ref(place));
            }
            // SAFETY: a table of the list, which keeps it until the map is dropped.
            let Some(leaf) = (unsafe { place.load(Ordering::Acquire).as_ref() }) else {
                return false;
            };
            if leaf.start != start {
                return false;
            }
            if !leaf.chunks.is_empty() {
                make_chunks(leaf, &mut made, span, side);
            } else if leaf.shift != side.shift()
                // Fine slots do for either side.
                && (memory == Memory::Region || leaf.shift != UNIT_SHIFT)
            {
                return false;
            }
        }
        true
    }

    /// Every live block. Looks at every slot, without a lock: memory made meanwhile is not seen.
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        let made = lock(&self.all.made).clone();
        let mut found = Vec::new();
        for table in made {
            for (index, slot) in (0_u64..).zip(&table.slots) {
                let Some(known) = slot.live() else { continue };
                // The slot's addresses, and where in them the block begins.
                let within = known.start() & ((1 << table.shift) - 1);
                let address = Address::new(table.start + (index << table.shift) + within);
                let requested = Bytes::new(known.requested());
                found.push(LiveBlock { address, size: known.size(), requested });
            }
        }
        found
    }
}

/// Makes the slots for what of `span` is in a leaf of segments.
fn make_chunks(leaf: &Table, made: &mut Vec<Arc<Table>>, span: Span, side: Side) {
    // Counted from the start of the leaf, which some of the span is in.
    let from = span.start().get().saturating_sub(leaf.start);
    let to = span.end().get().saturating_sub(leaf.start).min(LEAF.get());
    // What slots a chunk is to get; `None` where it has such as will do.
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
        let table = Table::of_slots(start, (next - first) << CHUNK_SHIFT, side);
        for chunk in first..next {
            let Some(old) = usize::try_from(chunk).ok().and_then(|chunk| leaf.chunk(chunk)) else {
                continue;
            };
            let (start, size) = (leaf.start + (chunk << CHUNK_SHIFT), 1 << CHUNK_SHIFT);
            Table::succeed(table.slots_of(start, size), old.slots_of(start, size));
        }
        let places = usize::try_from(first).unwrap_or(0)..usize::try_from(next).unwrap_or(0);
        publish(made, table, leaf.chunks.get(places).unwrap_or_default());
    }
}
