//! The peaks of open scopes.
//!
//! ```text
//!   scope   0    1    2    3    4        a scope that began later has seen fewer values, so its peak is not higher:
//!   peak    9    9    7    4    4        scopes with equal peaks are neighbours, and one entry holds all of them
//!   entry  (0: 9, 2 open) (2: 7) (3: 4, 2 open)
//! ```
//!
//! A new value raises the peaks of the last entries and merges them into one. Every entry that this removes was added
//! when a scope began, so a value costs the same however many scopes are open.

use std::collections::BTreeMap;

use forebay_core::Bytes;

/// The peak of neighbouring scopes.
#[derive(Clone, Copy, Debug)]
struct Shared {
    peak: Bytes,
    open: u64,
}

/// The most bytes out of the holes since each open scope began.
#[derive(Debug, Default)]
pub(in crate::pool) struct ScopePeaks {
    /// By the number of the first scope that has this peak; the peaks fall.
    entries: BTreeMap<u64, Shared>,
    /// The lowest peak, that of the last entry.
    lowest: Bytes,
    next: u64,
}

impl ScopePeaks {
    /// Begins a scope while `out` bytes are out of the holes. Returns its number.
    pub(in crate::pool) fn open(&mut self, out: Bytes) -> u64 {
        self.note(out);
        let number = self.next;
        self.next += 1;
        match self.entries.last_entry().filter(|last| last.get().peak == out) {
            Some(mut last) => last.get_mut().open += 1,
            None => _ = self.entries.insert(number, Shared { peak: out, open: 1 }),
        }
        self.lowest = out;
        number
    }

    /// Notes how many bytes are out of the holes now.
    #[inline]
    pub(in crate::pool) fn note(&mut self, out: Bytes) {
        if out > self.lowest && !self.entries.is_empty() {
            self.raise(out);
        }
    }

    #[cold]
    fn raise(&mut self, out: Bytes) {
        let mut raised: Option<(u64, u64)> = None;
        while let Some(last) = self.entries.last_entry().filter(|last| last.get().peak <= out) {
            let (first, Shared { open, .. }) = last.remove_entry();
            raised = Some((first, raised.map_or(0, |(_, others)| others) + open));
        }
        if let Some((first, open)) = raised {
            self.entries.insert(first, Shared { peak: out, open });
            self.lowest = out;
        }
    }

    /// Ends a scope, once, and returns its peak.
    pub(in crate::pool) fn close(&mut self, number: u64) -> Option<Bytes> {
        let (&first, shared) = self.entries.range_mut(..=number).next_back()?;
        let peak = shared.peak;
        shared.open -= 1;
        if shared.open == 0 {
            self.entries.remove(&first);
            self.lowest = self.entries.last_key_value().map_or(Bytes::ZERO, |last| last.1.peak);
        }
        Some(peak)
    }

    /// The number of entries.
    #[cfg(test)]
    pub(in crate::pool) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Random;

    use super::*;

    #[test]
    fn every_scope_has_the_peak_of_its_own_time() {
        for seed in 0..50 {
            let (mut random, mut peaks) = (Random::new(seed), ScopePeaks::default());
            let (mut open, mut out): (Vec<(u64, Bytes)>, Bytes) = (Vec::new(), Bytes::ZERO);
            for _ in 0..2_000 {
                match random.below(4) {
                    0 => open.push((peaks.open(out), out)),
                    1 => {
                        let Some(index) = random.index(open.len()) else { continue };
                        let (number, peak) = open.swap_remove(index);
                        assert_eq!(peaks.close(number), Some(peak), "seed {seed}");
                    }
                    _ => {
                        out = Bytes::new(random.below(1_000));
                        peaks.note(out);
                        open.iter_mut().for_each(|(_, peak)| *peak = (*peak).max(out));
                    }
                }
                assert!(peaks.len() <= open.len(), "an entry without a scope");
            }
            open.drain(..).for_each(|(number, peak)| assert_eq!(peaks.close(number), Some(peak)));
            assert_eq!(peaks.len(), 0);
        }
    }

    /// However many scopes are open: the entries that a value removes were added by scopes.
    #[test]
    fn ten_thousand_scopes_share_one_entry_after_a_new_peak() {
        let mut peaks = ScopePeaks::default();
        for number in 0..10_000 {
            peaks.open(Bytes::new(10_000 - number));
        }
        assert_eq!(peaks.len(), 10_000);
        peaks.note(Bytes::new(20_000));
        assert_eq!(peaks.len(), 1, "the next value looks at one entry");
        assert_eq!(peaks.close(17), Some(Bytes::new(20_000)));
    }
}
