//! Limits, parts, mapping, and where fills reach.

use std::time::{Duration, Instant};

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{
    Call, Capabilities, Copy, Device, Error, Fill, Location, Memory, Pattern, Priority, Progress,
    StreamHandle, Streams, Transfers,
};
use forebay_opencl::cl3::types::cl_mem;
use forebay_opencl::{MapAccess, OpenClDevice};

use crate::kernels::{self, Kernel};
use crate::{Ending, allocate, at, fill, free, open, read, span};

pub(crate) fn a_size_beyond_the_devices_limit_is_refused_with_the_limit() -> Ending {
    let device = open();
    let (most, total) = (device.info().max_allocation.get(), device.info().total_memory.get());
    if most + 4096 > total {
        return Err("the limit is the device's whole memory".to_owned());
    }
    match device.allocate(Bytes::new(most + 4096), Alignment::BLOCK) {
        // Drivers may give more than they promise.
        Ok(memory) => free(&device, memory),
        Err(Error::Invalid { argument: "size", allowed, .. }) => {
            assert!(allowed.contains(&most.to_string()), "{allowed}");
        }
        Err(other) => panic!("{other}"),
    }
    assert_eq!(device.memory_info().unwrap().held, Bytes::ZERO);
    Ok(())
}

pub(crate) fn memory_that_is_not_there_is_refused_when_it_is_allocated() -> Ending {
    let device = open();
    let info = device.memory_info().unwrap();
    let piece = device.info().max_allocation.get().min(info.total.get() / 3);
    let mut taken = Vec::new();
    let error = loop {
        match device.allocate(Bytes::new(piece), Alignment::BLOCK) {
            Ok(memory) => taken.push(memory),
            Err(error) => break error,
        }
        assert!(taken.len() < 100, "more than there is");
    };
    match error {
        Error::OutOfMemory { call: Call::Allocate, requested, free, total } => {
            assert_eq!((requested.get(), total), (piece, info.total));
            assert!(free < info.total, "{free} free with {} pieces taken", taken.len());
        }
        other => panic!("{other}"),
    }
    assert_eq!(device.memory_info().unwrap().held.get(), piece * taken.len() as u64);
    for memory in taken {
        free(&device, memory);
    }
    let again = allocate(&device, piece);
    free(&device, again);
    Ok(())
}

pub(crate) fn bytes_beyond_four_gibibytes_of_one_buffer_are_filled_and_copied() -> Ending {
    const GIB: u64 = 1 << 30;
    let device = open();
    let size = 9 * GIB;
    let Ok(memory) = device.allocate(Bytes::new(size), Alignment::BLOCK) else {
        return Err(format!("the device gives at most {}", device.info().max_allocation));
    };
    let stream = StreamHandle::DEFAULT;
    fill(&device, memory, size, 1, stream);
    let edges = [3 * GIB, 4 * GIB - 1, 4 * GIB, 5 * GIB + 3, 8 * GIB - 2, size - 1];
    for (edge, byte) in edges.into_iter().zip(10..) {
        assert_eq!(read(&device, at(memory, edge), 1, stream), [1], "filled at {edge}");
        fill(&device, at(memory, edge), 1, byte, stream);
    }
    let four = Fill::plane(at(memory, 6 * GIB), Bytes::gib(1), (Bytes::new(8), 2), Pattern::U32(7));
    // SAFETY: the memory is kept until the stream was waited for.
    unsafe { device.fill(&four.unwrap(), stream) }.unwrap();
    for (edge, byte) in edges.into_iter().zip(10..) {
        assert_eq!(read(&device, at(memory, edge), 1, stream), [byte], "at {edge}");
    }
    assert_eq!(read(&device, at(memory, 7 * GIB), 9, stream), [7, 0, 0, 0, 7, 0, 0, 0, 1]);
    let (to, from) = (Location::Device(at(memory, 100)), Location::Device(at(memory, 8 * GIB - 3)));
    // SAFETY: as above.
    unsafe { device.copy(&Copy::linear(to, from, Bytes::new(3)).unwrap(), stream) }.unwrap();
    assert_eq!(read(&device, at(memory, 99), 5, stream), [1, 1, 14, 1, 1]);
    let (to, from) = (Location::Device(at(memory, 9 * GIB / 2)), Location::Device(memory));
    // SAFETY: as above.
    unsafe { device.copy(&Copy::linear(to, from, Bytes::gib(4)).unwrap(), stream) }.unwrap();
    assert_eq!(read(&device, at(memory, 17 * GIB / 2 - 2), 3, stream), [1, 11, 1]);
    free(&device, memory);
    Ok(())
}

pub(crate) fn fills_go_on_where_one_call_does_not_reach() -> Ending {
    // Fills beyond 1 GiB of a buffer are made through parts of it; what is filled crosses that place.
    const EDGE: u64 = 1 << 30;
    let device = open();
    let Ok(memory) = device.allocate(Bytes::new(EDGE + 65_536), Alignment::BLOCK) else {
        return Err(format!("the device gives at most {}", device.info().max_allocation));
    };
    let stream = StreamHandle::DEFAULT;
    fill(&device, at(memory, EDGE - 1000), 2000, 1, stream);
    fill(&device, at(memory, EDGE - 3), 7, 2, stream);
    fill(&device, at(memory, EDGE + 129), 1, 3, stream);
    let rows = (Bytes::new(6), 2);
    let plane = Fill::plane(at(memory, EDGE + 300), Bytes::new(100), rows, Pattern::U16(0x0504));
    // SAFETY: the memory is kept until the stream was waited for.
    unsafe { device.fill(&plane.unwrap(), stream) }.unwrap();
    let mut right = vec![1_u8; 2000];
    right[997..1004].fill(2);
    right[1129] = 3;
    for row in [1300, 1400] {
        right[row..row + 6].copy_from_slice(&[4, 5, 4, 5, 4, 5]);
    }
    assert_eq!(read(&device, at(memory, EDGE - 1000), 2000, stream), right);
    free(&device, memory);
    Ok(())
}

pub(crate) fn sub_buffers_are_parts_of_their_memory() -> Ending {
    let device = open();
    let grain = device.info().alignment.get();
    let memory = allocate(&device, 16 * grain);
    let (buffer, offset) = device.buffer_at(at(memory, 3 * grain + 5)).unwrap();
    assert_eq!(offset.get(), 3 * grain + 5);
    let part = span(at(memory, 2 * grain), grain);
    let sub = device.sub_buffer(part).unwrap();
    assert!(sub.raw() != buffer && sub.span() == part);
    let kernel = Kernel::build(&device, kernels::ADD);
    fill(&device, memory, 16 * grain, 1, StreamHandle::DEFAULT);
    kernel.add(&device, sub.raw(), 0, grain, 41, StreamHandle::DEFAULT);
    kernel.add(&device, buffer, 9 * grain, 1, 7, StreamHandle::DEFAULT);
    let mut right = vec![1_u8; usize::try_from(16 * grain).unwrap()];
    let grain = usize::try_from(grain).unwrap();
    right[2 * grain..3 * grain].fill(42);
    right[9 * grain] = 8;
    assert_eq!(read(&device, memory, right.len(), StreamHandle::DEFAULT), right);
    drop(sub);
    for (wrong, words) in [
        (span(at(memory, 1), 8), "multiple of"),
        (span(at(memory, 15 * grain as u64), 2 * grain as u64), "inside one allocation"),
        (span(memory, 0), "1 byte or more"),
    ] {
        match device.sub_buffer(wrong).unwrap_err() {
            Error::Invalid { argument: "span", allowed, .. } => {
                assert!(allowed.contains(words), "{allowed}");
            }
            other => panic!("{other}"),
        }
    }
    free(&device, memory);
    let gone = device.buffer_at(memory).unwrap_err();
    assert!(matches!(gone, Error::Invalid { .. }), "{gone}");
    Ok(())
}

pub(crate) fn mapped_memory_is_the_devices() -> Ending {
    let device = open();
    let (stream, size) = (device.create_stream(Priority::Normal).unwrap(), 100_003);
    let memory = allocate(&device, size + 1000);
    fill(&device, memory, size + 1000, 5, stream);
    let part = span(at(memory, 77), size);
    // SAFETY: no work uses the memory while it is mapped.
    let mut mapped = unsafe { device.map(part, MapAccess::ReadWrite, stream) }.unwrap();
    assert!(mapped.bytes().iter().all(|&byte| byte == 5) && mapped.bytes().len() == 100_003);
    mapped.bytes_mut().unwrap().fill(6);
    drop(mapped);
    let found = read(&device, memory, 101_003, stream);
    let inside = |index: usize| (77..77 + 100_003).contains(&index);
    let right = |(index, byte): (usize, &u8)| *byte == if inside(index) { 6 } else { 5 };
    assert!(found.iter().enumerate().all(right));
    // SAFETY: as above.
    let mut mapped = unsafe { device.map(part, MapAccess::Read, stream) }.unwrap();
    assert!(mapped.bytes().iter().all(|&byte| byte == 6));
    assert!(mapped.bytes_mut().is_none());
    drop(mapped);
    // SAFETY: as above.
    let mut mapped = unsafe { device.map(part, MapAccess::Overwrite, stream) }.unwrap();
    mapped.bytes_mut().unwrap().fill(9);
    drop(mapped);
    assert_eq!(read(&device, at(memory, 76), 3, stream), [5, 9, 9]);
    // SAFETY: refused.
    let beyond = unsafe { device.map(span(memory, size + 1001), MapAccess::Read, stream) };
    assert!(matches!(beyond.unwrap_err(), Error::Invalid { call: Call::Map, .. }));
    device.destroy_stream(stream).unwrap();
    free(&device, memory);
    Ok(())
}

/// A kernel that counts for some 0.4 s, and the turns it takes for that.
fn spinning(device: &OpenClDevice, buffer: cl_mem, stream: StreamHandle) -> (Kernel, u64) {
    let kernel = Kernel::build(device, kernels::SPIN);
    kernel.spin(device, buffer, 1_000_000, stream);
    device.synchronize_stream(stream).unwrap();
    let begin = Instant::now();
    kernel.spin(device, buffer, 20_000_000, stream);
    device.synchronize_stream(stream).unwrap();
    let micros = u64::try_from(begin.elapsed().as_micros()).unwrap().max(1);
    (kernel, 20_000_000 * 400_000 / micros)
}

pub(crate) fn a_copy_of_ordinary_memory_does_not_wait_for_a_kernel() -> Ending {
    let (device, size) = (open(), 64 << 20);
    let (stream, memory) =
        (device.create_stream(Priority::Normal).unwrap(), allocate(&device, size));
    let (buffer, _) = device.buffer_at(memory).unwrap();
    let (kernel, turns) = spinning(&device, buffer, stream);
    let mut bytes = vec![5_u8; 64 << 20];
    let host = Location::Host(Address::of_pointer(bytes.as_mut_ptr()));
    for (to, from) in [(Location::Device(memory), host), (host, Location::Device(memory))] {
        kernel.spin(&device, buffer, turns, stream);
        let begin = Instant::now();
        let copy = Copy::linear(to, from, Bytes::new(size)).unwrap();
        // SAFETY: the bytes and the memory are kept until the stream was waited for.
        unsafe { device.copy(&copy, stream) }.unwrap();
        let call = begin.elapsed();
        device.synchronize_stream(stream).unwrap();
        assert!(call < begin.elapsed() / 2, "{call:?} of {:?}", begin.elapsed());
    }
    // The kernel wrote the first word before it was copied out.
    assert!(bytes[4..].iter().all(|&byte| byte == 5));
    device.destroy_stream(stream).unwrap();
    free(&device, memory);
    Ok(())
}

pub(crate) fn freeing_does_not_wait_for_a_kernel_where_that_is_promised() -> Ending {
    let device = open();
    let memory = allocate(&device, 4096);
    let (buffer, _) = device.buffer_at(memory).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let (kernel, turns) = spinning(&device, buffer, stream);
    let other = allocate(&device, 16 << 20);
    fill(&device, other, 16 << 20, 1, StreamHandle::DEFAULT);
    device.synchronize_device().unwrap();
    kernel.spin(&device, buffer, turns, stream);
    std::thread::sleep(Duration::from_millis(20));
    let (begin, spinning) = (Instant::now(), device.query_stream(stream).unwrap());
    let more = allocate(&device, 16 << 20);
    let allocated = begin.elapsed();
    free(&device, other);
    let freed = begin.elapsed();
    free(&device, more);
    device.synchronize_stream(stream).unwrap();
    let whole = begin.elapsed();
    assert_eq!(spinning, Progress::Pending);
    let prompt = device.descriptor().capabilities.contains(Capabilities::PROMPT_FREE);
    assert!(!prompt || freed < whole / 2, "{freed:?} of {whole:?}");
    free(&device, memory);
    if prompt {
        Ok(())
    } else {
        Err(format!("not promised; beside a kernel of {whole:?} it took {:?}", freed - allocated))
    }
}
