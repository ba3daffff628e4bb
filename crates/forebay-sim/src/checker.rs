//! The ordering checker: finds operations that use the same bytes unordered.
//!
//! The order of operations is known when they are enqueued, not when they run: streams keep their order, a wait
//! inherits the past of the record it waits for, and whatever the host has waited for precedes everything it enqueues
//! later. So the checker finds a race no matter in which order the work runs.
//!
//! All host threads count as one: when any thread has waited for an operation, all threads count as having done so,
//! because the checker cannot see how they communicate. It can miss a race between two threads without such
//! communication, but never reports a false one.
//!
//! ```text
//!   bytes of one memory   0        4096            12288        16384
//!                         |  cell  |     cell      |    cell    |
//!   last writer             fill #3      copy #7        -
//!   readers since           -            copy #9        kernel #4, kernel #8 (unordered)
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::Call;

use crate::clock::{ClockSlot, VectorClock};
use crate::finding::{Effect, Finding, Operation};

/// How many findings are kept in full; the rest are counted. A wrong program can make millions.
const MAX_FINDINGS: usize = 1000;

/// What an operation may do with bytes it both reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlapRule {
    /// It moves bytes from one place to another, and the two must not meet.
    Moves,
    /// It computes, and may update in place; but what it writes through one mapping it must not
    /// read through another.
    Computes,
}

/// An operation as the checker sees it: who, and where in its stream's order.
#[derive(Clone, Debug)]
pub(crate) struct Actor {
    pub(crate) operation: Arc<Operation>,
    pub(crate) slot: ClockSlot,
    pub(crate) number: u64,
    pub(crate) manner: OverlapRule,
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

/// One use of bytes: by whom, and through which mapping, named by where it puts the first byte.
#[derive(Clone, Debug)]
struct AccessRecord {
    actor: Actor,
    through: Address,
}

/// The uses of a stretch of bytes that later uses must be ordered against.
#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    writer: Option<AccessRecord>,
    /// Reads since the last write, none in the past of another.
    readers: Vec<AccessRecord>,
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

    /// Notes a use of bytes `start..end` by an operation whose past is `clock`, and reports the
    /// earlier uses it meets with nothing between.
    fn touch(
        &mut self,
        (start, end): (u64, u64),
        effect: Effect,
        touch: &AccessRecord,
        clock: &VectorClock,
        report: &mut dyn FnMut(&AccessRecord, Effect, u64),
    ) {
        self.split(start);
        self.split(end);
        for (&at, cell) in self.cells.range(start..end) {
            let writer = cell.writer.iter().map(|writer| (writer, Effect::Writes));
            let readers = cell.readers.iter().map(|reader| (reader, Effect::Reads));
            let readers = readers.filter(|_| effect == Effect::Writes);
            for (earlier, earlier_effect) in writer.chain(readers) {
                if earlier.actor.is(&touch.actor) || !earlier.actor.is_before(clock) {
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
                let writer = Some(touch.clone());
                self.cells.insert(start, Cell { end, writer, readers: Vec::new() });
            }
            Effect::Reads => {
                self.fill_gaps(start, end);
                for (_, cell) in self.cells.range_mut(start..end) {
                    // A reader in our past need not be kept: who comes after us comes after it.
                    cell.readers.retain(|reader| !reader.actor.is_before(clock));
                    cell.readers.push(touch.clone());
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
            cell.readers.retain(|reader| !reader.actor.is_before(clock));
            if cell.writer.as_ref().is_some_and(|writer| writer.actor.is_before(clock)) {
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

/// The last uses of an address range by each stream, for the calls that take it away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    all: BTreeMap<ClockSlot, Actor>,
    writes: BTreeMap<ClockSlot, Actor>,
}

/// What a call takes away from an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Every use.
    All,
    /// Writing alone.
    Writing,
}

impl Uses {
    pub(crate) fn note(&mut self, effect: Effect, actor: &Actor) {
        self.all.insert(actor.slot, actor.clone());
        if effect == Effect::Writes {
            self.writes.insert(actor.slot, actor.clone());
        }
    }

    /// A use of what is taken that `clock` does not cover.
    fn beyond(&self, taken: Removal, clock: &VectorClock) -> Option<&Actor> {
        let uses = match taken {
            Removal::All => &self.all,
            Removal::Writing => &self.writes,
        };
        uses.values().find(|actor| !actor.is_before(clock))
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
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        }
    }

    /// Checks and notes one use of one memory, through the mapping that puts its first byte at
    /// `through`. Reports each pair of operations once a use.
    ///
    /// After a race the second operation stands for the first: what races with the first alone is
    /// then not seen. A program with one race reported may have more.
    pub(crate) fn touch(
        &mut self,
        shadow: &mut Shadow,
        bytes: (u64, u64),
        effect: Effect,
        (actor, through): (&Actor, Address),
        clock: &VectorClock,
    ) {
        if bytes.0 >= bytes.1 {
            return;
        }
        let touch = AccessRecord { actor: actor.clone(), through };
        let mut found: Vec<(Actor, Effect, u64)> = Vec::new();
        shadow.touch(bytes, effect, &touch, clock, &mut |earlier, earlier_effect, at| {
            let in_place = actor.manner == OverlapRule::Computes && earlier.through == through;
            if earlier.actor.is(actor) && (earlier_effect == effect || in_place) {
                return;
            }
            if !found.iter().any(|(seen, seen_effect, _)| {
                seen.is(&earlier.actor) && *seen_effect == earlier_effect
            }) {
                found.push((earlier.actor.clone(), earlier_effect, at));
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
    pub(crate) fn take(
        &mut self,
        call: Call,
        (span, taken): (Span, Removal),
        uses: &Uses,
        host: &VectorClock,
    ) {
        if let Some(actor) = uses.beyond(taken, host) {
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
