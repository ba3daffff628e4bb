//! Copies of bytes in a row.

use forebay_core::{Address, Bytes, MIB};

use super::prelude::*;
use crate::{Call, Copy, Extent, Location, Pitch, StreamHandle};

cases! { Transfers "transfers":
    odd_sizes_arrive_whole_and_alone_from_the_host needs DATA,
    odd_sizes_arrive_whole_and_alone_on_the_host needs DATA,
    odd_sizes_arrive_whole_and_alone_on_the_device needs DATA,
    host_to_host_keeps_its_bytes needs DATA,
    prime_megabytes_arrive_whole needs DATA,
    odd_places_on_both_sides needs DATA,
    a_chain_of_copies_on_one_stream needs DATA,
    five_hundred_small_copies_in_order needs DATA,
    a_copy_of_nothing_succeeds,
    a_copy_of_nothing_on_a_dead_stream_is_refused,
    a_copy_on_a_dead_stream_is_refused needs DATA,
    a_copy_from_freed_memory_is_refused wants AddressChecks,
    a_copy_past_the_end_is_refused needs DATA wants AddressChecks,
    a_copy_to_memory_of_others_is_refused wants AddressChecks,
    work_past_the_end_of_an_allocation_is_refused_whoever_is_next wants AddressChecks,
    the_host_sees_device_memory_in_place needs DATA | HOST_VISIBLE,
}

/// Room around what is written, which must stay as it is.
const MARGIN: u64 = 67;
const SIZES: [u64; 11] = [1, 2, 3, 7, 63, 511, 513, 4095, 4097, 65_535, 65_537];

/// Sees that `bytes` lie at `MARGIN` in what was `background` before, and nothing else changed.
fn ensure_inlaid(what: &str, found: &[u8], background: &[u8], bytes: &[u8]) -> Verdict {
    let mut right = background.to_vec();
    right[index(MARGIN)?..][..bytes.len()].copy_from_slice(bytes);
    ensure_bytes(what, found, &right)
}

fn odd_sizes_arrive_whole_and_alone_from_the_host(bench: &Bench) -> Verdict {
    for size in SIZES {
        let (background, bytes) = (picture(1, size + 2 * MARGIN), picture(2, size));
        let memory = bench.allocate(size + 2 * MARGIN)?;
        bench.write(memory, &background)?;
        let from = bench.host(&bytes);
        bench.copy(device(memory, MARGIN), from.location(), size, StreamHandle::DEFAULT)?;
        let found = bench.read(memory, size + 2 * MARGIN)?;
        ensure_inlaid(&format!("{size} B to the device"), &found, &background, &bytes)?;
    }
    Ok(())
}

fn odd_sizes_arrive_whole_and_alone_on_the_host(bench: &Bench) -> Verdict {
    for size in SIZES {
        let (background, bytes) = (picture(3, size + 2 * MARGIN), picture(4, size));
        let memory = bench.allocate(size)?;
        bench.write(memory, &bytes)?;
        let to = bench.host(&background);
        bench.copy(to.place_at(MARGIN), device(memory, 0), size, StreamHandle::DEFAULT)?;
        bench.synchronize(StreamHandle::DEFAULT)?;
        ensure_inlaid(&format!("{size} B to the host"), &to.read(), &background, &bytes)?;
    }
    Ok(())
}

fn odd_sizes_arrive_whole_and_alone_on_the_device(bench: &Bench) -> Verdict {
    for size in SIZES {
        let (background, bytes) = (picture(5, size + 2 * MARGIN), picture(6, size));
        let (from, to) = (bench.allocate(size)?, bench.allocate(size + 2 * MARGIN)?);
        bench.write(from, &bytes)?;
        bench.write(to, &background)?;
        bench.copy(device(to, MARGIN), device(from, 0), size, StreamHandle::DEFAULT)?;
        let found = bench.read(to, size + 2 * MARGIN)?;
        ensure_inlaid(&format!("{size} B on the device"), &found, &background, &bytes)?;
        bench.ensure_holds("the source", from, &bytes)?;
    }
    Ok(())
}

fn host_to_host_keeps_its_bytes(bench: &Bench) -> Verdict {
    let (background, bytes) = (picture(7, 4097 + 2 * MARGIN), picture(8, 4097));
    let (from, to) = (bench.host(&bytes), bench.host(&background));
    bench.copy(to.place_at(MARGIN), from.location(), 4097, StreamHandle::DEFAULT)?;
    bench.synchronize(StreamHandle::DEFAULT)?;
    ensure_inlaid("4097 B from host to host", &to.read(), &background, &bytes)
}

fn prime_megabytes_arrive_whole(bench: &Bench) -> Verdict {
    for megabytes in [5, 11] {
        let size = megabytes * MIB - 1;
        let bytes = picture(megabytes, size);
        let (one, two) = (bench.allocate(size)?, bench.allocate(size)?);
        bench.write(one, &bytes)?;
        bench.copy(device(two, 0), device(one, 0), size, StreamHandle::DEFAULT)?;
        bench.ensure_holds(&format!("{size} B there and back"), two, &bytes)?;
    }
    Ok(())
}

fn odd_places_on_both_sides(bench: &Bench) -> Verdict {
    let (length, size) = (1024, 300);
    let (background, bytes) = (picture(9, length), picture(10, length));
    let (from, to) = (bench.allocate(length)?, bench.allocate(length)?);
    bench.write(from, &bytes)?;
    for (here, there) in [(0, 1), (1, 0), (3, 5), (7, 8), (8, 7), (31, 33), (511, 513)] {
        bench.write(to, &background)?;
        bench.copy(device(to, there), device(from, here), size, StreamHandle::DEFAULT)?;
        let mut right = background.clone();
        for offset in 0..size {
            let (to, from) = (index(there + offset)?, index(here + offset)?);
            right[to] = bytes[from];
        }
        let what = format!("{size} B from byte {here} to byte {there}");
        bench.ensure_holds(&what, to, &right)?;
    }
    Ok(())
}

fn a_chain_of_copies_on_one_stream(bench: &Bench) -> Verdict {
    let (stream, size) = (bench.stream()?, 100_003);
    let blocks = [bench.allocate(size)?, bench.allocate(size)?, bench.allocate(size)?];
    let to = bench.blank(size, 0)?;
    for round in 0..20 {
        let bytes = picture(round, size);
        let from = bench.host(&bytes);
        bench.copy(device(blocks[0], 0), from.location(), size, stream)?;
        bench.copy(device(blocks[1], 0), device(blocks[0], 0), size, stream)?;
        bench.fill(blocks[0], size, 0xee, stream)?;
        bench.copy(device(blocks[2], 0), device(blocks[1], 0), size, stream)?;
        bench.fill(blocks[1], size, 0xdd, stream)?;
        bench.copy(to.location(), device(blocks[2], 0), size, stream)?;
        bench.synchronize(stream)?;
        to.ensure(&format!("round {round}, through three blocks"), &bytes)?;
    }
    Ok(())
}

fn five_hundred_small_copies_in_order(bench: &Bench) -> Verdict {
    // Each overwrites the end of the one before: what is left tells the order.
    let (stream, pieces, size) = (bench.stream()?, 500_u64, 64_u64);
    let memory = bench.allocate(pieces * 8 + size)?;
    let mut right = vec![0; index(pieces * 8 + size)?];
    for piece in 0..pieces {
        let bytes = picture(piece, size);
        let from = bench.host(&bytes);
        bench.copy(device(memory, piece * 8), from.location(), size, stream)?;
        right[index(piece * 8)?..index(piece * 8 + size)?].copy_from_slice(&bytes);
    }
    bench.synchronize(stream)?;
    let length = pieces * 8;
    bench.ensure_holds("500 copies", memory, &right[..index(length)?])
}

/// Copies of every shape that has nothing in it.
fn empty_copies(host: &HostBytes, memory: Address) -> Step<[Copy; 5]> {
    let pitch = Pitch { row: Bytes::new(16), slice: Bytes::new(64) };
    let volume = |width, rows, slices| {
        let extent = Extent { width: Bytes::new(width), rows, slices };
        Copy::volumes(device(memory, 0), pitch, host.location(), pitch, extent)
    };
    let null = Location::Device(Address::NULL);
    Ok([
        Copy::linear(device(memory, 0), host.location(), Bytes::ZERO)?,
        Copy::linear(null, Location::Host(Address::NULL), Bytes::ZERO)?,
        volume(0, 4, 4)?,
        volume(16, 0, 4)?,
        volume(16, 4, 0)?,
    ])
}

fn a_copy_of_nothing_succeeds(bench: &Bench) -> Verdict {
    let (host, memory, stream) = (bench.blank(256, 1)?, bench.allocate(256)?, bench.stream()?);
    for copy in empty_copies(&host, memory)? {
        bench.enqueue(&copy, stream)?;
        bench.enqueue(&copy, StreamHandle::DEFAULT)?;
    }
    bench.synchronize(stream)
}

/// Enqueues a copy that must be refused.
fn refused_copy(bench: &Bench, what: &str, copy: &Copy, stream: StreamHandle) -> Verdict {
    // SAFETY: the device refuses the copy, which is what the case is about: the stream is dead, or
    // the fixture says that the device looks at addresses when the call is made.
    invalid(Call::Copy, what, unsafe { bench.device().copy(copy, stream) })
}

fn a_copy_of_nothing_on_a_dead_stream_is_refused(bench: &Bench) -> Verdict {
    let (host, memory, stream) = (bench.blank(256, 1)?, bench.allocate(256)?, bench.stream()?);
    bench.destroy_stream(stream)?;
    for copy in empty_copies(&host, memory)? {
        refused_copy(bench, "nothing, on a destroyed stream", &copy, stream)?;
    }
    Ok(())
}

fn a_copy_on_a_dead_stream_is_refused(bench: &Bench) -> Verdict {
    let (stream, memory) = (bench.stream()?, bench.allocate(4096)?);
    let background = picture(11, 4096);
    bench.write(memory, &background)?;
    bench.destroy_stream(stream)?;
    let from = bench.blank(4096, 9)?;
    let copy = Copy::linear(device(memory, 0), from.location(), Bytes::new(4096))?;
    for handle in [stream, StreamHandle(u64::MAX - 1)] {
        refused_copy(bench, "4096 B on a stream that is none", &copy, handle)?;
    }
    bench.device().synchronize_device()?;
    bench.ensure_holds("memory after the refusals", memory, &background)
}

fn a_copy_from_freed_memory_is_refused(bench: &Bench) -> Verdict {
    let (live, dead) = (bench.allocate(4096)?, bench.allocate(4096)?);
    bench.free(dead)?;
    let host = bench.blank(4096, 0)?;
    let size = Bytes::new(4096);
    for (what, to, from) in [
        ("freed memory to the host", host.location(), device(dead, 0)),
        ("the host to freed memory", device(dead, 0), host.location()),
        ("freed memory to live", device(live, 0), device(dead, 0)),
        ("live memory to freed", device(dead, 0), device(live, 0)),
    ] {
        let copy = Copy::linear(to, from, size)?;
        refused_copy(bench, what, &copy, StreamHandle::DEFAULT)?;
    }
    Ok(())
}

fn a_copy_past_the_end_is_refused(bench: &Bench) -> Verdict {
    // Whole pages, so that no device has bytes to spare behind them.
    let (size, host) = (2 * MIB, bench.blank(2 * MIB + 1, 3)?);
    let memory = bench.allocate(size)?;
    let background = picture(12, size);
    bench.write(memory, &background)?;
    for (what, to, from, size) in [
        ("one byte too many, in", device(memory, 0), host.location(), size + 1),
        ("one byte too many, out", host.location(), device(memory, 0), size + 1),
        ("the last byte and one more", device(memory, size - 1), host.location(), 2),
        ("the byte after the last", device(memory, size), host.location(), 1),
    ] {
        let copy = Copy::linear(to, from, Bytes::new(size))?;
        refused_copy(bench, what, &copy, StreamHandle::DEFAULT)?;
    }
    let extent = (Bytes::new(16), 3);
    let copy =
        Copy::planes(device(memory, 0), Bytes::mib(1), host.location(), Bytes::new(16), extent)?;
    refused_copy(bench, "a third row past the end", &copy, StreamHandle::DEFAULT)?;
    bench.ensure_holds("memory after the refusals", memory, &background)
}

fn a_copy_to_memory_of_others_is_refused(bench: &Bench) -> Verdict {
    let (host, other) = (bench.blank(64, 0)?, bench.blank(64, 7)?);
    for (what, address) in [
        ("null", Address::NULL),
        ("4 KiB", Address::new(4096)),
        ("the host's memory called the device's", other.address()),
        ("the last addresses", Address::new(u64::MAX - 64)),
    ] {
        let copy = Copy::linear(Location::Device(address), host.location(), Bytes::new(64))?;
        refused_copy(bench, what, &copy, StreamHandle::DEFAULT)?;
    }
    ensure_equal!("the other memory", other.read(), vec![7; 64]);
    Ok(())
}

fn the_host_sees_device_memory_in_place(bench: &Bench) -> Verdict {
    let (memory, size) = (bench.allocate(4097)?, 4097_u64);
    let bytes = picture(13, size);
    bench.write(memory, &bytes)?;
    ensure_bytes("device memory, seen by the host", &host_read(memory, size)?, &bytes)?;
    host_write(at(memory, 4096), &[!bytes[4096]])?;
    let mut right = bytes;
    right[4096] = !right[4096];
    bench.ensure_holds("a byte the host wrote", memory, &right)
}

/// Neighbours touch on many devices; a byte too many is still nobody's to write.
fn work_past_the_end_of_an_allocation_is_refused_whoever_is_next(bench: &Bench) -> Verdict {
    let size = 4096;
    let mut memories = Vec::new();
    for _ in 0..8 {
        memories.push(bench.allocate(size)?);
    }
    for memory in memories {
        let fill = crate::Fill::linear(memory, Bytes::new(size + 1), crate::Pattern::U8(1))?;
        // SAFETY: live memory, and one byte after it, which the device says it sees.
        let filled = unsafe { bench.device().fill(&fill, StreamHandle::DEFAULT) };
        invalid(Call::Fill, "one byte too many", filled)?;
    }
    Ok(())
}
