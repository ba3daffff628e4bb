//! The bodies of the fuzz targets: plain functions of bytes that panic where something is wrong.
//!
//! ```text
//!   fuzz_targets/   the same bodies under libFuzzer, or over files given by name
//!   tests/          the same bodies over the inputs in seeds/ and thousands that are drawn
//! ```

// A body reports by panicking: that is what fuzzers and tests look for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// The oracle, the programs and their player are those of the pool's own tests; a fuzz target uses
// part of them.
#[allow(dead_code, unused_imports)]
#[path = "../../crates/forebay/tests/oracle/trial/mod.rs"]
mod trial;

use std::io::Cursor;

use forebay_trace::format::{read, write_binary, write_csv};
use forebay_trace::{Event, ReadOptions, Trace};

use self::trial::{Program, Setting, try_on_sim};

/// The most operations of one input: beyond it a fuzzer would make programs longer, not better.
const MOST_OPERATIONS: usize = 400;

/// What each kind of file begins with, so that every reader gets to see every input.
const BEGINNINGS: [&[u8]; 5] = [
    b"",
    b"op,id,bytes,stream\n",
    b"Thread,Time,Action,Pointer,Size,Stream\n",
    b"forebay.trace.v1",
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
    let records = &records[..records.len().min(MOST_OPERATIONS * 8)];
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
        let (mut csv, mut binary) = (Vec::new(), Vec::new());
        write_csv(&trace, &mut csv).expect("a recording that can be written");
        write_binary(&trace, &mut binary).expect("a recording that can be written");
        for written in [csv, binary] {
            let again = read_limited(&written).expect("what was written can be read");
            assert_eq!(summary(&again), summary(&trace), "another recording came back");
        }
    }
    taken
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
