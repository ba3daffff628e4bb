//! Where a structure of arrays pays: reading one field of many structures, and what the conversion costs.
//!
//! `cargo bench -p forebay-bench --bench fields`. Each line is the median of interleaved rounds, in ns a structure of 64 B. The
//! conversion pays after as many passes over the field as the last column says.
#![allow(clippy::print_stdout, reason = "its output")]

use core::hint::black_box;
use std::time::Instant;

use forebay::buffer::{BufferManager, Field};
use forebay::{Error, StreamHandle};

const ROUNDS: usize = 9;

/// 64 B: a cache line, of which a pass over one field uses 4 B.
type Structure = [f32; 16];

fn sum_structures(structures: &[Structure]) -> f32 {
    structures.iter().map(|[_, second, ..]| second).sum()
}

fn sum_field(field: &[f32]) -> f32 {
    field.iter().sum()
}

fn main() -> Result<(), Error> {
    let memory = BufferManager::host()?;
    let stream = StreamHandle::DEFAULT;
    let second = Field::<Structure, f32>::at(4)?;
    println!(
        "| structures | read in place | read as array | to array | back | passes to pay |\n|---|---|---|---|---|---|"
    );
    for shift in [8, 12, 16, 20, 22] {
        let count: usize = 1 << shift;
        let mut structures = memory.buffer_from(&vec![[1.0; 16]; count])?;
        let mut array = memory.buffer::<f32>(count)?;
        let times = ((1 << 20) / count).max(1);
        let mut rounds = [const { Vec::new() }; 4];
        for round in 0..=ROUNDS {
            let mut turn = |index: usize, work: &mut dyn FnMut() -> Result<(), Error>| {
                let began = Instant::now();
                for _ in 0..times {
                    work()?;
                }
                let each = began.elapsed().as_secs_f64() * 1e9 / (times * count) as f64;
                // The first round warms up.
                if let Some(rounds) = rounds.get_mut(index).filter(|_| round > 0) {
                    rounds.push(each);
                }
                Ok::<(), Error>(())
            };
            turn(0, &mut || {
                black_box(sum_structures(black_box(structures.host()?)));
                Ok(())
            })?;
            turn(2, &mut || structures.copy_field_to(second, &mut array, stream))?;
            turn(1, &mut || {
                black_box(sum_field(black_box(array.host()?)));
                Ok(())
            })?;
            turn(3, &mut || structures.copy_field_from(second, &array, stream))?;
        }
        let [place, field, to, back] = rounds.map(|mut rounds: Vec<f64>| {
            rounds.sort_by(f64::total_cmp);
            rounds.get(rounds.len() / 2).copied().unwrap_or_default()
        });
        let passes =
            if place > field { format!("{:.1}", to / (place - field)) } else { "never".into() };
        println!("| {count} | {place:.2} | {field:.2} | {to:.2} | {back:.2} | {passes} |");
    }
    Ok(())
}
