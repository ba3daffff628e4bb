//! Advice from a run's patterns, in sentences that name the figures they rest on.

use core::cmp::Reverse;

use forebay_core::{Bytes, counted};

use super::{Analysis, SizeStatistics};

/// Below this many requests a share of them means nothing.
const FEW: u64 = 100;

/// How many sizes a sentence names.
const SAID: usize = 4;

/// What makes a sentence of a run, if it says something of it.
type Rule = fn(&Analysis) -> Option<String>;

/// A pattern that advice rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// Most requests have one of a few sizes: a warm-up helps the first step.
    FewSizes,
    /// Sizes nearly repeat: size classes let thread caches serve them.
    NearlyRepeating,
    /// Much of the peak is in long-lived blocks.
    Lasting,
    /// The peak is short.
    ShortPeak,
    /// Most requests are small.
    ManySmall,
    /// Blocks are freed on a stream other than the one they were allocated on.
    FreedElsewhere,
}

impl Pattern {
    /// The pattern in a few words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::FewSizes => "A few sizes",
            Self::NearlyRepeating => "Sizes that nearly repeat",
            Self::Lasting => "Blocks that last",
            Self::ShortPeak => "A short peak",
            Self::ManySmall => "Many small requests",
            Self::FreedElsewhere => "Frees on other streams",
        }
    }
}

/// All that follows, the most useful first, each with its pattern.
pub(super) fn of(run: &Analysis) -> impl Iterator<Item = (Pattern, String)> {
    let rules: [(Pattern, Rule); 6] = [
        (Pattern::FewSizes, warm_up),
        (Pattern::NearlyRepeating, classes),
        (Pattern::Lasting, lasting),
        (Pattern::ShortPeak, sharp_peak),
        (Pattern::ManySmall, small),
        (Pattern::FreedElsewhere, elsewhere),
    ];
    rules.into_iter().filter_map(|(pattern, rule)| Some((pattern, rule(run)?)))
}

/// One number in hundredths of another; nothing where that is nothing.
fn percent(part: u64, of: u64) -> Option<u64> {
    let hundredths = (u128::from(part) * 100).checked_div(u128::from(of))?;
    u64::try_from(hundredths).ok()
}

/// A share for a sentence.
fn said(percent: u64) -> String {
    if percent == 0 { "less than 1 %".to_owned() } else { format!("{percent} %") }
}

fn warm_up(run: &Analysis) -> Option<String> {
    let share = percent(run.hot_requests(), run.requests)?;
    if share < 50 || run.requests < FEW {
        return None;
    }
    let count = run.hottest.len();
    let shapes = largest_sums(&run.hottest).map(|figures| {
        let plural = if figures.max_live == 1 { "" } else { "s" };
        format!("{} block{plural} of {}", figures.max_live, figures.size)
    });
    let shapes: Vec<String> = shapes.collect();
    Some(format!(
        "{share} % of requests are of {count} of {} sizes: warm up with them, and the first step is \
         as fast as the others; live at once, at the most: {}",
        run.sizes,
        shapes.join(", ")
    ))
}

/// Those that have the most bytes live at once.
fn largest_sums(sizes: &[SizeStatistics]) -> impl Iterator<Item = SizeStatistics> {
    let mut sizes = sizes.to_vec();
    sizes.sort_by_key(|figures| Reverse(figures.max_live.saturating_mul(figures.size.get())));
    sizes.into_iter().take(SAID)
}

fn classes(run: &Analysis) -> Option<String> {
    let exact = percent(run.repeats, run.requests)?;
    let rounded = percent(run.repeats_in_classes, run.requests)?;
    if run.requests < FEW || rounded < exact + 10 {
        return None;
    }
    Some(format!(
        "{exact} % of requests repeat a size that was freed on their stream before; rounded to eight \
         classes a doubling {rounded} % do: size_classes = geometric lets magazines serve them"
    ))
}

fn lasting(run: &Analysis) -> Option<String> {
    let share = percent(run.peak_lasting.get(), run.peak.get())?;
    if share < 25 || run.requests < FEW {
        return None;
    }
    Some(format!(
        "{share} % of the peak ({} of {}) is in {} that live for at least half of the run: \
         allocated before the rest, they do not lie between what comes and goes",
        run.peak_lasting,
        run.peak,
        counted(run.peak_lasting_blocks, "block")
    ))
}

fn sharp_peak(run: &Analysis) -> Option<String> {
    let operations = run.requests.saturating_add(run.frees);
    let share = percent(run.near_peak, operations)?;
    if share >= 10 || run.requests < FEW {
        return None;
    }
    let most = run.at_peak.first()?;
    let sum = Bytes::new(most.size.get().saturating_mul(most.at_peak));
    Some(format!(
        "the run is within a tenth of its peak for {} of its operations, around number {} of \
         {operations}: what is live then decides how much memory it takes, and the most of it, \
         {sum}, is in blocks of {} ({})",
        said(share),
        run.peak_at,
        most.size,
        most.at_peak
    ))
}

fn small(run: &Analysis) -> Option<String> {
    let requests = percent(run.small_requests, run.requests)?;
    let bytes = percent(run.peak_small.get(), run.peak.get())?;
    if requests < 50 || bytes >= 5 || run.requests < FEW {
        return None;
    }
    Some(format!(
        "{requests} % of requests are for 256 KiB or less, and hold {} of the peak: where many of \
         them end together, an arena takes them in one block",
        said(bytes)
    ))
}

fn elsewhere(run: &Analysis) -> Option<String> {
    let share = percent(run.freed_elsewhere, run.frees)?;
    if run.freed_elsewhere == 0 {
        return None;
    }
    Some(format!(
        "{} of {} frees ({}) are on another stream than the allocation: their memory serves \
         that stream next, and the other waits for an event to have it back; freed where it was \
         allocated, with record_use for the other stream, it goes back to the first",
        run.freed_elsewhere,
        run.frees,
        said(share)
    ))
}
