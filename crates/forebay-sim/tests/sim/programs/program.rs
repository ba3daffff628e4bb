//! Programs: their steps, how they are drawn, and what they mean when done one after the other.

use core::fmt;

use forebay_core::Random;

use super::graph::Order;

/// How many memories a program has: some plain, the rest pages that can be mapped at several places.
pub(crate) const MEMORIES: usize = 4;
/// The first memory that is a page.
pub(crate) const FIRST_PAGE: usize = 2;
/// The bytes of each that programs touch. Small, so that steps often meet.
pub(crate) const SIZE: usize = 96;
/// The places each page can be mapped at.
pub(crate) const PLACES: usize = 3;

/// A stretch of one memory, through one of its mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) memory: usize,
    /// Which mapping of a page; 0 for plain memory.
    pub(crate) place: usize,
    pub(crate) start: usize,
    pub(crate) size: usize,
}

impl Part {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.memory == other.memory
            && self.start < other.start + other.size
            && other.start < self.start + self.size
    }

    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.size
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Fill {
        stream: usize,
        to: Part,
        value: u8,
    },
    Copy {
        stream: usize,
        to: Part,
        from: Part,
    },
    /// Every byte written is three times the byte read, plus `add`.
    Kernel {
        stream: usize,
        to: Part,
        from: Part,
        add: u8,
    },
    Record {
        event: usize,
        stream: usize,
    },
    Wait {
        stream: usize,
        event: usize,
    },
    SyncStream {
        stream: usize,
    },
    SyncEvent {
        event: usize,
    },
    SyncDevice,
    /// Puts a page at one more place.
    Map {
        memory: usize,
        place: usize,
    },
    /// Takes it away from there.
    Unmap {
        memory: usize,
        place: usize,
    },
    /// Destroys a stream, whose work still runs, and makes another.
    Restart {
        old: usize,
        new: usize,
    },
}

impl Step {
    pub(crate) fn fill(stream: usize, memory: usize, start: usize, size: usize, value: u8) -> Self {
        Self::Fill { stream, to: Part { memory, place: 0, start, size }, value }
    }

    pub(crate) fn written(&self) -> Option<Part> {
        match *self {
            Self::Fill { to, .. } | Self::Copy { to, .. } | Self::Kernel { to, .. } => Some(to),
            _ => None,
        }
    }

    pub(crate) fn read(&self) -> Option<Part> {
        match *self {
            Self::Copy { from, .. } | Self::Kernel { from, .. } => Some(from),
            _ => None,
        }
    }

    /// The stream of an operation; `None` for steps of the host.
    pub(crate) fn stream(&self) -> Option<usize> {
        match *self {
            Self::Fill { stream, .. }
            | Self::Copy { stream, .. }
            | Self::Kernel { stream, .. }
            | Self::Record { stream, .. }
            | Self::Wait { stream, .. } => Some(stream),
            _ => None,
        }
    }

    /// Whether two operations must not run side by side.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let meet = |one: Option<Part>, two: Option<Part>| match (one, two) {
            (Some(one), Some(two)) => one.overlaps(&two),
            _ => false,
        };
        meet(self.written(), other.written())
            || meet(self.written(), other.read())
            || meet(self.read(), other.written())
    }
}

/// A program, and which of its steps were put in to keep order.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The streams there are at the start.
    pub(crate) first_streams: usize,
    /// The streams there ever are, numbered as they are made.
    pub(crate) streams: usize,
    pub(crate) events: usize,
    pub(crate) steps: Vec<Step>,
    keepers: Vec<usize>,
}

impl Program {
    /// A program of given steps, as they are.
    pub(crate) fn of(streams: usize, steps: Vec<Step>) -> Self {
        Self { first_streams: streams, streams, events: 8, steps, keepers: Vec::new() }
    }

    /// A program without a race.
    pub(crate) fn generate(random: &mut Random) -> Self {
        let streams = pick(random, 2..5);
        let (first_streams, steps, keepers) = (streams, Vec::new(), Vec::new());
        let mut program = Self { first_streams, streams, events: 0, steps, keepers };
        let mut live: Vec<usize> = (0..streams).collect();
        let mut mapped = [[false; PLACES]; MEMORIES];
        for pages in &mut mapped[FIRST_PAGE..] {
            pages[0] = true;
        }
        for _ in 0..pick(random, 8..30) {
            let turn = pick(random, 0..live.len());
            let stream = live[turn];
            match random.below(21) {
                0 => program.steps.push(Step::SyncStream { stream }),
                1 => {
                    let event = program.record(stream);
                    program.steps.push(Step::SyncEvent { event });
                }
                2 => {
                    let event = program.record(stream);
                    let waiter = *random.pick(&live).unwrap();
                    program.steps.push(Step::Wait { stream: waiter, event });
                }
                3..=5 => program.map_or_unmap(random, &mut mapped),
                6..=9 => {
                    let to = part(random, &mapped, None);
                    let value = random.next_u64().to_le_bytes()[0];
                    program.add(random, &live, Step::Fill { stream, to, value });
                }
                10 => {
                    let new = program.streams;
                    program.streams += 1;
                    program.steps.push(Step::Restart { old: stream, new });
                    live[turn] = new;
                }
                11 | 12 => {
                    // An update in place, whole or in part.
                    let to = part(random, &mapped, None);
                    let start = pick(random, 0..SIZE - to.size + 1);
                    let add = random.next_u64().to_le_bytes()[0];
                    let from = Part { start, ..to };
                    program.add(random, &live, Step::Kernel { stream, to, from, add });
                }
                kind => {
                    let to = part(random, &mapped, None);
                    let from = part(random, &mapped, Some(to));
                    let add = random.next_u64().to_le_bytes()[0];
                    program.add(
                        random,
                        &live,
                        match kind {
                            13..=16 => Step::Copy { stream, to, from },
                            _ => Step::Kernel { stream, to, from, add },
                        },
                    );
                }
            }
        }
        program
    }

    fn record(&mut self, stream: usize) -> usize {
        let event = self.events;
        self.events += 1;
        self.steps.push(Step::Record { event, stream });
        event
    }

    /// Adds a step that keeps order, and remembers it as one.
    fn keep(&mut self, step: Step) {
        self.keepers.push(self.steps.len());
        self.steps.push(step);
    }

    /// Adds an operation, after whatever it takes to order it behind those it conflicts with.
    fn add(&mut self, random: &mut Random, live: &[usize], step: Step) {
        let Some(stream) = step.stream() else { return };
        loop {
            let order = Order::of(&self.with(step));
            let new = self.steps.len();
            let clash = (0..new)
                .find(|&old| self.steps[old].conflicts(&step) && !order.is_before(old, new));
            let Some(other) = clash.and_then(|old| self.steps[old].stream()) else { break };
            // A stream that is gone can no longer be asked for.
            let gone = !live.contains(&other);
            match if gone { 2 } else { random.below(8) } {
                0 => self.keep(Step::SyncStream { stream: other }),
                1 => {
                    let event = self.record(other);
                    self.keep(Step::SyncEvent { event });
                }
                2 => self.keep(Step::SyncDevice),
                _ => {
                    let event = self.record(other);
                    self.keep(Step::Wait { stream, event });
                }
            }
        }
        self.steps.push(step);
    }

    fn with(&self, step: Step) -> Self {
        let mut more = self.clone();
        more.steps.push(step);
        more
    }

    fn map_or_unmap(&mut self, random: &mut Random, mapped: &mut [[bool; PLACES]; MEMORIES]) {
        let memory = pick(random, FIRST_PAGE..MEMORIES);
        let place = pick(random, 0..PLACES);
        if !mapped[memory][place] {
            self.steps.push(Step::Map { memory, place });
        } else if mapped[memory].iter().filter(|&&there| there).count() > 1 {
            self.keep(Step::SyncDevice);
            self.steps.push(Step::Unmap { memory, place });
        } else {
            return;
        }
        mapped[memory][place] = !mapped[memory][place];
    }

    /// The same program with one of the steps that keep order taken out; `None` if it needs none.
    pub(crate) fn without_one_wait(&self, random: &mut Random) -> Option<Self> {
        let &out = random.pick(&self.keepers)?;
        let mut broken = self.clone();
        broken.steps.remove(out);
        Some(broken)
    }

    /// What the memories hold when the steps are done one after the other.
    pub(crate) fn one_after_the_other(&self) -> Vec<Vec<u8>> {
        let mut memory = vec![vec![0_u8; SIZE]; MEMORIES];
        for step in &self.steps {
            let source = step.read().map(|from| memory[from.memory][from.range()].to_vec());
            let Some(to) = step.written() else { continue };
            let bytes: Vec<u8> = match (*step, source) {
                (Step::Fill { value, .. }, _) => vec![value; to.size],
                (Step::Kernel { add, .. }, Some(read)) => compute(&read, add),
                (_, Some(read)) => read,
                (_, None) => continue,
            };
            memory[to.memory][to.range()].copy_from_slice(&bytes);
        }
        memory
    }
}

/// What a kernel writes.
pub(crate) fn compute(read: &[u8], add: u8) -> Vec<u8> {
    read.iter().map(|byte| byte.wrapping_mul(3).wrapping_add(add)).collect()
}

fn pick(random: &mut Random, range: std::ops::Range<usize>) -> usize {
    range.start + random.index(range.len()).unwrap()
}

/// A stretch of some memory; as long as `like`, and not the same bytes, where that is given.
fn part(random: &mut Random, mapped: &[[bool; PLACES]; MEMORIES], like: Option<Part>) -> Part {
    loop {
        let memory = pick(random, 0..MEMORIES);
        let place = if memory < FIRST_PAGE { 0 } else { pick(random, 0..PLACES) };
        if memory >= FIRST_PAGE && !mapped[memory][place] {
            continue;
        }
        let size = like.map_or_else(|| pick(random, 1..SIZE / 2), |like| like.size);
        let start = pick(random, 0..SIZE - size + 1);
        let part = Part { memory, place, start, size };
        if like.is_none_or(|like| !like.overlaps(&part)) {
            return part;
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{index:3} {step:?}")?;
        }
        Ok(())
    }
}
