//! One program for every device: pool, arena, copies, pinned and managed memory, other devices, bandwidth.
//!
//! `cargo run -p forebay --all-features --example 09_every_device opencl:0`
//!
//! Or `host`, `sim`, `cuda:0`, `hip:0`. Without a name it takes the device that `FOREBAY_DEVICE` names, or the best one.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use forebay::arena::{Arena, ArenaBlock};
use forebay::buffer::{Advice, BufferManager, Replica};
use forebay::devices::{self, DeviceName};
use forebay::hal::{self, Capabilities, Copy, Fill, Location, Pattern, PeerCopy, PeerLocation};
use forebay::sim::SimMachine;
use forebay::transfer::Region;
use forebay::{
    Address, Bytes, Device, DeviceArray, HostDevice, PinnedPool, Pool, StreamHandle, TransferEngine,
};

type AnyDevice = Arc<dyn Device>;
type Done<T = ()> = Result<T, Box<dyn Error>>;

const STREAM: StreamHandle = StreamHandle::DEFAULT;

fn main() -> Done {
    match std::env::args().nth(1) {
        Some(name) => run(name.parse()?),
        None => run(devices::best()?),
    }
}

/// Every step on one device.
pub(crate) fn run(name: DeviceName) -> Done {
    let (device, other) = open(name)?;
    let memory = device.memory_info()?;
    say(format_args!("device: {}; {} of {} free", device.descriptor(), memory.free, memory.total));
    for step in [pool, arena, copies, pinned, managed] {
        say(step(&device)?);
    }
    say(peers(&device, other.as_ref())?);
    say(other_kind(&device)?);
    say(bandwidth(&device)?);
    Ok(())
}

/// The device of that name, and another of its kind if there is one.
fn open(name: DeviceName) -> Done<(AnyDevice, Option<AnyDevice>)> {
    if name == DeviceName::SIM {
        // A simulated machine with two accelerators that have memory of their own.
        let options = SimMachine::builder().devices(2).checked(false);
        let machine = options.without(Capabilities::HOST_VISIBLE).build()?;
        let device = machine.device(0).ok_or("there are two")?;
        return Ok((device, machine.device(1).map(|other| other as _)));
    }
    let is_other = |other: &DeviceName| other.kind() == name.kind() && *other != name;
    let other = devices::all().into_iter().find(is_other);
    Ok((name.open()?, other.map(DeviceName::open).transpose()?))
}

/// The process has one pool for a device. An array is freed when it is dropped, and its memory stays in the pool.
fn pool(device: &AnyDevice) -> Done<String> {
    let pool = Pool::of(device)?;
    for value in 0..100_u16 {
        let mut array = pool.on(STREAM).uninit::<f32>(1024)?;
        array.fill(f32::from(value))?;
        assert_eq!(array.to_vec()?, [f32::from(value); 1024]);
    }
    let block = pool.allocate(Bytes::mib(1), STREAM)?;
    pool.free(block.address(), STREAM)?;
    assert!(pool.free(block.address(), STREAM).is_err(), "a second free changes nothing");
    let statistics = pool.statistics();
    assert_eq!((statistics.allocations, statistics.live), (101, Bytes::ZERO));
    let hits = 100.0 * statistics.hit_rate().unwrap_or(0.0);
    Ok(format!("pool: {hits:.0} % of 101 allocations without the driver; {} held", statistics.held))
}

/// An arena hands out parts of one block and takes all of them back at once.
fn arena(device: &AnyDevice) -> Done<String> {
    let mut arena = Arena::new(Pool::of(device)?, Bytes::mib(64), STREAM)?;
    let start = arena.base();
    for step in 0..3 {
        let one = arena.allocate(Bytes::new(1024))?;
        let two = arena.allocate(Bytes::new(2048))?;
        assert_eq!(one.address(), start, "a reset gives everything back");
        fill_and_check(device, one, step)?;
        fill_and_check(device, two, step + 100)?;
        arena.reset();
    }
    Ok("arena: 3 times 1 KiB and 2 KiB in the same place".into())
}

/// Copies that wait, and rows with gaps.
fn copies(device: &AnyDevice) -> Done<String> {
    let data = numbers(256 * 256);
    let mut array = Pool::of(device)?.on(STREAM).uninit::<u32>(data.len())?;
    array.copy_from_slice(&data)?;
    assert_eq!(array.to_vec()?, data);
    // The first ten columns of a matrix with 256.
    let mut columns = vec![0; 10 * 256];
    let region = Region::rows(10, 256).device_pitch(256, 0);
    TransferEngine::new(device)?.scope(|transfers| {
        transfers.download(&array, &mut columns).region(region).submit()?.wait()
    })??;
    assert!(columns.iter().eq(data.chunks(256).flat_map(|row| &row[..10])));
    Ok("copies: up, down, and ten columns of a matrix".into())
}

/// From pinned memory the device copies by itself, while the host goes on.
fn pinned(device: &AnyDevice) -> Done<String> {
    let (pool, pinned) = (Pool::of(device)?, PinnedPool::new(device)?);
    let data = numbers(1 << 18);
    let mut array = pool.on(STREAM).uninit::<u32>(data.len())?;
    let (mut batch, mut back) = (pinned.array(data.len())?, pinned.array(data.len())?);
    batch.host_mut()?.copy_from_slice(&data);
    batch.copy_to(&mut array)?; // does not wait
    back.copy_from(&array)?; // nor does this; they are on one stream
    assert_eq!(back.host()?, data); // waits for the copy
    Ok(format!("pinned: {} there and back; {} held", Bytes::mib(1), pinned.held()))
}

/// Memory that the driver moves to where it is used; buffers that copy where a device has none.
fn managed(device: &AnyDevice) -> Done<String> {
    let memory = BufferManager::managed_or_emulated(device)?;
    let data = numbers(100_000);
    let table = memory.buffer_from(&data)?;
    table.advise(Advice::ReadMostly)?;
    table.prefetch(Replica::Device, STREAM)?;
    let mut copy = memory.buffer::<u32>(data.len())?;
    copy.copy_from(&table, STREAM)?; // on the device
    copy.prefetch(Replica::Host, STREAM)?;
    assert_eq!(copy.host()?, data);
    Ok(if memory.is_managed() {
        "managed: one copy for host and device, with advice and a prefetch".into()
    } else {
        "managed: the device has none; buffers that copy did the same".into()
    })
}

/// To another device of the same kind.
fn peers(device: &AnyDevice, other: Option<&AnyDevice>) -> Done<String> {
    let (Some(other), Some(peers)) = (other, device.peers()) else {
        let kind = device.descriptor().kind;
        return Ok(format!("peers: no second {kind} device that copies to it; see the next line"));
    };
    let from = filled(device)?;
    let to = Pool::new(other)?.on(STREAM).uninit::<u32>(from.len())?;
    let (here, there) = (device.descriptor().ordinal, other.descriptor().ordinal);
    let is_direct = peers.can_reach(there)?;
    if is_direct {
        peers.enable_peer(there)?; // until the device is closed
    }
    let size = Bytes::of::<u32>(from.len() as u64)?;
    let target = PeerLocation { device: there, address: to.address() };
    let source = PeerLocation { device: here, address: from.address() };
    let copy = PeerCopy::new(target, source, size)?;
    // SAFETY: both arrays live until the stream is waited for, and no other work uses them.
    unsafe { peers.copy_peer(&copy, STREAM) }?;
    device.synchronize_stream(STREAM)?;
    assert_eq!(to.to_vec()?, from.to_vec()?);
    let way = if is_direct { "directly" } else { "by the driver, through the host" };
    Ok(format!("peers: {size} from device {here} to {there}, {way}"))
}

/// To a device of another kind and back, through the host.
fn other_kind(device: &AnyDevice) -> Done<String> {
    let kind = device.descriptor().kind;
    let other: AnyDevice = match kind {
        hal::DeviceKind::Host => devices::open("sim")?,
        _ => HostDevice::open()?,
    };
    let (here, there) = (TransferEngine::new(device)?, TransferEngine::new(&other)?);
    let from = filled(device)?;
    let mut to = Pool::of(&other)?.on(STREAM).uninit::<u32>(from.len())?;
    here.copy_between(&from, &there, &mut to)?;
    assert_eq!(to.to_vec()?, numbers(from.len()));
    let mut back = Pool::of(device)?.on(STREAM).zeros::<u32>(from.len())?;
    there.copy_between(&to, &here, &mut back)?;
    assert_eq!(back.to_vec()?, numbers(from.len()));
    // So do buffers.
    let near = BufferManager::new(device)?.buffer_from(&numbers(1000))?;
    let mut far = BufferManager::new(&other)?.buffer::<u32>(1000)?;
    far.copy_from(&near, STREAM)?;
    assert_eq!(far.host()?, numbers(1000));
    Ok(format!("other kind: {kind} to {} and back, through the host", other.descriptor().kind))
}

/// The best of three, through the engine and from pinned memory. `forebay bandwidth` measures with care.
fn bandwidth(device: &AnyDevice) -> Done<String> {
    let (engine, pinned) = (TransferEngine::new(device)?, PinnedPool::new(device)?);
    let (data, mut back) = (numbers(8 << 20), vec![0; 8 << 20]);
    let mut array = Pool::of(device)?.on(STREAM).uninit::<u32>(data.len())?;
    let mut batch = pinned.array::<u32>(data.len())?;
    let up = best(size_of_val(&data[..]), || {
        engine.scope(|transfers| transfers.upload(&data, &mut array).submit()?.wait())?
    })?;
    let down = best(size_of_val(&data[..]), || {
        engine.scope(|transfers| transfers.download(&array, &mut back).submit()?.wait())?
    })?;
    let direct = best(size_of_val(&data[..]), || {
        batch.copy_from(&array)?;
        batch.wait()
    })?;
    assert!(back == data && batch.host()? == data);
    Ok(format!("bandwidth: {up:.1} GB/s up, {down:.1} down; {direct:.1} down to pinned memory"))
}

/// The bandwidth of the fastest of three copies, in GB/s.
fn best(bytes: usize, mut copy: impl FnMut() -> forebay::Result<()>) -> forebay::Result<f64> {
    (0..3).try_fold(0.0_f64, |best, _| {
        let begun = Instant::now();
        copy()?;
        Ok(best.max(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9))
    })
}

/// Numbers that differ from place to place.
fn numbers(length: usize) -> Vec<u32> {
    (1..).map(|number: u32| number.wrapping_mul(0x9e37_79b9)).take(length).collect()
}

/// An array with numbers in it.
fn filled(device: &AnyDevice) -> forebay::Result<DeviceArray<u32>> {
    let mut array = Pool::of(device)?.on(STREAM).uninit(1_000_000)?;
    array.copy_from_slice(&numbers(1_000_000))?;
    Ok(array)
}

/// Has the device write a byte all over a block, and looks.
fn fill_and_check(device: &AnyDevice, block: ArenaBlock<'_>, byte: u8) -> Done {
    let (at, size) = (block.address(), block.size());
    let found = vec![0_u8; size.to_usize()?].leak(); // a copy that fails may still be under way
    let fill = Fill::linear(at, size, Pattern::U8(byte))?;
    let to = Location::Host(Address::of_pointer(found.as_mut_ptr()));
    let copy = Copy::linear(to, Location::Device(at), size)?;
    // SAFETY: the block is the caller's, on this stream, and `found` is never freed.
    unsafe {
        device.fill(&fill, STREAM)?;
        device.copy(&copy, STREAM)?;
    }
    device.synchronize_stream(STREAM)?;
    assert!(found.iter().all(|&found| found == byte), "{size} of {byte:#x}");
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
