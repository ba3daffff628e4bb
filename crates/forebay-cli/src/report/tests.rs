//! What a report says is what replaying says; nothing grows without bound; nothing is read as HTML.

use core::time::Duration;
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use forebay::Settings;
use forebay_core::{Bytes, Random};
use forebay_trace::{
    BlockIndex, Event, Fit, ReplayOptions, Trace, TraceBuilder, Transfer, TransferDirection,
    WorkBudget, replay, sample,
};
use proptest::prelude::*;

use super::collect::collect;
use super::data::{Advice, Band, Report};
use super::page::page;
use super::terms::{Depth, Terms};
use super::{default_path, page_of};
use crate::replay::{DeviceName, Policy, open_device};

/// What a page may have at most.
const MAX_BYTES: usize = 5 << 20;

fn reported(trace: &Trace, capacity: Option<Bytes>, is_thorough: bool) -> Report {
    let settings = Settings::default();
    let depth = if is_thorough { Depth::Thorough } else { Depth::Quick };
    let budget = &WorkBudget::unlimited();
    let terms = Terms { file: None, settings: &settings, capacity, depth, tell: &|_| {}, budget };
    let (report, faults) = collect(trace, &terms).unwrap();
    assert_eq!(faults, Vec::<String>::new());
    report
}

/// Compares every figure with an unobserved replay.
fn assert_equals_replay(trace: &Trace, capacity: Option<Bytes>, report: &Report) {
    let sums = trace.statistics();
    let run = &report.run;
    assert_eq!((run.allocations, run.frees), (sums.allocations, sums.frees));
    assert_eq!(run.peak_requested_bytes, sums.peak_requested.get());
    let events = trace.len() as u64;
    let buckets = events.div_ceil(report.timeline.events_per_bucket);
    for (index, &policy) in Policy::ALL.iter().enumerate() {
        let device = open_device(DeviceName::SIM, capacity, false).unwrap();
        let mut player = policy.player(device, &Settings::default()).unwrap();
        let passes = replay(trace, &mut *player, ReplayOptions::new()).unwrap();
        let rows = report.policies.iter().filter(|row| row.policy == policy.name());
        let rows: Vec<_> = rows.collect();
        assert_eq!(rows.len(), 2, "{policy}");
        for (row, pass) in rows.iter().zip(&passes) {
            assert_eq!(row.ops, pass.operations, "{policy}");
            assert_eq!(row.peak_requested_bytes, pass.peak_requested.get(), "{policy}");
            assert_eq!(row.peak_reserved_bytes, pass.peak_reserved.get(), "{policy}");
            assert_eq!((row.ooms, row.ratio), (pass.out_of_memory, pass.ratio()), "{policy}");
            assert_eq!((row.driver_calls, row.maps), (pass.driver.calls, pass.driver.maps));
            assert_eq!(u128::from(row.driver_ns), pass.driver.time.as_nanos(), "{policy}");
        }
        let series = &report.timeline.series[index + 1];
        assert_eq!((series.name, series.max.len() as u64), (policy.name(), buckets));
        assert_eq!(series.peak_bytes, passes[0].peak_reserved.get(), "{policy}");
        assert_eq!(series.max.iter().max().copied().unwrap_or(0), series.peak_bytes);
        assert!(series.min.iter().zip(&series.max).all(|(min, max)| min <= max));
    }
    let requested = &report.timeline.series[0];
    assert_eq!((requested.name, requested.max.len() as u64), ("requested", buckets));
    assert_eq!((requested.peak_bytes, requested.peak_at), (run.peak_requested_bytes, run.peak_at));
    let ours = &report.policies[0];
    assert_eq!(report.happenings.out_of_memory, ours.ooms);
    for bars in [&report.sizes, &report.lifetimes] {
        assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), run.allocations);
        assert_eq!(bars.iter().map(|bar| bar.at_peak).sum::<u64>(), run.peak_blocks);
    }
}

#[test]
fn every_figure_is_that_of_a_replay() {
    let trace = sample::gpt2_train().unwrap();
    let report = reported(&trace, None, false);
    assert_equals_replay(&trace, None, &report);
    assert_eq!(report.timeline.events_per_bucket, 2);
    assert!(page(&report).unwrap().len() < MAX_BYTES);
    let moved: u64 = report.pool.moved_pages.iter().sum();
    assert_eq!(report.happenings.moved_pages, moved);
    assert!(report.happenings.growths > 0);
    // Short of memory, the same.
    let capacity = Some(Bytes::gib(10));
    let short = reported(&trace, capacity, false);
    assert!(short.happenings.out_of_memory > 0);
    assert_equals_replay(&trace, capacity, &short);
}

/// A run: each step frees a live block, or allocates so much on that stream.
fn built(steps: &[(u8, u32, u8)]) -> Trace {
    let mut builder = TraceBuilder::new("any");
    let mut live = Vec::new();
    for (key, &(choice, bytes, stream)) in (0_u64..).zip(steps) {
        if choice % 2 == 0 && !live.is_empty() {
            let block = live.swap_remove(usize::from(choice / 2) % live.len());
            builder.free(block, u64::from(stream % 3)).unwrap();
        } else {
            builder.allocate(key, Bytes::new(u64::from(bytes)), u64::from(stream % 3)).unwrap();
            live.push(key);
        }
    }
    builder.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_run_is_told_as_it_replays(
        steps in prop::collection::vec((any::<u8>(), 0_u32..64 << 20, any::<u8>()), 0..120),
        is_short: bool,
        is_thorough: bool,
    ) {
        let trace = built(&steps);
        let capacity = is_short.then_some(Bytes::mib(256));
        let report = reported(&trace, capacity, is_thorough);
        assert_equals_replay(&trace, capacity, &report);
        let is_told = report.advice.iter().any(|advice| advice.title == "The run does not fit");
        prop_assert_eq!(is_told, report.happenings.out_of_memory > 0);
        let blocks = &report.map.blocks;
        for (at, &requested) in (0_u64..).zip(&report.timeline.series[0].max) {
            let mut live: Vec<usize> = (0..blocks.born.len())
                .filter(|&block| blocks.born[block] <= at && at < blocks.freed[block])
                .collect();
            live.sort_by_key(|&block| blocks.offset[block]);
            for pair in live.windows(2) {
                let end = blocks.offset[pair[0]] + blocks.bytes[pair[0]];
                prop_assert!(end <= blocks.offset[pair[1]], "blocks overlap after event {}", at);
            }
            // Without a refusal, all that is requested is drawn.
            if report.happenings.out_of_memory == 0 {
                let drawn: u64 = live.iter().map(|&block| blocks.bytes[block]).sum();
                prop_assert_eq!(drawn, requested);
            }
        }
        prop_assert!(blocks.offset.iter().zip(&blocks.bytes).all(|(at, size)| at + size <= report.map.end));
    }
}

#[test]
fn nothing_at_all_makes_a_report_too() {
    let report = reported(&TraceBuilder::new("").finish(), None, true);
    assert_eq!((report.run.events, report.map.end, report.sizes.len()), (0, 0, 0));
    assert!(page(&report).unwrap().contains("forebay.report.v1"));
}

/// Owners by tag, thread and site add up to the peak; transfers to what was copied.
#[test]
fn owners_and_transfers_add_up() {
    let mut builder = TraceBuilder::new("owned");
    for block in 0..12_u64 {
        builder.allocate(block, Bytes::mib(block), block % 2).unwrap();
        builder.tag(if block % 3 == 0 { "<script>alert(1)</script>" } else { "forward" });
        builder.stack(if block % 2 == 0 { "inner a.rs:1\nmain" } else { "inner a.rs:1\nother" });
        builder.thread(u32::try_from(block % 4).unwrap());
        builder.time(block * 1000);
    }
    let times = [(0, 2500), (2000, 2000), (4000, 20_000), (100_000, 200_000)];
    for (index, times) in (0_u64..).zip(times) {
        let [begin, end] = [times.0, times.1].map(core::time::Duration::from_nanos);
        let direction =
            [TransferDirection::Upload, TransferDirection::Download][usize::from(index == 2)];
        builder.transfer(Transfer { begin, end, bytes: Bytes::new(1 << index), direction });
    }
    let report = reported(&builder.finish(), None, false);
    let (owners, peak) = (&report.owners, report.run.peak_requested_bytes);
    for by in [&owners.by_label, &owners.by_tag, &owners.by_site, &owners.by_thread] {
        assert_eq!(by.iter().map(|owner| owner.bytes).sum::<u64>(), peak);
        assert_eq!(by.iter().map(|owner| owner.blocks).sum::<u64>(), 12);
    }
    assert_eq!((owners.by_tag.len(), owners.by_site.len(), owners.by_thread.len()), (2, 1, 4));
    let names: Vec<&str> = owners
        .by_tag
        .iter()
        .map(|owner| &*report.labels[usize::try_from(owner.key).unwrap() - 1])
        .collect();
    assert_eq!(names, ["forward", "<script>alert(1)</script>"]);
    let page = page(&report).unwrap();
    assert_eq!(page.matches("<script").count(), 2, "the data, and the program");
    let told = report.transfers.unwrap();
    assert_eq!((told.counts, told.bytes), ([3, 1], [1 + 2 + 8, 4]));
    assert_eq!(told.under_way[0].max, [1, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
    assert_eq!(told.under_way[1].max, [0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4]);
    assert_eq!((told.listed[0].bytes, told.listed[0].at, told.listed[0].took_ns), (8, 11, 100_000));
}

/// A snapshot of a pool: its blocks where they are.
#[test]
fn a_snapshot_is_shown_at_its_own_addresses() {
    let pool = forebay::Pool::new(&open_device(DeviceName::SIM, None, false).unwrap()).unwrap();
    let _scope = forebay::tag("<script>weights");
    let stream = forebay::StreamHandle::DEFAULT;
    let mut blocks: Vec<_> =
        [1, 300, 5000].map(|kib| pool.allocate(Bytes::kib(kib), stream).unwrap()).to_vec();
    blocks.sort_by_key(|block| block.address());
    let snapshot = pool.snapshot();
    let text = snapshot.to_json();
    let trace = forebay_trace::format::read(text.as_bytes(), "pool", &Default::default()).unwrap();
    let report = reported(&trace, None, false);
    assert_equals_replay(&trace, None, &report);
    assert_eq!(report.run.peak_requested_bytes, snapshot.statistics.requested.get());
    assert_eq!(report.owners.by_tag.len(), 1);
    let map = &report.map.blocks;
    assert_eq!(map.bytes.iter().sum::<u64>(), snapshot.statistics.requested.get());
    for (left, right) in [(0, 1), (1, 2)] {
        let apart = blocks[right].address().get() - blocks[left].address().get();
        let drawn = map.offset[right] - map.offset[left];
        // What lies between blocks of different sides is left out.
        assert!(drawn == apart || drawn == map.bytes[left], "{map:?}");
    }
}

#[test]
fn names_and_labels_are_never_read_as_html() {
    let evil = "</script><script>alert(1)</script><!--";
    let mut builder = TraceBuilder::new(evil);
    for block in 0..20 {
        builder.allocate(block, Bytes::mib(1), 0).unwrap();
        builder.stack(&format!("<script>{block}</script>"));
    }
    let report = reported(&builder.finish(), None, false);
    assert_eq!(report.labels.len(), 20);
    let page = page(&report).unwrap();
    assert_eq!(page.matches("<script").count(), 2, "the data, and the program");
    assert_eq!(page.matches("</script").count(), 2);
    assert!(page.contains("<h1>&lt;/script&gt;&lt;script&gt;alert(1)"));
    let begin = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let end = begin + page[begin..].find("</script>").unwrap();
    let data: serde_json::Value = serde_json::from_str(&page[begin..end]).unwrap();
    assert_eq!(
        (&data["run"]["name"], &data["labels"][0]),
        (&evil.into(), &"<script>0</script>".into())
    );
    assert!(!page.contains("://") || !page.contains("src="), "nothing is loaded");
}

/// Many blocks, streams, sizes and long labels: the page stays bounded, and says what it left out.
#[test]
fn a_page_has_a_bound() {
    let mut builder = TraceBuilder::new("n".repeat(1 << 10));
    for block in 0..30_000_u64 {
        builder.allocate(block, Bytes::new((block * 7919) % (1 << 22)), block % 4).unwrap();
        builder.stack(&format!("{block} {}", "long ".repeat(300)));
        if block >= 2000 {
            builder.free(block - 2000, block % 4).unwrap();
        }
    }
    let report = reported(&builder.finish(), None, false);
    let drawn = report.map.blocks.born.len() as u64;
    // The first block has no bytes, and is nowhere.
    assert_eq!(drawn + report.map.blocks_left_out, 29_999);
    assert!(report.map.blocks_left_out > 0 && report.labels.len() == 1000);
    let size = page(&report).unwrap().len();
    assert!(size < MAX_BYTES, "{size}");
}

#[test]
fn trials_are_those_of_fit_and_replay() {
    let mut builder = TraceBuilder::new("steps");
    builder.allocate(0, Bytes::mib(64), 0).unwrap();
    for step in 0..40_u64 {
        // One block a step is kept: a leak.
        builder.allocate(1000 + step, Bytes::kib(100), 0).unwrap();
        for block in 1..5 {
            builder.allocate(block, Bytes::mib(8 * block + step % 3), step % 2).unwrap();
        }
        for block in 1..5 {
            builder.free(block, step % 2).unwrap();
        }
    }
    let trace = builder.finish();
    let report = reported(&trace, None, true);
    for found in &report.fits {
        let policy = Policy::ALL.iter().find(|policy| policy.name() == found.policy).unwrap();
        let open = |capacity| {
            let device = open_device(DeviceName::SIM, Some(capacity), false)?;
            Ok(policy.player(device, &Settings::default())?)
        };
        let fit = Fit::find(&trace, Fit::PASSES, &WorkBudget::unlimited(), open).unwrap().unwrap();
        assert_eq!((found.smallest_bytes, found.ratio), (fit.smallest.get(), fit.ratio()));
    }
    let changes: HashSet<&str> = report.trials.iter().map(|trial| trial.change).collect();
    assert_eq!((report.fits.len(), report.trials.len(), changes.len()), (3, 5, 5));
    let batch = report.batch.unwrap();
    assert!(batch.factor >= 1.0 && batch.scaled_bytes < report.run.peak_requested_bytes);
    let leak = report.advice.iter().find(|advice| advice.title == "Suspected leak").unwrap();
    assert!(leak.text.starts_with("40 blocks of 100.00 KiB each"), "{}", leak.text);
    assert!(leak.gain.as_ref().unwrap().starts_with("without them: "), "{leak:?}");
    let unmeasured = report.advice.iter().filter(|advice| advice.gain.is_none());
    assert_eq!(unmeasured.map(|advice| &*advice.title).collect::<Vec<_>>(), [""; 0]);
}

/// The gain of an advice is what the run takes when it follows the advice.
#[test]
fn gains_are_those_of_the_changed_run() {
    // Every block that lasts is allocated after a large one that goes, on another stream: its pages stay taken.
    let changed = |leaks: bool| {
        let mut builder = TraceBuilder::new("leak");
        for step in 0..100_u64 {
            builder.allocate(1, Bytes::mib(30), 0).unwrap();
            if leaks {
                builder.allocate(1000 + step, Bytes::mib(3), 0).unwrap();
            }
            builder.free(1, 0).unwrap();
        }
        builder.finish()
    };
    let report = reported(&changed(true), None, true);
    let leak = report.advice.iter().find(|advice| advice.title == "Suspected leak").unwrap();
    let peak = |trace: &Trace| reported(trace, None, false).policies[0].peak_reserved_bytes;
    let saved = peak(&changed(true)) - peak(&changed(false));
    let gain = leak.gain.as_ref().unwrap();
    assert!(gain.starts_with(&format!("without them: {} less (", Bytes::new(saved))), "{gain}");
}

#[test]
fn nothing_is_saved_of_nothing() {
    let mut builder = TraceBuilder::new("empty blocks");
    (0..5000).for_each(|key| builder.allocate(key, Bytes::ZERO, 0).unwrap());
    let report = reported(&builder.finish(), None, true);
    let gains: Vec<_> =
        report.advice.iter().filter(|advice| advice.title != "Use forebay's pool").collect();
    assert!(gains.is_empty(), "{gains:?}");
}

/// Of everything that the program requested, someone is the owner: the bands of each bucket come to the most of it.
#[test]
fn bands_of_owners_add_up_to_what_was_requested() {
    let (mut builder, mut random) = (TraceBuilder::new("owned"), Random::new(7));
    let mut live = Vec::new();
    for key in 0..20_000_u64 {
        if random.below(2) == 0 && !live.is_empty() {
            let at = usize::try_from(random.below(live.len() as u64)).unwrap();
            builder.free(live.swap_remove(at), 0).unwrap();
            continue;
        }
        builder.allocate(key, Bytes::new(random.below(1 << 20)), 0).unwrap();
        live.push(key);
        match key % 12 {
            0 => {}
            tag => builder.tag(&format!("tag {tag}")),
        }
        if key % 2 == 0 {
            builder.stack(&format!("site_{} a.rs:1\nmain a.rs:2", key % 8));
        }
    }
    let trace = builder.finish();
    let report = reported(&trace, None, false);
    let timeline = &report.timeline;
    let ways: Vec<&str> = timeline.owners.iter().map(|way| way.by).collect();
    assert_eq!(ways, ["tag", "site", "size"]);
    let per =
        usize::try_from(timeline.events_per_band_bucket / timeline.events_per_bucket).unwrap();
    assert!(per > 1, "as many buckets as the lines have");
    for way in &timeline.owners {
        for (bucket, requested) in timeline.series[0].max.chunks(per).enumerate() {
            let sum: u64 = way.bands.iter().map(|band| band.bytes[bucket]).sum();
            assert_eq!(sum, *requested.iter().max().unwrap(), "by {} in bucket {bucket}", way.by);
        }
        assert_eq!(way.map.len(), report.map.blocks.born.len());
    }
    let [tags, sites, sizes] = &timeline.owners[..] else { panic!("{ways:?}") };
    // Eleven tags: seven, the four others, and what has none. Four call sites, and blocks without one.
    assert_eq!((tags.bands.len(), tags.bands[7].groups), (9, 4));
    assert_eq!((tags.bands[8].key, tags.bands[8].groups), (0, 1));
    assert_eq!((sites.bands.len(), sizes.bands.len()), (5, 8));
    for (&born, &band) in report.map.blocks.born.iter().zip(&tags.map) {
        let block = trace.events().take(usize::try_from(born).unwrap() + 1);
        let block = block.filter(|event| matches!(event, Event::Allocate { .. })).count() - 1;
        let tag = trace.tag(BlockIndex(u32::try_from(block).unwrap()));
        match (&tags.bands[usize::from(band)], tag) {
            (Band { key: 0, groups: 1, .. }, None) => {}
            (Band { key: 0, .. }, Some(_)) => {}
            (Band { key, .. }, tag) => {
                assert_eq!(tag, Some(&*report.labels[usize::try_from(*key).unwrap() - 1]));
            }
        }
    }
}

/// Blocks that have no tag are a row where the run has tags, even where none is live at the peak.
#[test]
fn untagged_blocks_are_an_owner_too() {
    let mut builder = TraceBuilder::new("untagged");
    builder.allocate(0, Bytes::mib(1), 0).unwrap();
    builder.tag("early");
    builder.free(0, 0).unwrap();
    builder.allocate(1, Bytes::mib(2), 0).unwrap();
    let report = reported(&builder.finish(), None, false);
    let [row] = &report.owners.by_tag[..] else { panic!("{:?}", report.owners.by_tag) };
    assert_eq!((row.key, row.bytes), (0, 2 << 20));
    let bands = &report.timeline.owners[0].bands;
    assert_eq!(
        bands.iter().map(|band| band.bytes.clone()).collect::<Vec<_>>(),
        [[1 << 20, 0, 0], [0, 0, 2 << 20]]
    );
    assert!(reported(&built(&[(1, 7, 0)]), None, false).owners.by_tag.is_empty());
}

#[test]
fn the_clock_never_goes_back_and_begins_with_the_run() {
    let clock = |times: &[u64]| {
        let mut builder = TraceBuilder::new("clock");
        for (key, &time) in (0..).zip(times) {
            builder.allocate(key, Bytes::new(1), 0).unwrap();
            builder.time(time);
        }
        reported(&builder.finish(), None, false).timeline.clock_ns
    };
    assert_eq!(clock(&[100, 300, 250, 900]), Some(vec![0, 200, 200, 800, 800]));
    assert_eq!(clock(&[5, 5, 5]), None);
    assert_eq!(clock(&[0, u64::MAX]), Some(vec![0, 1 << 53, 1 << 53]));
    assert_eq!(reported(&built(&[(1, 7, 0); 3]), None, false).timeline.clock_ns, None);
}

#[test]
fn a_page_is_called_after_its_file_and_dated() {
    let mut builder = TraceBuilder::new("a pool");
    builder.allocate(0, Bytes::mib(1), 0).unwrap();
    builder.remarks().began = Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
    let (trace, settings) = (builder.finish(), Settings::default());
    let made = page_of(&trace, Some("monday"), &settings, None, false, &WorkBudget::unlimited());
    let made = made.unwrap();
    for part in ["<h1>monday</h1>", r#""name":"a pool""#, r#""began_unix_ms":1700000000123"#] {
        assert!(made.contains(part), "{part}");
    }
    let report = reported(&trace, None, false);
    assert_eq!(report.run.title(), "a pool");
    assert!(report.made_unix_ms > 1_700_000_000_123);
    assert_eq!(reported(&built(&[]), None, false).run.began_unix_ms, None);
}

/// A program that has forebay needs no advice to use it. What it does need to know is who to ask.
#[test]
fn advice_names_owners_and_advises_forebay_to_others_alone() {
    let run = |of_forebay: bool| {
        let mut builder = TraceBuilder::new("steps");
        builder.remarks().of_forebay = of_forebay;
        for step in 0..60_u64 {
            builder.allocate(1000 + step, Bytes::mib(3), 0).unwrap();
            builder.tag("\u{1b}[31mmetrics");
            builder.stack("append history.py:19\nmain train.py:1");
            for block in 1..5 {
                builder.allocate(block, Bytes::mib(11 * block + step % 3), block % 2).unwrap();
                builder.tag("activations");
            }
            (1..5).for_each(|block| builder.free(block, block % 2).unwrap());
        }
        reported(&builder.finish(), None, true).advice
    };
    let titles = |advice: &[Advice]| advice.iter().map(|one| one.title.clone()).collect::<Vec<_>>();
    let (others, ours) = (run(false), run(true));
    let of_others = ["Use forebay's pool", "A larger batch fits"];
    assert!(
        of_others.iter().all(|title| titles(&others).contains(&(*title).to_owned())),
        "{others:?}"
    );
    assert!(
        !of_others.iter().any(|title| titles(&ours).contains(&(*title).to_owned())),
        "{ours:?}"
    );
    let leak = ours.iter().find(|advice| advice.title == "Suspected leak").unwrap();
    let said = "Their owner: append history.py:19, tag \u{1b}[31mmetrics (180.00 MiB).";
    assert!(leak.text.ends_with(said), "{}", leak.text);
    let peak = ours.iter().find(|advice| advice.title == "A short peak").unwrap();
    assert!(peak.text.ends_with(said), "{}", peak.text);
}

#[test]
fn no_name_leads_out_of_the_folder() {
    for (name, file) in
        [("run", "run"), ("", "run"), ("../x", "_x"), ("/a b", "_a_b"), ("..", "run")]
    {
        assert_eq!(default_path(name), PathBuf::from(format!("{file}.report.html")));
    }
}

/// Blocks without a tag or a stack, and groups beyond those that are named, are rows too.
#[test]
fn the_rows_of_owners_add_up_to_the_peak() {
    let mut builder = TraceBuilder::new("owners");
    for block in 0..200_u64 {
        builder.allocate(block, Bytes::new(1000 + 512 * block), block % 40).unwrap();
        builder.thread(u32::try_from(block % 30).unwrap());
        if block % 3 == 0 {
            builder.tag(&format!("tag {}", block % 50));
        }
        if block % 5 == 0 {
            builder.stack(&format!("site_{block} a.rs:1\nmain a.rs:2"));
        }
    }
    let report = reported(&builder.finish(), None, false);
    let owners = &report.owners;
    for (name, rows) in [
        ("label", &owners.by_label),
        ("tag", &owners.by_tag),
        ("site", &owners.by_site),
        ("thread", &owners.by_thread),
        ("size", &owners.by_size),
        ("stream", &owners.by_stream),
    ] {
        let sums = rows
            .iter()
            .fold([0; 2], |[blocks, bytes], row| [blocks + row.blocks, bytes + row.bytes]);
        let all = [report.run.peak_blocks, report.run.peak_requested_bytes];
        assert_eq!(sums, all, "by {name}: {rows:?}");
        assert!(rows.len() <= 21, "by {name}");
    }
    assert!(owners.by_tag.iter().any(|row| row.key == 0 && row.groups == 1), "a row for no tag");
    assert!(owners.by_size.last().unwrap().groups > 100, "a row for the rest");
}
