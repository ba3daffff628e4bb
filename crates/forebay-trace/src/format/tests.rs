//! Every form read and written, and files that are broken on purpose.

mod written;

use std::io::{Cursor, Write as _};

use proptest::prelude::*;

use super::*;
use crate::{BlockIndex, Event, StreamIndex};
use forebay_core::Bytes;

fn parse(bytes: &[u8]) -> Result<Trace, FormatError> {
    read(bytes, "test", &ReadOptions::default())
}

fn refusal(bytes: &[u8]) -> String {
    parse(bytes).unwrap_err().to_string()
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn binary(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(trace, ".fbt", &mut bytes).unwrap();
    bytes
}

const SMALL: &str = "op,id,bytes,stream\na,17,3145728,0\nf,17,,0\na,17,0,94000\n";

#[test]
fn csv_is_read_plain_and_packed() {
    let trace = parse(SMALL.as_bytes()).unwrap();
    let events: Vec<Event> = trace.events().collect();
    let size = Bytes::new(3_145_728);
    assert_eq!(
        events,
        [
            Event::Allocate { block: BlockIndex(0), size, stream: StreamIndex(0) },
            Event::Free { block: BlockIndex(0), stream: StreamIndex(0) },
            Event::Allocate { block: BlockIndex(1), size: Bytes::ZERO, stream: StreamIndex(1) },
        ]
    );
    assert_eq!(trace.streams(), [0, 94_000]);
    assert_eq!(parse(&gzipped(SMALL.as_bytes())).unwrap(), trace);
    let windows = SMALL.replace('\n', "\r\n");
    assert_eq!(parse(windows.as_bytes()).unwrap(), trace);
    let marked = format!("\u{feff}{windows}");
    assert_eq!(parse(marked.as_bytes()).unwrap(), trace);
    assert_eq!(parse(&gzipped(marked.as_bytes())).unwrap(), trace);
    let broken = format!("\u{feff}{SMALL}x\n");
    assert!(refusal(broken.as_bytes()).contains("line 5: found \"x\""));
}

#[test]
fn a_broken_line_is_named_with_what_was_expected() {
    for (line, part) in [
        ("x,1,2,3", "line 2: found \"x,1,2,3\"; expected \"a,ID,BYTES,STREAM\""),
        ("a,1,2", "line 2"),
        ("a,1,2,3,4", "line 2"),
        ("a,1,,3", "line 2"),
        ("a,-1,2,3", "line 2"),
        ("a,+1,2,3", "line 2"),
        ("a,18446744073709551616,2,3", "line 2"),
        ("a,1,2,", "line 2"),
        ("f,1,,0", "line 2: frees 1 (0x1), which was never allocated"),
        ("a,1,1,0\na,1,1,0", "line 3: allocates 1 (0x1), which is live"),
        ("a,1,1,0\nf,1,,0\nf,1,,0", "line 4: frees 1 (0x1), which is free already"),
        ("a,1,18446744073709551615,0\na,2,1,0", "line 3: 1 B more than are live"),
    ] {
        let said = refusal(format!("op,id,bytes,stream\n{line}\n").as_bytes());
        assert!(said.contains(part), "{line:?} said {said}");
    }
    let long = format!("op,id,bytes,stream\n{}\n", "9".repeat(5000));
    assert!(refusal(long.as_bytes()).contains("at most 4096 bytes"));
    assert!(refusal(b"op,id,bytes,stream\n\xff\xfe\n").contains("UTF-8"));
    assert!(refusal(b"op,id,bytes,streams\n").contains("expected \"op,id,bytes,stream\""));
}

#[test]
fn what_is_no_recording_is_told_what_is() {
    for bytes in [
        &b""[..],
        b"hello\x1b[31m",
        b"{}",
        b"{\"schema\":\"forebay.pool.v2\"}",
        b"op;id",
        b"forebay.trac",
    ] {
        let said = refusal(bytes);
        assert!(said.contains("known are CSV") && !said.contains('\x1b'), "{said}");
    }
    let twice = gzipped(&gzipped(SMALL.as_bytes()));
    assert!(refusal(&twice).contains("known are CSV"), "packed once is enough");
    let whole = gzipped(SMALL.as_bytes());
    assert!(matches!(parse(&whole[..whole.len() / 2]), Err(FormatError::Io { .. })));
}

#[test]
fn limits_end_what_would_not() {
    let options = ReadOptions::default().events(2);
    let said = read(SMALL.as_bytes(), "test", &options).unwrap_err().to_string();
    assert!(said.contains("more than 2 events"), "{said}");
    // A few kilobytes that stand for gigabytes.
    let row = b"a,1,1,0\nf,1,,0\n".repeat(1 << 16);
    let mut bomb = gzipped(b"op,id,bytes,stream\n");
    let member = gzipped(&row);
    (0..64).for_each(|_| bomb.extend_from_slice(&member));
    let options = ReadOptions::default().bytes(1 << 20);
    let said = read(&bomb[..], "test", &options).unwrap_err().to_string();
    assert!(said.contains("more than 1048576 bytes"), "{said}");
    for bytes in [binary(&parse(SMALL.as_bytes()).unwrap()), SNAPSHOT.to_vec()] {
        let options = ReadOptions::default().bytes(bytes.len() as u64 - 1);
        let said = read(&bytes[..], "test", &options).unwrap_err().to_string();
        assert!(said.contains("bytes; if the file is sound"), "{said}");
    }
}

const RMM: &[u8] = include_bytes!("../../tests/data/rmm_log.csv");

#[test]
fn an_rmm_log_is_read() {
    let sums = parse(RMM).unwrap().statistics();
    assert_eq!((sums.allocations, sums.frees, sums.never_freed), (300, 300, 0));
    let text = "Thread,Time,Action,Pointer,Size,Stream\n\
                1,02:10:09,allocate,0x7f00,100,0x0\n\
                1,02:10:09,allocate failure,0x0,1000000000000,0x0\n\
                2,02:10:10,allocate,(nil),0,0x0\n\
                2,02:10:10,free,(nil),0,0x0\n\
                2,02:10:10,free,0x7f00,100,0x5580\n\
                1,02:10:09,allocate,0x7f00,7,0x0\n";
    let trace = parse(text.as_bytes()).unwrap();
    assert_eq!((trace.len(), trace.remarks().failed_allocations), (3, 1));
    assert_eq!(trace.streams(), [0, 0x5580]);
    let bad = text.replace("allocate failure", "allocation");
    assert!(refusal(bad.as_bytes()).contains("RMM log, line 3"), "{}", refusal(bad.as_bytes()));
}

const SNAPSHOT: &[u8] = include_bytes!("../../tests/data/torch_snapshot.pickle");

#[test]
fn a_pytorch_snapshot_is_read() {
    let trace = parse(SNAPSHOT).unwrap();
    let sums = trace.statistics();
    // 244 in the history, 214 of them freed; all blocks at the end come from it.
    assert_eq!((sums.allocations, sums.frees, sums.never_freed), (244, 214, 30));
    assert_eq!(trace.streams(), [0, 830_284_496]);
    assert_eq!(trace.remarks().failed_allocations, 1);
    assert_eq!(trace.remarks().live_at_start, 0);
    assert!(!trace.remarks().of_forebay);
    // The time_us of the first block.
    let began = std::time::UNIX_EPOCH + core::time::Duration::from_micros(1_794_708_604_636_132);
    assert_eq!(trace.remarks().began, Some(began));
    let first = trace.events().next();
    let size = Bytes::mib(1);
    assert_eq!(first, Some(Event::Allocate { block: BlockIndex(0), size, stream: StreamIndex(0) }));
    let other = read(SNAPSHOT, "test", &ReadOptions::default().device(3)).unwrap_err().to_string();
    assert!(other.contains("no history of device 3"), "{other}");
}

#[test]
fn a_snapshot_of_a_pool_is_its_blocks_at_one_moment() {
    let text = "{ \"schema\": \"forebay.pool.v1\", \"pool\": 7, \"blocks\": [\n\
                {\"address\": 8192, \"size_bytes\": 512, \"requested_bytes\": 100, \"tag\": \"<script>\"},\n\
                {\"address\": 4096, \"size_bytes\": 512, \"requested_bytes\": 300, \"tag\": \"untagged\"}]}";
    let trace = parse(text.as_bytes()).unwrap();
    let blocks = [0, 1].map(BlockIndex);
    assert_eq!(blocks.map(|block| trace.size(block).get()), [300, 100]);
    assert_eq!(blocks.map(|block| trace.address(block)), [Some(4096), Some(8192)]);
    assert_eq!(blocks.map(|block| trace.tag(block)), [None, Some("<script>")]);
    assert_eq!(parse(&binary(&trace)).unwrap(), trace);
    let cut = refusal(&text.as_bytes()[..120]);
    assert!(cut.contains("forebay.pool.v1, byte 119"), "{cut}");
    let wrong = refusal(text.replace("300", "-300").as_bytes());
    assert!(wrong.contains("byte ") && wrong.contains("-300"), "{wrong}");
    let twice = refusal(text.replace("8192", "4096").as_bytes());
    assert!(twice.contains("which is live"), "{twice}");
    let deep = format!("{}{}", &text[..54], "[".repeat(100_000));
    assert!(refusal(deep.as_bytes()).contains("byte "));
}

/// What `forebay.torch.dump_snapshot` wrote on a driver without a GPU.
const OWN_SNAPSHOT: &[u8] = include_bytes!("../../tests/data/forebay_snapshot.pickle");

#[test]
fn a_snapshot_of_our_own_is_read_as_pytorchs_are() {
    let trace = parse(OWN_SNAPSHOT).unwrap();
    let sums = trace.statistics();
    // Four in the history, one of them for a graph, and two from before it; one of each was freed.
    assert_eq!((sums.allocations, sums.frees, sums.never_freed), (6, 2, 4));
    assert_eq!(trace.remarks().live_at_start, 2);
    assert_eq!(trace.remarks().failed_allocations, 1);
    assert!(trace.remarks().of_forebay, "its settings are among the allocator's");
    let sizes = trace.events().filter_map(|event| match event {
        Event::Allocate { size, .. } => Some(size.get()),
        _ => None,
    });
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1000, 2000, 3000, 70_000, 1 << 20, 3 << 20]);
}

#[test]
fn files_are_written_by_their_endings_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let trace = crate::sample::gpt2_train().unwrap();
    for name in ["gpt2_train.csv", "gpt2_train.csv.gz", "gpt2_train.fbt", "gpt2_train.pickle"] {
        let path = folder.path().join(name);
        write_path(&trace, &path).unwrap();
        assert_eq!(read_path(&path, &ReadOptions::default()).unwrap(), trace, "{name}");
    }
    let size = std::fs::metadata(folder.path().join("gpt2_train.fbt")).unwrap().len();
    assert!(size < 3 * trace.len() as u64, "{size} bytes for {} events", trace.len());
    let refused = write_path(&trace, &folder.path().join("gpt2.txt")).unwrap_err().to_string();
    assert!(refused.contains(".csv, .fbt, .pickle"), "{refused}");
    let missing = folder.path().join("no/such/folder.csv");
    assert!(matches!(write_path(&trace, &missing), Err(FormatError::Io { .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4, "no partial files");
}

/// The folder of the output may belong to many: a link that someone put there leads nowhere.
#[cfg(unix)]
#[test]
fn links_are_not_followed_and_what_is_no_file_is_written_to() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let trace = parse(SMALL.as_bytes()).unwrap();
    std::fs::create_dir(at("far")).unwrap();
    std::fs::write(at("far/old.csv"), "old").unwrap();
    // One link to a file, one to nothing, one to a device.
    for (link, target) in
        [("link.csv", "far/old.csv"), ("dangling.csv", "far/new.csv"), ("null.csv", "/dev/null")]
    {
        symlink(target, at(link)).unwrap();
        write_path(&trace, &at(link)).unwrap();
        assert!(!at(link).is_symlink(), "{link} is replaced");
        let back = read_path(&at(link), &ReadOptions::default()).unwrap();
        assert!(back.events().eq(trace.events()), "{link}");
    }
    assert_eq!(std::fs::read_to_string(at("far/old.csv")).unwrap(), "old");
    assert_eq!(std::fs::read_dir(at("far")).unwrap().count(), 1);
    // The name that earlier versions wrote to first, which could be guessed.
    let guessed = format!(".new.csv.{}.partial", std::process::id());
    symlink("far/old.csv", at(&guessed)).unwrap();
    write_path(&trace, &at("new.csv")).unwrap();
    assert_eq!(std::fs::read_to_string(at("far/old.csv")).unwrap(), "old");
    assert!(at(&guessed).is_symlink(), "what is there is left alone");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6, "no partial files");
    // A device takes the bytes and stays a device.
    crate::format::write_whole(std::path::Path::new("/dev/null"), |out| out.write_all(b"x"))
        .unwrap();
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
    // A write that fails leaves what was there, and nothing else.
    let failed = crate::format::write_whole(&at("new.csv"), |out| {
        out.write_all(b"half")?;
        Err(std::io::Error::other("no more"))
    });
    assert!(failed.is_err());
    assert!(read_path(&at("new.csv"), &ReadOptions::default()).is_ok());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6, "no partial files");
    std::fs::create_dir(at("folder.csv")).unwrap();
    assert!(matches!(write_path(&trace, &at("folder.csv")), Err(FormatError::Io { .. })));
}

#[test]
fn a_damaged_file_of_our_own_is_found_out() {
    let trace = parse(SMALL.as_bytes()).unwrap();
    let bytes = binary(&trace);
    assert_eq!(parse(&bytes).unwrap(), trace);
    for at in SCHEMA_END..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(refusal(&damaged).contains("checksum"), "byte {at}");
        assert!(parse(&bytes[..at]).is_err(), "cut at {at}");
    }
}

const SCHEMA_END: usize = 17;

/// With a checksum that is right, so that what stands before it is looked at.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut bytes = b"forebay.trace.v1\n".to_vec();
    bytes.extend_from_slice(body);
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn our_own_form_refuses_what_it_does_not_say() {
    for (body, part) in [
        (&[0xff; 11][..], "more than 64 bits"),
        (&[5, b'a'], "the name"),
        (&[0, 0, 0, 1, 7, 0xff, 0xff, 0xff, 0xff, 0x0f], "an event"),
        (&[0, 0, 0, 0, 1, 0, 5], "past the streams"),
        (&[0, 0, 0, 1, 7, 1, 2, 1, 5], "past the streams"),
        (&[0, 0, 0, 1, 7, 1, 1 << 2], "a size from before the first"),
        (&[0, 0, 0, 1, 7, 1, 1 << 2 | 1], "a block from before the first"),
        (&[0, 0, 0, 1, 7, 2, 0, 5, 1], "which was never allocated"),
        (&[0, 0, 0, 1, 7, 1, 0, 5, 9], "the checksum after the last event"),
        (&[2, 0xff, 0xfe], "UTF-8"),
    ] {
        let said = refusal(&sealed(body));
        assert!(said.contains(part), "{body:?} said {said}");
        assert!(said.contains("byte "), "{said}");
    }
}

/// Runs that keep the rules, of few names so that they come back.
fn runs() -> impl Strategy<Value = Trace> {
    let step = (0_u64..20, prop_oneof![0_u64..5000, any::<u64>()], 0_u64..4);
    (prop::collection::vec(step, 0..120), "\\PC{0,12}", any::<u64>()).prop_map(
        |(steps, name, base)| {
            let mut builder = TraceBuilder::new(name);
            for (key, size, stream) in steps {
                let handle = base.wrapping_mul(stream);
                // A breach is left out: what remains is a run.
                let _ = match builder.is_live(key) {
                    true => builder.free(key, handle),
                    false => builder.allocate(key, Bytes::new(size), handle),
                };
            }
            builder.remarks().failed_allocations = base;
            builder.finish()
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(trace in runs()) {
        let back = read(&binary(&trace)[..], trace.name(), &ReadOptions::default()).unwrap();
        prop_assert_eq!(&back, &trace);
        let mut csv = Vec::new();
        write(&trace, ".csv", &mut csv).unwrap();
        let back = read(Cursor::new(csv), trace.name(), &ReadOptions::default()).unwrap();
        prop_assert!(back.events().eq(trace.events()));
        prop_assert_eq!(back.streams(), trace.streams());
    }

    #[test]
    fn no_bytes_bring_a_reader_down(
        head in prop::sample::select(vec![
            &b""[..], b"op,id,bytes,stream\n", b"Thread,Time,Action,Pointer,Size,Stream\n",
            b"forebay.trace.v1\n", b"forebay.trace.v2\n", b"\x80\x04", b"\x1f\x8b", b"\x80\x04}\x8c\rdevice_traces",
        ]),
        tail in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [head, &tail].concat();
        if let Err(error) = parse(&bytes) {
            prop_assert!(!error.to_string().is_empty());
        }
        let _ = parse(&sealed(&tail));
        let _ = parse(&gzipped(&bytes));
    }

    #[test]
    fn no_change_to_a_snapshot_brings_its_reader_down(
        changes in prop::collection::vec((0..SNAPSHOT.len(), any::<u8>()), 1..8),
        end in 0..SNAPSHOT.len() * 2,
    ) {
        let mut bytes = SNAPSHOT[..end.min(SNAPSHOT.len())].to_vec();
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        let _ = parse(&bytes);
    }
}
