//! How much memory a run needs: the smallest device on which it goes through.
//!
//! The peak of an allocator that has all the memory it wants says little about that: many take more than they
//! need while there is more. So the run is replayed on smaller and smaller devices.
//!
//! ```text
//!   requested                smallest                         enough
//!       |------ fails --------->|<-------- goes through --------|      bisected to the granule
//! ```

use forebay_core::Bytes;

use crate::{PassReport, Player, ReplayOptions, Trace, WorkBudget, replay};

/// What a device's capacity is a multiple of.
const GRANULE: u64 = Bytes::mib(2).get();

/// An allocator that needs more than this many times what is asked for is not looked at further.
const MOST: u64 = 64;

/// What went wrong, opening an allocator or replaying on it.
type AnyError = Box<dyn core::error::Error>;

/// The smallest capacity in which a run goes through, and what it costs there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fit {
    /// The most that the run asks for at once.
    pub requested: Bytes,
    /// The smallest capacity, a multiple of 2 MiB.
    pub smallest: Bytes,
    /// The passes at that capacity.
    pub passes: Vec<PassReport>,
}

impl Fit {
    /// Replays `trace` on devices of different capacities, `passes` times on each, until the smallest one on which
    /// no allocation finds memory missing is known to 2 MiB. `None` if even 64 times the requested bytes do not
    /// suffice. `open` makes an allocator on an empty device of a given capacity.
    ///
    /// Assumes that a run which goes through goes through on any larger device. For an allocator of which that is
    /// not true, the result is a capacity that suffices, with one just below it that does not.
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
        let most = least.saturating_mul(MOST);
        // `fails` granules are less than the requested bytes.
        let (mut fails, mut suffices) = (least - 1, least);
        let mut try_with = |granules: u64| {
            let capacity = Bytes::new(granules.saturating_mul(GRANULE));
            let reports = replay(
                trace,
                &mut *open(capacity)?,
                ReplayOptions::new().passes(passes).stop_when_short().budget(budget),
            )?;
            let is_short = reports.iter().any(|report| report.out_of_memory > 0);
            Ok::<_, AnyError>((!is_short).then_some(reports))
        };
        let mut best = loop {
            if let Some(reports) = try_with(suffices)? {
                break reports;
            }
            if suffices >= most {
                return Ok(None);
            }
            fails = suffices;
            // A sixty-fourth more, then twice as much more, and so on: most allocators need a few hundredths.
            let above = suffices.saturating_sub(least).max(least / 128).max(1);
            suffices = least.saturating_add(above.saturating_mul(2)).min(most);
        };
        while suffices - fails > 1 {
            let middle = fails + (suffices - fails) / 2;
            match try_with(middle)? {
                Some(reports) => (suffices, best) = (middle, reports),
                None => fails = middle,
            }
        }
        let smallest = Bytes::new(suffices.saturating_mul(GRANULE));
        Ok(Some(Self { requested, smallest, passes: best }))
    }

    /// The smallest capacity over the requested bytes: 1 is the best possible. 0 if nothing was requested.
    pub fn ratio(&self) -> f64 {
        if self.requested.is_zero() {
            return 0.0;
        }
        self.smallest.get() as f64 / self.requested.get() as f64
    }
}
