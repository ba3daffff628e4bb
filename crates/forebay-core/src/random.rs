//! A generator of our own, so that a seed means the same run in every version of every crate.

/// SplitMix64: one 64-bit state, every seed good, the same numbers everywhere. Not for secrets.
///
/// ```
/// use forebay_core::Random;
/// let mut one = Random::new(7);
/// let mut two = Random::new(7);
/// assert_eq!(one.next_u64(), two.next_u64());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator that starts from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product: even to one part in 2^64 / bound, and no division.
        let product = u128::from(self.next_u64()) * u128::from(bound);
        #[allow(clippy::cast_possible_truncation)] // the high half of 128 bits is 64 bits
        let high = (product >> 64) as u64;
        high
    }

    /// A number from `least` to `most`, both included; `least` if they are the wrong way round.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        match most.checked_sub(least).and_then(|width| width.checked_add(1)) {
            Some(width) => least + self.below(width),
            None if most < least => least,
            None => self.next_u64(),
        }
    }

    /// True `times` out of `of` times.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// An index below `length`; `None` for an empty list.
    pub fn index(&mut self, length: usize) -> Option<usize> {
        if length == 0 {
            return None;
        }
        usize::try_from(self.below(length as u64)).ok()
    }

    /// One of `items`; `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        self.index(items.len()).and_then(|index| items.get(index))
    }
}

#[cfg(test)]
mod tests;
