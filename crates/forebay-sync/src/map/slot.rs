//! Slots: what the pool knows of the block that begins at an address, in two words.
//!
//! ```text
//!   word              [ generation 51 | start 9 | wide 1 | used 1 | state 2 ]
//!   more              [ size in units of 512 B 32 | low bits of requested 24 | tag 8 ]
//!   more, if wide     [ log 2 of the size 8       | requested 48             | tag 8 ]
//! ```
//!
//! The size less what was requested is what rounding added. Where that is below 16 MiB, 24 bits of the
//! request and the size tell the rest. A block is wide where it is more, which only rounding to powers of
//! two comes to; wide blocks are freed by the slow path.
//!
//! **Writers.** The allocator that owns a free block writes both words, `more` first and `word` last.
//! Everybody else changes `word` alone, by compare-exchange: the free that claims the block, and the note
//! that it is used on further streams. So `more` does not change while a block is live.
//!
//! **Readers** load `word`, then `more`. The load of `word` acquires, so `more` is that of the block seen
//! or of a later one at the address, never of an earlier one. To exclude a later one, [`Slot::look`]
//! loads `word` again and repeats where it changed. The fast path does not: it claims the block by
//! exchanging `word`, which fails where the block was handed out again, since `word` holds the whole
//! generation. What it read is counted only after the claim.
//!
//! **Generations** are 51 bits. An address that is allocated and freed every 50 ns comes round after three
//! and a half years, and then a handle of exactly that age would have to be freed, or a thread to have
//! stopped for as long between its look and its claim.

use core::ptr::NonNull;

use forebay_core::{Address, Bytes};

use super::UNIT_SHIFT;
use crate::atomic::{AtomicU64, Ordering};

// The word of a slot, from its low end. Laid out so that freeing is adding one, and handing out again
// what was freed is one more addition: the generation at the top overflows into nothing.
const STATE: u64 = 0b11;
const LIVE: u64 = 1;
const FREE: u64 = 2;
/// Live, and freed by the handle that owns it alone. Of the states only the live ones have the lowest bit.
const OWNED: u64 = 3;
/// Uses on further streams were recorded.
const USED: u64 = 1 << 2;
/// The second word is that of a wide block.
const WIDE: u64 = 1 << 3;
const START_SHIFT: u32 = 4;
const START: u64 = 0x1ff << START_SHIFT;
const GENERATION_SHIFT: u32 = START_SHIFT + 9;

// The second word.
const TAG_BITS: u32 = 8;
const UNITS_SHIFT: u32 = 32;
pub(super) const SIZE_BITS: u32 = 64 - UNITS_SHIFT;
/// What is added to a request by rounding, where the block is not wide, is less.
const WIDE_FROM: u64 = 1 << (UNITS_SHIFT - TAG_BITS);
const LOG2_SHIFT: u32 = 56;

/// What was asked for, and the tag that it was asked for under.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    requested: u64,
    tag: u8,
}

/// What was asked for, under which tag.
#[inline(always)]
pub fn tagged(requested: Bytes, tag: u8) -> Asked {
    Asked { requested: requested.get(), tag }
}

/// Whether a block is wide that rounding has added so much to.
#[inline]
pub fn is_wide(added: Bytes) -> bool {
    added.get() >= WIDE_FROM
}

/// The second word for a block that is not wide.
#[inline(always)]
fn narrow(size: Bytes, asked: Asked) -> u64 {
    // The size is a multiple of 512, so shifted by less than to bit 32 it leaves what is below free.
    let units = size.get() << (UNITS_SHIFT - UNIT_SHIFT);
    // Its low 24 bits.
    #[allow(clippy::cast_possible_truncation)]
    let requested = (asked.requested as u32) << TAG_BITS;
    units | u64::from(requested) | u64::from(asked.tag)
}

/// The second word for a block, and whether it is wide.
fn encode(size: Bytes, asked: Asked) -> (u64, u64) {
    if !is_wide(Bytes::new(size.get().saturating_sub(asked.requested))) {
        return (narrow(size, asked), 0);
    }
    debug_assert!(size.get().is_power_of_two(), "{size} added to {} by rounding", asked.requested);
    let log2 = u64::from(size.get().trailing_zeros());
    (log2 << LOG2_SHIFT | asked.requested << TAG_BITS | u64::from(asked.tag), WIDE)
}

/// What is known of the block that begins in a slot's addresses.
#[derive(Debug)]
pub struct Slot {
    word: AtomicU64,
    more: AtomicU64,
}

/// A block as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockState {
    word: u64,
    units: u64,
    requested: u64,
    more: u64,
}

impl BlockState {
    /// A block that is not wide.
    #[inline(always)]
    fn narrow(word: u64, more: u64) -> Self {
        let units = more >> UNITS_SHIFT;
        let size = units << UNIT_SHIFT;
        // The low 24 bits of the size less those of the request. Ones below them, so that the tag takes
        // nothing away; and written so that it has no part in common with `requested_small`, or that is
        // computed by way of this.
        #[allow(clippy::cast_possible_truncation)]
        let added = (size << TAG_BITS | 0xff).wrapping_sub(more) as u32 >> TAG_BITS;
        Self { word, units, requested: size.wrapping_sub(u64::from(added)), more }
    }

    fn new(word: u64, more: u64) -> Self {
        if word & WIDE == 0 {
            return Self::narrow(word, more);
        }
        let units = 1 << (more >> LOG2_SHIFT).saturating_sub(u64::from(UNIT_SHIFT));
        let requested = more << (64 - LOG2_SHIFT) >> (64 - LOG2_SHIFT + TAG_BITS);
        Self { word, units, requested, more }
    }

    /// How large it is, in units of 512 B.
    #[inline(always)]
    pub fn units(self) -> u64 {
        self.units
    }

    /// How large it is.
    #[inline]
    pub fn size(self) -> Bytes {
        Bytes::new(self.units << UNIT_SHIFT)
    }

    /// What was asked for.
    #[inline(always)]
    pub fn requested(self) -> u64 {
        self.requested
    }

    /// The same of a block of the small side, for less.
    #[inline(always)]
    pub fn requested_small(self) -> u64 {
        // The size is below 16 MiB, so the low 24 bits are all there are.
        #[allow(clippy::cast_possible_truncation)]
        let low = self.more as u32;
        u64::from(low >> TAG_BITS)
    }

    /// The tag it was allocated under.
    #[inline(always)]
    pub fn tag(self) -> u8 {
        self.more.to_le_bytes()[0]
    }

    /// Which block at its address it is.
    #[inline(always)]
    pub fn generation(self) -> u64 {
        self.word >> GENERATION_SHIFT
    }

    /// Whether uses on further streams were recorded.
    #[inline]
    pub fn used_elsewhere(self) -> bool {
        self.word & USED != 0
    }

    /// Whether it is live, as opposed to freed.
    #[inline]
    pub fn live(self) -> bool {
        self.word & LIVE != 0
    }

    /// Whether a handle owns it.
    #[inline]
    pub fn owned(self) -> bool {
        self.word & STATE == OWNED
    }

    /// How far from a multiple of 256 KiB it begins.
    pub(super) fn start(self) -> u64 {
        (self.word & START) >> START_SHIFT << UNIT_SHIFT
    }
}

#[inline(always)]
fn start_of(address: Address) -> u64 {
    (address.get() >> (UNIT_SHIFT - START_SHIFT)) & START
}

impl Slot {
    /// A slot that has handed out `count` blocks.
    #[cfg(test)]
    pub(super) fn counting_from(count: u64) -> Self {
        Self { word: AtomicU64::new(count << GENERATION_SHIFT), more: AtomicU64::new(0) }
    }

    /// Notes that a block of `size` at `address` is live; gives its generation. The caller owns the
    /// memory.
    pub fn hand_out(&self, address: Address, size: Bytes, asked: Asked) -> u64 {
        let before = self.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        let next = before.wrapping_add(1) << GENERATION_SHIFT;
        let (more, wide) = encode(size, asked);
        self.publish(next | start_of(address) | wide | LIVE, more)
    }

    /// The same for a block that was freed and is whole since: it has its start already. Neither the
    /// block before nor this one is [wide](is_wide).
    #[inline(always)]
    pub fn hand_out_again(&self, size: Bytes, asked: Asked) -> u64 {
        let before = self.word.load(Ordering::Relaxed);
        let word = before.wrapping_add((1 << GENERATION_SHIFT) - (FREE - LIVE));
        self.publish(word, narrow(size, asked))
    }

    #[inline(always)]
    fn publish(&self, word: u64, more: u64) -> u64 {
        // Both release: whoever sees this `more` sees that the block before it was freed.
        self.more.store(more, Ordering::Release);
        self.word.store(word, Ordering::Release);
        word >> GENERATION_SHIFT
    }

    /// What is known of the block at `address`, live or freed; `None` where there never was one, or
    /// the last one in this slot began elsewhere.
    pub fn look(&self, address: Address) -> Option<BlockState> {
        let known = self.read();
        let begins = known.word & STATE != 0 && known.word & START == start_of(address);
        begins.then_some(known)
    }

    /// The live block in this slot, wherever in its addresses it begins.
    pub(super) fn live(&self) -> Option<BlockState> {
        // Most slots have none: one load tells.
        let live = self.word.load(Ordering::Relaxed) & LIVE != 0;
        live.then(|| self.read()).filter(|known| known.live())
    }

    /// Both words as they are at one moment, if the block is live. The size of a freed one may already be
    /// that of the block about to be handed out, which only the text of an error shows.
    fn read(&self) -> BlockState {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let more = self.more.load(Ordering::Acquire);
            // `more` is not of an earlier block: `word` was stored after it. Nor is it of a later one than
            // a live `word`: then this load would see at least that the block in `word` was freed.
            if self.word.load(Ordering::Relaxed) == word {
                return BlockState::new(word, more);
            }
        }
    }

    /// What is known of the block at `address`, if it is live, was used nowhere else and is not wide.
    /// All but the generation may be that of a later block, unless the block is claimed.
    #[inline(always)]
    pub fn plain(&self, address: Address) -> Option<BlockState> {
        let word = self.word.load(Ordering::Acquire);
        let known = BlockState::narrow(word, self.more.load(Ordering::Relaxed));
        // The address is a multiple of 512, so that shifted to where the start is it has nothing below.
        let differs = word ^ address.get() >> (UNIT_SHIFT - START_SHIFT);
        (differs & (STATE | USED | WIDE | START) == LIVE).then_some(known)
    }

    /// The same of block `generation`, taken to be so: only the claim tells. The caller has the block, or
    /// had it, so what is read here is no older than that.
    #[inline(always)]
    pub fn assumed(&self, address: Address, generation: u64) -> BlockState {
        let word = generation << GENERATION_SHIFT | start_of(address) | LIVE;
        BlockState::narrow(word, self.more.load(Ordering::Relaxed))
    }

    /// Turns a block that was found [`plain`](Self::plain) from live to free, if it still is as it
    /// was.
    #[inline(always)]
    pub fn claim_plain(&self, known: BlockState) -> bool {
        self.turn(known, known.word.wrapping_add(FREE - LIVE))
    }

    /// Turns the block that was looked at from live to free, if it still is as it was.
    #[inline]
    pub fn claim(&self, known: BlockState) -> bool {
        known.live() && self.turn(known, known.word & !(STATE | USED) | FREE)
    }

    /// Makes a handle the owner of a live block, or no longer, if the block still is as it was.
    #[inline]
    pub fn set_owned(&self, known: BlockState, owned: bool) -> bool {
        let state = if owned { OWNED } else { LIVE };
        known.live() && self.turn(known, known.word & !STATE | state)
    }

    /// Makes a claimed block live again: the free could not be done.
    #[inline]
    pub fn unclaim(&self, known: BlockState) {
        self.word.store(known.word, Ordering::Release);
    }

    /// Notes that uses on further streams are recorded, if the block still is as it was.
    #[inline]
    pub fn mark_used(&self, known: BlockState) -> bool {
        self.turn(known, known.word | USED)
    }

    #[inline(always)]
    fn turn(&self, known: BlockState, word: u64) -> bool {
        self.word.compare_exchange(known.word, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Continues the generations of `other`, which had the same addresses. Nobody else sees this slot
    /// yet, and no block of `other` is handed out any more.
    pub(super) fn succeed(&self, other: &Self) {
        let generation = other.word.load(Ordering::Acquire) >> GENERATION_SHIFT;
        self.word.store(generation << GENERATION_SHIFT, Ordering::Relaxed);
    }

    /// Whether its block is or was wide.
    #[inline]
    pub fn is_wide(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WIDE != 0
    }

    /// Whether a block was ever handed out here.
    pub(super) fn was_used(&self) -> bool {
        self.word.load(Ordering::Acquire) != 0
    }
}

/// A slot that outlives the borrow it was found by, as long as its map does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRef(NonNull<Slot>);

// SAFETY: it is a reference to a slot, and slots are shared between threads.
unsafe impl Send for SlotRef {}

impl SlotRef {
    /// The place of `slot`.
    #[inline(always)]
    pub fn new(slot: &Slot) -> Self {
        Self(NonNull::from(slot))
    }

    /// The slot.
    ///
    /// # Safety
    ///
    /// * The map it was found in is alive.
    #[inline(always)]
    pub unsafe fn get<'a>(self) -> &'a Slot {
        // SAFETY: a slot stays where it is until its map is dropped, which the caller says it is not.
        unsafe { self.0.as_ref() }
    }
}
