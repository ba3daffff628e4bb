//! A run's patterns, for programs and for people.

use std::io::{self, Write};

use forebay_core::counted;
use forebay_trace::Analysis;
use forebay_trace::analysis::SizeStatistics;
use serde::Serialize;

use crate::layout::{Cell, QUIET, TITLE, write_hanging};
use crate::output::Width;

/// The id of the format. Existing keys keep their meaning.
const SCHEMA: &str = "forebay.analysis.v1";

/// How many sizes people are shown; programs get all there are.
const SHOWN: usize = 5;

/// The patterns of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Patterns {
    /// Always "forebay.analysis.v1".
    pub schema: &'static str,
    /// The run.
    pub trace: String,
    /// Allocations.
    pub requests: u64,
    /// Frees.
    pub frees: u64,
    /// How many different sizes were asked for.
    pub sizes: u64,
    /// The sizes asked for most often, the hottest first.
    pub hottest: Vec<Size>,
    /// Requests whose size, rounded to 512 B, was freed on their stream before and not taken since.
    pub repeats: u64,
    /// The same with sizes rounded to eight classes a doubling.
    pub repeats_in_classes: u64,
    /// Requests for at most 256 KiB.
    pub small_requests: u64,
    /// How many operations blocks lived for, the middle one of those that were freed.
    pub lifetime_median_ops: u64,
    /// What one in a hundred of them exceeds.
    pub lifetime_p99_ops: u64,
    /// The longest of them.
    pub lifetime_longest_ops: u64,
    /// Blocks that were not freed.
    pub never_freed: u64,
    /// The operation after which the most was live for the first time, from 0.
    pub peak_op: u64,
    /// What was live then.
    pub peak_bytes: u64,
    /// In how many blocks.
    pub peak_blocks: u64,
    /// What of it was in blocks of at most 256 KiB.
    pub peak_small_bytes: u64,
    /// What of it was in blocks that lived for at least half of the run.
    pub peak_lasting_bytes: u64,
    /// In how many of them.
    pub peak_lasting_blocks: u64,
    /// The sizes that had the most bytes then, the most first.
    pub at_peak: Vec<Size>,
    /// Operations after which at least nine tenths of the peak were live.
    pub near_peak_ops: u64,
    /// Streams that took part.
    pub streams: u64,
    /// Blocks freed on another stream than they were allocated on.
    pub freed_elsewhere: u64,
    /// What follows, in sentences.
    pub advice: Vec<String>,
}

/// A size that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Size {
    /// The size.
    pub size_bytes: u64,
    /// How often it was asked for.
    pub requests: u64,
    /// The most blocks of it that were live at once.
    pub max_live: u64,
    /// How many were live at the peak.
    pub at_peak: u64,
}

impl From<&SizeStatistics> for Size {
    fn from(figures: &SizeStatistics) -> Self {
        let SizeStatistics { size, requests, max_live, at_peak, .. } = *figures;
        Self { size_bytes: size.get(), requests, max_live, at_peak }
    }
}

impl Patterns {
    pub(super) fn new(trace: &str, found: &Analysis) -> Self {
        Self {
            schema: SCHEMA,
            trace: trace.to_owned(),
            requests: found.requests,
            frees: found.frees,
            sizes: found.sizes,
            hottest: found.hottest.iter().map(Size::from).collect(),
            repeats: found.repeats,
            repeats_in_classes: found.repeats_in_classes,
            small_requests: found.small_requests,
            lifetime_median_ops: found.lifetimes.median,
            lifetime_p99_ops: found.lifetimes.p99,
            lifetime_longest_ops: found.lifetimes.longest,
            never_freed: found.lifetimes.never_freed,
            peak_op: found.peak_at,
            peak_bytes: found.peak.get(),
            peak_blocks: found.peak_blocks,
            peak_small_bytes: found.peak_small.get(),
            peak_lasting_bytes: found.peak_lasting.get(),
            peak_lasting_blocks: found.peak_lasting_blocks,
            at_peak: found.at_peak.iter().map(Size::from).collect(),
            near_peak_ops: found.near_peak,
            streams: found.streams,
            freed_elsewhere: found.freed_elsewhere,
            advice: found.advice(),
        }
    }
}

/// The patterns for people: a paragraph a subject, then what follows.
pub(super) fn tell(found: &Analysis, width: Width, out: &mut dyn Write) -> io::Result<()> {
    let mut line = |name: &str, text: String| {
        let parts = [Cell::styled(format!("{name:9}"), QUIET), text.into()];
        write_hanging(&parts, (2, 12), width, out)
    };
    let hot = found.hottest.iter().take(SHOWN);
    let hot = hot.map(|one| format!("{} x {}", one.requests, one.size)).collect::<Vec<_>>();
    line("sizes", format!("{}, most often {}", counted(found.sizes, "size"), hot.join(", ")))?;
    let repeats = share(found.repeats, found.requests);
    line(
        "requests",
        format!(
            "{repeats} repeat a size that was freed earlier on the same stream; {} are for \
             256 KiB or less",
            share(found.small_requests, found.requests)
        ),
    )?;
    let lifetimes = &found.lifetimes;
    line(
        "lifetimes",
        format!(
            "median {}, 99th percentile {}, longest {}; {} never freed",
            counted(lifetimes.median, "operation"),
            lifetimes.p99,
            lifetimes.longest,
            counted(lifetimes.never_freed, "block")
        ),
    )?;
    let at_peak = found.at_peak.iter().take(SHOWN);
    let at_peak = at_peak.map(|one| format!("{} x {}", one.at_peak, one.size));
    line(
        "peak",
        format!(
            "{} in {} after operation {}: {}",
            found.peak,
            counted(found.peak_blocks, "block"),
            found.peak_at,
            at_peak.collect::<Vec<_>>().join(", ")
        ),
    )?;
    line(
        "",
        format!(
            "{} of it in blocks of 256 KiB or less, {} in blocks that live for half of the run",
            found.peak_small, found.peak_lasting
        ),
    )?;
    line(
        "streams",
        format!(
            "{}; {} of frees are on another stream than the allocation",
            counted(found.streams, "stream"),
            share(found.freed_elsewhere, found.frees)
        ),
    )?;
    for advice in found.advice() {
        write_hanging(&[Cell::styled("*", TITLE), advice.into()], (2, 4), width, out)?;
    }
    writeln!(out)
}

/// One number as a part of another, in tenths of a percent.
fn share(part: u64, of: u64) -> String {
    let tenths = (u128::from(part) * 1000).checked_div(u128::from(of)).unwrap_or(0);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use forebay_core::Bytes;
    use forebay_trace::sample;

    use super::*;

    #[test]
    fn text_and_rows_tell_the_same() {
        let trace = sample::gpt2_train().unwrap();
        let found = Analysis::of(&trace);
        let row = Patterns::new(trace.name(), &found);
        let mut text = Vec::new();
        tell(&found, Width::new(80), &mut text).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&text).unwrap()).to_string();
        let advice = text.lines().filter(|line| line.starts_with("  * ")).count();
        // However the lines are broken.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let peak = Bytes::new(row.peak_bytes);
        assert!(text.contains(&format!("{peak} in {} blocks", row.peak_blocks)), "{text}");
        let hottest = &row.hottest[0];
        let hot = format!("{} x {}", hottest.requests, Bytes::new(hottest.size_bytes));
        assert!(text.contains(&hot), "{text}");
        assert_eq!(advice, row.advice.len());
        assert_eq!(row.sizes, found.sizes);
    }

    #[test]
    fn shares_are_cut_and_never_fail() {
        assert_eq!(
            [share(1, 3), share(0, 0), share(u64::MAX, u64::MAX)],
            ["33.3 %", "0.0 %", "100.0 %"]
        );
    }
}
