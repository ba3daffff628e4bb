//! Donors: free pages that a plan may move, those in the smallest holes first, because these holes are the least likely
//! to serve a request; of one hole's, the largest first.
//!
//! ```text
//!   holes by length   [4][4][4]  [6]  [6]   [30 .......]      pages are looked up as far as the plan needs them
//!   pages              4  4  4    4,2  2,2,2  ...
//! ```
//!
//! A plan for many gaps takes, for each gap, the first donors that fit in it. A tree over the donors so far finds the
//! next one that is small enough, so that a gap costs a logarithm, not a look at every donor that is too large for it.

use core::cmp::Reverse;
use core::iter::Peekable;

use crate::address_space::holes::visit;
use crate::address_space::{Holes, Offset, PageTable};

/// A free page: where it is, and its size.
pub(super) type Donor = (Offset, u64);

/// All pages that are free in the order of `taker`, in order of preference.
pub(super) fn sorted(table: &PageTable, holes: &Holes, taker: u32) -> Vec<Donor> {
    // Neighbouring holes that the taker may use are merged, so a page that is free for it lies within one hole.
    let mut pages: Vec<(u64, Reverse<u64>, Offset)> = Vec::new();
    holes.index.each_for(taker, table.granule().bytes().get(), |start, end| {
        let inside = pages_within(table, start, end);
        pages.extend(inside.map(|(from, size)| (end - start, Reverse(size), from)));
    });
    pages.sort_unstable();
    pages.into_iter().map(|(_, size, from)| (from, size.0)).collect()
}

/// The pages that lie entirely in `start..end`.
fn pages_within(table: &PageTable, start: Offset, end: Offset) -> impl Iterator<Item = Donor> {
    visit();
    let pages = table.pages_from(start, end).map(|(from, _, size)| (from, size.get()));
    pages.filter(move |&(from, size)| from + size <= end)
}

/// The same, looked up one hole after another.
pub(super) struct ByLength<'a, I: Iterator> {
    table: &'a PageTable,
    /// The length and the start of each hole, the shortest first.
    holes: Peekable<I>,
    /// The length of the holes that are being walked.
    length: u64,
    /// Pages of these holes that are smaller than the hole: after all that are not.
    smaller: Vec<(Reverse<u64>, Offset)>,
    /// The same, sorted, the next one last.
    ready: Vec<Donor>,
}

impl<'a, I: Iterator<Item = (u64, Offset)>> ByLength<'a, I> {
    pub(super) fn new(table: &'a PageTable, holes: I) -> Self {
        let (smaller, ready) = (Vec::new(), Vec::new());
        Self { table, holes: holes.peekable(), length: 0, smaller, ready }
    }
}

impl<I: Iterator<Item = (u64, Offset)>> Iterator for ByLength<'_, I> {
    type Item = Donor;

    fn next(&mut self) -> Option<Donor> {
        loop {
            if let Some(donor) = self.ready.pop() {
                return Some(donor);
            }
            let length = self.holes.peek().map(|hole| hole.0);
            if length != Some(self.length) {
                self.length = length.unwrap_or(0);
                self.smaller.sort_unstable_by(|one, other| other.cmp(one));
                self.ready.extend(self.smaller.drain(..).map(|(size, from)| (from, size.0)));
                if self.ready.is_empty() && length.is_none() {
                    return None;
                }
                continue;
            }
            let (length, start) = self.holes.next()?;
            for (from, size) in pages_within(self.table, start, start + length) {
                if size == length {
                    return Some((from, size));
                }
                self.smaller.push((Reverse(size), from));
            }
        }
    }
}

/// Donors of which the first that is small enough is taken, again and again.
#[derive(Debug)]
pub(super) struct FirstFit<I> {
    source: I,
    /// Those that were looked at so far.
    seen: Vec<Donor>,
    /// The least size under each node of a binary tree whose leaves are `seen`; the children of node `n` are `2 n` and
    /// `2 n + 1`. [`TAKEN`] for what is gone.
    least: Vec<u64>,
    /// How many leaves the tree has room for.
    width: usize,
}

/// The size of a donor that was taken.
const TAKEN: u64 = u64::MAX;

impl<I: Iterator<Item = Donor>> FirstFit<I> {
    pub(super) fn new(source: I) -> Self {
        Self { source, seen: Vec::new(), least: vec![TAKEN; 2], width: 1 }
    }

    /// Takes the first donor of at most `most` bytes, not before number `from`. Returns its number too.
    pub(super) fn take(&mut self, from: usize, most: u64) -> Option<(usize, Donor)> {
        if let Some(number) = self.find(1, 0, self.width, from, most) {
            self.set(number, TAKEN);
            return self.seen.get(number).map(|&donor| (number, donor));
        }
        loop {
            let donor = self.source.next()?;
            let number = self.seen.len();
            self.seen.push(donor);
            if donor.1 <= most {
                return Some((number, donor));
            }
            self.set(number, donor.1);
        }
    }

    /// The first leaf from `from` on, among the `width` leaves from `low` under a node, that has at most `most` bytes.
    fn find(&self, node: usize, low: usize, width: usize, from: usize, most: u64) -> Option<usize> {
        visit();
        if low + width <= from || self.least.get(node).is_none_or(|&least| least > most) {
            return None;
        }
        if width == 1 {
            return Some(low);
        }
        let half = width / 2;
        self.find(2 * node, low, half, from, most)
            .or_else(|| self.find(2 * node + 1, low + half, half, from, most))
    }

    /// Sets the size of a leaf.
    fn set(&mut self, number: usize, size: u64) {
        while number >= self.width {
            self.widen();
        }
        let mut node = self.width + number;
        if let Some(leaf) = self.least.get_mut(node) {
            *leaf = size;
        }
        while node > 1 {
            node /= 2;
            let of = |node: usize| self.least.get(node).copied().unwrap_or(TAKEN);
            let least = of(2 * node).min(of(2 * node + 1));
            if let Some(inner) = self.least.get_mut(node) {
                *inner = least;
            }
        }
    }

    /// Doubles the tree: the old one becomes the left half.
    fn widen(&mut self) {
        let mut least = vec![TAKEN; 4 * self.width];
        // The nodes of a level are as many as the number of the first.
        let mut level = 1;
        while level <= self.width {
            let old = self.least.get(level..2 * level).unwrap_or_default();
            let new = least.get_mut(2 * level..3 * level).unwrap_or_default();
            new.copy_from_slice(old);
            level *= 2;
        }
        if let (Some(root), Some(&old)) = (least.get_mut(1), self.least.get(1)) {
            *root = old;
        }
        (self.least, self.width) = (least, 2 * self.width);
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
            let mut fit = FirstFit::new(donors.clone().into_iter());
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
