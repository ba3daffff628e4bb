//! Collects a report's data from one recording, by replaying it and watching the pool.

use std::time::{SystemTime, UNIX_EPOCH};

use forebay::PoolOptions;
use forebay_core::Bytes;
use forebay_trace::{
    Analysis, Moment, PassReport, Player, PoolPlayer, ReplayOptions, Trace, replay,
};

use super::advice;
use super::data::{Report, Run, SCHEMA, Series, Timeline};
use super::gains::Gains;
use super::lives::{LabelNumbers, Life, at_peak, histogram, lives};
use super::map::map;
use super::owners;
use super::series::{SeriesBuilder, events_per_bucket};
use super::terms::{Depth, Terms};
use super::transfers::transfers;
use super::trials::{self, Trials};
use super::watch::{PoolWatch, Seen};
use crate::output::nanos;
use crate::replay::{DeviceName, Policy, Row, open_device};

/// The most stream handles that are named.
const MAX_STREAMS: usize = 64;

/// A hundred days in nanoseconds: what the numbers of a page tell apart to the last.
const EXACT: u64 = 1 << 53;

/// A report, and what went wrong on the way. A model that fails is left out; without forebay's pool there is no
/// report.
pub(super) fn collect(trace: &Trace, terms: &Terms<'_>) -> Result<(Report, Vec<String>), String> {
    let (events, sums) = (trace.len() as u64, trace.statistics());
    let found = Analysis::of(trace);
    let run = Run {
        name: trace.name().to_owned(),
        file: terms.file.map(str::to_owned),
        began_unix_ms: trace.remarks().began.and_then(unix_ms),
        of_forebay: trace.remarks().of_forebay,
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
    let at_peak = at_peak(trace, &lives, run.peak_at, &mut labels);
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
    let (per_bucket, born) = (events_per_bucket(events), &map.blocks.born);
    let events_per_band_bucket = owners::events_per_bucket(events, per_bucket);
    let timeline = Timeline {
        events_per_bucket: per_bucket,
        series,
        events_per_band_bucket,
        owners: owners::over_time(trace, &lives, events_per_band_bucket, born, &mut labels),
        clock_ns: clock(trace, per_bucket),
    };
    let mut report = Report {
        schema: SCHEMA,
        forebay: env!("CARGO_PKG_VERSION"),
        made_unix_ms: unix_ms(SystemTime::now()).unwrap_or(0),
        capacity_bytes: terms.capacity.map(Bytes::get),
        timeline,
        pool: ours.seen.samples,
        happenings: ours.seen.happenings,
        map,
        owners: at_peak,
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

fn unix_ms(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// The times of the first event of each bucket and of the last of all, since the first event. Those of another's
/// recording may go back; none of these does.
fn clock(trace: &Trace, per_bucket: u64) -> Option<Vec<u64>> {
    let last = trace.len().checked_sub(1)?;
    let buckets = (0..=last).step_by(usize::try_from(per_bucket).ok()?);
    let (begin, mut latest) = (trace.time(0)?, 0);
    let times = buckets.chain([last]).map(|event| {
        let passed = nanos(trace.time(event)?.saturating_sub(begin)).min(EXACT);
        latest = passed.max(latest);
        Some(latest)
    });
    let times: Vec<u64> = times.collect::<Option<_>>()?;
    (latest > 0).then_some(times)
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
