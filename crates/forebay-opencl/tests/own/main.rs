//! What OpenCL devices do beyond the contract: numbers, limits, sub-buffers, kernels, mapping, several contexts, and
//! that everything is released.
//!
//! PoCL is told to show two devices, so that there are two contexts on every machine that has it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what a test needs and does not get fails it"
)]

mod kernels;
mod memory;
mod order;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{
    Call, Copy, Device, Error, EventKind, Fill, HostTask, Location, Memory, Pattern, PinnedFlags,
    PinnedMemory, Priority, StreamHandle, Streams, Transfers,
};
use forebay_opencl::cl3::context::{CL_CONTEXT_REFERENCE_COUNT, get_context_data};
use forebay_opencl::{ObjectCounts, OpenClDevice, OpenClDriver, OpenClOptions};
use libtest_mimic::{Arguments, Completion, Trial};

use memory::*;
use order::*;

/// How a test ends: done, or why it could not be run here.
type Ending = Result<(), String>;

const KIB: u64 = 1024;

fn driver() -> &'static OpenClDriver {
    OpenClDriver::load().unwrap()
}

fn tested() -> u32 {
    std::env::var("FOREBAY_OPENCL_DEVICE").map_or(0, |number| number.parse().unwrap())
}

fn open() -> Arc<OpenClDevice> {
    OpenClDevice::open(tested()).unwrap()
}

fn allocate(device: &OpenClDevice, size: u64) -> Address {
    device.allocate(Bytes::new(size), Alignment::BLOCK).unwrap()
}

fn free(device: &OpenClDevice, memory: Address) {
    // SAFETY: the test has waited for the work that used it.
    unsafe { device.free(memory) }.unwrap();
}

fn at(memory: Address, offset: u64) -> Address {
    memory.checked_add(Bytes::new(offset)).unwrap()
}

fn span(start: Address, size: u64) -> Span {
    Span::new(start, Bytes::new(size)).unwrap()
}

fn fill(device: &OpenClDevice, memory: Address, size: u64, byte: u8, stream: StreamHandle) {
    let fill = Fill::linear(memory, Bytes::new(size), Pattern::U8(byte)).unwrap();
    // SAFETY: the test keeps the memory until it has waited.
    unsafe { device.fill(&fill, stream) }.unwrap();
}

fn read(device: &OpenClDevice, memory: Address, size: usize, stream: StreamHandle) -> Vec<u8> {
    let mut bytes = vec![0_u8; size];
    let to = Location::Host(Address::of_pointer(bytes.as_mut_ptr()));
    let copy = Copy::linear(to, Location::Device(memory), Bytes::new(size as u64)).unwrap();
    // SAFETY: the bytes are kept until the stream was waited for.
    unsafe { device.copy(&copy, stream) }.unwrap();
    device.synchronize_stream(stream).unwrap();
    bytes
}

/// A task that ends when the sender is dropped.
fn gate() -> (std::sync::mpsc::Sender<()>, HostTask) {
    let (open, closed) = std::sync::mpsc::channel::<()>();
    let task = Box::new(move || {
        let _ = closed.recv_timeout(Duration::from_secs(10));
    });
    (open, task)
}

fn numbers_name_devices_gpus_first() -> Ending {
    let devices = driver().devices();
    assert_eq!(driver().device_count(), devices.len());
    for (info, ordinal) in devices.iter().zip(0..) {
        assert_eq!(info.ordinal, ordinal);
        assert!(!info.name.is_empty() && !info.platform.is_empty() && !info.version.is_empty());
        assert!(info.to_string().starts_with(&format!("opencl:{ordinal} ")), "{info}");
        let device = OpenClDevice::open(ordinal).unwrap();
        assert_eq!(device.descriptor().ordinal.0, ordinal);
        assert_eq!(device.memory_info().unwrap().total, info.total_memory);
    }
    assert!(devices.is_sorted_by_key(|info| info.device_type), "{devices:?}");
    let beyond = u32::try_from(devices.len()).unwrap();
    match OpenClDevice::open(beyond).unwrap_err() {
        Error::Invalid { call: Call::Open, allowed, .. } => {
            assert!(allowed.contains(&format!("{beyond} devices")), "{allowed}");
        }
        other => panic!("{other}"),
    }
    let (one, two) = (OpenClDevice::shared(0).unwrap(), OpenClDevice::shared(0).unwrap());
    assert!(Arc::ptr_eq(&one, &two));
    Ok(())
}

fn a_machine_without_platforms_is_told_what_to_install() -> Ending {
    // This program again, where the loader finds no vendor: there all tests are skipped, for that reason.
    let program = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(program);
    child.env("OCL_ICD_VENDORS", "/nowhere").env("OCL_ICD_FILENAMES", "");
    let output = child.args(["--exact", "numbers_name_devices_gpus_first"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("... ok") {
        return Err("the loader does not read OCL_ICD_VENDORS".to_owned());
    }
    assert!(output.status.success() && said.contains("pocl-opencl-icd"), "{said}");
    Ok(())
}

fn options_are_granted_or_refused() -> Ending {
    for info in driver().devices() {
        let svm = OpenClDevice::open_with(info.ordinal, OpenClOptions::new().svm(true));
        match svm {
            Ok(device) => {
                assert!(info.svm.coarse);
                // A real pointer that kernels understand, at any alignment.
                let memory = device.allocate(Bytes::new(4097), Alignment::DEVICE_PAGE).unwrap();
                assert!(memory.is_aligned_to(Alignment::DEVICE_PAGE));
                fill(&device, memory, 4097, 7, StreamHandle::DEFAULT);
                assert_eq!(read(&device, memory, 4097, StreamHandle::DEFAULT), [7; 4097]);
                free(&device, memory);
            }
            Err(error) => {
                assert!(!info.svm.coarse && matches!(error, Error::Unsupported { .. }), "{error}");
            }
        }
    }
    Ok(())
}

/// How many references the context has: each object in it has one on some platforms.
fn context_references(device: &OpenClDevice) -> Vec<u8> {
    get_context_data(device.raw_context(), CL_CONTEXT_REFERENCE_COUNT).unwrap()
}

fn use_everything(device: &OpenClDevice) {
    let streams: Vec<_> = (0..4).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let memory = allocate(device, 64 * KIB);
    let pinned = device.allocate_pinned(Bytes::new(64 * KIB), PinnedFlags::empty()).unwrap();
    let sub = device.sub_buffer(span(memory, 4096)).unwrap();
    for &stream in &streams {
        let event = device.create_event(EventKind::Timed).unwrap();
        fill(device, memory, 64 * KIB, 3, stream);
        device.record_event(event, stream).unwrap();
        device.enqueue_host(Box::new(|| ()), stream).unwrap();
        device.wait_event(StreamHandle::DEFAULT, event).unwrap();
        let copy =
            Copy::linear(Location::Host(pinned), Location::Device(memory), Bytes::new(64 * KIB))
                .unwrap();
        // SAFETY: both are kept until the device was waited for.
        unsafe { device.copy(&copy, stream) }.unwrap();
        device.destroy_event(event).unwrap();
    }
    device.synchronize_device().unwrap();
    drop(sub);
    for stream in streams {
        device.destroy_stream(stream).unwrap();
    }
    free(device, memory);
    // SAFETY: the work was waited for.
    unsafe { device.free_pinned(pinned) }.unwrap();
}

fn everything_is_released() -> Ending {
    // What is kept for the process is made first.
    use_everything(&open());
    let device = open();
    use_everything(&device);
    drop(device);
    let device = open();
    let before = (ObjectCounts::now(), context_references(&device));
    drop(device);
    for _ in 0..20 {
        use_everything(&open());
    }
    let device = open();
    // The last commands' references may take a moment to go.
    let begin = Instant::now();
    loop {
        let after = (ObjectCounts::now(), context_references(&device));
        if after.0.buffers == before.0.buffers
            && after.0.queues <= before.0.queues
            // A queue that waits to be used again keeps the event of its last command.
            && after.0.events <= after.0.queues
            && after.1 <= before.1
        {
            return Ok(());
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "before {before:?}, after {after:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn devices_in_many_threads_keep_apart() -> Ending {
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            scope.spawn(move || {
                for round in 0..10 {
                    let device = open();
                    let stream = device.create_stream(Priority::Normal).unwrap();
                    let memory = allocate(&device, 33 * KIB);
                    let byte = number * 16 + round;
                    fill(&device, memory, 33 * KIB, byte, stream);
                    assert_eq!(read(&device, memory, 33 << 10, stream), [byte; 33 << 10]);
                    // Half of the devices go with everything alive, and work under way.
                    if round % 2 == 0 {
                        free(&device, memory);
                    } else {
                        fill(&device, memory, 33 * KIB, 0, stream);
                    }
                }
            });
        }
    });
    Ok(())
}

/// Tests with their names.
macro_rules! tests {
    ($($name:ident,)+) => { [$((stringify!($name), $name as fn() -> Ending)),+] };
}

fn main() -> ExitCode {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("POCL_DEVICES", "pthread pthread") };
    let tests = tests![
        numbers_name_devices_gpus_first,
        a_machine_without_platforms_is_told_what_to_install,
        options_are_granted_or_refused,
        a_size_beyond_the_devices_limit_is_refused_with_the_limit,
        memory_that_is_not_there_is_refused_when_it_is_allocated,
        fills_go_on_where_one_call_does_not_reach,
        a_stream_waits_for_every_copy_of_a_call,
        host_memory_of_a_device_that_went_is_released_after_its_work,
        a_forked_child_is_refused_and_leaks,
        sub_buffers_are_parts_of_their_memory,
        kernels_keep_the_order_of_their_stream,
        mapped_memory_is_the_devices,
        an_event_of_one_device_orders_work_of_another,
        everything_is_released,
        devices_in_many_threads_keep_apart,
        a_copy_of_ordinary_memory_does_not_wait_for_a_kernel,
        freeing_does_not_wait_for_a_kernel_where_that_is_promised,
        bytes_beyond_four_gibibytes_of_one_buffer_are_filled_and_copied,
    ];
    let missing = OpenClDriver::load().map(|driver| driver.device_count());
    let trials = tests.map(|(name, test)| {
        let missing = missing.clone();
        Trial::ignorable_test(name, move || match missing {
            Ok(0) => Ok(Completion::ignored_with("skipped: OpenCL shows no device")),
            Ok(_) => match test() {
                Ok(()) => Ok(Completion::Completed),
                Err(reason) => Ok(Completion::ignored_with(format!("skipped: {reason}"))),
            },
            Err(missing) => Ok(Completion::ignored_with(format!("skipped: {missing}"))),
        })
    });
    let mut arguments = Arguments::from_args();
    // They compare counts of the whole process, and take all memory.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}
