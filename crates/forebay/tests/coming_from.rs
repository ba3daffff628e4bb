//! The examples that other libraries give, as programs of forebay. `docs/coming-from.md` names the calls side by side.
#![cfg(all(feature = "host", feature = "sim"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "its main is not called here")]
#[path = "../examples/09_every_device.rs"]
mod every_device;

use std::process::Command;
use std::sync::Arc;

use forebay::buffer::{BufferManager, BufferState, DoubleBuffer, OnDevice, Replica};
use forebay::hal::Capabilities;
use forebay::sim::{Kernel, SimDevice, SimMachine};
use forebay::{Device, Span, StreamHandle};

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// An accelerator with memory of its own.
fn accelerator() -> (Arc<SimDevice>, BufferManager) {
    let machine = SimMachine::builder().without(Capabilities::HOST_VISIBLE).build().unwrap();
    let device = machine.device(0).unwrap();
    let shared: Arc<dyn Device> = device.clone();
    (device, BufferManager::new(&shared).unwrap())
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
    buffer.copy_from_slice(&data).unwrap();
    launch_double(&device, &buffer.on_device_mut(STREAM).unwrap());
    let mut results = vec![0.0; 1_000_000];
    buffer.copy_to_slice(&mut results).unwrap();
    assert!(results.iter().zip(&data).all(|(result, number)| *result == 2.0 * number));
    let held = memory.pool().held();
    drop(buffer);
    assert_eq!(memory.pool().held(), held, "it went back to the pool");
    assert_eq!(memory.totals().buffers, 0);
}

/// DotCompute: "CPU-Only Memory Manager".
#[test]
fn on_the_host_alone() {
    let memory = BufferManager::host().unwrap();
    let mut buffer = memory.buffer::<f64>(10_000).unwrap();
    buffer.copy_from_slice(&vec![1.5; 10_000]).unwrap();
    let _ = buffer.on_device_mut(STREAM).unwrap();
    assert_eq!(buffer.host().unwrap()[9_999], 1.5);
    assert_eq!(buffer.statistics().to_device.copies, 0);
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
    assert_eq!(buffer.statistics().to_device.bytes, 4000);
}

/// DotCompute: "Buffer Slicing".
#[test]
fn a_slice_is_the_buffers_own_memory() {
    let (device, memory) = accelerator();
    let mut buffer = memory.buffer::<f32>(1000).unwrap();
    buffer.fill(1.0).unwrap();
    launch_double(&device, &buffer.slice_mut(100..300).unwrap().on_device_mut(STREAM).unwrap());
    let numbers = buffer.to_vec().unwrap();
    assert_eq!((numbers[99], numbers[100], numbers[299], numbers[300]), (1.0, 2.0, 2.0, 1.0));
    assert_eq!(buffer.statistics().to_device.bytes, 800, "the slice alone");
}

/// "Double buffering" and "pre-allocation", as tuning guides for GPUs give them.
#[test]
fn two_buffers_take_turns() {
    let (device, memory) = accelerator();
    let mut frames = DoubleBuffer::<f32>::new(&memory, 1024).unwrap();
    for step in 0_u16..10 {
        frames.back().host_overwrite().unwrap().fill(f32::from(step));
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

/// STUNIR ROCm: its examples are one numbered example here. Not a test of its own: what the next ones start, as a program
/// whose environment names the device and its driver.
#[test]
fn every_device_program() {
    if std::env::var_os(forebay::devices::VARIABLE).is_some() {
        every_device::run(forebay::devices::best().unwrap()).unwrap();
    }
}

/// Runs the example on a device, with variables for its driver. Returns what it says.
fn run_on(device: &str, drivers: &[(&str, String)]) -> String {
    let arguments = ["--exact", "every_device_program", "--nocapture", "--test-threads=1"];
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(arguments).env(forebay::devices::VARIABLE, device);
    let ended = program.envs(drivers.iter().map(|(name, value)| (name, value))).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{device}: {said}{}", String::from_utf8_lossy(&ended.stderr));
    for step in ["device", "pool", "arena", "copies", "pinned", "managed", "peers", "other kind"] {
        assert!(said.contains(&format!("{step}: ")), "{device} has no {step}: {said}");
    }
    assert!(said.contains(" GB/s up, "), "{device}: {said}");
    let kind = device.split(':').next().unwrap();
    assert!(said.contains(&format!("device: {kind}:0 ")), "another device than {device}: {said}");
    said
}

/// A library of the workspace's that cargo has built: beside the test, or a folder up.
#[cfg(any(feature = "cuda", feature = "hip"))]
fn built(file: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let mut paths = test.ancestors().skip(1).take(2).map(|folder| folder.join(file));
    paths.find(|path| path.exists()).unwrap().display().to_string()
}

#[test]
fn on_the_host_and_the_simulated_device() {
    assert!(run_on("host", &[]).contains("other kind: host to sim"));
    let said = run_on("sim", &[]);
    assert!(said.contains("peers: 3.81 MiB from device 0 to 1, directly"), "{said}");
}

#[cfg(feature = "cuda")]
#[test]
fn over_the_fake_cuda_driver() {
    let driver = built("libforebay_cuda_fake_driver.so");
    let said = run_on("cuda:0", &[("FOREBAY_CUDA_DRIVER", driver)]);
    assert!(said.contains("peers: 3.81 MiB from device 0 to 1"), "{said}");
}

#[cfg(feature = "hip")]
#[test]
fn over_hip_on_the_fake_cuda_driver() {
    let cuda = ("FOREBAY_CUDA_DRIVER", built("libforebay_cuda_fake_driver.so"));
    let said = run_on("hip:0", &[cuda, ("FOREBAY_HIP_DRIVER", built("libforebay_hip_bridge.so"))]);
    assert!(said.contains("peers: 3.81 MiB from device 0 to 1"), "{said}");
}

#[cfg(feature = "opencl")]
#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn over_opencl() {
    match forebay::devices::open("opencl:0") {
        Ok(_) => assert!(run_on("opencl:0", &[]).contains("other kind: opencl to host")),
        // In the words of the test harness, which the summary of all tests reads.
        Err(missing) => println!("\ntest over_opencl ... ignored, {missing}"),
    }
}
