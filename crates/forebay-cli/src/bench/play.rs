//! Plays a sequence on an allocator, and times the phases that the sequence marks.

use core::time::Duration;
use std::sync::Barrier;

use forebay_hal::StreamHandle;
use forebay_trace::workload::{Script, Sequence, Step, Timing};

use super::setup::{Clock, FreshDevice};
use super::subject::Subject;
use crate::output::{Fault, nanos};

/// What one phase took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// From its first step to its last, over all threads.
    pub(crate) elapsed: Duration,
    /// What the driver's calls in it cost, where a table tells that.
    pub(crate) driver: Option<Duration>,
    /// What each pair took, where each was timed, in nanoseconds.
    pub(crate) each: Vec<u64>,
}

/// One thread's part of a phase.
#[derive(Default)]
struct Part {
    began: Duration,
    ended: Duration,
    price: Option<(Duration, Duration)>,
    each: Vec<u64>,
}

/// Plays `sequence` and gives what each of its phases took. All threads begin a phase together.
pub(crate) fn play<S: Subject>(
    subject: &S,
    fresh: &FreshDevice,
    clock: Clock<'_>,
    sequence: &Sequence,
    scripts: &[Script],
) -> Result<Vec<Measured>, Fault> {
    let streams = fresh.streams(scripts.len())?;
    let gate = Barrier::new(scripts.len());
    let performer = |script, stream| Worker { subject, fresh, clock, sequence, script, stream };
    let parts: Vec<Result<Vec<Part>, Fault>> = match (scripts, streams.as_slice()) {
        ([script], [stream]) => vec![performer(script, stream.handle()).perform(&gate)],
        _ => std::thread::scope(|scope| {
            let begin = |(script, stream): (_, &forebay_hal::Stream)| {
                let performer = performer(script, stream.handle());
                let gate = &gate;
                scope.spawn(move || performer.perform(gate))
            };
            let threads: Vec<_> = scripts.iter().zip(&streams).map(begin).collect();
            let ended = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err("a thread of the benchmark panicked".into()))
            };
            threads.into_iter().map(ended).collect()
        }),
    };
    let parts: Vec<Vec<Part>> = parts.into_iter().collect::<Result<_, Fault>>()?;
    Ok((0..sequence.phases().len())
        .map(|phase| Part::together(parts.iter().filter_map(|thread| thread.get(phase))))
        .collect())
}

impl Part {
    /// From the first thread's beginning to the last one's end.
    fn together<'a>(parts: impl Iterator<Item = &'a Self> + Clone) -> Measured {
        let began = parts.clone().map(|part| part.began).min().unwrap_or_default();
        let ended = parts.clone().map(|part| part.ended).max().unwrap_or_default();
        let prices = || parts.clone().filter_map(|part| part.price);
        let first = prices().map(|(before, _)| before).min();
        let last = prices().map(|(_, after)| after).max();
        let driver = first.zip(last).map(|(first, last)| last.saturating_sub(first));
        let each = parts.flat_map(|part| part.each.iter().copied()).collect();
        Measured { elapsed: ended.saturating_sub(began), driver, each }
    }
}

/// One thread with what it plays.
struct Worker<'a, S> {
    subject: &'a S,
    fresh: &'a FreshDevice,
    clock: Clock<'a>,
    sequence: &'a Sequence,
    script: &'a Script,
    stream: StreamHandle,
}

impl<S: Subject> Worker<'_, S> {
    fn perform(&self, gate: &Barrier) -> Result<Vec<Part>, Fault> {
        let mut slots: Vec<Option<S::Held>> = Vec::new();
        slots.resize_with(self.script.slots(), || None);
        let mut parts = Vec::new();
        let mut failed = None;
        for (phase, steps) in self.sequence.phases().iter().zip(self.script.phases()) {
            // A thread that failed comes to the gate all the same: the others are waiting there.
            gate.wait();
            if failed.is_none() {
                match self.phase(phase.timing, steps, &mut slots) {
                    Ok(part) => parts.push(part),
                    Err(error) => failed = Some(Fault::from(error)),
                }
            }
        }
        for held in slots.into_iter().flatten() {
            self.subject.free(held, self.stream)?;
        }
        failed.map_or(Ok(parts), Err)
    }

    fn phase(
        &self,
        timing: Timing,
        steps: &[Step],
        slots: &mut [Option<S::Held>],
    ) -> forebay::Result<Part> {
        let before = self.fresh.driver_price();
        let mut part = Part { began: self.clock.now(), ..Part::default() };
        match timing {
            Timing::Untimed | Timing::Together => self.steps(steps, slots)?,
            Timing::Each => {
                part.each.reserve(steps.len() / 2);
                for pair in steps.chunks(2) {
                    let began = self.clock.now();
                    self.steps(pair, slots)?;
                    let took = self.clock.now().saturating_sub(began);
                    part.each.push(nanos(took));
                }
            }
        }
        part.ended = self.clock.now();
        part.price = before.zip(self.fresh.driver_price());
        Ok(part)
    }

    #[inline]
    fn steps(&self, steps: &[Step], slots: &mut [Option<S::Held>]) -> forebay::Result<()> {
        for step in steps {
            match *step {
                Step::Allocate { slot, size } => {
                    let held = self.subject.allocate(size, self.stream)?;
                    if let Some(slot) = slots.get_mut(slot) {
                        *slot = Some(held);
                    }
                }
                Step::Free { slot } => {
                    if let Some(held) = slots.get_mut(slot).and_then(Option::take) {
                        self.subject.free(held, self.stream)?;
                    }
                }
            }
        }
        Ok(())
    }
}
