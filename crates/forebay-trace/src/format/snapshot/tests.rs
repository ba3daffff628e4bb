//! Snapshots made by hand: histories that begin in the middle of a run.

use super::*;
use crate::format;
use crate::{BlockIndex, Event, StreamIndex};

/// Pickle of what snapshots are made of.
enum Piece {
    Number(u32),
    Text(&'static str),
    List(Vec<Piece>),
    Dictionary(Vec<(&'static str, Piece)>),
}

use Piece::{Dictionary, List, Number, Text};

impl Piece {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Number(number) => {
                out.extend_from_slice(b"\x8a\x05");
                out.extend_from_slice(&number.to_le_bytes());
                out.push(0);
            }
            Text(text) => {
                out.extend_from_slice(&[b'U', u8::try_from(text.len()).unwrap()]);
                out.extend_from_slice(text.as_bytes());
            }
            List(items) => {
                out.extend_from_slice(b"](");
                items.iter().for_each(|item| item.put(out));
                out.push(b'e');
            }
            Dictionary(entries) => {
                out.extend_from_slice(b"}(");
                for (key, value) in entries {
                    Text(key).put(out);
                    value.put(out);
                }
                out.push(b'u');
            }
        }
    }
}

fn event(action: &'static str, address: u32, size: u32, stream: u32) -> Piece {
    Dictionary(vec![
        ("action", Text(action)),
        ("addr", Number(address)),
        ("size", Number(size)),
        ("stream", Number(stream)),
    ])
}

fn block(address: u32, size: u32, state: &'static str) -> Piece {
    Dictionary(vec![
        ("address", Number(address)),
        ("size", Number(size + 512)),
        ("requested_size", Number(size)),
        ("state", Text(state)),
    ])
}

fn segment(device: u32, stream: u32, blocks: Vec<Piece>) -> Piece {
    Dictionary(vec![
        ("device", Number(device)),
        ("stream", Number(stream)),
        ("blocks", List(blocks)),
    ])
}

fn parse(
    segments: Vec<Piece>,
    histories: Vec<Vec<Piece>>,
    options: &ReadOptions,
) -> Result<Trace, FormatError> {
    let histories = histories.into_iter().map(List).collect();
    let snapshot =
        Dictionary(vec![("segments", List(segments)), ("device_traces", List(histories))]);
    let mut bytes = b"\x80\x04".to_vec();
    snapshot.put(&mut bytes);
    bytes.push(b'.');
    format::read(&bytes[..], "hand", options)
}

#[test]
fn what_was_live_before_the_history_is_allocated_first() {
    let history = vec![
        event("free_requested", 0x100, 10, 5),
        event("free_completed", 0x100, 10, 5),
        event("free_completed", 0x900, 10, 5),
        event("alloc", 0x100, 20, 5),
        event("segment_map", 0x100, 20, 5),
        event("alloc", 0x400, 40, 5),
        event("free_requested", 0x400, 40, 5),
    ];
    let segments = vec![
        segment(0, 5, vec![block(0x100, 20, "active_allocated"), block(0x200, 7, "inactive")]),
        segment(
            0,
            6,
            vec![block(0x300, 30, "active_allocated"), block(0x400, 40, "active_pending_free")],
        ),
        segment(1, 7, vec![block(0x500, 50, "active_allocated")]),
    ];
    let trace = parse(segments, vec![history], &ReadOptions::default()).unwrap();
    let allocate = |block, size, stream| Event::Allocate {
        block: BlockIndex(block),
        size: Bytes::new(size),
        stream: StreamIndex(stream),
    };
    let free = |block| Event::Free { block: BlockIndex(block), stream: StreamIndex(0) };
    assert_eq!(
        trace.events().collect::<Vec<_>>(),
        [
            allocate(0, 10, 0),
            allocate(1, 30, 1),
            free(0),
            allocate(2, 20, 0),
            allocate(3, 40, 0),
            free(3),
        ]
    );
    assert_eq!(trace.remarks().live_at_start, 2);
    assert_eq!(trace.streams(), [5, 6]);
}

#[test]
fn of_several_devices_one_must_be_named() {
    let histories = || vec![vec![event("alloc", 1, 10, 0)], vec![], vec![event("alloc", 2, 20, 0)]];
    let said = parse(vec![], histories(), &ReadOptions::default()).unwrap_err().to_string();
    assert!(said.contains("histories of devices 0, 2"), "{said}");
    let trace = parse(vec![], histories(), &ReadOptions::default().device(2)).unwrap();
    assert_eq!(trace.size(BlockIndex(0)), Bytes::new(20));
    let said = parse(vec![], vec![vec![]], &ReadOptions::default()).unwrap_err().to_string();
    assert!(said.contains("_record_memory_history"), "{said}");
}

#[test]
fn an_entry_that_is_not_whole_is_named_by_its_place() {
    let broken = Dictionary(vec![("action", Text("alloc")), ("addr", Number(1))]);
    let said = parse(vec![], vec![vec![broken]], &ReadOptions::default()).unwrap_err().to_string();
    assert!(said.contains("byte ") && said.contains("no number \"size\""), "{said}");
    let twice = vec![event("alloc", 1, 10, 0), event("alloc", 1, 10, 0)];
    let said = parse(vec![], vec![twice], &ReadOptions::default()).unwrap_err().to_string();
    assert!(said.contains("allocates 1 (0x1), which is live"), "{said}");
    let freed = || event("free_requested", 1, 10, 0);
    for history in [vec![event("alloc", 1, 10, 0), freed(), freed()], vec![freed(), freed()]] {
        let said = parse(vec![], vec![history], &ReadOptions::default()).unwrap_err().to_string();
        assert!(said.contains("frees 1 (0x1), which is free already"), "{said}");
    }
}

#[test]
fn a_small_file_cannot_stand_for_a_large_one() {
    // One block a thousand times over in one segment a thousand times over.
    let mut bytes = b"\x80\x04}(U\x08segments](}(".to_vec();
    for key in ["device", "stream"] {
        Text(key).put(&mut bytes);
        Number(0).put(&mut bytes);
    }
    Text("blocks").put(&mut bytes);
    bytes.extend_from_slice(b"](");
    block(1, 1, "inactive").put(&mut bytes);
    bytes.extend_from_slice(&b"2".repeat(1000));
    bytes.extend_from_slice(b"eu");
    bytes.extend_from_slice(&b"2".repeat(1000));
    bytes.extend_from_slice(b"eU\x0ddevice_traces](](");
    event("oom", 0, 0, 0).put(&mut bytes);
    bytes.extend_from_slice(b"eeu.");
    let said = format::read(&bytes[..], "hand", &ReadOptions::default()).unwrap_err().to_string();
    assert!(said.contains(&format!("more than {} blocks", bytes.len())), "{said}");
}

#[test]
fn stacks_are_labels_innermost_first() {
    let frame = |name| {
        let entries = vec![("name", Text(name)), ("filename", Text("<a>.py")), ("line", Number(7))];
        Dictionary(entries)
    };
    let with_stack = |piece: Piece, frames| {
        let Dictionary(mut entries) = piece else { return piece };
        entries.push(("frames", List(frames)));
        Dictionary(entries)
    };
    let history = vec![
        with_stack(event("alloc", 1, 10, 0), vec![frame("inner"), frame("outer")]),
        event("alloc", 2, 10, 0),
        with_stack(event("alloc", 3, 10, 0), (0..100).map(|_| frame("deep")).collect()),
        with_stack(event("alloc", 4, 10, 0), vec![Number(1), List(vec![])]),
    ];
    let trace = parse(vec![], vec![history], &ReadOptions::default()).unwrap();
    let label = |block| trace.label(BlockIndex(block));
    assert_eq!(label(0), Some("inner <a>.py:7\nouter <a>.py:7"));
    assert_eq!(label(1), None);
    assert_eq!(label(2).map(|text| text.lines().count()), Some(MAX_FRAMES));
    assert_eq!(label(3), None, "no text is no reason to refuse a file");
}

/// The keys that `torch/cuda/_memory_viz.py` and pytorch.org/memory_viz read, and one segment whose blocks fill it.
#[test]
fn a_snapshot_that_is_written_has_what_pytorchs_viewer_needs() {
    let mut builder = crate::TraceBuilder::new("viewed");
    for block in 0..3000_u64 {
        builder.allocate(block, Bytes::new(block * 100), block % 2).unwrap();
        builder.stack("inner a.py:7\nmain");
        if block % 3 == 0 {
            builder.free(block, 0).unwrap();
        }
    }
    let mut bytes = Vec::new();
    super::write(&builder.finish(), &mut bytes).unwrap();
    let (heap, root) = pickle::load(&bytes, 1 << 20).unwrap();
    let snapshot = Snapshot { heap, root };
    let has =
        |of: ValueId, keys: &[&str]| keys.iter().all(|key| snapshot.heap.entry(of, key).is_some());
    let history = snapshot.history(0).unwrap();
    assert_eq!(history.len(), 3000 + 2 * 1000);
    let event = ["action", "addr", "size", "stream", "frames", "user_metadata"];
    assert!(history.iter().all(|&entry| has(entry, &event)));
    let [segment] = snapshot.list(root, "segments").unwrap() else { panic!("one segment") };
    let segment = *segment;
    let sizes = ["device", "address", "total_size", "allocated_size", "active_size", "stream"];
    assert!(has(segment, &sizes) && has(segment, &["segment_type", "frames"]));
    let mut end = snapshot.number(segment, "address").unwrap();
    let whole = end + snapshot.number(segment, "total_size").unwrap();
    for &block in snapshot.list(segment, "blocks").unwrap() {
        assert!(has(block, &["state", "requested_size", "frames"]));
        assert_eq!(snapshot.number(block, "address").unwrap(), end);
        end += snapshot.number(block, "size").unwrap();
    }
    assert_eq!(end, whole);
    let frames = snapshot.list(history[0], "frames").unwrap();
    assert!(
        frames.len() == 2 && frames.iter().all(|&frame| has(frame, &["name", "filename", "line"]))
    );
}
