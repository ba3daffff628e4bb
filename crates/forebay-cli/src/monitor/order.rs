//! Which pools are shown, and in which order: what the user sorts by and looks for.

use core::cmp::Ordering;

use clap::ValueEnum;
use forebay::monitor::ProcessPool;

use super::sample::{Process, Rates, Sample};
use super::text::device;

/// What pools are sorted by. Figures come from the largest down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum SortKey {
    /// The number of the process, and of the pool in it.
    #[default]
    Process,
    /// Bytes held.
    Held,
    /// Bytes in live blocks.
    Live,
    /// The part of the limit that is held.
    Limit,
    /// The part of the bytes held that no live block asked for.
    Waste,
    /// Allocations a second.
    Allocations,
}

impl SortKey {
    /// The next one, and after the last the first.
    pub(super) fn next(self) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|key| *key == self).map_or(0, |at| at + 1);
        all.get(at).copied().unwrap_or_default()
    }

    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The figure, where there is one.
    fn figure(self, pool: &ProcessPool, rates: Rates) -> Option<f64> {
        Some(match self {
            Self::Process => return None,
            Self::Held => pool.held_bytes as f64,
            Self::Live => pool.live_bytes as f64,
            Self::Limit => pool.group_held_bytes as f64 / pool.limit_bytes.max(1) as f64,
            Self::Waste => rates.waste,
            Self::Allocations => rates.allocations.unwrap_or(-1.0),
        })
    }
}

/// What the user asked to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) sort: SortKey,
    /// A part of the number, the names, the script or the device; all pools where it is empty.
    pub(super) filter: String,
}

impl Order {
    /// Whether a process is asked for, with or without one of its pools.
    pub(super) fn shows(&self, process: &Process, pool: Option<&ProcessPool>) -> bool {
        let of = &process.snapshot;
        let device = pool.map(device).unwrap_or_default();
        let rank = of.rank.map_or(String::new(), |rank| format!("rank {rank}"));
        let all = [&of.pid.to_string(), &process.title, &of.process, &of.script, &rank, &device];
        let filter = self.filter.to_lowercase();
        all.iter().any(|text| text.to_lowercase().contains(&filter))
    }

    fn compare(&self, left: (&ProcessPool, Rates), right: (&ProcessPool, Rates)) -> Ordering {
        let [left, right] = [left, right].map(|(pool, rates)| self.sort.figure(pool, rates));
        match (left, right) {
            (Some(left), Some(right)) => right.total_cmp(&left),
            _ => Ordering::Equal,
        }
    }

    /// The pools that are asked for, in order.
    pub(super) fn rows<'a>(
        &self,
        sample: &'a Sample,
    ) -> Vec<(&'a Process, &'a ProcessPool, Rates)> {
        let all = sample.processes.iter().flat_map(|process| {
            let pools = process.snapshot.pools.iter().zip(&process.rates);
            pools.map(move |(pool, &rates)| (process, pool, rates))
        });
        let mut rows: Vec<_> =
            all.filter(|(process, pool, _)| self.shows(process, Some(pool))).collect();
        // Stable: those that are equal stay in the order of their numbers.
        rows.sort_by(|(_, left, of_left), (_, right, of_right)| {
            self.compare((left, *of_left), (right, *of_right))
        });
        rows
    }

    /// Leaves in a sample what is asked for: pools in order, and processes in the order of their first ones.
    pub(super) fn apply(&self, sample: &mut Sample) {
        for process in &mut sample.processes {
            let pools = core::mem::take(&mut process.snapshot.pools);
            let rates = core::mem::take(&mut process.rates);
            let had_none = pools.is_empty();
            let mut both: Vec<_> = pools.into_iter().zip(rates).collect();
            both.retain(|(pool, _)| self.shows(process, Some(pool)));
            both.sort_by(|(left, of_left), (right, of_right)| {
                self.compare((left, *of_left), (right, *of_right))
            });
            process.is_shown = !both.is_empty() || (had_none && self.shows(process, None));
            (process.snapshot.pools, process.rates) = both.into_iter().unzip();
        }
        let all = sample.processes.len();
        sample.processes.retain(|process| process.is_shown);
        sample.is_filtered = all > 0 && sample.processes.is_empty();
        sample.processes.sort_by(|left, right| match (first_pool(left), first_pool(right)) {
            (Some(left), Some(right)) => self.compare(left, right),
            (left, right) => right.is_some().cmp(&left.is_some()),
        });
    }
}

fn first_pool(of: &Process) -> Option<(&ProcessPool, Rates)> {
    Some((of.snapshot.pools.first()?, *of.rates.first()?))
}
