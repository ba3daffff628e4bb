//! Replays the run under other conditions: devices of other sizes, other settings, larger batches.

use std::error::Error;

use forebay::Settings;
use forebay_core::Bytes;
use forebay_trace::{
    Event, Fit, Model, PassReport, Player, ReplayOptions, StreamIndex, Trace, TraceBuilder, replay,
};

use super::data::{Batch, SmallestDevice, Trial};
use super::lives::Life;
use super::terms::{Depth, Terms};
use crate::output::nanos;
use crate::replay::{DeviceName, Policy, open_device};

/// The allocators whose smallest device is found.
pub(super) const FITTED: [Policy; 3] =
    [Policy::Forebay, Policy::Model(Model::TorchExpandable), Policy::Model(Model::Torch)];

/// Settings that are tried, each on top of those in force. They change no result of a program.
const TRIED: [&str; 4] =
    ["size_classes:geometric", "largest_page:2MiB", "largest_page:128MiB", "magazine_bytes:64MiB"];

/// The change of the run that is tried: what memory streams keep from one another.
pub(super) const ONE_STREAM: &str = "all on one stream";

/// Steps of a batch's factor.
const STEPS: u64 = 64;

/// The largest factor that is looked for.
const MAX_FACTOR: u64 = 64;

/// Passes of each replay, as in `forebay replay`.
pub(super) const PASSES: u32 = 2;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Trials {
    pub(super) fits: Vec<SmallestDevice>,
    pub(super) trials: Vec<Trial>,
    pub(super) batch: Option<Batch>,
}

/// Tries it all. What fails is left out, and told in `faults`.
pub(super) fn run(
    trace: &Trace,
    lives: &[Life],
    peak_at: u64,
    terms: &Terms<'_>,
    faults: &mut Vec<String>,
) -> Trials {
    let mut found = Trials::default();
    if trace.statistics().peak_requested.is_zero() {
        return found;
    }
    let mut told = |what: &str, error: Box<dyn Error>| {
        faults.push(format!("{}: {what}: {error}", trace.name()));
    };
    for policy in FITTED.into_iter().filter(|_| terms.depth == Depth::Thorough) {
        (terms.tell)("smallest device");
        let open = |capacity: Bytes| opened(policy, Some(capacity), terms.settings);
        match Fit::find(trace, Fit::PASSES, terms.budget, open) {
            Ok(Some(fit)) => found.fits.push(SmallestDevice {
                policy: policy.name(),
                smallest_bytes: fit.smallest.get(),
                ratio: fit.ratio(),
            }),
            Ok(None) => {}
            Err(error) => told(&format!("smallest device under {policy}"), error),
        }
    }
    // Settings that somebody chose are not mixed with others.
    let is_default = terms.settings == &Settings::default();
    for change in TRIED.iter().filter(|_| is_default) {
        (terms.tell)("settings");
        let settings = Settings::parse_conf(change).map_err(Into::into);
        match settings.and_then(|settings| tried(change, trace, terms, &settings)) {
            Ok(trial) => found.trials.push(trial),
            Err(error) => told(change, error),
        }
    }
    if trace.streams().len() > 1 {
        (terms.tell)("one stream");
        let merged = rebuilt(trace, trace.events().map(on_one_stream));
        match merged.and_then(|merged| tried(ONE_STREAM, &merged, terms, terms.settings)) {
            Ok(trial) => found.trials.push(trial),
            Err(error) => told(ONE_STREAM, error),
        }
    }
    if terms.depth < Depth::Thorough {
        return found;
    }
    (terms.tell)("larger batch");
    match batch(trace, lives, peak_at, terms, &found.fits) {
        Ok(batch) => found.batch = batch,
        Err(error) => told("larger batch", error),
    }
    found
}

fn opened(
    policy: Policy,
    capacity: Option<Bytes>,
    settings: &Settings,
) -> Result<Box<dyn Player>, Box<dyn Error>> {
    let device = open_device(DeviceName::SIM, capacity, false)?;
    Ok(policy.player(device, settings)?)
}

fn tried(
    change: &'static str,
    trace: &Trace,
    terms: &Terms<'_>,
    settings: &Settings,
) -> Result<Trial, Box<dyn Error>> {
    let mut player = opened(Policy::Forebay, terms.capacity, settings)?;
    let options = ReplayOptions::new().passes(PASSES).budget(terms.budget);
    let passes = replay(trace, &mut *player, options)?;
    let Taken { peak, driver_ns } = Taken::over(&passes);
    let driver_calls = passes.iter().map(|pass| pass.driver.calls).sum();
    Ok(Trial { change, peak_reserved_bytes: peak, driver_calls, driver_ns })
}

/// What the pool took from the driver: bytes at the peak, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) peak: u64,
    pub(super) driver_ns: u64,
}

impl Taken {
    /// Over all of these passes.
    pub(super) fn over(passes: &[PassReport]) -> Self {
        let driver_ns = passes.iter().map(|pass| nanos(pass.driver.time));
        Self {
            peak: passes.iter().map(|pass| pass.peak_reserved.get()).max().unwrap_or(0),
            driver_ns: driver_ns.fold(0, u64::saturating_add),
        }
    }
}

/// The largest factor for what does not last with which the run goes through on the device, or else on the smallest
/// that suffices PyTorch's allocator. `None` if not even the run itself does, or all of it lasts.
fn batch(
    trace: &Trace,
    lives: &[Life],
    peak_at: u64,
    terms: &Terms<'_>,
    fits: &[SmallestDevice],
) -> Result<Option<Batch>, Box<dyn Error>> {
    let half = trace.len() as u64 / 2;
    let lasts = |life: &Life| life.events() >= half;
    let torch = fits.iter().find(|fit| fit.policy == Model::Torch.name());
    // A program that has forebay's pool already wants to hear of its own device, not of what another allocator needs.
    let torch = torch.filter(|_| !trace.remarks().of_forebay);
    let capacity = terms.capacity.or(torch.map(|fit| Bytes::new(fit.smallest_bytes)));
    let scaled = lives.iter().filter(|life| life.is_live_after(peak_at) && !lasts(life));
    let scaled_bytes = scaled.map(|life| life.bytes).fold(0, u64::saturating_add);
    let Some(capacity) = capacity.filter(|_| scaled_bytes > 0) else { return Ok(None) };
    let fits_with = |steps: u64| -> Result<bool, Box<dyn Error>> {
        let larger = |event| match event {
            Event::Allocate { block, size, stream }
                if lives.get(block.0 as usize).is_some_and(|life| !lasts(life)) =>
            {
                let size = Bytes::new(size.get().saturating_mul(steps) / STEPS);
                Event::Allocate { block, size, stream }
            }
            other => other,
        };
        let larger = rebuilt(trace, trace.events().map(larger))?;
        if larger.statistics().peak_requested > capacity {
            return Ok(false);
        }
        let mut player = opened(Policy::Forebay, Some(capacity), terms.settings)?;
        let options = ReplayOptions::new().passes(PASSES).stop_when_short().budget(terms.budget);
        let passes = replay(&larger, &mut *player, options)?;
        Ok(passes.iter().all(|pass| pass.out_of_memory == 0))
    };
    let (mut suffices, mut fails) = (STEPS, STEPS * MAX_FACTOR + 1);
    if !fits_with(suffices)? {
        return Ok(None);
    }
    while fails - suffices > 1 {
        let middle = suffices + (fails - suffices) / 2;
        if fits_with(middle)? { suffices = middle } else { fails = middle }
    }
    let factor = suffices as f64 / STEPS as f64;
    Ok(Some(Batch { capacity_bytes: capacity.get(), scaled_bytes, factor }))
}

fn on_one_stream(event: Event) -> Event {
    let stream = StreamIndex(0);
    match event {
        Event::Allocate { block, size, .. } => Event::Allocate { block, size, stream },
        Event::Free { block, .. } => Event::Free { block, stream },
    }
}

/// The run with other events.
pub(super) fn rebuilt(
    trace: &Trace,
    events: impl Iterator<Item = Event>,
) -> Result<Trace, Box<dyn Error>> {
    let handle = |stream: StreamIndex| trace.streams().get(usize::from(stream.0)).copied();
    let mut builder = TraceBuilder::new(trace.name());
    for event in events {
        match event {
            Event::Allocate { block, size, stream } => {
                builder.allocate(u64::from(block.0), size, handle(stream).unwrap_or(0))?;
            }
            Event::Free { block, stream } => {
                builder.free(u64::from(block.0), handle(stream).unwrap_or(0))?;
            }
        }
    }
    Ok(builder.finish())
}
