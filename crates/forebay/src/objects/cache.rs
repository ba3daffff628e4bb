//! The objects cached by one thread, behind the thread's gate.

use super::object::{Eviction, Object, Rank};

/// Slots preallocated on reservation, so that returns do not allocate. A cache may be larger; it then grows on use.
const READY: usize = 1024;

/// A thread's cache: a stack of the objects that it returned most recently.
#[derive(Debug)]
pub(super) struct ObjectCache<T> {
    /// From the least to the most recently returned, at most `reserved`.
    objects: Vec<Box<Object<T>>>,
    /// How many objects the pool has reserved for this cache.
    reserved: usize,
    /// Total objects taken from it.
    pub(super) taken: u64,
    /// Total objects returned to it.
    pub(super) returned: u64,
}

impl<T> Default for ObjectCache<T> {
    fn default() -> Self {
        Self { objects: Vec::new(), reserved: 0, taken: 0, returned: 0 }
    }
}

impl<T> ObjectCache<T> {
    /// Takes the most recently returned object.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Box<Object<T>>> {
        let object = self.objects.pop()?;
        self.taken = self.taken.wrapping_add(1);
        Some(object)
    }

    /// Keeps an object if there is room, and leaves `None` behind.
    #[inline(always)]
    pub(super) fn keep(&mut self, object: &mut Option<Box<Object<T>>>, tick: u64) {
        if self.objects.len() < self.reserved
            && let Some(mut object) = object.take()
        {
            object.returned = tick;
            self.returned = self.returned.wrapping_add(1);
            self.objects.push(object);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Raises the number of objects it may hold.
    pub(super) fn reserve(&mut self, more: usize) {
        self.reserved += more;
        self.objects.reserve(self.reserved.saturating_sub(self.objects.len()).min(READY));
    }

    /// Puts an object on top.
    pub(super) fn push(&mut self, object: Box<Object<T>>) {
        self.objects.push(object);
    }

    /// Puts objects below all others, the first lowest.
    pub(super) fn fill(&mut self, objects: Vec<Box<Object<T>>>) {
        self.objects.splice(0..0, objects);
    }

    /// Takes the `count` least recently returned objects, in that order.
    pub(super) fn take_oldest(&mut self, count: usize) -> impl Iterator<Item = Box<Object<T>>> {
        self.objects.drain(..count.min(self.objects.len()))
    }

    /// The position and rank of the object that `policy` evicts first.
    pub(super) fn lowest(&self, policy: Eviction) -> Option<(usize, Rank)> {
        let ranks = self.objects.iter().map(|object| policy.rank(object));
        ranks.enumerate().min_by_key(|&(_, rank)| rank)
    }

    /// Takes the object at a position.
    pub(super) fn take_at(&mut self, position: usize) -> Option<Box<Object<T>>> {
        (position < self.objects.len()).then(|| self.objects.remove(position))
    }

    /// Takes all objects, least recently returned first, and gives up the reservation.
    pub(super) fn clear(&mut self) -> (Vec<Box<Object<T>>>, usize) {
        (core::mem::take(&mut self.objects), core::mem::take(&mut self.reserved))
    }
}
