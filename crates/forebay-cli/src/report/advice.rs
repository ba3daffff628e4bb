//! Advice in words, with the figures behind it.

use core::cmp::Reverse;
use std::collections::HashMap;

use forebay::Settings;
use forebay_core::{Bytes, counted};
use forebay_trace::analysis::{Pattern, SMALL};
use forebay_trace::{Analysis, BlockIndex, Event, Trace};

use super::data::{Advice, Report, Trial};
use super::gains::{Gain, Gains};
use super::lives::{Life, site};
use super::trials::{ONE_STREAM, PASSES, Taken};
use crate::layout::shortened;
use crate::replay::Row;

/// Suspected leaks and odd lifetimes that are named.
const NAMED: usize = 3;

/// Owners that a sentence names.
const OWNERS: usize = 3;

/// The most letters of an owner's name in a sentence.
const LONGEST_OWNER: usize = 80;

/// A group of fewer blocks than this shows no pattern.
const FEW: usize = 8;

/// All of it, the most useful first. What was measured and gains nothing is left out; suspected leaks are not.
pub(super) fn of(report: &Report, gains: &Gains<'_>, found: &Analysis) -> Vec<Advice> {
    // The blocks of one moment are no run: nothing is known of their lives, and every one is "never freed".
    if gains.trace.address(BlockIndex(0)).is_some() {
        return Vec::new();
    }
    let mut all = Vec::new();
    all.extend(short(report, gains));
    all.extend(allocator(report));
    all.extend(batch(report));
    all.extend(settings(report, gains));
    all.extend(streams(report, gains));
    all.extend(leaks(gains));
    all.extend(odd_lifetimes(gains));
    for (pattern, text) in found.advice_by_pattern() {
        let mut letters = text.chars();
        let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
        let text = format!("{first}{}.{}", letters.as_str(), owners_in(pattern, gains, found));
        all.extend(pattern_advice(pattern, text, gains, found));
    }
    all
}

/// How owners are ranked: by a figure of each block, and in these words.
type Measure = (fn(&Life) -> u64, fn(u64) -> String);

const BYTES: Measure = (|life| life.bytes, |bytes| Bytes::new(bytes).to_string());
const REQUESTS: Measure = (|_| 1, |requests| counted(requests, "request"));

fn live_at(lives: &[Life], event: u64) -> impl Iterator<Item = &Life> {
    lives.iter().filter(move |life| life.is_live_after(event))
}

/// Who has the most of these blocks, as a sentence after others; nothing if the recording does not tell.
fn owners<'a>(trace: &Trace, (of, say): Measure, blocks: impl Iterator<Item = &'a Life>) -> String {
    let mut sums: HashMap<_, u64> = HashMap::new();
    for life in blocks {
        let sum = sums.entry((site(trace, life.block), trace.tag(life.block))).or_default();
        *sum = sum.saturating_add(of(life));
    }
    sums.remove(&(None, None));
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(owner, sum)| (Reverse(sum), owner));
    let said = sums.into_iter().take(OWNERS).filter_map(|((site, tag), sum)| {
        let site = site.map(|site| shortened(site, LONGEST_OWNER));
        let tag = tag.map(|tag| format!("tag {}", shortened(tag, LONGEST_OWNER)));
        let owner = site.into_iter().chain(tag).reduce(|site, tag| format!("{site}, {tag}"))?;
        Some(format!("{owner} ({})", say(sum)))
    });
    match said.collect::<Vec<String>>().as_slice() {
        [] => String::new(),
        [one] => format!(" Their owner: {one}."),
        several => format!(" Largest owners: {}.", several.join("; ")),
    }
}

/// Who owns the blocks that a pattern is about.
fn owners_in(pattern: Pattern, gains: &Gains<'_>, found: &Analysis) -> String {
    let (trace, lives) = (gains.trace, gains.lives);
    let half = trace.len() as u64 / 2;
    let requested =
        |is: &dyn Fn(&Life) -> bool| owners(trace, REQUESTS, lives.iter().filter(|life| is(life)));
    let at_peak = |is: &dyn Fn(&Life) -> bool| {
        owners(trace, BYTES, live_at(lives, found.peak_at).filter(|life| is(life)))
    };
    match pattern {
        Pattern::FewSizes => {
            requested(&|life| found.hottest.iter().any(|hot| hot.size.get() == life.bytes))
        }
        Pattern::ManySmall => requested(&|life| life.bytes <= SMALL.get()),
        Pattern::Lasting => at_peak(&|life| life.events() >= half),
        Pattern::ShortPeak => {
            at_peak(&|life| found.at_peak.first().is_some_and(|most| most.size.get() == life.bytes))
        }
        Pattern::FreedElsewhere => {
            let elsewhere = trace.events().filter_map(|event| match event {
                Event::Free { block, stream } => {
                    lives.get(block.0 as usize).filter(|life| life.stream != stream)
                }
                Event::Allocate { .. } => None,
            });
            owners(trace, REQUESTS, elsewhere)
        }
        _ => String::new(),
    }
}

/// What follows from a pattern, with what it gains.
fn pattern_advice(
    pattern: Pattern,
    text: String,
    gains: &Gains<'_>,
    found: &Analysis,
) -> Option<Advice> {
    let half = gains.trace.len() as u64 / 2;
    let gain = match pattern {
        Pattern::FewSizes => gains.warmed_up(&found.hottest),
        Pattern::Lasting => {
            gains.first(|life| life.is_live_after(found.peak_at) && life.events() >= half)
        }
        Pattern::FreedElsewhere => gains.freed_where_allocated(),
        Pattern::ShortPeak => {
            let size = found.at_peak.first()?.size.get();
            let gain = gains.without(|life| life.bytes == size);
            if gain.is_some_and(|gain| gain.memory() < 0.01) {
                return None;
            }
            let gain = gain.map(|gain| format!("without blocks of this size: {}", less(&gain)));
            return Some(Advice { title: pattern.title().to_owned(), text, gain });
        }
        Pattern::NearlyRepeating => {
            let gain = classes(gains);
            let is_useful = gain.is_none_or(|(before, after)| after >= before + 0.05);
            let gain = gain.map(|(before, after)| {
                let [before, after] = [before, after].map(|part| part * 100.0);
                format!("thread caches serve {after:.0} % of requests instead of {before:.0} %")
            });
            return is_useful.then(|| Advice { title: pattern.title().to_owned(), text, gain });
        }
        _ => None,
    };
    measured(pattern.title(), text, gain)
}

/// Advice with a gain; nothing if that was measured and is none.
fn measured(title: &str, text: String, gain: Option<Gain>) -> Option<Advice> {
    let (text, gain) = match gain {
        None => (text, None),
        Some(gain) if !gain.helps() => return None,
        Some(gain) => (format!("{text} {}", gain.sentence()), Some(gain.to_string())),
    };
    Some(Advice { title: title.to_owned(), text, gain })
}

/// The parts of requests that thread caches serve now and with geometric size classes.
fn classes(gains: &Gains<'_>) -> Option<(f64, f64)> {
    let now = gains.default_settings()?;
    let geometric = Settings::parse_conf("size_classes:geometric").ok()?;
    Some((gains.cache_hits(now)?, gains.cache_hits(&geometric)?))
}

/// How much less memory a change takes.
fn less(gain: &Gain) -> String {
    let saved = gain.before.peak.saturating_sub(gain.after.peak);
    format!("{} less ({})", Bytes::new(saved), percent(saved, gain.before.peak))
}

fn pass<'a>(report: &'a Report, policy: &str, pass: u32) -> Option<&'a Row> {
    report.policies.iter().find(|row| row.policy == policy && row.pass == pass)
}

fn percent(part: u64, of: u64) -> String {
    if of == 0 {
        return "0 %".to_owned();
    }
    format!("{:.1} %", part as f64 * 100.0 / of as f64)
}

/// Allocations that failed, on the device or within the pool's limit.
fn short(report: &Report, gains: &Gains<'_>) -> Option<Advice> {
    let ours = pass(report, "forebay", 1).filter(|ours| ours.ooms > 0)?;
    let device = report
        .capacity_bytes
        .map_or_else(String::new, |capacity| format!(" on a device of {}", Bytes::new(capacity)));
    let limit = ours.settings.get("max_bytes").map_or_else(String::new, |limit| {
        format!(" with the pool limited to {limit} by max_bytes")
    });
    let fit = report.fits.iter().find(|fit| fit.policy == "forebay");
    let needs = fit.map_or_else(String::new, |fit| {
        format!(" The smallest device that suffices has {}.", Bytes::new(fit.smallest_bytes))
    });
    Some(Advice {
        title: "The run does not fit".to_owned(),
        text: format!(
            "{} found no memory under forebay{device}{limit}.{needs}{}",
            counted(ours.ooms, "allocation"),
            owners(gains.trace, BYTES, live_at(gains.lives, report.run.peak_at)),
        ),
        gain: None,
    })
}

/// forebay against PyTorch's allocator, for a program that does not have forebay yet.
fn allocator(report: &Report) -> Option<Advice> {
    let (ours, torch) = (pass(report, "forebay", 1)?, pass(report, "torch", 1)?);
    let saved = torch.peak_reserved_bytes.checked_sub(ours.peak_reserved_bytes)?;
    if report.run.of_forebay
        || ours.ooms > 0
        || torch.ooms > 0
        || saved < torch.peak_reserved_bytes / 100
    {
        return None;
    }
    let smallest = |policy: &str| report.fits.iter().find(|fit| fit.policy == policy);
    let fits = match (smallest("forebay"), smallest("torch")) {
        (Some(ours), Some(torch)) => format!(
            " The smallest device on which it goes through has {} under forebay and {} under PyTorch's.",
            Bytes::new(ours.smallest_bytes),
            Bytes::new(torch.smallest_bytes),
        ),
        _ => String::new(),
    };
    Some(Advice {
        title: "Use forebay's pool".to_owned(),
        text: format!(
            "With plenty of memory, the model of PyTorch's allocator takes {} for the {} that the run requests, \
             forebay {}.{fits}",
            Bytes::new(torch.peak_reserved_bytes),
            Bytes::new(report.run.peak_requested_bytes),
            Bytes::new(ours.peak_reserved_bytes),
        ),
        gain: Some(format!(
            "{} less ({})",
            Bytes::new(saved),
            percent(saved, torch.peak_reserved_bytes)
        )),
    })
}

fn batch(report: &Report) -> Option<Advice> {
    let batch = report.batch.filter(|batch| batch.factor > 1.0)?;
    let capacity = Bytes::new(batch.capacity_bytes);
    let device = match report.capacity_bytes {
        Some(_) => format!("a device of {capacity}"),
        None => format!("the smallest device that suffices PyTorch's allocator, {capacity},"),
    };
    Some(Advice {
        title: "A larger batch fits".to_owned(),
        text: format!(
            "On {device} the run goes through under forebay with every block that lives for less than half of the \
             run made {:.2} times as large. This is an estimate of the batch: it assumes that exactly these blocks, \
             {} of the peak, grow with it.",
            batch.factor,
            Bytes::new(batch.scaled_bytes),
        ),
        gain: Some(format!("batch x {:.2}", batch.factor)),
    })
}

/// The best of the settings that were tried, if it helps.
fn settings(report: &Report, gains: &Gains<'_>) -> Option<Advice> {
    let tried = report.trials.iter().filter(|trial| trial.change != ONE_STREAM);
    let gains = tried.map(|trial| (trial.change, gain_of(trial, gains)));
    let (change, gain) = gains.filter(|(_, gain)| gain.helps()).max_by(|left, right| {
        let score = |gain: &Gain| gain.memory() * 10.0 + gain.driver();
        score(&left.1).total_cmp(&score(&right.1))
    })?;
    measured(
        &format!("Set {change}"),
        format!("Over two passes, FOREBAY_CONF={change} helps."),
        Some(gain),
    )
}

fn gain_of(trial: &Trial, gains: &Gains<'_>) -> Gain {
    let after = Taken { peak: trial.peak_reserved_bytes, driver_ns: trial.driver_ns };
    Gain { before: gains.before(PASSES), after }
}

/// Memory that is idle on one stream while another grows.
fn streams(report: &Report, gains: &Gains<'_>) -> Option<Advice> {
    let merged = report.trials.iter().find(|trial| trial.change == ONE_STREAM)?;
    let gain = gain_of(merged, gains);
    if gain.memory() < 0.02 {
        return None;
    }
    let most = report.owners.by_stream.first()?;
    let on_it = live_at(gains.lives, report.run.peak_at);
    let on_it = on_it.filter(|life| u64::from(life.stream.0) == most.key);
    Some(Advice {
        title: "Streams strand memory".to_owned(),
        text: format!(
            "Replayed with all {} on one stream, the pool takes {} instead of {}: the difference is memory that was \
             idle on one stream while another asked for more. Stream {} has the most at the peak, {}.{} Where work \
             need not overlap, use fewer streams, or free on the stream that allocates next.",
            counted(report.run.stream_count, "stream"),
            Bytes::new(gain.after.peak),
            Bytes::new(gain.before.peak),
            most.key,
            Bytes::new(most.bytes),
            owners(gains.trace, BYTES, on_it),
        ),
        gain: Some(less(&gain)),
    })
}

/// Blocks of one origin, or else of one size.
fn origins<'a>(gains: &Gains<'a>) -> HashMap<(Option<&'a str>, u64), Vec<&'a Life>> {
    let mut groups: HashMap<_, Vec<&Life>> = HashMap::new();
    for life in gains.lives.iter().filter(|life| life.bytes > 0) {
        groups.entry((gains.trace.label(life.block), life.bytes)).or_default().push(life);
    }
    groups
}

/// Groups that go on growing: blocks that nothing frees, allocated in the second, third and last quarter of the run.
fn leaks(gains: &Gains<'_>) -> Vec<Advice> {
    let trace = gains.trace;
    let end = trace.len() as u64;
    let mut suspects = Vec::new();
    for ((label, bytes), group) in origins(gains) {
        let kept: Vec<&&Life> = group.iter().filter(|life| life.freed == end).collect();
        let quarters = (1..4).all(|quarter| {
            let range = end / 4 * quarter..end.div_ceil(4) * (quarter + 1);
            kept.iter().any(|life| range.contains(&life.born))
        });
        // A few of many that come and go are caches at work; half of all is not.
        if kept.len() >= FEW && kept.len() * 2 >= group.len() && quarters {
            suspects.push((bytes.saturating_mul(kept.len() as u64), bytes, kept.len(), label));
        }
    }
    suspects.sort_by(|left, right| right.cmp(left));
    let said = suspects.into_iter().take(NAMED).map(|(sum, bytes, count, label)| {
        let is_kept = |life: &Life| {
            life.bytes == bytes && life.freed == end && trace.label(life.block) == label
        };
        let from = owners(trace, BYTES, gains.lives.iter().filter(|life| is_kept(life)));
        let gain = gains.without(is_kept);
        Advice {
            title: "Suspected leak".to_owned(),
            text: format!(
                "{} of {} each, {} in all, were allocated throughout the run and never freed.{from}",
                counted(count as u64, "block"),
                Bytes::new(bytes),
                Bytes::new(sum),
            ),
            gain: gain.map(|gain| format!("without them: {}", less(&gain))),
        }
    });
    said.collect()
}

/// Sizes of which a few blocks live a hundred times longer than most: they pin memory among what comes and goes.
fn odd_lifetimes(gains: &Gains<'_>) -> Vec<Advice> {
    let mut by_size: HashMap<u64, Vec<u64>> = HashMap::new();
    for life in gains.lives.iter().filter(|life| life.bytes > 0) {
        by_size.entry(life.bytes).or_default().push(life.events());
    }
    let mut odd = Vec::new();
    for (bytes, mut spans) in by_size {
        spans.sort_unstable();
        let median = spans.get(spans.len() / 2).copied().unwrap_or(0);
        let outliers =
            spans.len() - spans.partition_point(|&span| span <= median.saturating_mul(100));
        if spans.len() >= 100 && outliers > 0 && outliers * 20 <= spans.len() {
            odd.push((bytes.saturating_mul(outliers as u64), bytes, outliers, spans.len(), median));
        }
    }
    odd.sort_by(|left, right| right.cmp(left));
    let said = odd.into_iter().take(NAMED).filter_map(|(sum, bytes, outliers, count, median)| {
        let is_odd = |life: &Life| life.bytes == bytes && life.events() > median.saturating_mul(100);
        let text = format!(
            "{outliers} of {count} blocks of {} live more than a hundred times as long as the middle one, which lives \
             for {}. They hold {} between blocks that come and go: allocate them first, or from a pool of their own.{}",
            Bytes::new(bytes),
            counted(median, "event"),
            Bytes::new(sum),
            owners(gains.trace, BYTES, gains.lives.iter().filter(|life| is_odd(life))),
        );
        measured("Odd lifetimes", text, gains.first(is_odd))
    });
    said.collect()
}
