//! What happens before what, by a plain search through the graph of steps: slow, simple, and with
//! nothing in common with the checker it judges.

use super::program::{Program, Step};

/// The mistakes of a program, by the numbers of its operations: fills, copies and kernels from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mistakes {
    /// Pairs of operations that conflict with nothing to order them.
    pub(crate) races: Vec<(u64, u64)>,
    /// Unmappings, by their step, and the operations that may still use the mapping.
    pub(crate) taken: Vec<(usize, u64)>,
}

impl Mistakes {
    pub(crate) fn is_empty(&self) -> bool {
        self.races.is_empty() && self.taken.is_empty()
    }

    /// The first operation that comes too early.
    pub(crate) fn first_race(&self) -> Option<u64> {
        self.races.iter().map(|&(_, second)| second).min()
    }

    /// How many unmappings come too early.
    pub(crate) fn early_unmaps(&self) -> usize {
        let mut steps: Vec<usize> = self.taken.iter().map(|&(step, _)| step).collect();
        steps.dedup();
        steps.len()
    }
}

/// For every step, the steps that lead to it.
pub(crate) struct Order {
    before: Vec<Vec<bool>>,
}

impl Order {
    pub(crate) fn of(program: &Program) -> Self {
        let count = program.steps.len();
        let mut last_on_stream: Vec<Option<usize>> = vec![None; program.streams];
        let mut last_record: Vec<Option<usize>> = vec![None; program.events];
        let mut last_sync: Option<usize> = None;
        let mut before: Vec<Vec<bool>> = Vec::with_capacity(count);
        for (index, step) in program.steps.iter().enumerate() {
            // The host issues steps in order: whatever it waited for comes before all it issues.
            let mut leads: Vec<usize> = last_sync.into_iter().collect();
            match *step {
                Step::SyncStream { stream } => leads.extend(last_on_stream[stream]),
                Step::SyncEvent { event } => leads.extend(last_record[event]),
                Step::SyncDevice => leads.extend(last_on_stream.iter().flatten()),
                Step::Wait { stream, event } => {
                    leads.extend(last_on_stream[stream]);
                    leads.extend(last_record[event]);
                }
                _ => leads.extend(step.stream().and_then(|stream| last_on_stream[stream])),
            }
            let mut past = vec![false; count];
            for lead in leads {
                past[lead] = true;
                for (mine, &theirs) in past.iter_mut().zip(&before[lead]) {
                    *mine |= theirs;
                }
            }
            before.push(past);
            match *step {
                Step::SyncStream { .. } | Step::SyncEvent { .. } | Step::SyncDevice => {
                    last_sync = Some(index);
                }
                Step::Record { event, .. } => last_record[event] = Some(index),
                _ => {}
            }
            if let Some(stream) = step.stream() {
                last_on_stream[stream] = Some(index);
            }
        }
        Self { before }
    }

    pub(crate) fn is_before(&self, first: usize, second: usize) -> bool {
        self.before[second][first]
    }

    /// Every mistake there is.
    pub(crate) fn mistakes(&self, program: &Program) -> Mistakes {
        let mut mistakes = Mistakes::default();
        let mut numbers = Vec::new();
        let mut number = 0;
        for (index, step) in program.steps.iter().enumerate() {
            number += u64::from(step.written().is_some());
            numbers.push(number);
            for (old, earlier) in program.steps[..index].iter().enumerate() {
                if self.is_before(old, index) {
                    continue;
                }
                if earlier.conflicts(step) {
                    mistakes.races.push((numbers[old], number));
                }
                if let Step::Unmap { memory, place } = *step
                    && [earlier.written(), earlier.read()]
                        .into_iter()
                        .flatten()
                        .any(|part| part.memory == memory && part.place == place)
                    && !taken_since(program, old, index, memory, place)
                {
                    mistakes.taken.push((index, numbers[old]));
                }
            }
        }
        mistakes
    }
}

/// Whether the mapping an old step used went already, so that the one that goes now is another.
fn taken_since(program: &Program, old: usize, now: usize, memory: usize, place: usize) -> bool {
    program.steps[old..now].contains(&Step::Unmap { memory, place })
}
