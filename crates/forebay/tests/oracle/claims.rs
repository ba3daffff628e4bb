//! An oracle for many threads at once: who has which bytes, without a lock.
//!
//! ```text
//!   addresses    │ 1 GiB │ 1 GiB │ ...          a slab for each that is used
//!   a slab       │256 KiB│256 KiB│ ...          a chunk: wholly claimed, or how many claims reach in
//!   a chunk      │512 B│512 B│ ...              a bit for each unit, where a claim ends inside
//! ```
//!
//! A claim sets what nobody may have set, and a release takes back what must be there; so whoever
//! comes second finds out. A block of any size takes a few dozen atomic operations, and threads meet
//! only where their blocks do. Nothing here orders memory: the pool must.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What every block is a multiple of.
pub(crate) const UNIT: u64 = 512;
const UNITS_PER_WORD: u64 = 64;
const CHUNK: u64 = 256 << 10;
pub(crate) const SLAB: u64 = 1 << 30;
/// The most slabs: addresses of a terabyte in use, however far apart they lie.
const SLABS: usize = 1024;

/// A chunk that one claim covers from end to end.
const WHOLE: u32 = 1 << 31;

/// What was claimed or released wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// Bytes that somebody has already.
    Taken {
        /// About where.
        at: u64,
    },
    /// Bytes that nobody has, or not as one block.
    NotTaken {
        /// About where.
        at: u64,
    },
    /// A span that is not made of units, or passes the end of addresses.
    Malformed {
        /// Where it begins.
        at: u64,
    },
    /// More addresses than can be looked after.
    TooFar {
        /// The one that is too many.
        at: u64,
    },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { at } => write!(f, "bytes about {at:#x} are in a live block already"),
            Self::NotTaken { at } => write!(f, "bytes about {at:#x} are in no live block"),
            Self::Malformed { at } => write!(f, "{at:#x} or its end is no multiple of {UNIT} B"),
            Self::TooFar { at } => write!(f, "{at:#x} is in more than {SLABS} slabs of addresses"),
        }
    }
}

/// A gigabyte of addresses.
struct Slab {
    number: u64,
    chunks: Box<[AtomicU32]>,
    words: Box<[AtomicU64]>,
}

impl Slab {
    fn new(number: u64) -> Self {
        let chunks = (0..SLAB / CHUNK).map(|_| AtomicU32::new(0)).collect();
        let words = (0..SLAB / UNIT / UNITS_PER_WORD).map(|_| AtomicU64::new(0)).collect();
        Self { number, chunks, words }
    }
}

/// Part of a block: what of it lies in one chunk, from the start of the slab.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
}

impl Part {
    fn is_whole(self) -> bool {
        self.end - self.start == CHUNK
    }

    fn chunk(self, slab: &Slab) -> Option<&AtomicU32> {
        slab.chunks.get(usize::try_from(self.start / CHUNK).ok()?)
    }

    /// The words its units lie in, each with the bits of those units.
    fn words(self, slab: &Slab) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (first, end) = (self.start / UNIT, self.end / UNIT);
        (first / UNITS_PER_WORD..end.div_ceil(UNITS_PER_WORD)).filter_map(move |word| {
            let from = first.saturating_sub(word * UNITS_PER_WORD);
            let to = (end - word * UNITS_PER_WORD).min(UNITS_PER_WORD);
            // `to` is at least 1 and above `from`, since the word has a unit of the part.
            let mask = (u64::MAX >> (UNITS_PER_WORD - to)) & (u64::MAX << from);
            Some((slab.words.get(usize::try_from(word).ok()?)?, mask))
        })
    }
}

/// Who has which bytes.
pub(crate) struct Claims {
    slabs: Box<[OnceLock<Slab>]>,
}

impl Default for Claims {
    fn default() -> Self {
        Self { slabs: (0..SLABS).map(|_| OnceLock::new()).collect() }
    }
}

impl Claims {
    /// Claims the block: none of it may be claimed.
    pub(crate) fn claim(&self, start: u64, size: u64) -> Result<(), Conflict> {
        self.each_part(start, size, |slab, part, at| {
            let taken = Conflict::Taken { at };
            let chunk = part.chunk(slab).ok_or(taken)?;
            if part.is_whole() {
                let claimed =
                    chunk.compare_exchange(0, WHOLE, Ordering::Relaxed, Ordering::Relaxed);
                return claimed.map(drop).map_err(|_| taken);
            }
            if chunk.fetch_add(1, Ordering::Relaxed) & WHOLE != 0 {
                return Err(taken);
            }
            for (word, mask) in part.words(slab) {
                if word.fetch_or(mask, Ordering::Relaxed) & mask != 0 {
                    return Err(taken);
                }
            }
            Ok(())
        })
    }

    /// Releases a block that was claimed as it is.
    pub(crate) fn release(&self, start: u64, size: u64) -> Result<(), Conflict> {
        self.each_part(start, size, |slab, part, at| {
            let absent = Conflict::NotTaken { at };
            let chunk = part.chunk(slab).ok_or(absent)?;
            if part.is_whole() {
                let freed = chunk.compare_exchange(WHOLE, 0, Ordering::Relaxed, Ordering::Relaxed);
                return freed.map(drop).map_err(|_| absent);
            }
            for (word, mask) in part.words(slab) {
                if word.fetch_and(!mask, Ordering::Relaxed) & mask != mask {
                    return Err(absent);
                }
            }
            let before = chunk.fetch_sub(1, Ordering::Relaxed);
            if before == 0 || before & WHOLE != 0 { Err(absent) } else { Ok(()) }
        })
    }

    /// Whether nobody has the unit at `at`.
    pub(crate) fn is_free(&self, at: u64) -> bool {
        let unit = at / UNIT * UNIT;
        let looked = self.each_part(unit, UNIT, |slab, part, at| {
            let whole = part.chunk(slab).is_some_and(|c| c.load(Ordering::Relaxed) & WHOLE != 0);
            let set = |(word, mask): (&AtomicU64, u64)| word.load(Ordering::Relaxed) & mask != 0;
            let taken = whole || part.words(slab).any(set);
            if taken { Err(Conflict::Taken { at }) } else { Ok(()) }
        });
        looked.is_ok()
    }

    /// Whether nothing is claimed.
    pub(crate) fn is_empty(&self) -> bool {
        let slabs = self.slabs.iter().filter_map(OnceLock::get);
        slabs.flat_map(|slab| slab.chunks.iter()).all(|chunk| chunk.load(Ordering::Relaxed) == 0)
    }

    fn each_part(
        &self,
        start: u64,
        size: u64,
        mut act: impl FnMut(&Slab, Part, u64) -> Result<(), Conflict>,
    ) -> Result<(), Conflict> {
        let malformed = Conflict::Malformed { at: start };
        let end = start.checked_add(size).filter(|_| size > 0).ok_or(malformed)?;
        if !start.is_multiple_of(UNIT) || !end.is_multiple_of(UNIT) {
            return Err(malformed);
        }
        let mut at = start;
        while at < end {
            let slab = self.slab(at)?;
            let base = slab.number * SLAB;
            // No chunk reaches beyond its slab.
            let stop = (at / CHUNK * CHUNK).saturating_add(CHUNK).min(end);
            act(slab, Part { start: at - base, end: stop - base }, at)?;
            at = stop;
        }
        Ok(())
    }

    /// The slab of an address, made when it is first asked for.
    fn slab(&self, at: u64) -> Result<&Slab, Conflict> {
        let number = at / SLAB;
        // Neighbours lie side by side, and the first place tried is nearly always the one.
        let first = usize::try_from(number % SLABS as u64).unwrap_or(0);
        let places = self.slabs.iter().cycle().skip(first).take(SLABS);
        let mut found = places.map(|place| place.get_or_init(|| Slab::new(number)));
        found.find(|slab| slab.number == number).ok_or(Conflict::TooFar { at })
    }
}
