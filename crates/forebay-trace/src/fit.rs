//! Finds how much memory a run needs: the smallest device on which it succeeds.
//!
//! The peak of an allocator with unlimited memory says little about that: many take more than they need while more is
//! available. So the run is replayed on smaller and smaller devices.
//!
//! ```text
//!   requested                smallest                         enough
//!       |------ fails --------->|<-------- goes through --------|      bisected to the granule, with one pass
//!                               |--- all passes fail --->|             then stepped up until all passes go through
//! ```
//!
//! A device on which one pass succeeds may refuse the next, because cached memory lies elsewhere by then. So the result
//! is proven with as many passes as it should hold for.

use forebay_core::{Bytes, TIB};

use crate::{PassReport, Player, ReplayOptions, Trace, WorkBudget, replay};

/// What a device's capacity is a multiple of.
const GRANULE: u64 = Bytes::mib(2).get();

/// An allocator that needs more than this many times what is asked for is not looked at further.
const MAX: u64 = 64;

/// What went wrong, opening an allocator or replaying on it.
type AnyError = Box<dyn core::error::Error>;

/// The smallest capacity in which a run succeeds, and its cost there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fit {
    /// The peak of requested bytes.
    pub requested: Bytes,
    /// The smallest capacity, a multiple of 2 MiB.
    pub smallest: Bytes,
    /// The passes at that capacity.
    pub passes: Vec<PassReport>,
}

impl Fit {
    /// The largest device to try. Larger than any real one; simulated pages take memory of this machine, about 300 MiB
    /// for all of them.
    pub const MAX_CAPACITY: Bytes = Bytes::new(TIB);

    /// The default number of passes a result should hold for: with fewer, recorded runs were refused in a later pass.
    pub const PASSES: u32 = 10;

    /// Replays `trace` on devices of different capacities to find, to 2 MiB, the smallest one on which `passes` passes
    /// in a row do not run out of memory. `None` if even 64 times the requested bytes do not suffice, or if that is
    /// more than [`MAX_CAPACITY`](Self::MAX_CAPACITY). `open` creates an allocator on an empty device of a given
    /// capacity.
    ///
    /// Assumes that a run that succeeds on one device succeeds on any larger one. If that is not true of an allocator,
    /// the result is a capacity that suffices, with one just below it that does not.
    ///
    /// ```
    /// use forebay_core::Bytes;
    /// use forebay_sim::{MemoryModel, SimMachine};
    /// use forebay_trace::{Fit, Model, TraceBuilder, WorkBudget};
    ///
    /// let mut builder = TraceBuilder::new("one block");
    /// builder.allocate(0, Bytes::mib(3), 0)?;
    /// let trace = builder.finish();
    /// let open = |capacity| {
    ///     let machine = SimMachine::builder().memory(MemoryModel::Phantom).capacity(capacity).build()?;
    ///     Ok(Model::Torch.player(machine.device(0).ok_or("no device")?)?)
    /// };
    /// let fit = Fit::find(&trace, 2, &WorkBudget::unlimited(), open)?.ok_or("it never fits")?;
    /// assert_eq!(fit.smallest, Bytes::mib(20), "3 MiB come out of a 20 MiB segment");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find(
        trace: &Trace,
        passes: u32,
        budget: &WorkBudget<'_>,
        mut open: impl FnMut(Bytes) -> Result<Box<dyn Player>, AnyError>,
    ) -> Result<Option<Self>, AnyError> {
        let requested = trace.statistics().peak_requested;
        let granules = |bytes: u64| bytes.div_ceil(GRANULE).max(1);
        let least = granules(requested.get());
        let most = least.saturating_mul(MAX).min(Self::MAX_CAPACITY.get() / GRANULE);
        if least > most {
            return Ok(None);
        }
        let mut try_with = |granules: u64, passes: u32| {
            let capacity = Bytes::new(granules.saturating_mul(GRANULE));
            let reports = replay(
                trace,
                &mut *open(capacity)?,
                ReplayOptions::new().passes(passes).stop_when_short().budget(budget),
            )?;
            let is_short = reports.iter().any(|report| report.out_of_memory > 0);
            Ok::<_, AnyError>((!is_short).then_some(reports))
        };
        // `least - 1` granules are less than the requested bytes. A sixty-fourth more at first: most allocators need a
        // few hundredths.
        let step = (least / 64).max(1);
        let one_pass = Search { fails: least - 1, first: least, step, most };
        let Some((suffices, _)) = one_pass.run(|granules| try_with(granules, 1))? else {
            return Ok(None);
        };
        let all_passes = Search { fails: suffices - 1, first: suffices, step: 1, most };
        let Some((suffices, best)) = all_passes.run(|granules| try_with(granules, passes))? else {
            return Ok(None);
        };
        let smallest = Bytes::new(suffices.saturating_mul(GRANULE));
        Ok(Some(Self { requested, smallest, passes: best }))
    }

    /// The smallest capacity divided by the requested bytes: 1 is the best possible. 0 if nothing was requested.
    pub fn ratio(&self) -> f64 {
        if self.requested.is_zero() {
            return 0.0;
        }
        self.smallest.get() as f64 / self.requested.get() as f64
    }
}

/// A search for the smallest number that suffices.
struct Search {
    /// This does not.
    fails: u64,
    /// What is tried first.
    first: u64,
    /// How much more is tried next; then twice as much more, and so on.
    step: u64,
    /// Nothing above is tried.
    most: u64,
}

impl Search {
    /// The smallest number for which `attempt` gives something, and what it gives. `None` if no number up to the most does.
    fn run<T>(
        self,
        mut attempt: impl FnMut(u64) -> Result<Option<T>, AnyError>,
    ) -> Result<Option<(u64, T)>, AnyError> {
        let (mut fails, mut suffices, mut step) = (self.fails, self.first, self.step);
        let mut best = loop {
            if let Some(found) = attempt(suffices)? {
                break found;
            }
            if suffices >= self.most {
                return Ok(None);
            }
            fails = suffices;
            suffices = suffices.saturating_add(step).min(self.most);
            step = step.saturating_mul(2);
        };
        while suffices - fails > 1 {
            let middle = fails + (suffices - fails) / 2;
            match attempt(middle)? {
                Some(found) => (suffices, best) = (middle, found),
                None => fails = middle,
            }
        }
        Ok(Some((suffices, best)))
    }
}
