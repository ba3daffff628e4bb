//! Fills.

use forebay_core::{Address, Bytes, MIB};

use super::prelude::*;
use crate::{Call, Fill, Pattern, StreamHandle};

cases! { Transfers "transfers":
    fills_of_one_byte needs DATA,
    fills_of_two_bytes needs DATA,
    fills_of_four_bytes needs DATA,
    fills_of_planes_leave_the_gaps needs DATA,
    a_fill_of_megabytes_reaches_the_end needs DATA,
    a_fill_of_nothing_succeeds,
    a_fill_on_a_dead_stream_is_refused needs DATA,
    a_fill_outside_memory_is_refused wants AddressChecks,
}

const MARGIN: u64 = 64;

/// Fills `rows` rows of `width` bytes, `pitch` apart, and looks at every byte, gaps and margins
/// too.
fn ensure_filled(bench: &Bench, width: u64, rows: u64, pitch: u64, pattern: Pattern) -> Verdict {
    let size = pitch * (rows - 1) + width + 2 * MARGIN;
    let background = picture(1, size);
    let memory = bench.allocate(size)?;
    bench.write(memory, &background)?;
    let fill =
        Fill::plane(at(memory, MARGIN), Bytes::new(pitch), (Bytes::new(width), rows), pattern)?;
    bench.enqueue_fill(&fill, StreamHandle::DEFAULT)?;
    let mut right = background;
    for row in 0..rows {
        let start = index(MARGIN + row * pitch)?;
        let row = right.iter_mut().skip(start).take(index(width)?);
        for (byte, filled) in row.zip(pattern.four_bytes().into_iter().cycle()) {
            *byte = filled;
        }
    }
    let what = format!("{rows} rows of {width} B, {pitch} B apart, of {pattern:?}");
    bench.ensure_holds(&what, memory, &right)?;
    bench.free(memory)
}

fn fills_of_one_byte(bench: &Bench) -> Verdict {
    for size in [1, 2, 3, 511, 513, 4095, 4097, 65_537] {
        ensure_filled(bench, size, 1, 0, Pattern::U8(0xa7))?;
        ensure_filled(bench, size, 1, 0, Pattern::U8(0))?;
    }
    Ok(())
}

fn fills_of_two_bytes(bench: &Bench) -> Verdict {
    for size in [2, 4, 6, 510, 514, 4094, 4098, 65_538] {
        ensure_filled(bench, size, 1, 0, Pattern::U16(0x1e2f))?;
    }
    Ok(())
}

fn fills_of_four_bytes(bench: &Bench) -> Verdict {
    for size in [4, 8, 12, 508, 516, 4092, 4100, 65_540] {
        ensure_filled(bench, size, 1, 0, Pattern::U32(0x0123_4567))?;
    }
    Ok(())
}

fn fills_of_planes_leave_the_gaps(bench: &Bench) -> Verdict {
    for (width, rows, pitch) in [(64, 4, 64), (60, 4, 64), (4, 100, 12), (508, 7, 516)] {
        for pattern in [Pattern::U8(0x3c), Pattern::U16(0x4d5e), Pattern::U32(0x6f70_8192)] {
            ensure_filled(bench, width, rows, pitch, pattern)?;
        }
    }
    ensure_filled(bench, 13, 11, 17, Pattern::U8(0x99))?;
    ensure_filled(bench, 14, 11, 22, Pattern::U16(0x9988))
}

fn a_fill_of_megabytes_reaches_the_end(bench: &Bench) -> Verdict {
    ensure_filled(bench, 7 * MIB - 1, 1, 0, Pattern::U8(0xc3))?;
    ensure_filled(bench, 3 * MIB + 4, 1, 0, Pattern::U32(0xfedc_ba98))
}

fn a_fill_of_nothing_succeeds(bench: &Bench) -> Verdict {
    let stream = bench.stream()?;
    let fills = [
        Fill::linear(Address::NULL, Bytes::ZERO, Pattern::U32(1))?,
        Fill::plane(Address::NULL, Bytes::new(8), (Bytes::new(8), 0), Pattern::U8(1))?,
        Fill::plane(Address::NULL, Bytes::new(8), (Bytes::ZERO, 8), Pattern::U16(1))?,
    ];
    for fill in &fills {
        bench.enqueue_fill(fill, stream)?;
    }
    bench.synchronize(stream)?;
    bench.destroy_stream(stream)?;
    for fill in &fills {
        // SAFETY: there is nothing to fill.
        let result = unsafe { bench.device().fill(fill, stream) };
        invalid(Call::Fill, "nothing, on a destroyed stream", result)?;
    }
    Ok(())
}

fn a_fill_on_a_dead_stream_is_refused(bench: &Bench) -> Verdict {
    let (stream, memory) = (bench.stream()?, bench.allocate(4096)?);
    bench.write(memory, &picture(2, 4096))?;
    bench.destroy_stream(stream)?;
    let fill = Fill::linear(memory, Bytes::new(4096), Pattern::U8(1))?;
    // SAFETY: the memory is the case's own.
    invalid(Call::Fill, "a destroyed stream", unsafe { bench.device().fill(&fill, stream) })?;
    bench.ensure_holds("memory after the refusal", memory, &picture(2, 4096))
}

fn a_fill_outside_memory_is_refused(bench: &Bench) -> Verdict {
    let (live, dead) = (bench.allocate(2 * MIB)?, bench.allocate(2 * MIB)?);
    bench.free(dead)?;
    for (what, address, size) in [
        ("freed memory", dead, 16),
        ("null", Address::NULL, 16),
        ("one byte too many", live, 2 * MIB + 1),
        ("the byte after the last", at(live, 2 * MIB), 1),
    ] {
        let fill = Fill::linear(address, Bytes::new(size), Pattern::U8(1))?;
        // SAFETY: the fixture says that the device looks at addresses when the call is made.
        let result = unsafe { bench.device().fill(&fill, StreamHandle::DEFAULT) };
        invalid(Call::Fill, what, result)?;
    }
    Ok(())
}
