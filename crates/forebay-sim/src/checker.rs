//! The ordering checker: which operations use the same bytes with nothing between them.
//!
//! What happens before what is known when an operation is enqueued, not when it runs: streams keep
//! their order, a wait takes over the past of the record it waits for, and whatever the host has
//! waited for lies in the past of all it enqueues later. So the checker finds a race whatever order
//! the work happens to run in.
//!
//! The host is one: when any thread has waited for an operation, all threads count as having done
//! so, because how they tell each other cannot be seen from here. A race between two threads that
//! share no such knowledge can be missed; none is ever reported that is not there.
//!
//! ```text
//!   bytes of one memory   0        4096            12288        16384
//!                         |  cell  |     cell      |    cell    |
//!   last writer             fill #3      copy #7        -
//!   readers since           -            copy #9        kernel #4, kernel #8 (unordered)
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Bytes, Span};
use forebay_hal::Call;

use crate::clock::{Slot, VectorClock};
use crate::finding::{Effect, Finding, Operation};

/// How many findings are kept in full; the rest are counted. A wrong program can make millions.
const MOST_FINDINGS: usize = 1000;

/// An operation as the checker sees it: who, and where in its stream's order.
#[derive(Clone, Debug)]
pub(crate) struct Actor {
    pub(crate) operation: Arc<Operation>,
    pub(crate) slot: Slot,
    pub(crate) number: u64,
}

impl Actor {
    /// Whether this is in the past of whoever holds `clock`.
    fn is_before(&self, clock: &VectorClock) -> bool {
        clock.covers(self.slot, self.number)
    }

    fn is(&self, other: &Self) -> bool {
        self.operation.number == other.operation.number
    }
}

/// The uses of a stretch of bytes that later uses must be ordered against.
#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    writer: Option<Actor>,
    /// Reads since the last write, none in the past of another.
    readers: Vec<Actor>,
}

/// What was done to one memory: an allocation or a page.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    cells: BTreeMap<u64, Cell>,
}

impl Shadow {
    /// Makes `at` a border between cells.
    fn split(&mut self, at: u64) {
        let Some((_, cell)) = self.cells.range_mut(..at).next_back() else { return };
        if cell.end > at {
            let rest = cell.clone();
            cell.end = at;
            self.cells.insert(at, rest);
        }
    }

    /// Notes that `actor`, whose past is `clock`, reads or writes bytes `start..end`.
    fn touch(
        &mut self,
        (start, end): (u64, u64),
        effect: Effect,
        actor: &Actor,
        clock: &VectorClock,
        report: &mut dyn FnMut(&Actor, Effect, u64),
    ) {
        self.split(start);
        self.split(end);
        for (&at, cell) in self.cells.range(start..end) {
            let writer = cell.writer.iter().map(|writer| (writer, Effect::Writes));
            let readers = cell.readers.iter().map(|reader| (reader, Effect::Reads));
            let readers = readers.filter(|_| effect == Effect::Writes);
            for (earlier, earlier_effect) in writer.chain(readers) {
                if earlier.is(actor) || !earlier.is_before(clock) {
                    report(earlier, earlier_effect, at);
                }
            }
        }
        match effect {
            Effect::Writes => {
                let covered: Vec<u64> = self.cells.range(start..end).map(|(&at, _)| at).collect();
                for at in covered {
                    self.cells.remove(&at);
                }
                let writer = Some(actor.clone());
                self.cells.insert(start, Cell { end, writer, readers: Vec::new() });
            }
            Effect::Reads => {
                self.fill_gaps(start, end);
                for (_, cell) in self.cells.range_mut(start..end) {
                    // A reader in our past need not be kept: who comes after us comes after it.
                    cell.readers.retain(|reader| !reader.is_before(clock));
                    cell.readers.push(actor.clone());
                }
            }
        }
    }

    /// Gives every byte of `start..end` a cell.
    fn fill_gaps(&mut self, start: u64, end: u64) {
        let mut at = start;
        let mut gaps = Vec::new();
        for (&cell_start, cell) in self.cells.range(start..end) {
            if at < cell_start {
                gaps.push((at, cell_start));
            }
            at = cell.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        for (from, to) in gaps {
            self.cells.insert(from, Cell { end: to, writer: None, readers: Vec::new() });
        }
    }

    /// Forgets what `clock` covers: nothing enqueued from now on can race with it.
    pub(crate) fn forget(&mut self, clock: &VectorClock) {
        self.cells.retain(|_, cell| {
            cell.readers.retain(|reader| !reader.is_before(clock));
            if cell.writer.as_ref().is_some_and(|writer| writer.is_before(clock)) {
                cell.writer = None;
            }
            cell.writer.is_some() || !cell.readers.is_empty()
        });
    }

    /// How many stretches are remembered.
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }
}

/// The last use of an address range by each stream, for the calls that take it away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    last: BTreeMap<Slot, Actor>,
}

impl Uses {
    pub(crate) fn note(&mut self, actor: &Actor) {
        self.last.insert(actor.slot, actor.clone());
    }

    /// A use that `clock` does not cover.
    fn beyond(&self, clock: &VectorClock) -> Option<&Actor> {
        self.last.values().find(|actor| !actor.is_before(clock))
    }
}

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    findings: Vec<Finding>,
    count: u64,
}

impl Checker {
    fn add(&mut self, finding: Finding) {
        self.count += 1;
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding);
        }
    }

    /// Checks and notes one use of one memory. Reports each pair of operations once a use.
    pub(crate) fn touch(
        &mut self,
        shadow: &mut Shadow,
        bytes: (u64, u64),
        effect: Effect,
        actor: &Actor,
        clock: &VectorClock,
    ) {
        if bytes.0 >= bytes.1 {
            return;
        }
        let mut found: Vec<(Actor, Effect, u64)> = Vec::new();
        shadow.touch(bytes, effect, actor, clock, &mut |earlier, earlier_effect, at| {
            // An operation may write twice where rows meet in one page; only reading what it
            // writes has no defined result.
            let overlap = earlier.is(actor);
            if overlap && (earlier_effect == effect) {
                return;
            }
            if !found
                .iter()
                .any(|(seen, seen_effect, _)| seen.is(earlier) && *seen_effect == earlier_effect)
            {
                found.push((earlier.clone(), earlier_effect, at));
            }
        });
        for (earlier, first_effect, at) in found {
            let offset = Bytes::new(at);
            self.add(if earlier.is(actor) {
                Finding::Overlap { operation: (*actor.operation).clone(), offset }
            } else {
                Finding::Race {
                    first: (*earlier.operation).clone(),
                    first_effect,
                    second: (*actor.operation).clone(),
                    second_effect: effect,
                    offset,
                }
            });
        }
    }

    /// Checks that the host has seen the end of every use of what `call` takes away.
    pub(crate) fn take(&mut self, call: Call, span: Span, uses: &Uses, host: &VectorClock) {
        if let Some(actor) = uses.beyond(host) {
            let operation = (*actor.operation).clone();
            self.add(Finding::TakenInUse { call, span, operation });
        }
    }

    /// The findings kept, and how many there were in all.
    pub(crate) fn findings(&self) -> (&[Finding], u64) {
        (&self.findings, self.count)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests;
