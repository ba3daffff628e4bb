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
//! | [`read_filled`](Gates::read_filled) | yes | those that were emptied |
//! | [`count_changed`](Gates::count_changed) | yes | those that were counted and have not changed |
//! | [`drain`](Gates::drain), [`change`](Gates::change) | no | are asked to do the work themselves |
//! | [`measure`](Gates::measure) | no | are not counted |
//!
//! A visit that waits sleeps between looks, so that an owner of a lower priority, or one of many on
//! few cores, can run and leave. It works on the gates whose owners are outside first and opens each as
//! soon as it has done, so no owner waits for another's.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, OnceLock};

use super::gate::{AfterVisit, Gate, ShutGate};
use super::{lock, try_lock};

/// How many gates a chunk has room for.
const CHUNK: usize = 256;

/// How often a visit polls gates whose owners are inside before it sleeps or skips them: some
/// microseconds. A running owner leaves within that time; one that does not has been preempted.
const LOOKS: u32 = 200;

/// The first and the longest sleep between looks.
const SLEEPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

type Chunk<T> = Box<[OnceLock<Box<Gate<T>>>]>;

/// A gate for each owner, made when it first comes.
#[derive(Debug)]
pub struct Gates<T> {
    chunks: Box<[OnceLock<Chunk<T>>]>,
    /// Held by the visitor.
    visitor_lock: Mutex<()>,
    /// Which owner the calling thread is.
    own: fn() -> Option<usize>,
}

impl<T> Gates<T> {
    /// For at most `count` owners, rounded up to whole chunks.
    pub fn new(count: usize) -> Self {
        super::barrier::prepare();
        let chunks = (0..count.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Self { chunks, visitor_lock: Mutex::new(()), own: || None }
    }

    /// For every thread, whose number as an owner is its [slot](super::thread_slot). A thread that visits no gate but
    /// its own passes no barrier: no other thread is concerned.
    #[cfg(not(loom))]
    pub fn of_threads() -> Self {
        use super::thread_slot::{MAX_SLOTS, current};
        Self { own: current, ..Self::new(MAX_SLOTS) }
    }

    /// The gate of an owner, created if there is none; `None` for an owner beyond the last.
    pub fn get_or_make(&self, owner: usize, make: impl FnOnce() -> T) -> Option<&Gate<T>> {
        let chunk = self.chunks.get(owner / CHUNK)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        let made = chunk.get(owner % CHUNK)?.get_or_init(|| Box::new(Gate::new(make())));
        Some(made)
    }

    /// The gate of the calling thread, if it has one.
    fn own(&self) -> Option<&Gate<T>> {
        let owner = (self.own)()?;
        let gate = self.chunks.get(owner / CHUNK)?.get()?.get(owner % CHUNK)?.get()?;
        Some(gate)
    }

    /// Every gate that exists. Gates created during the iteration may be missing: their owners came later.
    fn made(&self) -> impl Iterator<Item = &Gate<T>> {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks.flatten().filter_map(OnceLock::get).map(|gate| &**gate)
    }

    /// Waits until no visitor has the gates shut.
    pub fn wait(&self) {
        drop(lock(&self.visitor_lock));
    }

    /// Calls `work` with what is behind every gate.
    ///
    /// Here and in the other visits, `work` must not wait for an owner, nor enter or visit these gates.
    pub fn each(&self, work: impl FnMut(&mut T)) {
        self.visit_all(|_| true, leaving(AfterVisit::NotEmpty, work));
    }

    /// Calls `work`, which counts what is there, with what is behind every gate that may have changed since it was last
    /// counted. So a thread that has done nothing meanwhile costs a look at one flag.
    pub fn count_changed(&self, work: impl FnMut(&mut T)) {
        self.visit_all(|gate| !gate.is_counted(), leaving(AfterVisit::Counted, work));
    }

    /// Calls `work`, which only reads, with the data of every gate that was not emptied.
    pub fn read_filled(&self, work: impl FnMut(&mut T)) {
        self.visit_all(|gate| !gate.is_emptied(), leaving(AfterVisit::Unchanged, work));
    }

    /// Calls `work`, which takes everything out that can be taken, with what is behind every gate.
    pub fn drain_all(&self, work: impl FnMut(&mut T)) {
        self.visit_all(|gate| !gate.is_emptied(), leaving(AfterVisit::Empty, work));
    }

    /// Like [`drain_all`](Self::drain_all), without waiting: owners inside are asked.
    pub fn drain(&self, work: impl FnMut(&mut T)) {
        self.visit_or_ask(|gate| !gate.is_emptied(), leaving(AfterVisit::Empty, work));
    }

    /// Like [`each`](Self::each), without waiting: owners inside are asked. `work` says whether it changed anything.
    pub fn change(&self, mut work: impl FnMut(&mut T) -> bool) {
        self.visit_or_ask(
            |_| true,
            |data| if work(data) { AfterVisit::NotEmpty } else { AfterVisit::Unchanged },
        );
    }

    /// Calls `work`, which only reads, with the data of every gate that was not emptied and whose owner is outside. Does
    /// nothing while another visitor is active.
    pub fn measure(&self, work: impl FnMut(&mut T)) {
        let Some(visitor_lock) = try_lock(&self.visitor_lock) else { return };
        let measured = leaving(AfterVisit::Unchanged, work);
        drop(self.visit(&visitor_lock, |gate| !gate.is_emptied(), measured));
    }

    /// Whether more than one owner has a gate, or had one.
    pub fn is_shared(&self) -> bool {
        self.made().nth(1).is_some()
    }

    /// Visits the gates that `which` accepts, and leaves the work to the owners that are inside.
    fn visit_or_ask(
        &self,
        which: impl Fn(&Gate<T>) -> bool,
        work: impl FnMut(&mut T) -> AfterVisit,
    ) {
        match try_lock(&self.visitor_lock) {
            Some(visitor_lock) => {
                self.visit(&visitor_lock, which, work).iter().for_each(|shut| shut.gate.ask());
            }
            // Another visitor may wait long for an owner, so all owners do the work instead.
            None => self.made().filter(|&gate| which(gate)).for_each(Gate::ask),
        }
    }

    /// Visits the gates that `which` accepts, and waits for those whose owners are inside.
    fn visit_all(
        &self,
        which: impl Fn(&Gate<T>) -> bool,
        mut work: impl FnMut(&mut T) -> AfterVisit,
    ) {
        let visitor_lock = lock(&self.visitor_lock);
        let mut inside = self.visit(&visitor_lock, which, &mut work);
        let (mut sleep, longest) = SLEEPS;
        while !inside.is_empty() {
            std::thread::sleep(sleep);
            sleep = sleep.saturating_mul(2).min(longest);
            // SAFETY: `visit` has passed the barrier since it shut these gates.
            inside.retain(|shut| unsafe { !shut.visit(&mut work) });
        }
    }

    /// Visits the gates that `which` accepts and whose owners are outside or leave within some
    /// microseconds. Returns the others, still shut. A panic opens all gates.
    fn visit(
        &self,
        _visitor_lock: &MutexGuard<'_, ()>,
        which: impl Fn(&Gate<T>) -> bool,
        mut work: impl FnMut(&mut T) -> AfterVisit,
    ) -> Vec<ShutGate<'_, T>> {
        // SAFETY: the visitor lock is held, so this is the only visitor, ordered after the one before.
        let shut = |gate| unsafe { ShutGate::new(gate) };
        let mut inside: Vec<ShutGate<'_, T>> =
            self.made().filter(|&gate| which(gate)).map(shut).collect();
        if inside.is_empty() {
            return inside;
        }
        // What a thread does at its own gate, it sees in order.
        let own = self.own();
        if inside.iter().any(|shut| own.is_none_or(|own| !core::ptr::eq(shut.gate, own))) {
            ShutGate::pass_barrier(&inside);
        }
        for _ in 0..LOOKS {
            // Each opens when it was worked on.
            // SAFETY: the barrier was passed since these gates were shut, or the only one is this thread's own.
            inside.retain(|shut| unsafe { !shut.visit(&mut work) });
            if inside.is_empty() {
                break;
            }
            core::hint::spin_loop();
        }
        inside
    }
}

/// `work`, which leaves each gate in one state.
fn leaving<T>(state: AfterVisit, mut work: impl FnMut(&mut T)) -> impl FnMut(&mut T) -> AfterVisit {
    move |data| {
        work(data);
        state
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
