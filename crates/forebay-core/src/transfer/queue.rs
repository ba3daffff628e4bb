//! Which transfer goes next.

use core::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Transfers that want turns, by priority. A turn is one piece.
///
/// A transfer has no turn while one of a higher priority wants one, which is thus held up only by pieces already begun.
/// Within a priority, the first few take turns and the rest wait until one of them ends, so that a few are done soon
/// instead of all of them late.
///
/// ```
/// use forebay_core::transfer::TransferQueue;
///
/// let mut queue = TransferQueue::new(2);
/// queue.push(0, "a");
/// queue.push(0, "b");
/// queue.push(0, "c");
/// queue.push(1, "urgent");
/// assert_eq!(queue.turn(), Some(&"urgent"));
/// queue.retire(1, &"urgent");
/// let turns: Vec<_> = (0..4).filter_map(|_| queue.turn().copied()).collect();
/// assert_eq!(turns, ["a", "b", "a", "b"]);
/// queue.retire(0, &"a");
/// assert_eq!(queue.turn(), Some(&"b"));
/// assert_eq!(queue.turn(), Some(&"c"));
/// ```
#[derive(Clone, Debug)]
pub struct TransferQueue<P: Ord, J> {
    lanes: BTreeMap<Reverse<P>, Lane<J>>,
    /// How many of one priority take turns.
    at_once: usize,
}

#[derive(Clone, Debug)]
struct Lane<J> {
    /// Those that take turns, in order.
    turns: VecDeque<J>,
    waiting: VecDeque<J>,
}

impl<P: Ord, J: PartialEq> TransferQueue<P, J> {
    /// A queue in which `at_once` transfers of each priority take turns; one at least.
    pub fn new(at_once: usize) -> Self {
        Self { lanes: BTreeMap::new(), at_once: at_once.max(1) }
    }

    /// Adds a transfer.
    pub fn push(&mut self, priority: P, transfer: J) {
        let lane = self
            .lanes
            .entry(Reverse(priority))
            .or_insert_with(|| Lane { turns: VecDeque::new(), waiting: VecDeque::new() });
        if lane.turns.len() < self.at_once {
            lane.turns.push_back(transfer);
        } else {
            lane.waiting.push_back(transfer);
        }
    }

    /// The transfer whose turn it is; the next call is another's turn.
    pub fn turn(&mut self) -> Option<&J> {
        let lane = self.lanes.values_mut().next()?;
        let first = lane.turns.pop_front()?;
        lane.turns.push_back(first);
        lane.turns.back()
    }

    /// Removes a transfer that takes turns and wants no more. Returns whether it did; one that still waits stays until its
    /// turn comes.
    pub fn retire(&mut self, priority: P, transfer: &J) -> bool {
        let key = Reverse(priority);
        let Some(lane) = self.lanes.get_mut(&key) else { return false };
        let Some(at) = lane.turns.iter().position(|one| one == transfer) else { return false };
        lane.turns.remove(at);
        lane.turns.extend(lane.waiting.pop_front());
        if lane.turns.is_empty() {
            self.lanes.remove(&key);
        }
        true
    }

    /// Whether no transfer wants a turn.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}
