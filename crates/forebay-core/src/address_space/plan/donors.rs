//! Donors: free pages that a plan may move, those in the smallest holes first, because these holes are the least likely
//! to serve a request; within a hole, largest first.
//!
//! ```text
//!   donors    4  4  4  4  2  2  2  2        a gap takes the first that fit in it
//!   least     4     4     2     2
//!             4           2                 the least size of each part leads to the next one that is small enough
//! ```

use core::iter::repeat_n;

use crate::address_space::Offset;
use crate::address_space::holes::visit;

/// A free page: where it is, and its size.
pub(super) type Donor = (Offset, u64);

/// Donors from which the first that is small enough is taken, again and again: a gap costs logarithmic time, not a look
/// at every donor too large for it.
#[derive(Debug)]
pub(super) struct FirstFit {
    donors: Vec<Donor>,
    /// The least size under each node of a binary tree whose leaves are `donors`; the children of node `n` are `2 n` and
    /// `2 n + 1`. [`TAKEN`] for what is gone.
    least: Vec<u64>,
    /// How many leaves the tree has, a power of two.
    width: usize,
}

/// The size of a donor that was taken.
const TAKEN: u64 = u64::MAX;

impl FirstFit {
    pub(super) fn new(donors: Vec<Donor>) -> Self {
        let width = donors.len().next_power_of_two();
        let sizes = donors.iter().map(|donor| donor.1);
        let leaves = sizes.chain(repeat_n(TAKEN, width - donors.len()));
        let least = repeat_n(TAKEN, width).chain(leaves).collect();
        let mut fit = Self { donors, least, width };
        (1..width).rev().for_each(|node| fit.update(node));
        fit
    }

    /// Takes the first donor of at most `most` bytes, not before number `from`. Returns its number too.
    pub(super) fn take(&mut self, from: usize, most: u64) -> Option<(usize, Donor)> {
        let number = self.find(1, (0, self.width), from, most)?;
        let mut node = self.width + number;
        *self.least.get_mut(node)? = TAKEN;
        while node > 1 {
            node /= 2;
            self.update(node);
        }
        self.donors.get(number).map(|&donor| (number, donor))
    }

    /// The first leaf from `from` on, among the `width` leaves from `low` under a node, that has at most `most` bytes.
    fn find(
        &self,
        node: usize,
        (low, width): (usize, usize),
        from: usize,
        most: u64,
    ) -> Option<usize> {
        visit();
        if low + width <= from || self.least.get(node).is_none_or(|&least| least > most) {
            return None;
        }
        if width == 1 {
            return Some(low);
        }
        let half = width / 2;
        self.find(2 * node, (low, half), from, most)
            .or_else(|| self.find(2 * node + 1, (low + half, half), from, most))
    }

    /// Computes the least size under a node from those of its children.
    fn update(&mut self, node: usize) {
        let of = |node: usize| self.least.get(node).copied().unwrap_or(TAKEN);
        let least = of(2 * node).min(of(2 * node + 1));
        if let Some(inner) = self.least.get_mut(node) {
            *inner = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Against looking at every donor for every gap.
    #[test]
    fn the_first_donor_that_fits_is_taken() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut donors: Vec<Donor> =
                (0..random.below(40)).map(|at| (at, 1 + random.below(9))).collect();
            let mut fit = FirstFit::new(donors.clone());
            for _ in 0..30 {
                let (mut from, mut left, mut due) = (0, random.below(24), Vec::new());
                let mut rest = left;
                donors.retain(|&donor| {
                    let fits = donor.1 <= rest;
                    if fits {
                        rest -= donor.1;
                        due.push(donor);
                    }
                    !fits
                });
                let mut taken = Vec::new();
                while let Some((number, donor)) = fit.take(from, left) {
                    (from, left) = (number + 1, left - donor.1);
                    taken.push(donor);
                }
                assert_eq!(taken, due, "seed {seed}");
            }
        }
    }
}
