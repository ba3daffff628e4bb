//! Slots: the state of the block that begins at an address, in two words.
//!
//! ```text
//!   word              [ generation 51 | start 9 | wide 1 | used 1 | state 2 ]
//!   more              [ size in units of 512 B 32 | low bits of requested 24 | tag 8 ]
//!   more, if wide     [ log 2 of the size 8       | requested 48             | tag 8 ]
//! ```
//!
//! The size minus the requested size is what rounding added. If that is below 16 MiB, the size and the low
//! 24 bits of the request determine the request. Otherwise the block is wide, which happens only with
//! rounding to powers of two; wide blocks are freed by the slow path.
//!
//! **Writers.** The allocator that owns a free block writes both words, `more` first and `word` last. All
//! others change only `word`, by compare-exchange: the free that claims the block, and the call that
//! records uses on further streams. So `more` does not change while a block is live.
//!
//! **Readers** load `word`, then `more`. The load of `word` acquires, so `more` belongs to the block seen or
//! to a later one at the address, never to an earlier one. To exclude a later one, [`Slot::state_at`] loads
//! `word` again and repeats if it changed. The fast path does not: it claims the block by exchanging
//! `word`, which fails if the block was allocated again, since `word` holds the whole generation. It uses
//! what it read only after the claim.
//!
//! **Generations** have 51 bits. For an address that is allocated and freed every 50 ns they wrap after
//! three and a half years. An error would then take a stale handle of exactly that age, or a thread that
//! stopped for as long between its read and its claim.

use core::ptr::NonNull;

use forebay_core::{Address, Bytes};

use super::UNIT_SHIFT;
use crate::atomic::{AtomicU64, Ordering};

// The word of a slot, from its low end. Laid out so that freeing is adding one, and allocating again is
// one more addition: the generation at the top overflows harmlessly.
const STATE: u64 = 0b11;
const LIVE: u64 = 1;
const FREE: u64 = 2;
/// Live, and only the handle that owns it may free it. Only live states have the lowest bit set.
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
/// A block is wide if rounding added this many bytes or more.
const WIDE_FROM: u64 = 1 << (UNITS_SHIFT - TAG_BITS);
const LOG2_SHIFT: u32 = 56;

/// The requested size and the tag of the request.
#[derive(Clone, Copy, Debug)]
pub struct RequestInfo {
    requested: u64,
    tag: u8,
}

/// The requested size with its tag.
#[inline(always)]
pub fn tagged(requested: Bytes, tag: u8) -> RequestInfo {
    RequestInfo { requested: requested.get(), tag }
}

/// Whether a block is wide if rounding added this many bytes.
#[inline]
pub fn is_wide(added: Bytes) -> bool {
    added.get() >= WIDE_FROM
}

/// The second word for a block that is not wide.
#[inline(always)]
fn narrow(size: Bytes, asked: RequestInfo) -> u64 {
    // The size is a multiple of 512, so the shift leaves the bits below 32 clear.
    let units = size.get() << (UNITS_SHIFT - UNIT_SHIFT);
    // Its low 24 bits.
    #[allow(clippy::cast_possible_truncation)]
    let requested = (asked.requested as u32) << TAG_BITS;
    units | u64::from(requested) | u64::from(asked.tag)
}

/// The second word for a block, and whether it is wide.
fn encode(size: Bytes, asked: RequestInfo) -> (u64, u64) {
    if !is_wide(Bytes::new(size.get().saturating_sub(asked.requested))) {
        return (narrow(size, asked), 0);
    }
    debug_assert!(size.get().is_power_of_two(), "{size} added to {} by rounding", asked.requested);
    let log2 = u64::from(size.get().trailing_zeros());
    (log2 << LOG2_SHIFT | asked.requested << TAG_BITS | u64::from(asked.tag), WIDE)
}

/// The state of the block that begins in a slot's address range.
#[derive(Debug)]
pub struct Slot {
    word: AtomicU64,
    more: AtomicU64,
}

/// The state of a block when it was read.
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
        // The low 24 bits of the size minus those of the request. The ones below keep the tag from
        // borrowing. Written differently from `requested_small` on purpose: otherwise the compiler
        // computes that through this.
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

    /// The requested size.
    #[inline(always)]
    pub fn requested(self) -> u64 {
        self.requested
    }

    /// The requested size of a small block. Cheaper than [`requested`](Self::requested).
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

    /// How many blocks its slot has had, modulo 2^51.
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

    /// Its offset from a multiple of 256 KiB.
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

    /// Records that a block of `size` at `address` is live; returns its generation. The caller owns the
    /// memory.
    pub fn mark_live(&self, address: Address, size: Bytes, asked: RequestInfo) -> u64 {
        let before = self.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        let next = before.wrapping_add(1) << GENERATION_SHIFT;
        let (more, wide) = encode(size, asked);
        self.publish(next | start_of(address) | wide | LIVE, more)
    }

    /// [`mark_live`](Self::mark_live) for a block that was freed and cached unchanged, so that its start is
    /// recorded already. Neither the block before nor this one is [wide](is_wide).
    #[inline(always)]
    pub fn mark_live_again(&self, size: Bytes, asked: RequestInfo) -> u64 {
        let before = self.word.load(Ordering::Relaxed);
        let word = before.wrapping_add((1 << GENERATION_SHIFT) - (FREE - LIVE));
        self.publish(word, narrow(size, asked))
    }

    /// Like [`mark_live_again`](Self::mark_live_again), with a handle as the owner of the block.
    #[inline(always)]
    pub fn mark_owned_again(&self, size: Bytes, asked: RequestInfo) -> u64 {
        let before = self.word.load(Ordering::Relaxed);
        let word = before.wrapping_add((1 << GENERATION_SHIFT) + (OWNED - FREE));
        self.publish(word, narrow(size, asked))
    }

    #[inline(always)]
    fn publish(&self, word: u64, more: u64) -> u64 {
        // Both release: a thread that sees this `more` also sees that the block before it was freed.
        self.more.store(more, Ordering::Release);
        self.word.store(word, Ordering::Release);
        word >> GENERATION_SHIFT
    }

    /// The state of the block at `address`, live or freed; `None` if there never was one, or the last one
    /// in this slot began elsewhere.
    pub fn state_at(&self, address: Address) -> Option<BlockState> {
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

    /// A consistent copy of both words, if the block is live. The size of a freed block may already be that
    /// of its successor, which only shows in the text of an error.
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

    /// The state of the block at `address`, if it is live, has no owner, was used on no further stream and is not
    /// wide. Until the block is claimed, all but the generation may be that of a later block.
    #[inline(always)]
    pub fn plain(&self, address: Address) -> Option<BlockState> {
        self.plain_in(LIVE, address)
    }

    /// Like [`plain`](Self::plain), for a block that a handle owns.
    #[inline(always)]
    pub fn plain_owned(&self, address: Address) -> Option<BlockState> {
        self.plain_in(OWNED, address)
    }

    #[inline(always)]
    fn plain_in(&self, state: u64, address: Address) -> Option<BlockState> {
        let word = self.word.load(Ordering::Acquire);
        let known = BlockState::narrow(word, self.more.load(Ordering::Relaxed));
        // The address is a multiple of 512, so that shifted to where the start is it has nothing below.
        let differs = word ^ address.get() >> (UNIT_SHIFT - START_SHIFT);
        (differs & (STATE | USED | WIDE | START) == state).then_some(known)
    }

    /// The state that block `generation` at `address` should have, to be verified by the claim. The caller
    /// holds or held a handle to the block, so the value read here is not older than the block.
    #[inline(always)]
    pub fn expected(&self, address: Address, generation: u64) -> BlockState {
        let word = generation << GENERATION_SHIFT | start_of(address) | LIVE;
        BlockState::narrow(word, self.more.load(Ordering::Relaxed))
    }

    /// Like [`expected`](Self::expected), for a block that a handle owns.
    #[inline(always)]
    pub fn expected_owned(&self, address: Address, generation: u64) -> BlockState {
        let word = generation << GENERATION_SHIFT | start_of(address) | OWNED;
        BlockState::narrow(word, self.more.load(Ordering::Relaxed))
    }

    /// Changes a block that was found [`plain`](Self::plain) from live to free, unless its state changed
    /// since.
    #[inline(always)]
    pub fn claim_plain(&self, known: BlockState) -> bool {
        self.exchange(known, known.word.wrapping_add(FREE - LIVE))
    }

    /// Like [`claim_plain`](Self::claim_plain), for a block that was found [owned](Self::plain_owned).
    #[inline(always)]
    pub fn claim_owned(&self, known: BlockState) -> bool {
        self.exchange(known, known.word.wrapping_sub(OWNED - FREE))
    }

    /// Changes a block from live to free, unless its state changed since it was read.
    #[inline]
    pub fn claim(&self, known: BlockState) -> bool {
        known.live() && self.exchange(known, known.word & !(STATE | USED) | FREE)
    }

    /// Sets whether a handle owns a live block, unless its state changed since it was read.
    #[inline]
    pub fn set_owned(&self, known: BlockState, owned: bool) -> bool {
        let state = if owned { OWNED } else { LIVE };
        known.live() && self.exchange(known, known.word & !STATE | state)
    }

    /// Makes a claimed block live again, because the free failed.
    #[inline]
    pub fn unclaim(&self, known: BlockState) {
        self.word.store(known.word, Ordering::Release);
    }

    /// Marks that uses on further streams are recorded, unless the state changed since it was read.
    #[inline]
    pub fn mark_used(&self, known: BlockState) -> bool {
        self.exchange(known, known.word | USED)
    }

    #[inline(always)]
    fn exchange(&self, known: BlockState, word: u64) -> bool {
        self.word.compare_exchange(known.word, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Continues the generations of `other`, which covered the same addresses. This slot is not published
    /// yet, and no block of `other` will be allocated again.
    pub(super) fn continue_generations(&self, other: &Self) {
        let generation = other.word.load(Ordering::Acquire) >> GENERATION_SHIFT;
        self.word.store(generation << GENERATION_SHIFT, Ordering::Relaxed);
    }

    /// Whether its block is or was wide.
    #[inline]
    pub fn is_wide(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WIDE != 0
    }

    /// Whether a block was ever allocated here.
    pub(super) fn was_used(&self) -> bool {
        self.word.load(Ordering::Acquire) != 0
    }
}

/// A pointer to a slot, valid as long as the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRef(NonNull<Slot>);

// SAFETY: it is a reference to a slot, and slots are shared between threads.
unsafe impl Send for SlotRef {}

impl SlotRef {
    /// A pointer to `slot`.
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
        // SAFETY: a slot does not move until its map is dropped, and the caller guarantees that it is not.
        unsafe { self.0.as_ref() }
    }
}
