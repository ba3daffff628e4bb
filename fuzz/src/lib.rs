//! The bodies of the fuzz targets: plain functions of bytes that panic where something is wrong.
//!
//! ```text
//!   fuzz_targets/   the same bodies under libFuzzer, or over files given by name
//!   src/inputs.rs   the same bodies over the inputs in seeds/ and thousands that are drawn
//! ```

// A body reports by panicking: that is what fuzzers and tests look for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(test)]
mod inputs;
// The oracle, the programs and their player are those of the pool's own tests; a fuzz target uses
// part of them.
#[allow(dead_code, unused_imports)]
#[path = "../../crates/forebay/tests/oracle/trial/mod.rs"]
mod trial;

use std::io::Cursor;
use std::path::Path;

use forebay::Settings;
use forebay::safetensors::Header;
use forebay_cli::report::page_of;
use forebay_core::Bytes;
use forebay_trace::format::{read, write};
use forebay_trace::{Event, ReadOptions, Trace, WorkBudget};
use safetensors::tensor::Metadata;

use self::trial::{Program, Setting, try_on_sim};

/// The most operations of one input: beyond it a fuzzer would make programs longer, not better.
const MAX_OPERATIONS: usize = 400;

/// What each kind of file begins with, so that every reader gets to see every input.
const BEGINNINGS: [&[u8]; 7] = [
    b"",
    b"op,id,bytes,stream\n",
    b"Thread,Time,Action,Pointer,Size,Stream\n",
    b"forebay.trace.v1",
    b"forebay.trace.v2",
    b"{\"schema\":\"forebay.pool.v1\",",
    b"\x80\x02",
];

/// A program of any bytes, played on the pool on the simulated device, with the oracle looking on.
///
/// The first byte picks the setting, the second the seed of the device; the rest are records of
/// eight bytes, each an operation.
pub fn operations(input: &[u8]) {
    let [picks, seed, records @ ..] = input else { return };
    let seed = u64::from(*seed);
    let setting = match picks % 4 {
        0 => Setting::tight(seed),
        1 => Setting::mixed(seed),
        2 => Setting::mixed(seed).limited_to(forebay_core::Bytes::mib(5)),
        _ => Setting::large(seed).limited_to(forebay_core::Bytes::mib(1500)),
    };
    let records = &records[..records.len().min(MAX_OPERATIONS * 8)];
    let program = Program::of_bytes(records, setting.most);
    if let Err(failure) = try_on_sim(setting, &program) {
        panic!("{failure}\n{setting:?}\n{:#?}", program.operations);
    }
}

/// Any bytes, given to every reader of recordings: a reader says no, or gives a recording that is
/// whole and comes back the same from each form it is written in. Gives how many readers took it.
pub fn trace_files(input: &[u8]) -> usize {
    let mut taken = 0;
    for beginning in BEGINNINGS {
        let file = [beginning, input].concat();
        let Some(trace) = read_limited(&file) else { continue };
        taken += 1;
        look_at(&trace);
        for ending in [".csv", ".fbt", ".pickle", ".log"] {
            let mut written = Vec::new();
            match write(&trace, ending, &mut written) {
                Ok(()) => {}
                // Forms that name blocks by addresses have no place for more than there are.
                Err(error) if [".pickle", ".log"].contains(&ending) => {
                    assert!(error.to_string().contains("of addresses"), "{error}");
                    continue;
                }
                Err(error) => panic!("{ending}: {error}"),
            }
            // What is written may be larger than what was read.
            let options = ReadOptions::default().events(1 << 16);
            let again = read(Cursor::new(&written), "fuzzed", &options).expect("what was written");
            assert_eq!(
                summary(&again),
                summary(&trace),
                "another recording came back from {ending}"
            );
            if ending == ".fbt" {
                assert_eq!(again.named(trace.name()), trace, "details were lost");
            }
        }
    }
    taken
}

/// The most events and bytes of a run that a report is made of: it is replayed a dozen times.
const MAX_REPORTED: (usize, Bytes) = (64, Bytes::mib(256));

/// Any bytes as the input of a report and of Perfetto's file: a page in which nothing of the input is read as HTML. Gives
/// how many readers took it.
pub fn reports(input: &[u8]) -> usize {
    let files = BEGINNINGS.iter().map(|beginning| [beginning, input].concat());
    let mut made = 0;
    for trace in files.filter_map(|file| read_limited(&file)) {
        if trace.len() > MAX_REPORTED.0 || trace.statistics().peak_requested > MAX_REPORTED.1 {
            continue;
        }
        let page =
            page_of(&trace, None, &Settings::default(), None, false, &WorkBudget::unlimited())
                .expect("a report");
        assert_eq!(page.matches("<script").count(), 2, "the data, and the program");
        let mut json = Vec::new();
        write(&trace, ".json", &mut json).expect("a file for Perfetto");
        serde_json::from_slice::<serde_json::Value>(&json).expect("JSON");
        made += 1;
    }
    made
}

/// Any bytes as the beginning of a file of weights, as large as the first of them say: its header is refused in words, or
/// lists tensors without holes, and safetensors' own library takes it with the same ones. Returns how many those are.
pub fn weights(input: &[u8]) -> Option<usize> {
    let (size, header) = input.split_at_checked(3)?;
    let data = size.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let size = 8 + header.len() as u64 + data;
    let path = Path::new("fuzzed.safetensors");
    let length = Header::length(path, (header.len() as u64).to_le_bytes(), size).expect("its own");
    assert_eq!(length, header.len());
    let header = match Header::parse(path, header, size) {
        Ok(parsed) => parsed,
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("fuzzed.safetensors: ") && said.len() < 2000, "{said}");
            return None;
        }
    };
    let oracle: Metadata = serde_json::from_slice(&input[3..]).expect("what forebay takes");
    let theirs = oracle.tensors();
    assert_eq!((theirs.len(), oracle.data_len() as u64), (header.tensors().len(), data));
    let mut end = size - data;
    for tensor in header.tensors() {
        let their = theirs.get(tensor.name()).expect("a tensor of the same name");
        let shape: Vec<u64> = their.shape.iter().map(|&length| length as u64).collect();
        let bits = their.dtype.bitsize() as u64;
        assert_eq!((tensor.shape(), tensor.dtype().bits()), (&shape[..], bits));
        assert_eq!(
            format!("\"{}\"", tensor.dtype()),
            serde_json::to_string(&their.dtype).expect("a name")
        );
        let start = their.data_offsets.0 as u64 + size - data;
        assert_eq!((tensor.offset(), end), (start, start));
        end += tensor.size().get();
    }
    assert_eq!(end, size);
    Some(theirs.len())
}

/// Reads with limits that keep one input from taking all time and memory there is.
fn read_limited(file: &[u8]) -> Option<Trace> {
    let options = ReadOptions::default().events(1 << 16).bytes(1 << 20).values(1 << 16);
    match read(Cursor::new(file), "fuzzed", &options) {
        Ok(trace) => Some(trace),
        Err(error) => {
            assert!(!error.to_string().is_empty(), "a refusal without a word");
            None
        }
    }
}

/// Every block is allocated before it is freed, and freed once at the most.
fn look_at(trace: &Trace) {
    let mut live = std::collections::BTreeSet::new();
    for event in trace.events() {
        match event {
            Event::Allocate { block, .. } => assert!(live.insert(block), "{block:?} twice"),
            Event::Free { block, .. } => assert!(live.remove(&block), "{block:?} is not live"),
        }
    }
    assert!(trace.blocks() <= trace.len());
    let _ = trace.statistics();
}

/// What must be the same after writing and reading: everything but the name.
fn summary(trace: &Trace) -> (Vec<Event>, Vec<u64>) {
    (trace.events().collect(), trace.streams().to_vec())
}
