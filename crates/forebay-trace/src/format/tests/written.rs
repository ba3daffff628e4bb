//! What is written in one form comes back from it: events always, the rest as far as the form has a place for it.

use core::time::Duration;
use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::Value;

use super::super::placement::{Placement, room};
use super::*;
use crate::{Transfer, TransferDirection};

/// Runs with owners, times, threads and transfers, each or none, of sizes that addresses suffice for.
fn told_runs(largest: u64) -> impl Strategy<Value = Trace> {
    let step = (0_u64..20, 0_u64..largest, 0_u64..4, 0_u64..5_000_000);
    let owners =
        prop::sample::select(vec!["", "optimizer", "<script>", "inner a.py:7\nouter b c.rs:12"]);
    let transfer = (0_u64..1 << 50, 0_u64..1 << 50, any::<u64>(), any::<bool>());
    let all = (
        prop::collection::vec((step, owners.clone(), owners), 0..120),
        prop::collection::vec(transfer, 0..4),
        any::<[bool; 2]>(),
        any::<u64>(),
    );
    all.prop_map(|(steps, transfers, [has_times, has_threads], base)| {
        let mut builder = TraceBuilder::new("told");
        let mut now = 0;
        for ((key, size, stream, later), tag, stack) in steps {
            let handle = base.wrapping_mul(stream);
            match builder.is_live(key) {
                true => builder.free(key, handle).unwrap(),
                false => {
                    builder.allocate(key, Bytes::new(size), handle).unwrap();
                    builder.tag(tag);
                    builder.stack(stack);
                }
            }
            if has_times {
                builder.time(now);
                now += later * 1000;
            }
            if has_threads {
                builder.thread(u32::try_from(later % 3).unwrap());
            }
        }
        for (begin, took, bytes, down) in transfers {
            let [begin, end] = [begin, begin + took].map(Duration::from_nanos);
            let directions = [TransferDirection::Upload, TransferDirection::Download];
            let direction = directions[usize::from(down)];
            builder.transfer(Transfer { begin, end, bytes: Bytes::new(bytes), direction });
        }
        builder.remarks().failed_allocations = base % 100;
        builder.remarks().of_forebay = base % 2 == 1;
        let date = std::time::UNIX_EPOCH + Duration::from_nanos(base + 1);
        builder.remarks().began = (base % 3 > 0).then_some(date);
        builder.finish()
    })
}

fn written(trace: &Trace, write: WriteForm) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(trace, &mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_form_keeps_what_it_has_a_place_for(trace in told_runs(1 << 40)) {
        let [own, snapshot, log] = [binary::write, snapshot::write, rmm::write]
            .map(|write: WriteForm| parse(&written(&trace, write)).unwrap());
        prop_assert_eq!(&own, &trace);
        for back in [&snapshot, &log] {
            prop_assert!(back.events().eq(trace.events()));
            prop_assert_eq!(back.streams(), trace.streams());
            prop_assert_eq!(back.remarks().failed_allocations, trace.remarks().failed_allocations);
        }
        prop_assert_eq!(snapshot.remarks(), trace.remarks());
        let block = |block: usize| BlockIndex(u32::try_from(block).unwrap());
        for block in (0..trace.blocks()).map(block) {
            prop_assert_eq!(snapshot.tag(block), trace.tag(block));
            prop_assert_eq!(snapshot.stack(block), trace.stack(block));
        }
        for event in 0..trace.len() {
            prop_assert_eq!(snapshot.time(event), trace.time(event));
            if trace.time(event).is_some() {
                prop_assert_eq!(log.time(event), trace.time(event));
            }
            if trace.thread(event).is_some() {
                prop_assert_eq!(log.thread(event), trace.thread(event));
            }
        }
    }

    #[test]
    fn no_two_live_blocks_have_one_address(trace in told_runs(1 << 40)) {
        let placement = Placement::of(&trace).unwrap();
        let mut live: Vec<(u64, u64)> = Vec::new();
        for event in trace.events() {
            let (Event::Allocate { block, .. } | Event::Free { block, .. }) = event;
            let begin = placement.address(block);
            let span = (begin, begin + room(trace.size(block).get()));
            match event {
                Event::Free { .. } => live.retain(|&other| other != span),
                Event::Allocate { .. } => {
                    prop_assert!(live.iter().all(|other| other.1 <= span.0 || span.1 <= other.0));
                    prop_assert!(span.1 <= placement.end);
                    live.push(span);
                }
            }
        }
    }

    #[test]
    fn perfetto_gets_the_counters_and_the_blocks(trace in told_runs(1 << 22)) {
        let told: Value = serde_json::from_slice(&written(&trace, chrome::write)).unwrap();
        let events = told["traceEvents"].as_array().unwrap();
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        let requested = of("C").into_iter().filter(|event| event["name"] == "requested");
        let most = requested.map(|event| event["args"]["bytes"].as_u64().unwrap()).max();
        prop_assert_eq!(most.unwrap_or(0), trace.statistics().peak_requested.get());
        // A slice begins once, ends once, and not before it begins.
        let [begun, ended] = ["b", "e"].map(|phase| {
            let slices = of(phase).into_iter();
            slices.map(|event| (event["id"].clone(), event["ts"].as_f64().unwrap())).collect::<HashMap<_, _>>()
        });
        prop_assert_eq!((begun.len(), ended.len()), (trace.blocks(), trace.blocks()));
        prop_assert!(begun.iter().all(|(id, begin)| ended[id] >= *begin));
        prop_assert_eq!(of("X").len(), trace.transfers().len());
    }

    #[test]
    fn no_details_bring_the_reader_down(
        trace in told_runs(1 << 40),
        changes in prop::collection::vec((17_usize..400, any::<u8>()), 1..4),
    ) {
        let mut bytes = written(&trace, binary::write);
        let end = bytes.len() - 4;
        for (at, byte) in changes {
            bytes[17 + at % (end - 17)] = byte;
        }
        let checksum = crc32fast::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        if let Err(error) = parse(&bytes) {
            prop_assert!(error.to_string().contains("byte "), "{}", error);
        }
    }
}

/// A run with more of everything than is written.
#[test]
fn perfettos_file_has_a_bound() {
    let mut builder = TraceBuilder::new("many \"blocks\"\n");
    for block in 0..100_000 {
        builder.allocate(block, Bytes::new(block % 4096), 0).unwrap();
        builder.stack(&format!("{block} {}", "long ".repeat(300)));
        builder.free(block, 0).unwrap();
    }
    let bytes = written(&builder.finish(), chrome::write);
    assert!(bytes.len() < 16 << 20, "{}", bytes.len());
    let told: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(told["otherData"]["blocks_left_out"], 100_000 - (1 << 14));
    assert_eq!(told["otherData"]["name"], "many \"blocks\"\n");
}

#[test]
fn what_no_address_suffices_for_is_refused() {
    let mut builder = TraceBuilder::new("huge");
    builder.allocate(0, Bytes::MAX, 0).unwrap();
    let trace = builder.finish();
    for write in [snapshot::write as WriteForm, rmm::write] {
        let said = write(&trace, &mut Vec::new()).unwrap_err().to_string();
        assert!(said.contains("of addresses"), "{said}");
    }
}

/// A file of version 1 stays what older versions write and read, and what later ones may add is passed over.
#[test]
fn old_and_later_files_of_our_own_are_read() {
    let plain = parse(SMALL.as_bytes()).unwrap();
    let bytes = binary(&plain);
    assert!(bytes.starts_with(b"forebay.trace.v1\n"));
    let mut later = bytes[..bytes.len() - 4].to_vec();
    later[15] = b'2';
    later.extend_from_slice(&[99, 3, 1, 2, 3]);
    let checksum = crc32fast::hash(&later);
    later.extend_from_slice(&checksum.to_le_bytes());
    assert_eq!(parse(&later).unwrap(), plain);
    later[15] = b'9';
    let end = later.len() - 4;
    let checksum = crc32fast::hash(&later[..end]);
    later[end..].copy_from_slice(&checksum.to_le_bytes());
    assert!(refusal(&later).contains("another version"), "{}", refusal(&later));
}

#[test]
fn details_that_promise_too_much_are_refused_with_the_place() {
    let trace = parse(SMALL.as_bytes()).unwrap();
    let bytes = binary(&trace);
    for (section, part) in [
        (&[1, 1, 0][..], "the time of an event"),
        (&[2, 2, 7, 9], "a run of 9"),
        (&[2, 2, 7, 0], "a run of 0"),
        (&[2, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f, 3], "above 32 bits"),
        (&[3, 4, 1, 1, b'a', 2], "the length of a run"),
        (&[3, 5, 1, 1, b'a', 2, 2], "past the texts"),
        (&[3, 3, 1, 1, 0xff], "UTF-8"),
        (&[3, 0xff, 0xff, 0xff, 0x0f], "the content of a section"),
        (&[4, 5, 0xff, 0xff, 0xff, 0xff, 0x0f], "a text"),
        (&[5, 4, 0, 0, 0, 2], "0 or 1"),
        (&[5, 1, 0], "the duration"),
        (&[2, 3, 7, 3, 0], "the end of the section"),
    ] {
        let mut body = bytes[..bytes.len() - 4].to_vec();
        body[15] = b'2';
        body.extend_from_slice(section);
        let checksum = crc32fast::hash(&body);
        body.extend_from_slice(&checksum.to_le_bytes());
        let said = refusal(&body);
        assert!(said.contains(part) && said.contains("byte "), "{section:?} said {said}");
    }
}
