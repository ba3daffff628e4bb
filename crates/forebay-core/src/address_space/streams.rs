//! Sets of streams: in whose order memory is free.
//!
//! ```text
//!   summary   0…0101        bit n is set if and only if word n is not zero
//!   words     [ streams 0 to 63 ][ 0 ][ streams 128 to 191 ] …
//! ```

/// How many words hold the numbers of a set.
const WORDS: usize = 32;

/// A set of streams, by small numbers.
///
/// [`Streams::ALL`] is more than the set of all numbers: it also contains every stream without a number
/// and every stream that will ever get one. So a number can be reused without taking it out of the
/// memory that is free for all.
///
/// Most sets have one stream. The summary says which words are not zero, so that comparing two sets
/// usually reads one word of each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams {
    /// Whether it also contains streams without a number. Only [`Streams::ALL`] does.
    rest: bool,
    /// Which words are not zero.
    summary: u32,
    words: [u64; WORDS],
}

impl Streams {
    /// No stream.
    pub const NONE: Self = Self { rest: false, summary: 0, words: [0; WORDS] };
    /// Every current and future stream.
    pub const ALL: Self = Self { rest: true, summary: u32::MAX, words: [u64::MAX; WORDS] };

    /// How many streams can be told apart.
    pub const MAX: u32 = 2048;

    /// The set of one stream. Numbers from [`Streams::MAX`] on give the empty set: no stream may use
    /// memory freed there until the device is known to be idle.
    #[inline]
    pub const fn only(number: u32) -> Self {
        let mut set = Self::NONE;
        if number < Self::MAX {
            set.summary = 1 << (number / 64);
            set.words[(number / 64) as usize] = 1 << (number % 64);
        }
        set
    }

    /// Whether it contains all of `other`.
    #[inline]
    pub fn contains(&self, other: Self) -> bool {
        self.has(&other)
    }

    /// [`contains`](Self::contains) without copying the other set.
    #[inline]
    pub(super) fn has(&self, other: &Self) -> bool {
        if other.summary & !self.summary != 0 || other.rest && !self.rest {
            return false;
        }
        other.filled().all(|word| self.word(word) & other.word(word) == other.word(word))
    }

    /// Whether `taker` may use memory that is free in the order of these streams. An empty taker is a
    /// stream without a number: it may only use memory that is free for all.
    #[inline]
    pub(super) fn serve(&self, taker: &Self) -> bool {
        if taker.is_empty() { self.rest } else { self.has(taker) }
    }

    /// Whether the two have a stream in common.
    #[inline]
    pub(super) fn meets(&self, other: &Self) -> bool {
        let mut common = words(self.summary & other.summary);
        common.any(|word| self.word(word) & other.word(word) != 0)
    }

    /// Whether the stream with this number is in it.
    #[inline]
    pub(super) fn has_number(&self, number: u32) -> bool {
        self.word((number / 64) as usize) >> (number % 64) & 1 != 0
    }

    /// Whether it is [`Streams::ALL`].
    #[inline]
    pub(super) const fn is_all(&self) -> bool {
        self.rest
    }

    /// Whether it is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.summary == 0
    }

    /// The intersection.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let mut both = Self { rest: self.rest && other.rest, ..Self::NONE };
        for word in words(self.summary & other.summary) {
            both.set_word(word, self.word(word) & other.word(word));
        }
        both
    }

    /// The union.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.rest |= other.rest;
        for word in other.filled() {
            self.set_word(word, self.word(word) | other.word(word));
        }
        self
    }

    /// The difference: the streams in `self` but not in `other`.
    #[must_use]
    pub fn without(mut self, other: Self) -> Self {
        self.rest &= !other.rest;
        for word in other.filled() {
            self.set_word(word, self.word(word) & !other.word(word));
        }
        self
    }

    /// The numbers of its streams, lowest first.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        let words = ones(self.summary.into()).map(move |word| (word, self.word(word as usize)));
        words.flat_map(|(word, bits)| ones(bits).map(move |bit| word * 64 + bit))
    }

    /// The numbers that only `after` has, with `true`, and those that only this has, with `false`. [`Streams::ALL`]
    /// counts as if it had none.
    pub(super) fn changes_to(&self, after: &Self) -> impl Iterator<Item = (u32, bool)> {
        let filled = |set: &Self| if set.rest { 0 } else { set.summary };
        let (from, to) = (filled(self), filled(after));
        ones((from | to).into()).flat_map(move |word| {
            let bits = |set: &Self, summary: u32| {
                if summary >> word & 1 == 0 { 0 } else { set.word(word as usize) }
            };
            let (old, new) = (bits(self, from), bits(after, to));
            let added = ones(new & !old).map(move |bit| (word * 64 + bit, true));
            added.chain(ones(old & !new).map(move |bit| (word * 64 + bit, false)))
        })
    }

    /// A number that equal sets have in common, and different sets hardly ever.
    #[inline]
    pub(super) fn fingerprint(&self) -> u64 {
        // Any odd numbers with many bits do.
        const ONE: u64 = 0x9e37_79b9_7f4a_7c15;
        const OTHER: u64 = 0xd6e8_feb8_6659_fd93;
        let words = ones(self.summary.into()).map(|word| {
            let bits = self.word(word as usize) ^ ONE.rotate_left(word);
            let mixed = bits.wrapping_mul(OTHER);
            (mixed ^ mixed >> 32).wrapping_mul(ONE)
        });
        words.fold(u64::from(self.rest), |sum, word| sum.rotate_left(1).wrapping_add(word))
    }

    /// Whether it has one stream.
    #[inline]
    pub(super) fn is_single(&self) -> bool {
        let only = self.summary.trailing_zeros() as usize;
        self.summary.is_power_of_two() && self.word(only).is_power_of_two()
    }

    /// The lowest of its numbers.
    #[inline]
    pub(super) fn lowest(&self) -> Option<u32> {
        let word = (self.summary != 0).then(|| self.summary.trailing_zeros())?;
        Some(word * 64 + self.word(word as usize).trailing_zeros())
    }

    #[inline]
    fn set_word(&mut self, number: usize, word: u64) {
        let Some(into) = self.words.get_mut(number) else { return };
        *into = word;
        self.summary = self.summary & !(1 << number) | u32::from(word != 0) << number;
    }

    #[inline]
    fn word(&self, number: usize) -> u64 {
        self.words.get(number).copied().unwrap_or(0)
    }

    /// The words that are not zero.
    #[inline]
    fn filled(&self) -> impl Iterator<Item = usize> {
        words(self.summary)
    }
}

/// A set of streams by reference, or one stream by its number, which is the common case.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamsRef<'a> {
    /// The stream with this number. Numbers from [`Streams::MAX`] on are in no set.
    One(u32),
    /// All of these streams. A set of one stream is [`StreamsRef::One`] instead.
    Many(&'a Streams),
}

impl<'a> StreamsRef<'a> {
    /// A reference to a set.
    #[inline]
    pub(super) fn of(streams: &'a Streams) -> Self {
        match streams.lowest().filter(|_| streams.is_single()) {
            Some(number) => Self::One(number),
            None => Self::Many(streams),
        }
    }

    /// Its set.
    pub(super) fn set(&self) -> Streams {
        match *self {
            Self::One(number) => Streams::only(number),
            Self::Many(streams) => *streams,
        }
    }
}

/// The words that a summary says are not zero.
#[inline]
fn words(summary: u32) -> impl Iterator<Item = usize> {
    ones(summary.into()).map(|word| word as usize)
}

/// The numbers of the bits that are set.
#[inline]
pub(super) fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(lowest)
    })
}

impl PartialEq for Streams {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.summary == other.summary
            && self.rest == other.rest
            && self.filled().all(|word| self.word(word) == other.word(word))
    }
}

impl Eq for Streams {}
