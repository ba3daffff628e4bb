//! A map keyed by address spans.

use core::ops::Range;
use std::collections::BTreeMap;

use forebay_core::{Address, Span};

/// What lies at a span of addresses.
pub(super) trait Spanned {
    fn span(&self) -> Span;
}

/// Values by their first address. No two overlap, so a lookup is one search in the tree.
#[derive(Clone, Debug)]
pub(super) struct SpanMap<V>(BTreeMap<Address, V>);

impl<V> Default for SpanMap<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V: Spanned> SpanMap<V> {
    /// Inserts a value. The caller has made sure that it overlaps no other.
    pub(super) fn insert(&mut self, value: V) {
        self.0.insert(value.span().start(), value);
    }

    /// Removes the value that starts at `start`.
    pub(super) fn remove(&mut self, start: Address) -> Option<V> {
        self.0.remove(&start)
    }

    /// The value that contains `address`.
    pub(super) fn at(&self, address: Address) -> Option<&V> {
        let (_, value) = self.0.range(..=address).next_back()?;
        value.span().contains(address).then_some(value)
    }

    /// The value that contains `address`, to change it.
    pub(super) fn at_mut(&mut self, address: Address) -> Option<&mut V> {
        let (_, value) = self.0.range_mut(..=address).next_back()?;
        value.span().contains(address).then_some(value)
    }

    /// The values that share a byte with `span`, by address.
    pub(super) fn overlapping(&self, span: Span) -> impl DoubleEndedIterator<Item = &V> {
        let values = self.0.range(self.range_of(span)).map(|(_, value)| value);
        values.filter(move |value| value.span().overlaps(span))
    }

    /// The values that share a byte with `span`, to change them.
    pub(super) fn overlapping_mut(&mut self, span: Span) -> impl Iterator<Item = &mut V> {
        let values = self.0.range_mut(self.range_of(span)).map(|(_, value)| value);
        values.filter(move |value| value.span().overlaps(span))
    }

    /// The first addresses of values that can overlap `span`.
    fn range_of(&self, span: Span) -> Range<Address> {
        let first = self.at(span.start()).map_or(span.start(), |value| value.span().start());
        first..span.end()
    }

    /// All values, by address.
    pub(super) fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.0.values()
    }
}
