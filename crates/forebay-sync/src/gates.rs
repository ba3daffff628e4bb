//! A gate for each thread slot, and the ways to visit all of them.
//!
//! ```text
//!   chunks   [ 0 ] ─> [ gate | gate |  -   | gate | ... 256 ]
//!            [ 1 ] ─>   -
//!            ...        made when the first thread of its thread slots comes
//! ```
//!
//! | visit | waits for owners inside | those it passes over |
//! |---|---|---|
//! | [`each`](Gates::each), [`drain_all`](Gates::drain_all) | yes | none |
//! | [`drain`](Gates::drain), [`change`](Gates::change) | no | are asked to do the work themselves |
//! | [`measure`](Gates::measure) | no | are not counted |
//!
//! A visit that waits sleeps between looks, so that an owner of a lower priority, or one of many on
//! few cores, can run and leave. It works on the gates whose owners are outside first and opens each as
//! soon as it has done, so no owner waits for another's.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, OnceLock};

use super::gate::{Gate, Left, Shut};
use super::{lock, try_lock};

/// How many gates are made room for at once.
const CHUNK: usize = 256;

/// How often a visit looks again at gates whose owners are inside before it sleeps or passes them over:
/// some microseconds. An owner that runs leaves within that; one that does not has been preempted.
const LOOKS: u32 = 200;

/// The first and the longest sleep between looks.
const SLEEPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

type Chunk<T> = Box<[OnceLock<Box<Gate<T>>>]>;

/// A gate for each owner, made when it first comes.
#[derive(Debug)]
pub struct Gates<T> {
    chunks: Box<[OnceLock<Chunk<T>>]>,
    /// Held by the visitor.
    keeper: Mutex<()>,
}

impl<T> Gates<T> {
    /// For at most `count` owners, rounded up to whole chunks.
    pub fn new(count: usize) -> Self {
        super::barrier::prepare();
        let chunks = (0..count.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Self { chunks, keeper: Mutex::new(()) }
    }

    /// The gate of an owner, made where there is none; `None` for an owner beyond the last.
    pub fn get_or_make(&self, owner: usize, make: impl FnOnce() -> T) -> Option<&Gate<T>> {
        let chunk = self.chunks.get(owner / CHUNK)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        let made = chunk.get(owner % CHUNK)?.get_or_init(|| Box::new(Gate::new(make())));
        Some(made)
    }

    /// Every gate that was made. A gate made from here on is not among them: its owner came after.
    fn made(&self) -> impl Iterator<Item = &Gate<T>> {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks.flatten().filter_map(OnceLock::get).map(|gate| &**gate)
    }

    /// Waits until no visitor has the gates shut.
    pub fn wait(&self) {
        drop(lock(&self.keeper));
    }

    /// Calls `work` with what is behind every gate.
    ///
    /// Here and in the other visits, `work` must not wait for an owner, nor enter or visit these gates.
    pub fn each(&self, mut work: impl FnMut(&mut T)) {
        self.visit_all(
            |_| true,
            |room| {
                work(room);
                Left::Something
            },
        );
    }

    /// Calls `work`, which takes everything out that can be taken, with what is behind every gate.
    pub fn drain_all(&self, mut work: impl FnMut(&mut T)) {
        self.visit_all(
            |gate| !gate.is_emptied(),
            |room| {
                work(room);
                Left::Nothing
            },
        );
    }

    /// As [`drain_all`](Self::drain_all), without waiting: owners that are inside are asked.
    pub fn drain(&self, mut work: impl FnMut(&mut T)) {
        let Some(keeper) = try_lock(&self.keeper) else {
            // A visitor waits for an owner, perhaps long: all of them are asked instead.
            self.made().filter(|gate| !gate.is_emptied()).for_each(Gate::ask);
            return;
        };
        let emptied = |room: &mut T| {
            work(room);
            Left::Nothing
        };
        self.visit(&keeper, |gate| !gate.is_emptied(), emptied).iter().for_each(Shut::ask);
    }

    /// As [`each`](Self::each), without waiting: owners that are inside are asked.
    pub fn change(&self, mut work: impl FnMut(&mut T)) {
        let Some(keeper) = try_lock(&self.keeper) else {
            self.made().for_each(Gate::ask);
            return;
        };
        let changed = |room: &mut T| {
            work(room);
            Left::Something
        };
        self.visit(&keeper, |_| true, changed).iter().for_each(Shut::ask);
    }

    /// Calls `work` with what is behind every gate that was not emptied and whose owner is outside; with
    /// none while another visitor is there.
    pub fn measure(&self, mut work: impl FnMut(&mut T)) {
        let Some(keeper) = try_lock(&self.keeper) else { return };
        let measured = |room: &mut T| {
            work(room);
            Left::Something
        };
        drop(self.visit(&keeper, |gate| !gate.is_emptied(), measured));
    }

    /// Whether more than one owner has a gate, or had one.
    pub fn is_shared(&self) -> bool {
        self.made().nth(1).is_some()
    }

    /// Visits the gates that `which` is true of, and waits for those whose owners are inside.
    fn visit_all(&self, which: impl Fn(&Gate<T>) -> bool, mut work: impl FnMut(&mut T) -> Left) {
        let keeper = lock(&self.keeper);
        let mut inside = self.visit(&keeper, which, &mut work);
        let (mut sleep, longest) = SLEEPS;
        while !inside.is_empty() {
            std::thread::sleep(sleep);
            sleep = sleep.saturating_mul(2).min(longest);
            // SAFETY: `visit` has passed the barrier since it shut these gates.
            inside.retain(|shut| unsafe { !shut.visit(&mut work) });
        }
    }

    /// Visits the gates that `which` is true of and whose owners are outside, or leave within some
    /// microseconds. Gives the others, still shut. By a panic all gates open.
    fn visit(
        &self,
        _keeper: &MutexGuard<'_, ()>,
        which: impl Fn(&Gate<T>) -> bool,
        mut work: impl FnMut(&mut T) -> Left,
    ) -> Vec<Shut<'_, T>> {
        // SAFETY: the keeper is locked, so this is the only visitor, and comes after the one before.
        let shut = |gate| unsafe { Shut::new(gate) };
        let mut inside: Vec<Shut<'_, T>> =
            self.made().filter(|&gate| which(gate)).map(shut).collect();
        if inside.is_empty() {
            return inside;
        }
        Shut::pass_barrier(&inside);
        for _ in 0..LOOKS {
            // Each opens when it was worked on.
            // SAFETY: the barrier was passed since these gates were shut.
            inside.retain(|shut| unsafe { !shut.visit(&mut work) });
            if inside.is_empty() {
                break;
            }
            core::hint::spin_loop();
        }
        inside
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
