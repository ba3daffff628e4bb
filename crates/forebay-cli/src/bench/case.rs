//! The workloads by name.

use std::fmt;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use forebay_trace::workload::Workload;

use super::hot;
use super::objects;
use super::stress::Stress;
use super::views;

/// The workloads that run by default, in that order: those that take seconds.
static USUAL: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let played = Workload::ALL.iter().copied().map(Case::Played);
    played
        .chain([Case::HotPair, Case::HotStatistics, Case::HotThreads, Case::Objects, Case::Views])
        .collect()
});

/// All workloads, in the order in which they run.
static ALL: LazyLock<Vec<Case>> =
    LazyLock::new(|| USUAL.iter().copied().chain(Stress::ALL.map(Case::Stress)).collect());

/// All names: those of the workloads, and one for all stress workloads together.
static NAMES: LazyLock<Vec<Case>> =
    LazyLock::new(|| ALL.iter().copied().chain([Case::WholeStress]).collect());

/// A workload of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Case {
    /// A sequence that runs on the pool and on the driver.
    Played(Workload),
    /// The hot pair, against mimalloc.
    HotPair,
    /// The hot pair, against itself without statistics.
    HotStatistics,
    /// The hot pair on several threads.
    HotThreads,
    /// Objects of an object pool, against boxes.
    Objects,
    /// The host's view of a buffer.
    Views,
    /// A workload of extreme load.
    Stress(Stress),
    /// All stress workloads.
    WholeStress,
}

impl Case {
    /// The `wanted` workloads, each once and in the usual order; if none is named, all except the STRESS
    /// workloads, which take minutes.
    pub(super) fn chosen(wanted: &[Self]) -> impl Iterator<Item = Self> {
        let is_wanted = |case: &Self| match case {
            case if wanted.contains(case) => true,
            Self::Stress(_) => wanted.contains(&Self::WholeStress),
            _ => wanted.is_empty(),
        };
        ALL.iter().copied().filter(is_wanted)
    }

    /// Whether it has devices of its own, so that none can be chosen.
    pub(super) const fn chooses_devices(self) -> bool {
        matches!(self, Self::Stress(_) | Self::WholeStress)
    }

    /// The name in commands and files, and what it does, in a line.
    #[rustfmt::skip] // a table: one line for each
    const fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::Played(workload) => (workload.name(), workload.about()),
            Self::HotPair => (hot::PAIRS, "a block allocated again right after its free, against mimalloc"),
            Self::HotStatistics => (hot::STATISTICS, "the same with and without statistics"),
            Self::HotThreads => (hot::THREADS, "the same on several threads, each with its own stream"),
            Self::Objects => (objects::OBJECTS, "an object taken from an object pool and returned, with a Box beside it"),
            Self::Views => (views::VIEWS, "the host's view of a buffer that needs no copy"),
            Self::Stress(stress) => (stress.name(), stress.about()),
            Self::WholeStress => ("STRESS", "all stress workloads; takes minutes"),
        }
    }

    /// The name in commands and files.
    pub const fn name(self) -> &'static str {
        self.entry().0
    }

    /// What it does, in a line.
    pub const fn about(self) -> &'static str {
        self.entry().1
    }
}

impl ValueEnum for Case {
    fn value_variants<'a>() -> &'a [Self] {
        &NAMES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.about()))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_chosen_once_and_in_the_usual_order() {
        assert_eq!(Case::chosen(&[]).count(), Workload::ALL.len() + 5);
        let wanted = [Case::HotPair, Case::Played(Workload::MpT), Case::HotPair];
        let chosen: Vec<&str> = Case::chosen(&wanted).map(Case::name).collect();
        assert_eq!(chosen, ["MP-T", "HOT"]);
    }

    #[test]
    fn stress_is_measured_only_where_it_is_named() {
        assert!(Case::chosen(&[]).all(|case| !case.chooses_devices()));
        let one = [Case::Stress(Stress::Holes)];
        assert_eq!(Case::chosen(&one).collect::<Vec<_>>(), one);
        let whole: Vec<Case> = Case::chosen(&[Case::WholeStress, one[0]]).collect();
        assert_eq!(whole, Stress::ALL.map(Case::Stress));
    }

    #[test]
    fn every_name_is_its_own() {
        let mut names: Vec<&str> = NAMES.iter().map(|case| case.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
    }
}
