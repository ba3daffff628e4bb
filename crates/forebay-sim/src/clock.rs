//! Vector clocks: what happens before what.

/// A place in a vector clock: one for each stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClockSlot(pub(crate) usize);

/// For each stream, how much of its work is in the past of the clock's owner.
///
/// Work number `n` of the stream in slot `s` happens before an operation if and only if the operation's clock has `n`
/// or more in slot `s`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VectorClock {
    counts: Vec<u64>,
}

impl VectorClock {
    /// How much of the work of `slot` is in the past.
    pub(crate) fn count(&self, slot: ClockSlot) -> u64 {
        self.counts.get(slot.0).copied().unwrap_or(0)
    }

    /// Whether work `number` of `slot` is in the past.
    pub(crate) fn covers(&self, slot: ClockSlot, number: u64) -> bool {
        self.count(slot) >= number
    }

    /// One more piece of work of `slot`; gives its number.
    pub(crate) fn advance(&mut self, slot: ClockSlot) -> u64 {
        let number = self.count(slot) + 1;
        self.raise(slot, number);
        number
    }

    /// The work of `slot` up to `number` is now in the past.
    pub(crate) fn raise(&mut self, slot: ClockSlot, number: u64) {
        if self.counts.len() <= slot.0 {
            self.counts.resize(slot.0 + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(slot.0) {
            *count = (*count).max(number);
        }
    }

    /// Everything in `other`'s past is now in this one's.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = (*mine).max(*theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_covers_both_pasts() {
        let (a, b) = (ClockSlot(0), ClockSlot(3));
        let mut one = VectorClock::default();
        let mut two = VectorClock::default();
        assert_eq!(one.advance(a), 1);
        assert_eq!(two.advance(b), 1);
        assert_eq!(two.advance(b), 2);
        assert!(!one.covers(b, 1));
        one.join(&two);
        assert!(one.covers(a, 1) && one.covers(b, 2) && !one.covers(b, 3));
        assert!(!two.covers(a, 1));
    }
}
