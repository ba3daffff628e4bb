//! Spans of addresses: reserved ranges, the gaps in them, and runs of adjacent pages.
//!
//! ```text
//!   [    span    ]      [ span ][   span   ]      no two overlap; two that touch are apart unless they were joined
//! ```

use std::collections::BTreeMap;

use super::Offset;

/// Spans that do not overlap: where each begins, and where it ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(BTreeMap<Offset, Offset>);

impl Spans {
    /// The span that contains all of `start..end`.
    #[inline]
    pub(super) fn around(&self, start: Offset, end: Offset) -> Option<(Offset, Offset)> {
        let (&first, &last) = self.0.range(..=start).next_back()?;
        (end <= last).then_some((first, last))
    }

    /// Whether a span overlaps `start..end`.
    pub(super) fn meets(&self, start: Offset, end: Offset) -> bool {
        let below = self.0.range(..end).next_back();
        below.is_some_and(|(_, &last)| last > start)
    }

    /// Adds a span that overlaps none.
    pub(super) fn add(&mut self, start: Offset, end: Offset) {
        self.0.insert(start, end);
    }

    /// Adds a span that overlaps none and merges it with the spans that touch it, if `below` and `above`
    /// allow.
    pub(super) fn add_joined(&mut self, start: Offset, end: Offset, below: bool, above: bool) {
        let next = if above { self.0.remove(&end) } else { None };
        let end = next.unwrap_or(end);
        match self.0.range_mut(..start).next_back() {
            Some((_, last)) if *last == start && below => *last = end,
            _ => self.add(start, end),
        }
    }

    /// Removes `start..end` from the span that contains it.
    pub(super) fn cut(&mut self, start: Offset, end: Offset) {
        let Some((first, last)) = self.around(start, end) else { return };
        self.0.remove(&first);
        if first < start {
            self.0.insert(first, start);
        }
        if end < last {
            self.0.insert(end, last);
        }
    }

    /// The number of spans.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The spans that overlap `start..end`, lowest first.
    pub(super) fn overlapping(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = (Offset, Offset)> {
        let below = self.0.range(..start).next_back().filter(|(_, last)| **last > start);
        let inside = self.0.range(start..end.max(start));
        below.into_iter().chain(inside).map(|(&start, &end)| (start, end))
    }

    /// Every span, lowest first.
    pub(super) fn each(&self) -> impl DoubleEndedIterator<Item = (Offset, Offset)> {
        self.0.iter().map(|(&start, &end)| (start, end))
    }

    /// Whether a span begins at `at`.
    pub(super) fn begins_at(&self, at: Offset) -> bool {
        self.0.contains_key(&at)
    }
}
