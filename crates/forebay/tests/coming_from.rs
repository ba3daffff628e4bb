//! The examples that other libraries give for their buffers, as programs of forebay. `docs/coming-from.md` names the calls
//! side by side.
#![cfg(all(feature = "host", feature = "sim"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use forebay::buffer::{Access, BufferState, DoubleBuffer, Memory, OnDevice, Replica};
use forebay::hal::Capabilities;
use forebay::sim::{Kernel, SimDevice, SimMachine};
use forebay::{Device, Span, StreamHandle};

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// An accelerator with memory of its own.
fn accelerator() -> (Arc<SimDevice>, Memory) {
    let machine = SimMachine::builder().without(Capabilities::HOST_VISIBLE).build().unwrap();
    let device = machine.device(0).unwrap();
    let shared: Arc<dyn Device> = device.clone();
    (device, Memory::new(&shared).unwrap())
}

/// A kernel that doubles every number.
fn launch_double(device: &SimDevice, numbers: &OnDevice<'_>) {
    let span = Span::new(numbers.address(), numbers.size()).unwrap();
    let kernel = Kernel::new("double").reads(span).writes(span).body(move |memory| {
        let mut bytes = memory.read(span).unwrap();
        for four in bytes.as_chunks_mut::<4>().0 {
            *four = (f32::from_ne_bytes(*four) * 2.0).to_ne_bytes();
        }
        assert!(memory.write(span, &bytes));
    });
    // SAFETY: the buffer keeps the memory in the order of the stream.
    unsafe { device.launch(kernel, numbers.stream()) }.unwrap();
}

/// DotCompute: "Basic Memory Management". Allocate, copy in, execute, copy out, dispose.
#[test]
fn allocate_write_execute_read_and_release() {
    let (device, memory) = accelerator();
    let mut buffer = memory.buffer::<f32>(1_000_000).unwrap();
    let data: Vec<f32> = (0_u16..1000).cycle().take(1_000_000).map(f32::from).collect();
    buffer.copy_from(&data).unwrap();
    launch_double(&device, &buffer.on_device_mut(STREAM).unwrap());
    let mut results = vec![0.0; 1_000_000];
    buffer.copy_to(&mut results).unwrap();
    assert!(results.iter().zip(&data).all(|(result, number)| *result == 2.0 * number));
    let held = memory.pool().held();
    drop(buffer);
    assert_eq!(memory.pool().held(), held, "it went back to the pool");
    assert_eq!(memory.totals().buffers, 0);
}

/// DotCompute: "CPU-Only Memory Manager".
#[test]
fn on_the_host_alone() {
    let memory = Memory::host().unwrap();
    let mut buffer = memory.buffer::<f64>(10_000).unwrap();
    buffer.copy_from(&vec![1.5; 10_000]).unwrap();
    let _ = buffer.on_device_mut(STREAM).unwrap();
    assert_eq!(buffer.host().unwrap()[9_999], 1.5);
    assert_eq!(buffer.figures().to_device.copies, 0);
}

/// DotCompute: "Zero-Copy Operations with Span<T>". There a write through the span has to be announced.
#[test]
fn a_view_of_the_host_without_copying() {
    let (_, memory) = accelerator();
    let mut buffer = memory.buffer::<f32>(1000).unwrap();
    for (number, index) in buffer.host_mut().unwrap().iter_mut().zip(0_u16..) {
        *number = f32::from(index) * 2.0;
    }
    assert_eq!(buffer.state(), BufferState::HostOnly);
    buffer.synchronize(STREAM).unwrap();
    assert_eq!(buffer.state(), BufferState::Synchronized);
    assert_eq!(buffer.figures().to_device.bytes, 4000);
}

/// DotCompute: "Buffer Slicing".
#[test]
fn a_slice_is_the_buffers_own_memory() {
    let (device, memory) = accelerator();
    let mut buffer = memory.buffer::<f32>(1000).unwrap();
    buffer.fill(1.0).unwrap();
    launch_double(&device, &buffer.slice(100..300).unwrap().on_device_mut(STREAM).unwrap());
    let numbers = buffer.to_vec().unwrap();
    assert_eq!((numbers[99], numbers[100], numbers[299], numbers[300]), (1.0, 2.0, 2.0, 1.0));
    assert_eq!(buffer.figures().to_device.bytes, 800, "the slice alone");
}

/// "Double buffering" and "pre-allocation", as tuning guides for GPUs give them.
#[test]
fn two_buffers_take_turns() {
    let (device, memory) = accelerator();
    let mut frames = DoubleBuffer::<f32>::new(&memory, 1024).unwrap();
    for step in 0_u16..10 {
        frames.back().map(Access::Overwrite).unwrap().fill(f32::from(step));
        frames.swap();
        launch_double(&device, &frames.front().on_device_mut(STREAM).unwrap());
    }
    assert_eq!(frames.front().host().unwrap()[0], 18.0);
    assert_eq!(frames.back().host().unwrap()[0], 16.0);
    frames.front().compact(Replica::Device, STREAM).unwrap();
}

/// DotCompute: "Memory Leaks": the registry of active buffers.
#[test]
fn what_is_not_released_is_listed() {
    let (_, memory) = accelerator();
    let forgotten = memory.buffer::<u8>(4096).unwrap();
    let live = memory.live_buffers();
    assert_eq!((live.len(), live[0].bytes, live[0].element), (1, 4096, "u8"));
    assert!(live[0].created_at.starts_with(file!()));
    drop(forgotten);
    assert!(memory.live_buffers().is_empty());
}

/// DotCompute: "Cross-Process Memory Sharing".
#[test]
#[cfg(target_os = "linux")]
fn another_process_opens_the_buffer_by_its_name() {
    let (_, memory) = accelerator();
    let name = format!("SharedComputeBuffer-{}", std::process::id());
    let shared = memory.shared::<f32>(&name, 1000).unwrap();
    // Here in the same process; `tests/named` does it from others.
    let remote = memory.open_shared::<f32>(&name).unwrap();
    shared.write(7, &[2.5]).unwrap();
    assert_eq!(remote.to_vec().unwrap()[7], 2.5);
}
