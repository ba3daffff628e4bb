//! Collects a report's data from one recording, by replaying it and watching the pool.

use forebay::PoolOptions;
use forebay_core::Bytes;
use forebay_trace::{
    Analysis, Moment, PassReport, Player, PoolPlayer, ReplayOptions, Trace, replay,
};

use super::advice;
use super::data::{Report, Run, SCHEMA, Series, Timeline};
use super::gains::Gains;
use super::lives::{LabelNumbers, Life, histogram, lives, owners};
use super::map::map;
use super::series::{SeriesBuilder, events_per_bucket};
use super::terms::{Depth, Terms};
use super::transfers::transfers;
use super::trials::{self, Trials};
use super::watch::{PoolWatch, Seen};
use crate::replay::{DeviceName, Policy, Row, open_device};

/// The most stream handles that are named.
const MAX_STREAMS: usize = 64;

/// A report, and what went wrong on the way. A model that fails is left out; without forebay's pool there is no
/// report.
pub(super) fn collect(trace: &Trace, terms: &Terms<'_>) -> Result<(Report, Vec<String>), String> {
    let (events, sums) = (trace.len() as u64, trace.statistics());
    let found = Analysis::of(trace);
    let run = Run {
        name: trace.name().to_owned(),
        events,
        allocations: sums.allocations,
        frees: sums.frees,
        never_freed: sums.never_freed,
        largest_bytes: sums.largest.get(),
        streams: trace.streams().iter().take(MAX_STREAMS).copied().collect(),
        stream_count: sums.streams,
        peak_requested_bytes: sums.peak_requested.get(),
        peak_at: found.peak_at,
        peak_blocks: found.peak_blocks,
        failed_allocations: trace.remarks().failed_allocations,
        live_at_start: trace.remarks().live_at_start,
    };
    let lives = lives(trace);
    let mut labels = LabelNumbers::default();
    let owners = owners(trace, &lives, run.peak_at, &mut labels);
    (terms.tell)("forebay");
    let ours = play_ours(trace, terms, run.peak_at);
    let ours = ours.map_err(|error| stopped(trace, terms).err().unwrap_or(error))?;
    // A snapshot of one moment says where its blocks are.
    let recorded = |life: &Life| trace.address(life.block);
    let map = match lives.iter().any(|life| recorded(life).is_some()) {
        true => map(trace, &lives, recorded, &[], &mut labels),
        false => {
            map(trace, &lives, |life| ours.seen.address(life.block), &ours.seen.maps, &mut labels)
        }
    };
    let mut series = vec![ours.requested, ours.held];
    let row = |policy, pass: &PassReport| {
        Row::new(trace.name(), DeviceName::SIM, (policy, terms.settings), pass)
    };
    let mut rows: Vec<Row> = ours.passes.iter().map(|pass| row(Policy::Forebay, pass)).collect();
    let mut faults = Vec::new();
    for &policy in Policy::ALL.iter().filter(|&&policy| policy != Policy::Forebay) {
        (terms.tell)(policy.name());
        match play_model(trace, policy, terms) {
            Ok((held, passes)) => {
                series.push(held);
                rows.extend(passes.iter().map(|pass| row(policy, pass)));
            }
            Err(error) => {
                stopped(trace, terms)?;
                faults.push(format!("{}: {policy}: {error}", trace.name()));
            }
        }
    }
    let Trials { fits, trials, batch } = match terms.depth {
        Depth::Quick => Trials::default(),
        _ => trials::run(trace, &lives, run.peak_at, terms, &mut faults),
    };
    let mut report = Report {
        schema: SCHEMA,
        forebay: env!("CARGO_PKG_VERSION"),
        capacity_bytes: terms.capacity.map(Bytes::get),
        timeline: Timeline { events_per_bucket: events_per_bucket(events), series },
        pool: ours.seen.samples,
        happenings: ours.seen.happenings,
        map,
        owners,
        sizes: histogram(&lives, run.peak_at, |life| life.bytes),
        lifetimes: histogram(&lives, run.peak_at, |life| life.events()),
        policies: rows,
        fits,
        trials,
        batch,
        advice: Vec::new(),
        labels: labels.into_texts(),
        transfers: transfers(trace),
        run,
    };
    stopped(trace, terms)?;
    let gains = Gains::new(trace, &lives, terms, &report.policies);
    report.advice = advice::of(&report, &gains, &found);
    stopped(trace, terms)?;
    Ok((report, faults))
}

/// Fails once the budget has ended the work: what comes then is left out for want of time, not because it failed.
fn stopped(trace: &Trace, terms: &Terms<'_>) -> Result<(), String> {
    terms.budget.check().map_err(|error| format!("{}: {error}", trace.name()))
}

/// forebay's pool, watched.
struct Ours {
    requested: Series,
    held: Series,
    seen: Seen,
    passes: Vec<PassReport>,
}

fn play_ours(trace: &Trace, terms: &Terms<'_>, peak_at: u64) -> Result<Ours, String> {
    let events = trace.len() as u64;
    let device = open_device(DeviceName::SIM, terms.capacity, false)?;
    let options = PoolOptions::with(terms.settings.clone());
    let player = PoolPlayer::with(device, options);
    let mut player = player.map_err(|error| format!("{}: forebay: {error}", trace.name()))?;
    let mut watch = PoolWatch::new(player.pool().clone(), events, peak_at);
    let mut requested = SeriesBuilder::new("requested", events);
    let mut held = SeriesBuilder::new(Policy::Forebay.name(), events);
    let mut observe = |mut moment: Moment<'_>| {
        if moment.pass == 1 {
            requested.push(moment.requested.get());
            held.push(moment.player.reserved().get());
            watch.see(&mut moment);
        }
    };
    let passes = played(trace, &mut player, &mut observe, terms)?;
    let (requested, held) = (requested.finish(), held.finish());
    Ok(Ours { requested, held, seen: watch.finish(), passes })
}

fn play_model(
    trace: &Trace,
    policy: Policy,
    terms: &Terms<'_>,
) -> Result<(Series, Vec<PassReport>), String> {
    let device = open_device(DeviceName::SIM, terms.capacity, false)?;
    let mut player = policy.player(device, terms.settings).map_err(|error| error.to_string())?;
    let mut held = SeriesBuilder::new(policy.name(), trace.len() as u64);
    let mut observe = |moment: Moment<'_>| {
        if moment.pass == 1 {
            held.push(moment.player.reserved().get());
        }
    };
    let passes = played(trace, &mut *player, &mut observe, terms)?;
    Ok((held.finish(), passes))
}

fn played(
    trace: &Trace,
    player: &mut dyn Player,
    observe: &mut dyn FnMut(Moment<'_>),
    terms: &Terms<'_>,
) -> Result<Vec<PassReport>, String> {
    let options = ReplayOptions::new().observe(observe).budget(terms.budget);
    replay(trace, player, options).map_err(|error| error.to_string())
}
