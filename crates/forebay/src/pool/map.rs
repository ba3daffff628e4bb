//! The address map: what the pool knows of the block that begins at an address, found without a
//! search and without a lock.
//!
//! ```text
//!   address    [ the rest ][ 21 bits: which leaf ][ 26 bits: where in the leaf's 64 MiB ]
//!   leaf       small: a slot for every 512 B      large: a slot for every 256 KiB
//!   slot       [ size | generation | start | used | state ] [ tag | requested ]
//! ```
//!
//! Blocks on the large side are larger than 256 KiB, so no two of them begin in the same 256 KiB, and
//! a slot that notes where in them its block begins is enough: a full H200 takes 9 MB of slots.
//! Leaves are made when pages are and stay as long as the pool; memory of theirs that no block ever
//! began in is never touched.
//!
//! A slot's state is changed by whoever has the block: the allocator that hands it out, and the one
//! caller whose free turns it from live to free. That turn is the one atomic exchange of a pair, and
//! what makes a second free an error wherever and whenever it comes.

use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Address, Alignment, Bytes, Span};

use super::LeftBlock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::lock;

/// The addresses a leaf stands for.
pub(super) const LEAF: Alignment = match Alignment::of_log2(26) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// How many bits of an address choose the leaf: with those inside it 47, as many as hosts and
/// devices use. A leaf notes the rest, so that addresses that differ there alone are told apart; they
/// cannot be in one pool.
///
/// Under Miri, which looks at every place of the array each time it is reached, there are few.
const LEAF_BITS: u32 = if cfg!(miri) { 8 } else { 21 };

/// Log 2 of what blocks are multiples of.
pub(super) const UNIT_SHIFT: u32 = Alignment::BLOCK.log2() as u32;

/// Log 2 of the bytes to a slot on the large side.
const LARGE_SHIFT: u32 = 18;

/// What lies on the large side is larger than this.
pub(super) const SMALL: Bytes = Bytes::new(1 << LARGE_SHIFT);

/// The same, in units of 512 B.
pub(super) const SMALL_UNITS: u64 = 1 << (LARGE_SHIFT - UNIT_SHIFT);

/// The largest block there can be: 32 bits of 512 B, a little less than 2 TiB.
pub(super) const LARGEST: Bytes = Bytes::new(((1 << SIZE_BITS) - 1) << UNIT_SHIFT);

/// Which line of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// Blocks up to 256 KiB, so that they do not keep large pages in use.
    Small,
    /// All others.
    Large,
}

impl Side {
    /// The side of a block of this size, rounding included.
    pub(super) fn of(size: Bytes) -> Self {
        if size <= SMALL { Self::Small } else { Self::Large }
    }

    const fn shift(self) -> u32 {
        match self {
            Self::Small => UNIT_SHIFT,
            Self::Large => LARGE_SHIFT,
        }
    }
}

// The word of a slot, from its low end. Laid out so that freeing is adding one, and handing out again
// what was freed is one more addition: the generation at the top overflows into nothing.
const STATE: u64 = 0b11;
const LIVE: u64 = 1;
const FREE: u64 = 2;
/// Uses on further streams were recorded.
const USED: u64 = 1 << 2;
const START_SHIFT: u32 = 3;
const START: u64 = 0x1ff << START_SHIFT;
const SIZE_SHIFT: u32 = 12;
const SIZE_BITS: u32 = 32;
const GENERATION_SHIFT: u32 = SIZE_SHIFT + SIZE_BITS;

/// The second word of a slot: what was asked for, and the tag below it.
#[inline(always)]
pub(super) fn tagged(requested: Bytes, tag: u8) -> u64 {
    requested.get() << 8 | u64::from(tag)
}

/// What is known of the block that begins in a slot's addresses.
#[derive(Debug)]
pub(super) struct Slot {
    word: AtomicU64,
    more: AtomicU64,
}

/// A block as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    word: u64,
    more: u64,
}

impl Known {
    /// How large it is, in units of 512 B.
    #[inline(always)]
    pub(super) fn units(self) -> u64 {
        // 32 bits.
        #[allow(clippy::cast_possible_truncation)]
        let units = (self.word >> SIZE_SHIFT) as u32;
        u64::from(units)
    }

    /// How large it is.
    pub(super) fn size(self) -> Bytes {
        Bytes::new(self.units() << UNIT_SHIFT)
    }

    /// What was asked for.
    #[inline(always)]
    pub(super) fn requested(self) -> u64 {
        self.more >> 8
    }

    /// The tag it was allocated under.
    #[inline(always)]
    pub(super) fn tag(self) -> u8 {
        self.more.to_le_bytes()[0]
    }

    /// Which block at its address it is.
    #[inline(always)]
    pub(super) fn generation(self) -> u32 {
        generation(self.word)
    }

    /// Whether uses on further streams were recorded.
    pub(super) fn used_elsewhere(self) -> bool {
        self.word & USED != 0
    }

    /// Whether it is live, as opposed to freed.
    pub(super) fn live(self) -> bool {
        self.word & STATE == LIVE
    }
}

#[inline(always)]
fn generation(word: u64) -> u32 {
    // Twenty bits.
    #[allow(clippy::cast_possible_truncation)]
    let generation = (word >> GENERATION_SHIFT) as u32;
    generation
}

#[inline(always)]
fn start_of(address: Address) -> u64 {
    (address.get() >> (UNIT_SHIFT - START_SHIFT)) & START
}

impl Slot {
    /// Notes that a block of `size` at `address` is live; gives its generation. The caller has the
    /// memory for itself. `more` is the second word.
    pub(super) fn hand_out(&self, address: Address, size: Bytes, more: u64) -> u32 {
        let before = self.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        let next = before.wrapping_add(1) << GENERATION_SHIFT;
        let word = size.get() >> UNIT_SHIFT << SIZE_SHIFT | next | start_of(address) | LIVE;
        self.more.store(more, Ordering::Relaxed);
        self.word.store(word, Ordering::Release);
        generation(word)
    }

    /// The same for a block that was freed and is whole since: it has its size and start already.
    #[inline(always)]
    pub(super) fn hand_out_again(&self, more: u64) -> u32 {
        let before = self.word.load(Ordering::Relaxed);
        let word = before.wrapping_add((1 << GENERATION_SHIFT) - (FREE - LIVE));
        self.more.store(more, Ordering::Relaxed);
        self.word.store(word, Ordering::Release);
        generation(word)
    }

    /// What is known of the block at `address`, live or freed; `None` where there never was one, or
    /// the last one in this slot began elsewhere.
    pub(super) fn look(&self, address: Address) -> Option<Known> {
        let word = self.word.load(Ordering::Acquire);
        let known = Known { word, more: self.more.load(Ordering::Relaxed) };
        (word & STATE != 0 && word & START == start_of(address)).then_some(known)
    }

    /// What is known of the block at `address`, if it is live and was used nowhere else.
    #[inline(always)]
    pub(super) fn plain(&self, address: Address) -> Option<Known> {
        let word = self.word.load(Ordering::Acquire);
        let known = Known { word, more: self.more.load(Ordering::Relaxed) };
        // The address is a multiple of 512, so that shifted to where the start is it has nothing below.
        let differs = word ^ address.get() >> (UNIT_SHIFT - START_SHIFT);
        (differs & (STATE | USED | START) == LIVE).then_some(known)
    }

    /// Turns a block that was found [`plain`](Self::plain) from live to free, if it still is as it
    /// was.
    #[inline(always)]
    pub(super) fn claim_plain(&self, known: Known) -> bool {
        self.turn(known, known.word.wrapping_add(FREE - LIVE))
    }

    /// Turns the block that was looked at from live to free, if it still is as it was.
    pub(super) fn claim(&self, known: Known) -> bool {
        known.live() && self.turn(known, known.word & !(STATE | USED) | FREE)
    }

    /// Makes a claimed block live again: the free could not be done.
    pub(super) fn unclaim(&self, known: Known) {
        self.word.store(known.word, Ordering::Release);
    }

    /// Notes that uses on further streams are recorded, if the block still is as it was.
    pub(super) fn mark_used(&self, known: Known) -> bool {
        self.turn(known, known.word | USED)
    }

    #[inline(always)]
    fn turn(&self, known: Known, word: u64) -> bool {
        self.word.compare_exchange(known.word, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A slot that outlives the borrow it was found by, as long as its map does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotRef(NonNull<Slot>);

// SAFETY: it is a reference to a slot, and slots are shared between threads.
unsafe impl Send for SlotRef {}

impl SlotRef {
    pub(super) fn new(slot: &Slot) -> Self {
        Self(NonNull::from(slot))
    }

    /// The slot.
    ///
    /// # Safety
    ///
    /// * The map it was found in is alive.
    #[inline(always)]
    pub(super) unsafe fn get<'a>(self) -> &'a Slot {
        // SAFETY: a slot stays where it is until its map is dropped, which the caller says it is not.
        unsafe { self.0.as_ref() }
    }
}

/// The slots of 64 MiB of addresses.
#[derive(Debug)]
struct Leaf {
    /// Its first address.
    start: u64,
    shift: u32,
    slots: Box<[Slot]>,
}

/// All slots of a pool. Clones are the same: who wants to know whose an address is has one, and need
/// not keep the pool itself.
#[derive(Clone, Debug)]
pub(super) struct AddressMap {
    all: Arc<Leaves>,
}

/// The leaves, by number.
#[derive(Debug)]
struct Leaves {
    leaves: [AtomicPtr<Leaf>; 1 << LEAF_BITS],
    /// Which of them there are.
    made: Mutex<Vec<u64>>,
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

impl Leaves {
    /// The place of a leaf.
    #[inline(always)]
    fn place(&self, number: u64) -> &AtomicPtr<Leaf> {
        // As many bits as there are places.
        #[allow(clippy::cast_possible_truncation)]
        let index = number as usize % (1 << LEAF_BITS);
        &self.leaves[index]
    }
}

impl AddressMap {
    pub(super) fn new() -> Self {
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
    pub(super) fn knows(&self, address: Address) -> bool {
        self.at(address).is_some()
    }

    /// Whether a live block begins at `address`.
    pub(super) fn has(&self, address: Address) -> bool {
        self.at(address).is_some_and(Known::live)
    }

    fn at(&self, address: Address) -> Option<Known> {
        self.slot(address)?.look(address)
    }

    /// The slot that a block at `address` has. `None` where the pool has no memory, and for addresses
    /// that no block begins at.
    #[inline(always)]
    pub(super) fn slot(&self, address: Address) -> Option<&Slot> {
        let leaf = self.all.place(address.get() >> LEAF.log2()).load(Ordering::Acquire);
        // SAFETY: a leaf, once there, stays until the map is dropped.
        let leaf = unsafe { leaf.as_ref() }?;
        // Where in the leaf: nothing above it, or it is another's; nothing below 512 B, or no block
        // begins there.
        let within = address.get() ^ leaf.start;
        if within & !(LEAF.get() - Alignment::BLOCK.get()) != 0 {
            return None;
        }
        leaf.slots.get(usize::try_from(within >> leaf.shift).ok()?)
    }

    /// Makes the slots for `span`, which is all of one side. `false` where the other side has some of
    /// it, or where addresses that cannot be told from it are in the pool.
    pub(super) fn make(&self, span: Span, side: Side) -> bool {
        let Some(last) = span.end().get().checked_sub(1) else { return true };
        let mut made = lock(&self.all.made);
        for number in span.start().get() >> LEAF.log2()..=last >> LEAF.log2() {
            let place = self.all.place(number);
            // SAFETY: as above.
            if let Some(leaf) = unsafe { place.load(Ordering::Acquire).as_ref() } {
                if leaf.shift != side.shift() || leaf.start != number << LEAF.log2() {
                    return false;
                }
                continue;
            }
            let count = usize::try_from(LEAF.get() >> side.shift()).unwrap_or(0);
            // SAFETY: a slot is two integers, of any bits.
            let slots = unsafe { zeroed(count) };
            let leaf = Box::new(Leaf { start: number << LEAF.log2(), shift: side.shift(), slots });
            // Under the lock, so nobody else puts one there.
            place.store(Box::into_raw(leaf), Ordering::Release);
            made.push(number);
        }
        true
    }
}

impl AddressMap {
    /// Every live block. Looks at every slot.
    pub(super) fn live_blocks(&self) -> Vec<LeftBlock> {
        let made = lock(&self.all.made);
        let mut found = Vec::new();
        for &number in made.iter() {
            // SAFETY: a leaf, once there, stays until the map is dropped.
            let Some(leaf) = (unsafe { self.all.place(number).load(Ordering::Acquire).as_ref() })
            else {
                continue;
            };
            for (index, slot) in (0_u64..).zip(&leaf.slots) {
                let word = slot.word.load(Ordering::Acquire);
                if word & STATE != LIVE {
                    continue;
                }
                let known = Known { word, more: slot.more.load(Ordering::Relaxed) };
                // The slot's addresses, and where in them the block begins.
                let slots = number << LEAF.log2() | index << leaf.shift;
                let start = (word & START) >> START_SHIFT << UNIT_SHIFT;
                let within = start & ((1 << leaf.shift) - 1);
                let address = Address::new(slots | within);
                let requested = Bytes::new(known.requested());
                found.push(LeftBlock { address, size: known.size(), requested });
            }
        }
        found
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        let made =
            core::mem::take(&mut self.made).into_inner().unwrap_or_else(PoisonError::into_inner);
        for number in made {
            let leaf = self.place(number).swap(ptr::null_mut(), Ordering::AcqRel);
            if !leaf.is_null() {
                // SAFETY: leaves come from a box, are noted once, and nobody has the map any more.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn span(start: u64, size: u64) -> Span {
        Span::new(Address::new(start), Bytes::new(size)).unwrap()
    }

    #[test]
    fn a_block_is_found_by_its_first_address_alone() {
        let map = AddressMap::new();
        let base = 3 << 30;
        assert!(map.make(span(base, 1 << 20), Side::Small));
        assert!(map.make(span(base + (64 << 20), 130 << 20), Side::Large));
        for (at, size) in [(base + 512, 512), (base + (64 << 20) + 1536, 300 << 10)] {
            let address = Address::new(at);
            let slot = map.slot(address).unwrap();
            assert_eq!(slot.look(address), None);
            let more = tagged(Bytes::new(size - 7), 9);
            let generation = slot.hand_out(address, Bytes::new(size), more);
            let known = slot.look(address).unwrap();
            assert!(known.live() && !known.used_elsewhere());
            let figures = (known.size().get(), known.requested(), known.tag());
            assert_eq!(figures, (size, size - 7, 9));
            assert_eq!(known.generation(), generation);
            for inside in [1, 511] {
                assert!(map.slot(Address::new(at + inside)).is_none());
            }
            let inside = Address::new(at + 512);
            assert!(map.slot(inside).unwrap().look(inside).is_none());
            assert!(slot.plain(inside).is_none(), "begins elsewhere");
            assert_eq!(slot.plain(address), Some(known));
            assert!(slot.claim_plain(known), "can be freed");
            assert!(slot.plain(address).is_none() && !slot.claim_plain(known), "and only once");
            assert!(!slot.claim(known), "whichever way");
            assert!(!slot.look(address).unwrap().live());
            for _ in 0..if cfg!(miri) { 20 } else { 5000 } {
                let again = slot.hand_out_again(size);
                let known = slot.look(address).unwrap();
                assert_eq!((known.size().get(), known.generation()), (size, again));
                assert!(known.live() && slot.mark_used(known), "can be used elsewhere");
                assert!(slot.plain(address).is_none(), "is not plain now");
                assert!(slot.claim(slot.look(address).unwrap()));
            }
            assert_ne!(slot.hand_out(address, Bytes::new(size), 0), generation);
        }
        for beyond in [0, 512, base - 512, !511] {
            let found = map.slot(Address::new(beyond)).and_then(|s| s.look(Address::new(beyond)));
            assert!(found.is_none(), "{beyond:#x}");
        }
        assert!(!map.make(span(base, 512), Side::Large), "the small side has it");
        assert!(!map.make(span(base + (1 << 50), 512), Side::Small), "not told from the first");
        assert!(map.make(span((1 << 60) + (1 << 40), 512), Side::Small), "high, but apart");
        let twin = Address::new(base + (1 << 50) + 512);
        assert!(map.slot(twin).is_none(), "told apart by the upper bits");
    }

    #[test]
    fn of_many_frees_one_succeeds() {
        let map = AddressMap::new();
        let address = Address::new(1 << 30);
        assert!(map.make(span(1 << 30, 4096), Side::Small));
        let slot = map.slot(address).unwrap();
        for _ in 0..if cfg!(miri) { 5 } else { 500 } {
            slot.hand_out(address, Bytes::new(512), 512);
            let freed = core::sync::atomic::AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let known = slot.look(address).unwrap();
                        if slot.claim(known) {
                            freed.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(freed.into_inner(), 1);
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const AT: Address = Address::new(1 << 30);

    fn live() -> Arc<Slot> {
        let slot = Slot { word: AtomicU64::new(0), more: AtomicU64::new(0) };
        slot.hand_out(AT, Bytes::new(512), tagged(Bytes::new(500), 3));
        Arc::new(slot)
    }

    /// Frees as the pool does: the short way, or the long one.
    fn free(slot: &Slot, short: bool) -> bool {
        if short {
            slot.plain(AT).is_some_and(|known| slot.claim_plain(known))
        } else {
            slot.look(AT).is_some_and(|known| slot.claim(known))
        }
    }

    /// Two frees of one block at the same time, by either way: one of them succeeds.
    #[test]
    fn loom_one_of_two_frees_succeeds() {
        for ways in [[true, true], [true, false], [false, false]] {
            loom::model(move || {
                let slot = live();
                let other = Arc::clone(&slot);
                let thread = thread::spawn(move || free(&other, ways[0]));
                let mine = free(&slot, ways[1]);
                assert!(mine != thread.join().unwrap(), "both, or neither");
            });
        }
    }

    /// A free that looked at a block before it was freed and given out again does not free the next.
    #[test]
    fn loom_a_late_free_does_not_touch_the_next_block() {
        loom::model(|| {
            let slot = live();
            let late = Arc::clone(&slot);
            let thread = thread::spawn(move || free(&late, true));
            let again = slot.plain(AT).is_some_and(|known| slot.claim_plain(known));
            if again {
                // This thread has the block now, and gives it out again.
                slot.hand_out_again(tagged(Bytes::new(7), 1));
            }
            let freed = thread.join().unwrap();
            let known = slot.look(AT).unwrap();
            match (again, freed) {
                // The late one freed the block itself, or the one that was given out after it looked
                // afresh; the count of frees and what the slot says agree.
                (true, true) => assert!(!known.live()),
                (true, false) => assert!(known.live() && known.requested() == 7),
                (false, true) => assert!(!known.live()),
                (false, false) => panic!("nobody freed a live block"),
            }
        });
    }

    /// A use recorded while the block is freed: either it is recorded, or the free came first.
    #[test]
    fn loom_a_recorded_use_is_not_lost() {
        loom::model(|| {
            let slot = live();
            let user = Arc::clone(&slot);
            let thread = thread::spawn(move || {
                user.look(AT).is_some_and(|known| known.live() && user.mark_used(known))
            });
            let plain = slot.plain(AT).is_some_and(|known| slot.claim_plain(known));
            let recorded = thread.join().unwrap();
            assert!(plain != recorded, "freed without a look at a use that was recorded");
        });
    }
}
