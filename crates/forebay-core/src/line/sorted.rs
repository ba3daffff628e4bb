//! A sorted set whose elements can be changed in place.
//!
//! Elements lie in chunks of at most a few cache lines each, so that finding is two short searches and
//! inserting moves a few hundred bytes, however many there are. Against a tree of the standard library
//! it saves what free memory does all the time: an element that grows, shrinks or moves a little among
//! its neighbours keeps its place.

/// How many elements a chunk holds at most. Half of it is moved by an insertion on average.
const CHUNK: usize = 64;

/// A sorted set. Whoever changes an element in place keeps it between its neighbours.
#[derive(Clone, Debug)]
pub(super) struct Sorted<T> {
    /// No chunk is empty.
    chunks: Vec<Vec<T>>,
    len: usize,
}

/// A place between elements: before the one it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    chunk: usize,
    index: usize,
}

impl<T> Default for Sorted<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T: Copy> Sorted<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first place whose element `before` is not true of; `before` is true of a head of the set.
    pub(super) fn seek(&self, before: impl Fn(&T) -> bool) -> Cursor {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(&before));
        let index = self.chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(&before));
        Cursor { chunk, index }
    }

    /// The element after a place.
    pub(super) fn get(&self, at: Cursor) -> Option<&T> {
        self.chunks.get(at.chunk)?.get(at.index)
    }

    pub(super) fn get_mut(&mut self, at: Cursor) -> Option<&mut T> {
        self.chunks.get_mut(at.chunk)?.get_mut(at.index)
    }

    /// The place before the element before a place.
    pub(super) fn before(&self, at: Cursor) -> Option<Cursor> {
        if let Some(index) = at.index.checked_sub(1) {
            return Some(Cursor { index, ..at });
        }
        let chunk = at.chunk.checked_sub(1)?;
        let index = self.chunks.get(chunk)?.len().checked_sub(1)?;
        Some(Cursor { chunk, index })
    }

    /// Inserts an element at a place that [`seek`](Self::seek) gave.
    pub(super) fn insert(&mut self, at: Cursor, element: T) {
        self.len += 1;
        // Past the last chunk is the end of the one before.
        let (chunk, index) = match self.chunks.get(at.chunk) {
            Some(_) => (at.chunk, at.index),
            None => match self.chunks.len().checked_sub(1) {
                Some(last) => (last, self.chunks.get(last).map_or(0, Vec::len)),
                None => {
                    let mut first = Vec::with_capacity(CHUNK);
                    first.push(element);
                    self.chunks.push(first);
                    return;
                }
            },
        };
        let Some(elements) = self.chunks.get_mut(chunk) else { return };
        if elements.len() < CHUNK {
            elements.insert(index.min(elements.len()), element);
            return;
        }
        let mut upper = Vec::with_capacity(CHUNK);
        upper.extend(elements.drain(CHUNK / 2..));
        match index.checked_sub(CHUNK / 2) {
            Some(index) if index > 0 => upper.insert(index.min(upper.len()), element),
            _ => elements.insert(index.min(elements.len()), element),
        }
        self.chunks.insert(chunk + 1, upper);
    }

    /// Takes out the element after a place.
    pub(super) fn remove(&mut self, at: Cursor) -> Option<T> {
        let elements = self.chunks.get_mut(at.chunk)?;
        if at.index >= elements.len() {
            return None;
        }
        let element = elements.remove(at.index);
        if elements.is_empty() {
            self.chunks.remove(at.chunk);
        }
        self.len -= 1;
        Some(element)
    }

    /// All elements, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// All elements from a place on, in order.
    pub(super) fn from(&self, at: Cursor) -> impl Iterator<Item = &T> {
        let first = self.chunks.get(at.chunk).and_then(|chunk| chunk.get(at.index..));
        let rest = self.chunks.get(at.chunk.saturating_add(1)..);
        first.into_iter().flatten().chain(rest.into_iter().flatten().flatten())
    }

    pub(super) fn last(&self) -> Option<&T> {
        self.chunks.last()?.last()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Random;

    #[test]
    fn is_what_a_tree_is() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut sorted, mut tree) = (Sorted::default(), BTreeSet::new());
            for step in 0..4000 {
                let key = random.below(2000);
                let at = sorted.seek(|&other| other < key);
                assert_eq!(sorted.get(at), tree.range(key..).next(), "seed {seed} step {step}");
                let before = sorted.before(at).and_then(|at| sorted.get(at));
                assert_eq!(before, tree.range(..key).next_back());
                if tree.contains(&key) {
                    assert_eq!(sorted.remove(at), Some(key));
                    tree.remove(&key);
                } else if random.chance(2, 3) || step < 1000 {
                    sorted.insert(at, key);
                    tree.insert(key);
                } else if let Some(&next) = tree.range(key..).next() {
                    // Moved down among its neighbours, in place.
                    *sorted.get_mut(at).unwrap() = key;
                    tree.remove(&next);
                    tree.insert(key);
                }
                assert_eq!((sorted.len(), sorted.is_empty()), (tree.len(), tree.is_empty()));
                assert_eq!(sorted.last(), tree.last());
            }
            assert!(sorted.iter().eq(&tree), "seed {seed}");
            let middle = sorted.seek(|&other| other < 1000);
            assert!(sorted.from(middle).eq(tree.range(1000..)));
            while let Some(&first) = tree.first() {
                let at = sorted.seek(|&other| other < first);
                assert_eq!(sorted.remove(at), tree.pop_first());
            }
            assert!(sorted.is_empty() && sorted.remove(sorted.seek(|_| true)).is_none());
        }
    }
}
