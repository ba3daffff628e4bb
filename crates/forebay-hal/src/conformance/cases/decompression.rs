//! LZ4 blocks.

use forebay_core::Address;
use forebay_core::transfer::{BlockStatus, Lz4Layout};
use lz4_flex::block::compress;

use super::prelude::*;
use crate::{Call, Lz4Blocks, StreamHandle};

cases! { Transfers "transfers":
    blocks_are_decoded_and_nothing_else_is_written needs DATA | DECOMPRESSION,
    blocks_are_decoded_in_stream_order needs DATA | DECOMPRESSION,
    a_damaged_block_is_told_and_touches_no_other needs DATA | DECOMPRESSION,
    a_wrong_table_is_told_and_nothing_else_is_written needs DATA | DECOMPRESSION,
    no_blocks_are_a_success needs DECOMPRESSION,
    decoding_on_a_dead_stream_is_refused needs DATA | DECOMPRESSION,
    decoding_outside_memory_is_refused needs DATA | DECOMPRESSION wants AddressChecks,
}

const BLOCK: u32 = 1024;

/// Bytes before and after what is written.
const MARGIN: u64 = 64;

/// The same as an index.
const EDGE: usize = 64;

/// What a fill writes.
const FILLED: u8 = 0x91;

/// Data of each kind: a constant, matches near and far, and what cannot be compressed.
fn data() -> Vec<u8> {
    let noise = picture(7, 2048);
    let text =
        b"one stream, two streams, one block, two blocks; ".iter().copied().cycle().take(3000);
    let runs = (0..2000_u32).flat_map(|number| (number / 9).to_le_bytes());
    [0; 2500].into_iter().chain(text).chain(noise).chain(runs).collect()
}

/// Compressed data in memory of the device, with room for what it is decoded to.
struct Sample {
    blocks: Lz4Blocks,
    to: Address,
    statuses: Address,
    container: Address,
    /// The data, and a margin on both sides.
    background: Vec<u8>,
}

impl Sample {
    /// Uploads `data`, after `damage` was done to the container and its layout.
    fn upload(bench: &Bench, data: &[u8], damage: impl Fn(&mut [u8], Lz4Layout)) -> Step<Self> {
        let layout = Lz4Layout::new(BLOCK, data.len() as u64).map_err(failed)?;
        let pack = |block: &[u8]| {
            let packed = compress(block);
            if packed.len() < block.len() { packed } else { block.to_vec() }
        };
        let blocks: Vec<_> = data.chunks(1024).map(pack).collect();
        let mut bytes = layout.assemble(&blocks, Vec::new()).map_err(failed)?;
        damage(&mut bytes, layout);
        let container = bench.allocate(bytes.len() as u64)?;
        bench.write(container, &bytes)?;
        let background = picture(3, data.len() as u64 + 2 * MARGIN);
        let to = bench.allocate(background.len() as u64)?;
        bench.write(to, &background)?;
        let statuses = bench.allocate(u64::from(layout.blocks()) * 4 + 4)?;
        bench.write(statuses, &vec![0xee; layout.blocks() as usize * 4 + 4])?;
        let start = layout.data_start() as u64;
        let packed = span(at(container, start), bytes.len() as u64 - start)?;
        let table = at(container, layout.table_start() as u64);
        let room = span(at(to, MARGIN), data.len() as u64)?;
        let blocks = Lz4Blocks::new(packed, table, room, BLOCK, statuses)?;
        Ok(Self { blocks, to, statuses, container, background })
    }

    fn enqueue(&self, bench: &Bench, stream: StreamHandle) -> Verdict {
        // SAFETY: the memory is the sample's, which is read only after this.
        Ok(unsafe { bench.decompression()?.decompress(&self.blocks, stream) }?)
    }

    /// What was written: the bytes with their margins, and the statuses.
    fn read(&self, bench: &Bench) -> Step<(Vec<u8>, Vec<BlockStatus>)> {
        let bytes = bench.read(self.to, self.background.len() as u64)?;
        let codes = bench.read(self.statuses, self.blocks.statuses().size().get() + 4)?;
        let (codes, after) = codes.split_at(codes.len() - 4);
        ensure_bytes("what is after the statuses", after, &[0xee; 4])?;
        let code = |code: &[u8]| code.first_chunk().map(|code| u32::from_ne_bytes(*code));
        let codes = codes.chunks(4).filter_map(code);
        Ok((bytes, codes.map(BlockStatus::from_code).collect()))
    }

    /// What the bytes are to be, margins included.
    fn right(&self, data: &[u8]) -> Vec<u8> {
        let mut right = self.background.clone();
        let middle = right.iter_mut().skip(EDGE);
        middle.zip(data).for_each(|(to, from)| *to = *from);
        right
    }

    fn free(self, bench: &Bench) -> Verdict {
        bench.free(self.container)?;
        bench.free(self.statuses)?;
        bench.free(self.to)
    }
}

fn failed(error: impl core::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

fn blocks_are_decoded_and_nothing_else_is_written(bench: &Bench) -> Verdict {
    let all = data();
    for length in [1, 100, 1023, 1024, 1025, all.len()] {
        let data: Vec<u8> = all.iter().copied().take(length).collect();
        let sample = Sample::upload(bench, &data, |_, _| ())?;
        sample.enqueue(bench, StreamHandle::DEFAULT)?;
        let (bytes, statuses) = sample.read(bench)?;
        let decoded = statuses.iter().all(|status| *status == BlockStatus::Decoded);
        ensure!(decoded, "{length} B: {statuses:?}");
        ensure_bytes(&format!("{length} B that were decoded"), &bytes, &sample.right(&data))?;
        sample.free(bench)?;
    }
    Ok(())
}

fn blocks_are_decoded_in_stream_order(bench: &Bench) -> Verdict {
    let data = data();
    let stream = bench.stream()?;
    let sample = Sample::upload(bench, &data, |_, _| ())?;
    // The first and the last byte are written before and after on the same stream.
    bench.fill(at(sample.to, MARGIN), 1, FILLED, stream)?;
    sample.enqueue(bench, stream)?;
    let last = at(sample.to, MARGIN + data.len() as u64 - 1);
    bench.fill(last, 1, FILLED, stream)?;
    bench.synchronize(stream)?;
    let (bytes, _) = sample.read(bench)?;
    let mut right = sample.right(&data);
    let end = right.len() - EDGE - 1;
    if let Some(byte) = right.get_mut(end) {
        *byte = FILLED;
    }
    ensure_bytes("decoded between two fills", &bytes, &right)?;
    bench.destroy_stream(stream)?;
    sample.free(bench)
}

fn a_damaged_block_is_told_and_touches_no_other(bench: &Bench) -> Verdict {
    let data = data();
    for value in [0, 0x0f, 0xf0, 0xff] {
        for offset in 0..12 {
            let damage = |bytes: &mut [u8], layout: Lz4Layout| {
                let range = layout.range_of(bytes, 2).unwrap_or_default();
                if let Some(byte) = bytes.get_mut(range).and_then(|block| block.get_mut(offset)) {
                    *byte = value;
                }
            };
            let sample = Sample::upload(bench, &data, damage)?;
            sample.enqueue(bench, StreamHandle::DEFAULT)?;
            let (bytes, statuses) = sample.read(bench)?;
            for (block, status) in statuses.iter().enumerate().filter(|&(block, _)| block != 2) {
                ensure_equal!(format!("block {block}"), *status, BlockStatus::Decoded);
            }
            let mut right = sample.right(&data);
            let third = EDGE + 2048..EDGE + 3072;
            // Its own bytes may be anything.
            let own = bytes.get(third.clone()).unwrap_or_default();
            right.iter_mut().skip(third.start).zip(own).for_each(|(to, from)| *to = *from);
            ensure_bytes(&format!("byte {offset} made {value:#x}"), &bytes, &right)?;
            sample.free(bench)?;
        }
    }
    Ok(())
}

fn a_wrong_table_is_told_and_nothing_else_is_written(bench: &Bench) -> Verdict {
    let data = data();
    for end in [0, u64::MAX, 1 << 32, data.len() as u64 * 2] {
        let damage = |bytes: &mut [u8], layout: Lz4Layout| {
            let entry = bytes.iter_mut().skip(layout.table_start() + 8);
            entry.zip(end.to_le_bytes()).for_each(|(to, from)| *to = from);
        };
        let sample = Sample::upload(bench, &data, damage)?;
        sample.enqueue(bench, StreamHandle::DEFAULT)?;
        let (bytes, statuses) = sample.read(bench)?;
        ensure_equal!("the block's status", statuses.get(1), Some(&BlockStatus::BadTable));
        let edges = |bytes: &[u8]| -> Vec<u8> {
            let after = bytes.iter().rev().take(EDGE);
            bytes.iter().take(EDGE).chain(after).copied().collect()
        };
        ensure_bytes("what is before and after", &edges(&bytes), &edges(&sample.background))?;
        sample.free(bench)?;
    }
    Ok(())
}

fn no_blocks_are_a_success(bench: &Bench) -> Verdict {
    let memory = bench.allocate(64)?;
    let nothing = span(memory, 0)?;
    let blocks = Lz4Blocks::new(nothing, memory, nothing, BLOCK, memory)?;
    // SAFETY: no memory takes part.
    unsafe { bench.decompression()?.decompress(&blocks, StreamHandle::DEFAULT) }?;
    bench.free(memory)
}

fn decoding_on_a_dead_stream_is_refused(bench: &Bench) -> Verdict {
    let sample = Sample::upload(bench, &data(), |_, _| ())?;
    let stream = bench.stream()?;
    bench.destroy_stream(stream)?;
    // SAFETY: the memory is the sample's.
    let result = unsafe { bench.decompression()?.decompress(&sample.blocks, stream) };
    invalid(Call::Decompress, "a destroyed stream", result)?;
    sample.free(bench)
}

fn decoding_outside_memory_is_refused(bench: &Bench) -> Verdict {
    let sample = Sample::upload(bench, &data(), |_, _| ())?;
    let (data, to) = (sample.blocks.data(), sample.blocks.to());
    let (table, statuses) = (sample.blocks.table().start(), sample.blocks.statuses().start());
    let nowhere = Address::new(4096);
    let cases = [
        (span(nowhere, 100)?, table, to, statuses),
        (data, nowhere, to, statuses),
        (data, table, span(nowhere, to.size().get())?, statuses),
        (data, table, to, nowhere),
    ];
    for (data, table, to, statuses) in cases {
        let blocks = Lz4Blocks::new(data, table, to, BLOCK, statuses)?;
        // SAFETY: what is not memory is refused, as the contract says.
        let result = unsafe { bench.decompression()?.decompress(&blocks, StreamHandle::DEFAULT) };
        invalid(Call::Decompress, "an address that is nobody's", result)?;
    }
    let (bytes, _) = sample.read(bench)?;
    ensure_bytes("after calls that were refused", &bytes, &sample.background)?;
    sample.free(bench)
}
