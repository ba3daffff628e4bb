//! A sequence as one thread plays it: steps over a few slots, so that the timed part needs no lookup.

use super::Sequence;
use crate::{Event, StreamIndex};

use forebay_core::Bytes;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate `size` bytes and keep the block in an empty slot.
    Allocate {
        /// The slot.
        slot: usize,
        /// The size.
        size: Bytes,
    },
    /// Free the block in a slot.
    Free {
        /// The slot.
        slot: usize,
    },
}

/// The steps of one thread, phase by phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    phases: Vec<Vec<Step>>,
    slots: usize,
}

impl Script {
    /// The steps of each phase of the sequence; empty for a phase without this thread.
    pub fn phases(&self) -> &[Vec<Step>] {
        &self.phases
    }

    /// The number of slots that the steps use.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The steps of `sequence` on one of its streams.
    fn of(sequence: &Sequence, thread: StreamIndex) -> Self {
        let trace = sequence.trace();
        // The slot that was freed last is taken first, so that there are as few as blocks live.
        let (mut spare, mut slots) = (Vec::new(), 0_usize);
        let mut places = vec![0_usize; trace.blocks()];
        let mut events = trace.events();
        let mut phases = Vec::with_capacity(sequence.phases().len());
        for phase in sequence.phases() {
            let mut steps = Vec::new();
            for event in events.by_ref().take(phase.events) {
                match event {
                    Event::Allocate { block, size, stream } if stream == thread => {
                        let slot = spare.pop().unwrap_or(slots);
                        slots = slots.max(slot + 1);
                        if let Some(place) = places.get_mut(block.0 as usize) {
                            *place = slot;
                        }
                        steps.push(Step::Allocate { slot, size });
                    }
                    Event::Free { block, stream } if stream == thread => {
                        let slot = places.get(block.0 as usize).copied().unwrap_or_default();
                        spare.push(slot);
                        steps.push(Step::Free { slot });
                    }
                    Event::Allocate { .. } | Event::Free { .. } => {}
                }
            }
            phases.push(steps);
        }
        Self { phases, slots }
    }
}

impl Sequence {
    /// The script of each thread.
    pub fn scripts(&self) -> Vec<Script> {
        (0..self.threads())
            .filter_map(|thread| u16::try_from(thread).ok())
            .map(|thread| Script::of(self, StreamIndex(thread)))
            .collect()
    }
}
