//! Shelves: what one thread has at hand of a pool, a magazine and counts for each stream it uses.

use forebay_core::{Address, Bytes, Magazine};
use forebay_hal::StreamHandle;

use super::heap::Return;
use super::map::{SMALL, Side, SlotRef, UNIT_SHIFT};

/// How many streams a thread has shelves for at once. Threads that use more put the one they have
/// not used for the longest away.
const SHELVES: usize = 8;

/// As many as a tag's number can be, so that none needs to be checked.
const TAGS: usize = 256;

/// Powers of two of 512 B.
pub(super) const CLASSES: usize = 64;

/// What happened to blocks of a range of sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassCounts {
    pub(super) allocations: u64,
    pub(super) frees: u64,
    /// What live blocks have, in units of 512 B.
    pub(super) live: u64,
}

/// Counts of one thread on one stream. Sums wrap: a block freed by another thread than allocated it
/// is below zero here and above there.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    /// By the power of two of 512 B. What passes through a magazine is counted there.
    pub(super) classes: [ClassCounts; CLASSES],
    /// What live blocks have by tag, in units of 512 B.
    pub(super) tags: [u64; TAGS],
    /// What was asked for by live blocks, in bytes.
    pub(super) requested: u64,
}

impl Default for Counts {
    fn default() -> Self {
        let classes = [ClassCounts::default(); CLASSES];
        Self { classes, tags: [0; TAGS], requested: 0 }
    }
}

/// Which class a number of units counts in: the power of two not above it.
fn class_of(units: u64) -> usize {
    (u64::BITS - 1 - (units | 1).leading_zeros()) as usize
}

impl Counts {
    /// A block went out that its class is counted for elsewhere.
    #[inline(always)]
    pub(super) fn out(&mut self, units: u64, requested: u64, tag: u8) {
        self.requested = self.requested.wrapping_add(requested);
        let tagged = &mut self.tags[usize::from(tag) % TAGS];
        *tagged = tagged.wrapping_add(units);
    }

    /// A block came back that its class is counted for elsewhere.
    #[inline(always)]
    pub(super) fn back(&mut self, units: u64, requested: u64, tag: u8) {
        self.requested = self.requested.wrapping_sub(requested);
        let tagged = &mut self.tags[usize::from(tag) % TAGS];
        *tagged = tagged.wrapping_sub(units);
    }

    /// A block went out.
    pub(super) fn allocated(&mut self, units: u64, requested: u64, tag: u8) {
        let class = &mut self.classes[class_of(units) % CLASSES];
        class.allocations = class.allocations.wrapping_add(1);
        class.live = class.live.wrapping_add(units);
        self.out(units, requested, tag);
    }

    /// A block came back.
    pub(super) fn freed(&mut self, units: u64, requested: u64, tag: u8) {
        let class = &mut self.classes[class_of(units) % CLASSES];
        class.frees = class.frees.wrapping_add(1);
        class.live = class.live.wrapping_sub(units);
        self.back(units, requested, tag);
    }

    /// What live blocks have.
    pub(super) fn live(&self) -> Bytes {
        let units = self.classes.iter().fold(0, |sum: u64, class| sum.wrapping_add(class.live));
        Bytes::new(units << UNIT_SHIFT)
    }

    /// How many blocks went out and did not come back.
    pub(super) fn blocks(&self) -> u64 {
        self.classes.iter().fold(0, |sum: u64, class| {
            sum.wrapping_add(class.allocations).wrapping_sub(class.frees)
        })
    }

    /// The sum of several.
    pub(super) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        all.into_iter().for_each(|counts| sum.add(counts));
        sum
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (sum, one) in self.classes.iter_mut().zip(&other.classes) {
            sum.allocations = sum.allocations.wrapping_add(one.allocations);
            sum.frees = sum.frees.wrapping_add(one.frees);
            sum.live = sum.live.wrapping_add(one.live);
        }
        for (sum, one) in self.tags.iter_mut().zip(&other.tags) {
            *sum = sum.wrapping_add(*one);
        }
        self.requested = self.requested.wrapping_add(other.requested);
    }
}

/// A block in a magazine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) address: Address,
    pub(super) slot: SlotRef,
}

/// A magazine and counts for one stream.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) stream: StreamHandle,
    /// Sizes in units of 512 B.
    pub(super) magazine: Magazine<Kept>,
    pub(super) counts: Counts,
}

impl Shelf {
    /// All that was counted on it, in its magazine too.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        for (class, tally) in counts.classes.iter_mut().zip(self.magazine.tallies()) {
            class.allocations = class.allocations.wrapping_add(tally.taken);
            class.frees = class.frees.wrapping_add(tally.kept);
            class.live = class.live.wrapping_add(tally.balance);
        }
        counts
    }

    /// Puts a block of `units` into the magazine, and what stands in its way into `spilled`. `false` where
    /// the magazine holds nothing.
    pub(super) fn keep(&mut self, units: u64, block: Kept, spilled: &mut Vec<Return>) -> bool {
        let stream = self.stream;
        if !self.magazine.stow(units) {
            let spill = |kept, units| spilled.push(Return::of(kept, units, stream));
            self.magazine.make_way(units, spill);
        }
        self.magazine.keep(units, block)
    }

    /// Takes the blocks of some sides out of the magazine.
    pub(super) fn empty(&mut self, which: impl Fn(Side) -> bool, returns: &mut Vec<Return>) {
        let stream = self.stream;
        let out = |kept, units| returns.push(Return::of(kept, units, stream));
        match (which(Side::Small), which(Side::Large)) {
            (false, true) => self.magazine.drain_large(out),
            (small, large) => self.magazine.drain(
                |units| match Side::of(Bytes::new(units << UNIT_SHIFT)) {
                    Side::Small => small,
                    Side::Large => large,
                },
                out,
            ),
        }
    }
}

/// The shelves of one thread.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    /// The one used last.
    front: Option<Box<Shelf>>,
    /// The others, in the order of their last use.
    // Boxed: changing the order moves pointers.
    #[allow(clippy::vec_box)]
    rest: Vec<Box<Shelf>>,
    /// One that has to go: here until what it held and counted is the heap's.
    leaving: Option<Box<Shelf>>,
}

impl Shelves {
    /// The shelf of a stream, if it is the one used last.
    #[inline(always)]
    pub(super) fn front(&mut self, stream: StreamHandle) -> Option<&mut Shelf> {
        self.front.as_deref_mut().filter(|shelf| shelf.stream == stream)
    }

    /// The shelf of a stream.
    #[inline]
    pub(super) fn of(&mut self, stream: StreamHandle) -> Option<&mut Shelf> {
        if self.front.as_ref().is_none_or(|shelf| shelf.stream != stream) {
            self.bring_to_front(stream)?;
        }
        self.front(stream)
    }

    fn bring_to_front(&mut self, stream: StreamHandle) -> Option<()> {
        let found = self.rest.iter().position(|shelf| shelf.stream == stream)?;
        let found = self.rest.remove(found);
        self.rest.extend(self.front.replace(found));
        Some(())
    }

    /// Puts up a shelf for a stream that has none. Where there are too many, the one that was not used
    /// for the longest is [leaving](Self::take_leaving).
    pub(super) fn put_up(&mut self, stream: StreamHandle, bound: u64) {
        let (magazine, counts) =
            (Magazine::new(bound, SMALL.get() >> UNIT_SHIFT), Counts::default());
        self.rest.extend(self.front.replace(Box::new(Shelf { stream, magazine, counts })));
        if self.rest.len() >= SHELVES {
            self.leaving = Some(self.rest.remove(0));
        }
    }

    /// Takes out the shelf that has to go.
    pub(super) fn take_leaving(&mut self) -> Option<Box<Shelf>> {
        self.leaving.take()
    }

    /// Whether a shelf has to go before a stream can have one.
    pub(super) fn is_full_for(&mut self, stream: StreamHandle) -> bool {
        self.of(stream).is_none() && self.rest.len() + usize::from(self.front.is_some()) >= SHELVES
    }

    /// Takes out the shelf of a stream.
    pub(super) fn remove(&mut self, stream: StreamHandle) -> Option<Box<Shelf>> {
        for place in [&mut self.front, &mut self.leaving] {
            if let Some(shelf) = place.take_if(|shelf| shelf.stream == stream) {
                return Some(shelf);
            }
        }
        let found = self.rest.iter().position(|shelf| shelf.stream == stream)?;
        Some(self.rest.remove(found))
    }

    /// All of them.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Shelf> {
        let leaving = &mut self.leaving;
        self.front.iter_mut().chain(&mut self.rest).chain(leaving).map(|shelf| &mut **shelf)
    }
}
