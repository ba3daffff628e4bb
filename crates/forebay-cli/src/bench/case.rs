//! What can be asked for by name.

use std::fmt;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use forebay_trace::workload::Workload;

use super::hot;

/// Everything there is, in the order it is measured in.
static ALL: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let played = Workload::ALL.iter().copied().map(Case::Played);
    played.chain([Case::HotPair, Case::HotStatistics, Case::HotThreads]).collect()
});

/// A workload of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Case {
    /// A sequence that is played on the pool and on the driver.
    Played(Workload),
    /// The hot pair, against mimalloc.
    HotPair,
    /// The hot pair, against itself without statistics.
    HotStatistics,
    /// The hot pair on several threads.
    HotThreads,
}

impl Case {
    /// Those that are `wanted`, each once and in the usual order; all where none is named.
    pub(super) fn chosen(wanted: &[Self]) -> impl Iterator<Item = Self> {
        ALL.iter().copied().filter(|case| wanted.is_empty() || wanted.contains(case))
    }

    /// The name in commands and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Played(workload) => workload.name(),
            Self::HotPair => hot::PAIRS,
            Self::HotStatistics => hot::STATISTICS,
            Self::HotThreads => hot::THREADS,
        }
    }

    /// What it does, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Played(workload) => workload.about(),
            Self::HotPair => "pairs of what was just freed, against mimalloc, in turns",
            Self::HotStatistics => "the hot pair with statistics and without, in turns",
            Self::HotThreads => "the hot pair on threads with streams of their own",
        }
    }
}

impl ValueEnum for Case {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
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
        assert_eq!(Case::chosen(&[]).count(), Workload::ALL.len() + 3);
        let wanted = [Case::HotPair, Case::Played(Workload::MpT), Case::HotPair];
        let chosen: Vec<&str> = Case::chosen(&wanted).map(Case::name).collect();
        assert_eq!(chosen, ["MP-T", "HOT"]);
    }

    #[test]
    fn every_name_is_its_own() {
        let mut names: Vec<&str> = ALL.iter().map(|case| case.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
