//! Buffers on the simulated device, whose memory is its own and whose work runs late, and on the host, whose memory is one.

use core::ops::Range;
use core::task::{Context, Waker};
use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use forebay_core::{Bytes, Random, Span};
use forebay_hal::{Call, Capabilities, Device, Priority, StreamHandle, Streams};
use forebay_sim::{
    Fault, FaultKind, HandleReuse, Kernel, MemoryModel, SimDevice, SimMachine, SimOptions, When,
};

use super::*;
use crate::{Error, HostDevice};

mod futures;
mod generic;
mod managed;
mod shared;
mod statistics;

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// A machine whose device has memory of its own.
pub(super) fn open(options: SimOptions) -> (SimMachine, Arc<SimDevice>, BufferManager) {
    open_any(options.without(Capabilities::HOST_VISIBLE))
}

pub(super) fn open_any(options: SimOptions) -> (SimMachine, Arc<SimDevice>, BufferManager) {
    let machine = options.build().unwrap();
    let device = machine.device(0).unwrap();
    let shared: Arc<dyn Device> = device.clone();
    (machine, device, BufferManager::new(&shared).unwrap())
}

pub(super) fn span_of(on_device: &OnDevice<'_>) -> Span {
    Span::new(on_device.address(), on_device.size()).unwrap()
}

/// A kernel that writes `value` over what the buffer handed out.
pub(super) fn launch_write(
    device: &SimDevice,
    on_device: &OnDevice<'_>,
    value: u8,
) -> crate::Result<()> {
    let span = span_of(on_device);
    let size = usize::try_from(span.size().get()).unwrap();
    let kernel = Kernel::new(format!("write {value}"))
        .writes(span)
        .body(move |memory| assert!(memory.write(span, &vec![value; size])));
    // SAFETY: the buffer keeps the memory in the order of the stream.
    Ok(unsafe { device.launch(kernel, on_device.stream()) }?)
}

/// A kernel that counts the bytes that are not as they should be.
fn launch_check(
    device: &SimDevice,
    on_device: &OnDevice<'_>,
    due: Vec<u8>,
    wrong: &Arc<AtomicU64>,
) -> crate::Result<()> {
    let (span, wrong) = (span_of(on_device), Arc::clone(wrong));
    let kernel = Kernel::new("check").reads(span).body(move |memory| {
        let bytes = memory.read(span).unwrap();
        let bad = bytes.iter().zip(&due).filter(|(one, two)| one != two).count();
        wrong.fetch_add(bad as u64, Ordering::Relaxed);
    });
    // SAFETY: as for writing.
    Ok(unsafe { device.launch(kernel, on_device.stream()) }?)
}

/// What a byte is, and which replicas have that.
#[derive(Clone, Copy, Debug, Default)]
struct Byte {
    value: u8,
    written: bool,
    on_host: bool,
    on_device: bool,
}

#[derive(Default)]
struct Model {
    bytes: Vec<Byte>,
    to_host: u64,
    to_device: u64,
}

impl Model {
    fn values(&self, range: &Range<usize>) -> Vec<u8> {
        self.bytes[range.clone()].iter().map(|byte| byte.value).collect()
    }

    /// Counts what a use of a replica must copy, and what is there afterwards.
    fn used(&mut self, replica: Replica, range: &Range<usize>, access: Access, value: u8) {
        for byte in &mut self.bytes[range.clone()] {
            let (has, copied) = match replica {
                Replica::Host => (&mut byte.on_host, &mut self.to_host),
                Replica::Device => (&mut byte.on_device, &mut self.to_device),
            };
            if access != Access::Overwrite && byte.written && !*has {
                *copied += 1;
                *has = true;
            }
            if access != Access::Read {
                let (on_host, on_device) = (replica == Replica::Host, replica == Replica::Device);
                *byte = Byte { value, written: true, on_host, on_device };
            }
        }
    }
}

const LENGTH: usize = 5000;

/// Whose host memory a random program uses.
#[derive(Clone, Copy, PartialEq)]
enum Host {
    Own,
    Wrapped,
    /// There is none: the buffer is in managed memory.
    Managed,
}

/// Random uses of a buffer on several streams. With a fault, an operation that fails is done again, and must find everything
/// as it was.
fn random_program(
    options: SimOptions,
    host: Host,
    seed: u64,
    steps: u64,
    fault: Option<Fault>,
) -> bool {
    let (machine, device, memory) = open_any(options.seed(seed));
    let memory = match host {
        Host::Managed => BufferManager::managed(memory.device()).unwrap(),
        Host::Own | Host::Wrapped => memory,
    };
    let wrapped = host == Host::Wrapped;
    let capabilities = memory.pool().source().descriptor().capabilities;
    let unified = capabilities.contains(Capabilities::HOST_VISIBLE) && !wrapped;
    let mut random = Random::new(seed);
    let streams: Vec<StreamHandle> =
        (0..3).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let wrong = Arc::new(AtomicU64::new(0));
    let mut buffer = match host {
        Host::Own | Host::Managed => memory.buffer::<u8>(LENGTH).unwrap(),
        Host::Wrapped => memory.wrap(vec![0_u8; LENGTH]).unwrap(),
    };
    // What the program brings counts as written.
    let first = Byte { written: wrapped, on_host: wrapped, ..Byte::default() };
    let mut model = Model { bytes: vec![first; LENGTH], ..Model::default() };
    let faulty = fault.is_some();
    if let Some(fault) = fault {
        machine.plan(fault);
    }
    let mut failed = 0;
    for step in 0..steps {
        let value = u8::try_from(step % 250).unwrap() + 1;
        let stream = *random.pick(&streams).unwrap();
        let length = buffer.len();
        let (one, two) = (random.index(length + 1).unwrap(), random.index(length + 1).unwrap());
        let range = one.min(two)..one.max(two);
        let operation = random.below(12);
        let mut attempts = 0;
        loop {
            let done: crate::Result<()> = (|| {
                let mut slice = buffer.slice_mut(range.clone())?;
                match operation {
                    0 | 1 => assert_eq!(slice.as_slice().host()?, model.values(&range)),
                    2 => {
                        let mut view = slice.host_mut()?;
                        assert_eq!(*view, model.values(&range));
                        view.fill(value);
                    }
                    3 => slice.host_overwrite()?.fill(value),
                    4 | 5 => {
                        let slice = slice.as_slice();
                        let on_device = slice.on_device(stream)?;
                        launch_check(&device, &on_device, model.values(&range), &wrong)?;
                    }
                    6 => {
                        let on_device = slice.on_device_mut(stream)?;
                        launch_check(&device, &on_device, model.values(&range), &wrong)?;
                        launch_write(&device, &on_device, value)?;
                    }
                    7 => launch_write(&device, &slice.on_device_overwrite(stream)?, value)?,
                    8 => drop(buffer.compact(Replica::Device, stream)?),
                    9 => drop(buffer.compact(Replica::Host, stream)?),
                    10 => slice.fill(0)?,
                    _ => buffer.synchronize(stream)?,
                }
                Ok(())
            })();
            match done {
                Ok(()) => break,
                Err(error) => {
                    assert!(faulty, "{error}");
                    attempts += 1;
                    failed += 1;
                    assert!(attempts < 3, "{error}");
                    machine.clear_faults();
                }
            }
        }
        let whole = 0..length;
        match operation {
            0 | 1 => model.used(Replica::Host, &range, Access::Read, value),
            2 => model.used(Replica::Host, &range, Access::Update, value),
            3 => model.used(Replica::Host, &range, Access::Overwrite, value),
            4 | 5 => model.used(Replica::Device, &range, Access::Read, value),
            6 => model.used(Replica::Device, &range, Access::Update, value),
            7 => model.used(Replica::Device, &range, Access::Overwrite, value),
            8 => {
                model.used(Replica::Host, &whole, Access::Read, value);
                model.bytes.iter_mut().for_each(|byte| byte.on_device = false);
            }
            9 if wrapped => {}
            9 => {
                model.used(Replica::Device, &whole, Access::Read, value);
                model.bytes.iter_mut().for_each(|byte| byte.on_host = false);
            }
            10 if wrapped => model.used(Replica::Host, &range, Access::Overwrite, 0),
            10 => model.bytes[range].fill(Byte::default()),
            _ => {
                model.used(Replica::Host, &whole, Access::Read, value);
                model.used(Replica::Device, &whole, Access::Read, value);
            }
        }
        if random.chance(1, 30) && !faulty && !wrapped {
            let to = LENGTH / 2 + random.index(LENGTH).unwrap();
            let kept = 0..length.min(to);
            buffer.resize(to).unwrap();
            model.used(Replica::Host, &kept, Access::Read, value);
            model.bytes.resize(to, Byte::default());
            for byte in &mut model.bytes[kept] {
                (byte.on_host, byte.on_device) = (byte.written, false);
            }
        }
    }
    machine.clear_faults();
    assert_eq!(buffer.to_vec().unwrap(), model.values(&(0..buffer.len())));
    device.synchronize_device().unwrap();
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "seed {seed}");
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
    let statistics = buffer.statistics();
    if unified {
        assert_eq!((statistics.to_host.copies, statistics.to_device.copies), (0, 0));
    } else if !faulty {
        let whole = 0..model.bytes.len();
        model.used(Replica::Host, &whole, Access::Read, 0);
        let moved = (statistics.to_host.bytes, statistics.to_device.bytes);
        assert_eq!(moved, (model.to_host, model.to_device), "copies are minimal, seed {seed}");
    }
    drop(buffer);
    let totals = memory.totals();
    assert_eq!(
        (totals.buffers, totals.statistics.host_bytes, totals.statistics.device_bytes),
        (0, 0, 0)
    );
    failed > 0
}

#[test]
fn contents_are_right_and_copies_minimal_whatever_a_program_does() {
    for seed in 0..60 {
        let own = SimMachine::builder().without(Capabilities::HOST_VISIBLE);
        for options in [own, SimMachine::builder()] {
            for host in [Host::Own, Host::Wrapped, Host::Managed] {
                assert!(!random_program(options.clone(), host, seed, 120, None));
            }
        }
    }
}

#[test]
fn a_call_that_fails_at_any_driver_call_changes_nothing() {
    let mut failed = 0;
    for call in 1..160 {
        for kind in [FaultKind::Transient, FaultKind::OutOfMemory] {
            let fault = Fault::new(When::Call(call), kind);
            let own = SimMachine::builder().without(Capabilities::HOST_VISIBLE);
            for options in [own, SimMachine::builder()] {
                let host = match call % 3 {
                    0 => Host::Own,
                    1 => Host::Wrapped,
                    _ => Host::Managed,
                };
                failed += u32::from(random_program(options, host, call % 7, 40, Some(fault)));
            }
        }
    }
    assert!(failed > 120, "most of the faults struck: {failed}");
}

#[test]
fn ten_elements_of_a_million_are_ten() {
    let (_machine, _, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<f32>(1_000_000).unwrap();
    assert_eq!(buffer.state(), BufferState::Uninitialized);
    buffer.host_mut().unwrap().fill(2.0);
    assert_eq!(buffer.state(), BufferState::HostOnly);
    let _ = buffer.on_device(DEFAULT).unwrap();
    assert_eq!(buffer.state(), BufferState::Synchronized);
    buffer.slice_mut(500..510).unwrap().host_mut().unwrap().fill(3.0);
    assert_eq!(buffer.state(), BufferState::HostDirty);
    let _ = buffer.on_device_mut(DEFAULT).unwrap();
    assert_eq!(buffer.state(), BufferState::DeviceDirty);
    let moved = buffer.statistics().to_device;
    assert_eq!((moved.copies, moved.bytes), (2, 4_000_040));
    // A guard that is only read through marks nothing.
    let view = buffer.host_mut().unwrap();
    assert_eq!(view[505], 3.0);
    assert_eq!(buffer.state(), BufferState::Synchronized);
}

#[test]
fn a_buffer_that_is_used_on_one_side_has_memory_there_alone() {
    let (_machine, device, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<u8>(4096).unwrap();
    assert_eq!(memory.totals().statistics, BufferStatistics::default());
    launch_write(&device, &buffer.on_device_overwrite(DEFAULT).unwrap(), 7).unwrap();
    let statistics = buffer.statistics();
    assert_eq!((statistics.host_bytes, statistics.device_bytes), (0, 4096));
    assert_eq!((buffer.state(), statistics.to_device.copies), (BufferState::DeviceOnly, 0));
    assert_eq!(buffer.to_vec().unwrap(), [7; 4096]);
    assert_eq!(buffer.compact(Replica::Device, DEFAULT).unwrap(), Bytes::new(4096));
    assert_eq!(buffer.state(), BufferState::HostOnly);
    buffer.invalidate(Replica::Host);
    assert_eq!(buffer.state(), BufferState::Uninitialized);
    assert_eq!(buffer.to_vec().unwrap(), [0; 4096], "what was lost is zero");
}

#[test]
fn host_memory_that_a_copy_reads_outlives_its_buffer() {
    let (machine, device, memory) = open(SimMachine::builder());
    let buffer = memory.buffer_from(&[5_u8; 4096]).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let (go, wait) = mpsc::channel::<()>();
    device.enqueue_host(Box::new(move || _ = wait.recv()), stream).unwrap();
    let _ = buffer.on_device(stream).unwrap();
    drop(buffer);
    assert_eq!(memory.totals().parked_bytes, 4096);
    go.send(()).unwrap();
    device.synchronize_device().unwrap();
    assert_eq!(memory.totals().parked_bytes, 0);
    // And the manager waits for the rest.
    let buffer = memory.buffer_from(&[5_u8; 4096]).unwrap();
    let _ = buffer.on_device(DEFAULT).unwrap();
    drop((buffer, memory));
    assert_eq!(machine.finding_count(), 0);
}

#[test]
fn large_buffers_and_counts_that_overflow() {
    let options = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(16));
    let (_machine, _, memory) = open(options);
    let mut buffer = memory.buffer::<f64>(6 << 27).unwrap();
    assert_eq!(buffer.size(), Bytes::gib(6));
    // In pages of 4 KiB, or more: second of the figures.
    let resident = || {
        let statistics = std::fs::read_to_string("/proc/self/statm").ok()?;
        statistics.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let before = resident();
    buffer.slice_mut(..10).unwrap().host_mut().unwrap().fill(1.0);
    let touched = resident().zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
    assert!(touched < Bytes::gib(1).get() / 4096, "{touched} pages for ten elements");
    let _ = buffer.on_device_mut(DEFAULT).unwrap();
    assert_eq!(buffer.statistics().to_device.bytes, 80);
    for length in [usize::MAX, usize::MAX / 8 + 2, 1 << 60] {
        let error = memory.buffer::<f64>(length).unwrap_err();
        assert!(matches!(error, Error::Device(_)) && error.to_string().contains("elements"));
        assert!(buffer.resize(length).is_err());
    }
    assert!(memory.buffer::<[u8; 0]>(1).is_err(), "elements without bytes");
    let empty = memory.buffer::<u32>(0).unwrap();
    assert!(empty.host().unwrap().is_empty() && empty.on_device(DEFAULT).is_ok());
    assert_eq!(buffer.size(), Bytes::gib(6));
}

#[test]
fn slices_alias_and_ranges_are_checked() {
    let (_machine, device, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<u16>(1000).unwrap();
    let mut slice = buffer.slice_mut(100..=299).unwrap();
    assert_eq!(slice.len(), 200);
    let mut nested = slice.slice_mut(50..60).unwrap();
    nested.copy_from_slice(&[9; 10]).unwrap();
    assert!(nested.copy_from_slice(&[9; 11]).is_err() && nested.slice_mut(5..11).is_err());
    let whole = slice.as_slice().on_device(DEFAULT).unwrap().address();
    let part = slice.as_slice().slice(50..).unwrap().on_device(DEFAULT).unwrap().address();
    assert_eq!(part.get(), whole.get() + 100);
    launch_write(&device, &slice.slice_mut(..50).unwrap().on_device_mut(DEFAULT).unwrap(), 3)
        .unwrap();
    let values = buffer.to_vec().unwrap();
    assert_eq!((values[99], values[100], values[149], values[150]), (0, 0x303, 0x303, 9));
    assert_eq!((values[159], values[160]), (9, 0));
    for range in [0..1001, 1001..1001] {
        assert!(buffer.slice(range).is_err());
    }
    #[allow(clippy::reversed_empty_ranges, reason = "the point of it")]
    let reversed = buffer.slice(5..4).is_err();
    assert!(reversed && buffer.slice(1000..).unwrap().is_empty());
    assert_eq!(buffer.as_slice().cast::<[u8; 8]>().unwrap().len(), 250);
    assert!(buffer.slice(1..5).unwrap().cast::<u64>().is_err());
}

#[test]
fn where_the_devices_memory_is_the_hosts_nothing_is_copied() {
    let memory = BufferManager::over(&crate::Pool::new(&HostDevice::open().unwrap()).unwrap());
    let mut buffer = memory.buffer::<u32>(1000).unwrap();
    assert_eq!(buffer.host().unwrap(), [0; 1000]);
    buffer.host_mut().unwrap()[3] = 7;
    let address = buffer.on_device_mut(DEFAULT).unwrap().address();
    assert_eq!(address.get(), buffer.host().unwrap().as_ptr().addr() as u64);
    assert_eq!(buffer.to_vec().unwrap()[3], 7);
    buffer.resize(2000).unwrap();
    assert_eq!((buffer.host().unwrap()[3], buffer.host().unwrap()[1999]), (7, 0));
    let statistics = buffer.statistics();
    assert_eq!((statistics.to_host.copies, statistics.to_device.copies), (0, 0));
    let mut other = memory.buffer_from(buffer.host().unwrap()).unwrap();
    assert!(buffer.equals(&other).unwrap());
    other.fill(1).unwrap();
    assert!(!buffer.equals(&other).unwrap());
    let live = memory.live_buffers();
    assert_eq!(live.len(), 2);
    assert!(live[0].created_at.contains("tests.rs") && live[0].element == "u32");
}

#[test]
fn a_lost_device_is_an_error_and_what_the_host_has_stays() {
    for call in [Call::Copy, Call::SynchronizeEvent, Call::RecordEvent, Call::WaitEvent] {
        let (machine, device, memory) = open(SimMachine::builder());
        let streams = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
        let mut buffer = memory.buffer_from(&[1_u8; 4096]).unwrap();
        machine.plan(Fault::new(When::Every(call), FaultKind::Lost));
        let mut used = || -> crate::Result<()> {
            for stream in streams {
                let _ = buffer.on_device_mut(stream)?;
            }
            buffer.host_mut()?.fill(2);
            Ok(())
        };
        assert!(used().is_err(), "{call}");
        drop(buffer);
        let kept = memory.buffer_from(&[1_u8; 4096]).unwrap();
        assert!(kept.on_device(DEFAULT).is_err());
        assert_eq!(kept.to_vec().unwrap(), [1; 4096], "the host's own is still there");
    }
    // What the device alone had cannot be read, and is not zero instead.
    let (machine, device, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<u8>(4096).unwrap();
    launch_write(&device, &buffer.on_device_overwrite(DEFAULT).unwrap(), 3).unwrap();
    machine.plan(Fault::new(When::Every(Call::Copy), FaultKind::Lost));
    for _ in 0..3 {
        assert!(buffer.to_vec().is_err());
    }
}

#[test]
fn streams_may_be_destroyed_and_threads_may_have_their_own() {
    for reuse in [HandleReuse::AtOnce, HandleReuse::Never] {
        for options in
            [SimMachine::builder(), SimMachine::builder().without(Capabilities::HOST_VISIBLE)]
        {
            let (machine, device, memory) = open_any(options.handles(reuse));
            let mut buffer = memory.buffer::<u8>(4096).unwrap();
            for round in 1..20 {
                let first = device.create_stream(Priority::Normal).unwrap();
                launch_write(&device, &buffer.on_device_mut(first).unwrap(), round).unwrap();
                if round % 3 == 0 {
                    // A fetch that nobody waits for.
                    let _ = std::pin::pin!(buffer.fetch())
                        .poll(&mut Context::from_waker(Waker::noop()));
                }
                device.destroy_stream(first).unwrap();
                let second = device.create_stream(Priority::Normal).unwrap();
                if round % 2 == 0 {
                    let wrong = Arc::new(AtomicU64::new(0));
                    let due = vec![round; 4096];
                    launch_check(&device, &buffer.on_device(second).unwrap(), due, &wrong).unwrap();
                    device.synchronize_device().unwrap();
                    assert_eq!(wrong.load(Ordering::Relaxed), 0);
                }
                assert_eq!(buffer.to_vec().unwrap(), [round; 4096]);
                device.destroy_stream(second).unwrap();
            }
            // The default stream of a thread that has ended.
            let write = |buffer: &mut Buffer<u8>| {
                let own = StreamHandle::PER_THREAD;
                launch_write(&device, &buffer.on_device_mut(own).unwrap(), 99).unwrap();
            };
            if device.descriptor().capabilities.contains(Capabilities::PER_THREAD_STREAMS) {
                std::thread::scope(|scope| scope.spawn(|| write(&mut buffer)).join().unwrap());
                assert_eq!(buffer.to_vec().unwrap(), [99; 4096]);
            }
            drop(buffer);
            assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
        }
    }
}

#[test]
fn what_was_not_written_stays_so_and_leaks_are_listed() {
    let (_machine, _, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<f32>(1 << 20).unwrap();
    buffer.resize(2 << 20).unwrap();
    assert_eq!(
        (buffer.state(), buffer.statistics()),
        (BufferState::Uninitialized, BufferStatistics::default())
    );
    assert_eq!(buffer.len(), 2 << 20);
    let orphan = BufferManager::over(memory.pool()).buffer::<u64>(77).unwrap();
    assert!(leaks().iter().any(|leak| leak.length == 77), "also of a manager that is gone");
    drop(orphan);
    assert!(!leaks().iter().any(|leak| leak.length == 77));
    // One replica: forgetting either side forgets nothing.
    let host = BufferManager::host().unwrap();
    let mut unified = host.buffer_from(&[5_u8; 100]).unwrap();
    unified.invalidate(Replica::Device);
    unified.invalidate(Replica::Host);
    assert_eq!(unified.to_vec().unwrap(), [5; 100]);
}

#[test]
fn buffers_are_copied_on_the_device_or_through_the_host() {
    let (machine, device, memory) = open(SimMachine::builder().devices(2));
    let other: Arc<dyn Device> = machine.device(1).unwrap();
    let elsewhere = BufferManager::new(&other).unwrap();
    let mut source = memory.buffer::<u8>(5000).unwrap();
    launch_write(&device, &source.on_device_overwrite(DEFAULT).unwrap(), 9).unwrap();
    let mut near = memory.buffer::<u8>(5000).unwrap();
    near.copy_from(&source, DEFAULT).unwrap();
    assert_eq!((near.state(), source.state()), (BufferState::DeviceOnly, BufferState::DeviceOnly));
    let mut far = elsewhere.buffer::<u8>(5000).unwrap();
    far.copy_from(&near, DEFAULT).unwrap();
    assert_eq!(far.to_vec().unwrap(), [9; 5000]);
    let _ = far.on_device(DEFAULT).unwrap();
    assert_eq!(far.state(), BufferState::Synchronized);
    // A copy that fails leaves what the host has.
    far.fill(3).unwrap();
    let near_far = elsewhere.buffer_from(&[4_u8; 5000]).unwrap();
    let _ = near_far.on_device(DEFAULT).unwrap();
    machine.plan(Fault::new(When::Every(Call::Copy), FaultKind::Transient));
    assert!(far.copy_from(&near_far, DEFAULT).is_err());
    machine.clear_faults();
    assert_eq!(far.to_vec().unwrap(), [3; 5000]);
    assert!(near.copy_from(&memory.buffer(4999).unwrap(), DEFAULT).is_err());
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
}
