//! The bodies of the fuzz targets on a stable compiler: over the inputs that are kept, and over some
//! thousand that are drawn, so that they do not rot where nobody fuzzes.

use std::fs;
use std::path::Path;

use forebay_core::Random;

use crate::{operations, reports, trace_files, weights};

/// The inputs kept for a target, by name.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let entries = fs::read_dir(&folder).unwrap();
    let mut seeds: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
        .collect();
    seeds.sort();
    seeds
}

fn bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let length = random.below(most);
    (0..length).map(|_| random.next_u64().to_le_bytes()[0]).collect()
}

/// An input with a few things done to it, as a fuzzer does them.
fn mutated(random: &mut Random, seeds: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut input = random.pick(seeds).unwrap().1.clone();
    for _ in 0..random.between(1, 6) {
        let Some(at) = random.index(input.len()) else { break };
        match random.below(6) {
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = random.next_u64().to_le_bytes()[0],
            2 => input.truncate(at),
            3 => drop(input.remove(at)),
            4 => {
                let end = at + random.index(input.len() - at + 1).unwrap();
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            _ => {
                let other = &random.pick(seeds).unwrap().1;
                let from = random.index(other.len().max(1)).unwrap().min(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input
}

#[test]
fn programs_that_are_kept() {
    let seeds = seeds("operations");
    assert!(seeds.len() >= 8, "{} inputs", seeds.len());
    for (name, input) in &seeds {
        println!("{name}");
        operations(input);
    }
}

#[test]
fn programs_that_are_drawn() {
    let (mut random, seeds) = (Random::new(1), seeds("operations"));
    for _ in 0..100 {
        operations(&bytes(&mut random, 1200));
        operations(&mutated(&mut random, &seeds));
    }
}

#[test]
fn files_that_are_kept() {
    let seeds = seeds("trace_files");
    assert!(seeds.len() >= 6, "{} inputs", seeds.len());
    let mut taken = 0;
    for (name, input) in &seeds {
        println!("{name}");
        taken += usize::from(trace_files(input) > 0);
    }
    assert!(taken >= 8, "only {taken} of {} files could be read", seeds.len());
}

#[test]
fn files_that_are_drawn() {
    let (mut random, seeds) = (Random::new(2), seeds("trace_files"));
    let mut taken = 0;
    for _ in 0..4000 {
        trace_files(&bytes(&mut random, 400));
        taken += usize::from(trace_files(&mutated(&mut random, &seeds)) > 0);
    }
    // Half of them broken and half of them whole: both ways of a reader are tried.
    assert!((400..3600).contains(&taken), "{taken} of 4000 files could be read");
}

#[test]
fn files_that_are_reported() {
    let (mut random, seeds) = (Random::new(3), seeds("trace_files"));
    let mut made: usize = seeds.iter().map(|(_, input)| reports(input)).sum();
    assert!(made >= 5, "only {made} reports of the files that are kept");
    for _ in 0..60 {
        made += reports(&mutated(&mut random, &seeds));
    }
    assert!(made >= 20, "only {made} reports");
}

#[test]
fn headers_that_are_kept() {
    let seeds = seeds("weights");
    let taken = seeds.iter().filter_map(|(_, input)| weights(input)).collect::<Vec<_>>();
    assert!(seeds.len() >= 6 && taken.len() >= 4, "{taken:?} of {} headers", seeds.len());
    assert!(taken.iter().any(|&tensors| tensors >= 3), "{taken:?}");
}

/// A header whose tensors lie one after the other, but for a slip now and then.
fn header(random: &mut Random) -> Vec<u8> {
    const TYPES: [(&str, u64); 6] =
        [("U8", 8), ("BF16", 16), ("F32", 32), ("F4", 4), ("F6_E3M2", 6), ("C64", 64)];
    let (mut entries, mut end) = (Vec::new(), 0);
    for _ in 0..random.between(1, 5) {
        let (dtype, bits) = *random.pick(&TYPES).unwrap();
        let shape: Vec<u64> = (0..random.below(4)).map(|_| random.below(6)).collect();
        let start = end + u64::from(random.below(16) == 0);
        end = start + shape.iter().product::<u64>() * bits / 8;
        let name = random.below(40);
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        ));
    }
    let size = end + u64::from(random.below(16) == 0);
    let header = format!("{{{}}}", entries.join(","));
    [&size.to_le_bytes()[..3], header.as_bytes()].concat()
}

#[test]
fn headers_that_are_drawn() {
    let (mut random, seeds) = (Random::new(4), seeds("weights"));
    let mut taken = 0;
    for _ in 0..10_000 {
        weights(&bytes(&mut random, 200));
        weights(&mutated(&mut random, &seeds));
        taken += usize::from(weights(&header(&mut random)).is_some());
    }
    assert!((1000..9000).contains(&taken), "{taken} of 10,000 headers were taken");
}
