//! What is refused half-way. Each operation gives back what it took, whatever came of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{
    Copy, Device, EventKind, Extent, Fill, Location, Lz4Blocks, Memory, Pattern, PinnedFlags,
    PinnedMemory, Pitch, Priority, Progress, Result, StreamHandle, Streams, Transfers,
};
use forebay_opencl::{MapAccess, OpenClDevice};

/// A name and what is done.
pub(crate) type Operation = (&'static str, fn(&Arc<OpenClDevice>) -> Result<()>);

pub(crate) const OPERATIONS: &[Operation] = &[
    ("allocate", |device| with_memory(device, 1 << 20, |_| Ok(()))),
    ("pinned", pinned),
    ("managed", managed),
    ("streams", streams),
    ("tasks", tasks),
    ("waits", waits),
    ("timed_events", timed_events),
    ("fills", fills),
    ("volumes", volumes),
    ("interleaved_rows", interleaved_rows),
    ("sub_buffers", sub_buffers),
    ("maps", maps),
    ("blocks", blocks),
];

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// Does something with memory, and gives it back once no work uses it.
fn with_memory<T>(
    device: &OpenClDevice,
    size: u64,
    act: impl FnOnce(Address) -> Result<T>,
) -> Result<T> {
    let memory = device.allocate(Bytes::new(size), Alignment::BLOCK)?;
    let outcome = act(memory);
    device.synchronize_device().unwrap();
    // SAFETY: the device was waited for.
    unsafe { device.free(memory) }.unwrap();
    outcome
}

fn at(memory: Address, offset: u64) -> Address {
    memory.checked_add(Bytes::new(offset)).unwrap()
}

fn fill(device: &OpenClDevice, memory: Address, size: u64, byte: u8) -> Result<()> {
    let fill = Fill::linear(memory, Bytes::new(size), Pattern::U8(byte))?;
    // SAFETY: the operation keeps the memory until the device was waited for.
    unsafe { device.fill(&fill, DEFAULT) }
}

/// Copies, and waits. The host's memory is not used after this, whatever comes of it: a refused copy has finished with
/// it.
fn copy(device: &OpenClDevice, to: Location, from: Location, size: u64) -> Result<()> {
    let copy = Copy::linear(to, from, Bytes::new(size))?;
    // SAFETY: the memory of both sides is kept until the stream was waited for.
    unsafe { device.copy(&copy, DEFAULT) }?;
    device.synchronize_stream(DEFAULT)
}

/// The device does what it is asked.
pub(crate) fn works(device: &OpenClDevice) {
    with_memory(device, 4096, |memory| {
        fill(device, memory, 4096, 0x5a)?;
        let mut bytes = vec![0_u8; 4096];
        let host = Location::Host(Address::of_pointer(bytes.as_mut_ptr()));
        copy(device, host, Location::Device(memory), 4096)?;
        assert!(bytes.iter().all(|&byte| byte == 0x5a));
        Ok(())
    })
    .unwrap();
}

/// Copies to memory that is there already.
pub(crate) fn upload(device: &OpenClDevice) -> Result<()> {
    let memory = device.allocate(Bytes::new(4096), Alignment::BLOCK)?;
    let bytes = vec![1_u8; 4096];
    let host = Location::Host(Address::of_pointer(bytes.as_ptr()));
    let outcome = copy(device, Location::Device(memory), host, 4096);
    // SAFETY: the copy was waited for, or was not made.
    unsafe { device.free(memory) }?;
    outcome
}

fn pinned(device: &Arc<OpenClDevice>) -> Result<()> {
    let memory = device.allocate_pinned(Bytes::new(10_000), PinnedFlags::empty())?;
    // SAFETY: no work uses it.
    unsafe { device.free_pinned(memory) }
}

fn managed(device: &Arc<OpenClDevice>) -> Result<()> {
    let Some(managed) = device.managed_memory() else {
        return with_memory(device, 4096, |_| Ok(()));
    };
    let memory = managed.allocate_managed(Bytes::new(4096))?;
    let span = Span::new(memory, Bytes::new(4096)).unwrap();
    let outcome = managed.prefetch(span, None, DEFAULT);
    device.synchronize_device().unwrap();
    // SAFETY: the device was waited for.
    unsafe { managed.free_managed(memory) }.unwrap();
    outcome
}

fn streams(device: &Arc<OpenClDevice>) -> Result<()> {
    let mut streams = Vec::new();
    // More than are idle, so that some are new.
    let outcome = (0..40).try_for_each(|_| {
        streams.push(device.create_stream(Priority::Normal)?);
        Ok(())
    });
    // Held until all were made, so that none is used again.
    for stream in streams {
        device.destroy_stream(stream).unwrap();
    }
    // At least one call that can be refused, where all were idle.
    outcome.and_then(|()| with_memory(device, 64, |memory| fill(device, memory, 64, 1)))
}

fn tasks(device: &Arc<OpenClDevice>) -> Result<()> {
    let ran = Arc::new(AtomicU32::new(0));
    let mut accepted = 0;
    let outcome = with_memory(device, 1 << 20, |memory| {
        // With work before it, and without.
        fill(device, memory, 1 << 20, 1)?;
        for _ in 0..3 {
            let ran = Arc::clone(&ran);
            let task = Box::new(move || {
                ran.fetch_add(1, Ordering::SeqCst);
            });
            device.enqueue_host(task, DEFAULT)?;
            accepted += 1;
        }
        Ok(())
    });
    assert_eq!(ran.load(Ordering::SeqCst), accepted, "tasks that ran, of those accepted");
    outcome
}

fn waits(device: &Arc<OpenClDevice>) -> Result<()> {
    let stream = device.create_stream(Priority::Normal)?;
    let event = device.create_event(EventKind::Order)?;
    let outcome = with_memory(device, 8 << 20, |memory| {
        fill(device, memory, 8 << 20, 1)?;
        device.enqueue_host(Box::new(|| ()), DEFAULT)?;
        device.record_event(event, DEFAULT)?;
        device.wait_event(stream, event)?;
        device.synchronize_stream(stream)?;
        assert_eq!(device.query_event(event)?, Progress::Done);
        Ok(())
    });
    device.destroy_event(event).unwrap();
    device.destroy_stream(stream).unwrap();
    outcome
}

fn timed_events(device: &Arc<OpenClDevice>) -> Result<()> {
    let [start, end] = [(); 2].map(|()| device.create_event(EventKind::Timed).unwrap());
    let outcome = with_memory(device, 1 << 20, |memory| {
        device.record_event(start, DEFAULT)?;
        fill(device, memory, 1 << 20, 1)?;
        device.record_event(end, DEFAULT)?;
        device.synchronize_event(end)?;
        device.elapsed(start, end).map(drop)
    });
    device.destroy_event(start).unwrap();
    device.destroy_event(end).unwrap();
    outcome
}

pub(crate) fn fills(device: &Arc<OpenClDevice>) -> Result<()> {
    with_memory(device, 64 << 10, |memory| {
        let rows = (Bytes::new(100), 5);
        let plane = Fill::plane(memory, Bytes::new(1000), rows, Pattern::U32(7))?;
        // SAFETY: the memory is kept until the device was waited for.
        unsafe { device.fill(&plane, DEFAULT) }
    })
}

/// Rows to the device, on it and back, at odd places, and every byte looked at. Where a rectangle is refused as invalid,
/// its pieces take its place.
fn volumes(device: &Arc<OpenClDevice>) -> Result<()> {
    let extent = Extent { width: Bytes::new(61), rows: 4, slices: 3 };
    let pitch = |row: u64, slice: u64| Pitch { row: Bytes::new(row), slice: Bytes::new(slice) };
    let (tight, wide) = (pitch(61, 244), pitch(97, 97 * 5));
    let data: Vec<u8> = (0..=255).cycle().take(732).collect();
    let mut back = vec![0_u8; 732];
    with_memory(device, 2000, |one| {
        with_memory(device, 2000, |two| {
            let from = Location::Host(Address::of_pointer(data.as_ptr()));
            let to = Location::Host(Address::of_pointer(back.as_mut_ptr()));
            let [one, two] = [Location::Device(at(one, 33)), Location::Device(at(two, 7))];
            let copies = [
                Copy::volumes(one, wide, from, tight, extent)?,
                Copy::volumes(two, pitch(64, 256), one, wide, extent)?,
                Copy::volumes(to, tight, two, pitch(64, 256), extent)?,
            ];
            for copy in &copies {
                // SAFETY: a call that is refused has finished with the host's memory, and all is kept until the
                // stream was waited for.
                unsafe { device.copy(copy, DEFAULT) }?;
            }
            device.synchronize_stream(DEFAULT)
        })
    })?;
    assert!(back == data, "every byte came back");
    Ok(())
}

/// Many short rows to the device.
pub(crate) fn many_rows(device: &Arc<OpenClDevice>) -> Result<()> {
    let (rows, data) = (50_000, vec![1_u8; 100_000]);
    with_memory(device, 150_000, |memory| {
        let from = Location::Host(Address::of_pointer(data.as_ptr()));
        let (to, pitch) = (Location::Device(memory), Bytes::new(3));
        let copy = Copy::planes(to, pitch, from, Bytes::new(2), (Bytes::new(2), rows))?;
        // SAFETY: both sides are kept until the device was waited for.
        unsafe { device.copy(&copy, DEFAULT) }
    })
}

fn interleaved_rows(device: &Arc<OpenClDevice>) -> Result<()> {
    with_memory(device, 4096, |memory| {
        let (to, from) = (Location::Device(at(memory, 64)), Location::Device(memory));
        let row = Bytes::new(128);
        let copy = Copy::planes(to, row, from, row, (Bytes::new(60), 6))?;
        // SAFETY: the rows interleave and share no byte; the memory is kept.
        unsafe { device.copy_all(&[copy], DEFAULT) }
    })
}

fn sub_buffers(device: &Arc<OpenClDevice>) -> Result<()> {
    with_memory(device, 64 << 10, |memory| {
        device.sub_buffer(Span::new(memory, Bytes::new(4096)).unwrap()).map(drop)
    })
}

pub(crate) fn maps(device: &Arc<OpenClDevice>) -> Result<()> {
    with_memory(device, 4096, |memory| {
        fill(device, memory, 4096, 3)?;
        let span = Span::new(memory, Bytes::new(4096)).unwrap();
        // SAFETY: no other work uses the memory.
        let mapped = unsafe { device.map(span, MapAccess::Read, DEFAULT) }?;
        assert!(mapped.bytes().iter().all(|&byte| byte == 3));
        Ok(())
    })
}

fn blocks(device: &Arc<OpenClDevice>) -> Result<()> {
    with_memory(device, 1 << 16, |memory| {
        // One block that is its own data.
        let table = 64_u64.to_le_bytes();
        let host = Location::Host(Address::of_pointer(table.as_ptr()));
        copy(device, Location::Device(memory), host, 8)?;
        let [data, to] =
            [64, 128].map(|start| Span::new(at(memory, start), Bytes::new(64)).unwrap());
        let blocks = Lz4Blocks::new(data, memory, to, 1024, at(memory, 256))?;
        let Some(decoder) = device.decompression() else { return Ok(()) };
        // SAFETY: all four are parts of the memory, which is kept.
        unsafe { decoder.decompress(&blocks, DEFAULT) }
    })
}
