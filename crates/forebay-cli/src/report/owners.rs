//! Who owned memory over time: blocks grouped by tag, call site or size.
//!
//! ```text
//!   blocks ─► groups ─► the most that each had at once ─► bands: the largest groups, the others, those without an owner
//!                                                           │
//!                          bytes of each band at the moment of each bucket at which the most was requested
//! ```

use core::cmp::Reverse;
use core::hash::Hash;
use std::collections::HashMap;

use forebay_trace::{Event, Trace};

use super::data::{Band, Ownership};
use super::lives::{LabelNumbers, Life, site};

/// How many owners have a band, which is how many colors are easily told apart.
const NAMED: usize = 7;

/// The most buckets: about one for each pixel of a chart.
const MAX_BUCKETS: u64 = 1 << 10;

/// How many events go into a bucket of bands: a multiple of those in a bucket of the other lines.
pub(super) fn events_per_bucket(events: u64, per_line_bucket: u64) -> u64 {
    events.div_ceil(MAX_BUCKETS).max(1).next_multiple_of(per_line_bucket.max(1))
}

/// By tag and by call site where the recording tells, and by size. The bands of the map's blocks are those of the events
/// that allocated them, `born`.
pub(super) fn over_time(
    trace: &Trace,
    lives: &[Life],
    per_bucket: u64,
    born: &[u64],
    labels: &mut LabelNumbers,
) -> Vec<Ownership> {
    let mut found = Vec::new();
    let mut add = |by, (bands, of_block): (Vec<Band>, Vec<u8>)| {
        let block = |born: &u64| lives.partition_point(|life| life.born < *born);
        let map = born.iter().filter_map(|born| of_block.get(block(born)).copied()).collect();
        found.push(Ownership { by, bands, map });
    };
    let tags = Groups::of(lives, |life| trace.tag(life.block));
    let sites = Groups::of(lives, |life| site(trace, life.block));
    for (by, groups) in [("tag", tags), ("site", sites)] {
        if groups.owners.iter().any(Option::is_some) {
            add(by, groups.bands(trace, per_bucket, |text| labels.number(text)));
        }
    }
    add("size", Groups::of(lives, |life| Some(life.bytes)).bands(trace, per_bucket, |size| size));
    found
}

/// Blocks in groups.
struct Groups<K> {
    /// The group of each block.
    of_block: Vec<usize>,
    /// The owner of each group.
    owners: Vec<Option<K>>,
}

impl<K: Copy + Eq + Hash> Groups<K> {
    fn of(lives: &[Life], owner: impl Fn(&Life) -> Option<K>) -> Self {
        let (mut numbers, mut owners) = (HashMap::new(), Vec::new());
        let of_block = lives.iter().map(|life| {
            let owner = owner(life);
            *numbers.entry(owner).or_insert_with(|| {
                owners.push(owner);
                owners.len() - 1
            })
        });
        Self { of_block: of_block.collect(), owners }
    }

    /// The bands over time, and the band of each block.
    fn bands(
        &self,
        trace: &Trace,
        per_bucket: u64,
        mut key: impl FnMut(K) -> u64,
    ) -> (Vec<Band>, Vec<u8>) {
        let shares = self.shares(trace);
        let owned = self.owners.iter().zip(&shares).enumerate();
        let owned = owned.filter_map(|(group, (owner, &share))| Some((group, share, (*owner)?)));
        let mut ranked: Vec<_> = owned.filter(|(_, share, _)| share.most > 0).collect();
        ranked.sort_unstable_by_key(|&(group, share, _)| (Reverse(share.most), group));
        // A rest of one group is shown as what it is.
        let named = if ranked.len() == NAMED + 1 { NAMED + 1 } else { NAMED.min(ranked.len()) };
        // What lasts lies below what comes and goes, so that it is drawn level.
        let (first, _) = ranked.split_at_mut(named);
        first.sort_by(|(_, left, _), (_, right, _)| {
            right.steadiness().total_cmp(&left.steadiness())
        });
        let band = |key, groups| Band { key, groups, bytes: Vec::new() };
        let mut bands: Vec<Band> =
            ranked.iter().take(named).map(|&(.., owner)| band(key(owner), 1)).collect();
        if ranked.len() > named {
            bands.push(band(0, (ranked.len() - named) as u64));
        }
        let without = bands.len();
        if self.owners.iter().zip(&shares).any(|(owner, share)| owner.is_none() && share.most > 0) {
            bands.push(band(0, 1));
        }
        let mut of_group = vec![without; self.owners.len()];
        for (rank, &(group, ..)) in ranked.iter().enumerate() {
            if let Some(band) = of_group.get_mut(group) {
                *band = rank.min(named);
            }
        }
        let of_block = |block: usize| of_group.get(*self.of_block.get(block)?).copied();
        fill(&mut bands, trace, per_bucket, of_block);
        let all = (0..self.of_block.len()).filter_map(of_block);
        (bands, all.map(|band| u8::try_from(band).unwrap_or(u8::MAX)).collect())
    }

    /// What each group had over the run.
    fn shares(&self, trace: &Trace) -> Vec<Share> {
        let mut shares = vec![Share::default(); self.owners.len()];
        let (mut at, of_block) = (0, |block: usize| self.of_block.get(block).copied());
        sums_over_time(trace, self.owners.len(), of_block, |sums, group| {
            if let (Some(share), Some(&sum)) = (shares.get_mut(group), sums.get(group)) {
                share.until(at);
                share.live = sum;
                share.most = sum.max(share.most);
            }
            at += 1;
        });
        shares.iter_mut().for_each(|share| share.until(at));
        shares
    }
}

/// What a group had over the run so far.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    live: u64,
    most: u64,
    /// Bytes times events.
    area: u128,
    since: u64,
}

impl Share {
    /// Nothing has changed since the last event of the group until this one.
    fn until(&mut self, at: u64) {
        self.area = self.area.saturating_add(u128::from(self.live) * u128::from(at - self.since));
        self.since = at;
    }

    /// How much of the most it had all the time, times the events of the run.
    fn steadiness(self) -> f64 {
        self.area as f64 / self.most.max(1) as f64
    }
}

/// Sums the live bytes of groups of blocks, and calls `see` with the sums and the group of each event after it.
fn sums_over_time(
    trace: &Trace,
    groups: usize,
    of_block: impl Fn(usize) -> Option<usize>,
    mut see: impl FnMut(&[u64], usize),
) {
    let mut sums = vec![0_u64; groups];
    for event in trace.events() {
        let (Event::Allocate { block, .. } | Event::Free { block, .. }) = event;
        let bytes = trace.size(block).get();
        let group = of_block(block.0 as usize).unwrap_or(usize::MAX);
        if let Some(sum) = sums.get_mut(group) {
            *sum = match event {
                Event::Allocate { .. } => sum.saturating_add(bytes),
                Event::Free { .. } => sum.saturating_sub(bytes),
            };
        }
        see(&sums, group);
    }
}

/// Fills the bands: of each bucket the moment at which the most was requested, so that they add up to that.
fn fill(
    bands: &mut [Band],
    trace: &Trace,
    per_bucket: u64,
    of_block: impl Fn(usize) -> Option<usize>,
) {
    let last = (trace.len() as u64).saturating_sub(1);
    let (mut at, mut highest, mut then) = (0_u64, None, vec![0; bands.len()]);
    sums_over_time(trace, bands.len(), of_block, |sums, _| {
        let requested = sums.iter().copied().fold(0, u64::saturating_add);
        if highest.is_none_or(|highest| requested > highest) {
            highest = Some(requested);
            then.copy_from_slice(sums);
        }
        if (at + 1).is_multiple_of(per_bucket) || at == last {
            for (band, &bytes) in bands.iter_mut().zip(&then) {
                band.bytes.push(bytes);
            }
            highest = None;
        }
        at += 1;
    });
}
