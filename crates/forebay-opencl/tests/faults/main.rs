//! A driver that refuses a call half-way: every operation, refused at each of its calls in turn.
//!
//! The library that refuses is `shim.c`, built here and loaded in place of the system's. After each refusal nothing may
//! be left over, no task may have run, and the device must work as before.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what a test needs and does not get fails it"
)]

mod operations;

use core::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use forebay_core::Bytes;
use forebay_hal::{Device, Error, PinnedFlags, PinnedMemory, Priority, Streams};
use forebay_opencl::{HostCopies, ObjectCounts, OpenClDevice, OpenClDriver, OpenClOptions};
use libtest_mimic::{Arguments, Completion, Trial};

use operations::{OPERATIONS, Operation, works};

/// What the library answers in place of doing what it is asked: no resources, no memory, an invalid value, what no list
/// of codes has, and success that gives no object and no event.
const ANSWERS: [i32; 5] = [-5, -4, -30, -9999, 0];

/// A test by its name.
type Test = (&'static str, fn(&Shim));

/// The library that refuses.
struct Shim(libloading::Library);

impl Shim {
    fn load(path: &Path) -> Self {
        // SAFETY: the library has nothing that runs when it is loaded.
        Self(unsafe { libloading::Library::new(path) }.unwrap())
    }

    /// Refuses `times` calls after `passes` more.
    fn arm(&self, passes: i32, times: i32, answer: i32) {
        // SAFETY: the function takes three numbers.
        unsafe {
            type Arm = unsafe extern "C" fn(i32, i32, i32);
            self.0.get::<Arm>(c"forebay_arm").unwrap()(passes, times, answer);
        }
    }

    /// Has devices say that their buffers are aligned to so many bits; the truth below zero.
    fn align(&self, bits: i64) {
        // SAFETY: the function takes a number.
        unsafe {
            type Align = unsafe extern "C" fn(i64);
            self.0.get::<Align>(c"forebay_align").unwrap()(bits);
        }
    }

    /// Has events say nothing about themselves, or the truth again.
    fn hush(&self, hushed: bool) {
        // SAFETY: the function takes a number.
        unsafe {
            type Hush = unsafe extern "C" fn(i32);
            self.0.get::<Hush>(c"forebay_hush").unwrap()(i32::from(hushed));
        }
    }

    /// The function that was refused, if one was.
    fn disarm(&self) -> Option<String> {
        // SAFETY: the function gives a name that is never freed, or null.
        unsafe {
            type Disarm = unsafe extern "C" fn() -> *const c_char;
            let name = self.0.get::<Disarm>(c"forebay_disarm").unwrap()();
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    }
}

/// Builds the library; else why it cannot be.
fn build(folder: &Path) -> Result<PathBuf, String> {
    let library = folder.join("refusing.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/shim.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
    command.args(["-Wl,--no-as-needed", "-l:libOpenCL.so.1", "-ldl"]);
    let output = command.output().map_err(|error| format!("{compiler}: {error}"))?;
    if output.status.success() {
        return Ok(library);
    }
    Err(format!("{compiler}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Refuses each call of an operation in turn, with each answer.
fn refuse_everywhere(shim: &Shim, device: &Arc<OpenClDevice>, operation: Operation) {
    let (name, run) = operation;
    // Once without refusals, so that what is kept for the process is there.
    run(device).unwrap_or_else(|error| panic!("{name} without refusals: {error}"));
    works(device);
    let mut refusals = 0;
    for answer in ANSWERS {
        for passes in 0.. {
            let before = ObjectCounts::now();
            shim.arm(passes, 1, answer);
            let outcome = run(device);
            let Some(function) = shim.disarm() else {
                outcome.unwrap_or_else(|error| panic!("{name} after all: {error}"));
                break;
            };
            refusals += 1;
            let what = format!("{name}, {function} refused with {answer} after {passes} calls");
            if let Err(error) = outcome {
                assert!(!matches!(error, Error::Busy { .. }), "{what}: {error}");
                assert!(!error.to_string().is_empty());
            }
            device.synchronize_device().unwrap();
            let info = device.memory_info().unwrap();
            assert_eq!((info.held, info.managed), (Bytes::ZERO, Bytes::ZERO), "{what}");
            works(device);
            let after = ObjectCounts::now();
            assert_eq!(after.buffers, before.buffers, "{what}");
            assert!(passes < 200, "{what}: it never ends");
        }
    }
    assert!(refusals >= ANSWERS.len(), "{name}: {refusals} refusals");
}

/// A copy that was accepted and cannot be made, however often it is tried, shows in every wait after it.
fn a_copy_that_no_thread_can_make_is_told(shim: &Shim) {
    let options = OpenClOptions::new().host_copies(HostCopies::Thread);
    let device = OpenClDevice::open_with(0, options).unwrap();
    works(&device);
    // The buffer and its first byte, the user event, the barrier, and then the copy itself.
    shim.arm(4, 100, -5);
    let error = operations::upload(&device).unwrap_err();
    assert_eq!(shim.disarm().as_deref(), Some("clEnqueueWriteBuffer"));
    assert!(matches!(error, Error::Lost { .. }) && error.to_string().contains("-5"), "{error}");
    assert!(matches!(device.synchronize_device(), Err(Error::Lost { .. })));
    drop(device);
    works(&OpenClDevice::open_with(0, options).unwrap());
}

/// A driver that takes no part of a copy is an error, however many rows there are to try.
fn a_rectangle_that_is_refused_in_every_part_is_an_error(shim: &Shim) {
    let options = OpenClOptions::new().host_copies(HostCopies::Driver);
    let device = OpenClDevice::open_with(0, options).unwrap();
    // The buffer and its first byte are allocated.
    shim.arm(2, i32::MAX, -30);
    let error = operations::many_rows(&device).unwrap_err();
    assert_eq!(shim.disarm().as_deref(), Some("clEnqueueWriteBuffer"));
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("-30"), "{error}");
    operations::many_rows(&device).unwrap();
    works(&device);
}

/// A driver that says it has mapped memory and gives none is refused.
fn no_memory_from_a_map_is_refused(shim: &Shim) {
    let device = OpenClDevice::open(0).unwrap();
    works(&device);
    // The buffer is created, and what comes next succeeds without doing anything.
    shim.arm(1, 1, 0);
    let error = device.allocate_pinned(Bytes::new(4096), PinnedFlags::empty()).unwrap_err();
    assert_eq!(shim.disarm().as_deref(), Some("clEnqueueMapBuffer"));
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    // The buffer, its first byte, and the fill.
    shim.arm(3, 1, 0);
    let error = operations::maps(&device).unwrap_err();
    assert_eq!(shim.disarm().as_deref(), Some("clEnqueueMapBuffer"));
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(error.to_string().contains("and gave nothing"), "{error}");
    works(&device);
}

/// A driver that agrees and makes nothing: no buffer, no queue, no event of a command.
fn an_object_that_is_not_there_is_an_error(shim: &Shim) {
    let device = OpenClDevice::open(0).unwrap();
    works(&device);
    let fills = |device: &Arc<OpenClDevice>| operations::fills(device);
    let streams = |device: &Arc<OpenClDevice>| {
        // As many as were ever idle, so that one is new.
        let streams: Vec<_> = (0..200).map(|_| device.create_stream(Priority::Normal)).collect();
        streams.iter().flatten().for_each(|&stream| device.destroy_stream(stream).unwrap());
        streams.into_iter().collect::<Result<Vec<_>, _>>().map(drop)
    };
    type Act<'a> = &'a dyn Fn(&Arc<OpenClDevice>) -> Result<(), Error>;
    let cases: [(i32, &str, Act<'_>); 4] = [
        (0, "clCreateBuffer", &fills),
        (1, "clEnqueueWriteBuffer", &fills),
        (2, "clEnqueueFillBuffer", &fills),
        (0, "clCreateCommandQueue", &streams),
    ];
    for (passes, function, act) in cases {
        shim.arm(passes, 1, 0);
        let error = act(&device).unwrap_err();
        assert_eq!(shim.disarm().as_deref(), Some(function), "{error}");
        assert!(matches!(error, Error::Lost { .. }), "{function}: {error}");
        assert!(error.to_string().contains(&format!("{function} said")), "{error}");
        assert!(error.to_string().contains("and gave nothing"), "{error}");
        works(&device);
    }
}

/// An event that cannot be asked about may still be to come.
fn work_is_not_over_because_nobody_says_so(shim: &Shim) {
    let device = OpenClDevice::open(0).unwrap();
    let ((open, gate), (ran, runs)) = (channel::<()>(), channel());
    let stream = device.create_stream(Priority::Normal).unwrap();
    let waits = move || {
        let _ = gate.recv();
    };
    let tells = move || {
        let _ = ran.send(());
    };
    device.enqueue_host(Box::new(waits), stream).unwrap();
    shim.hush(true);
    let enqueued = device.enqueue_host(Box::new(tells), stream);
    shim.hush(false);
    enqueued.unwrap();
    let early = runs.recv_timeout(Duration::from_millis(50));
    assert_eq!(early, Err(RecvTimeoutError::Timeout), "a task ran before its turn");
    drop(open);
    device.synchronize_stream(stream).unwrap();
    assert_eq!(runs.recv(), Ok(()));
    device.destroy_stream(stream).unwrap();
}

/// A device whose buffers are aligned to nothing, or to more than it has.
fn an_alignment_that_cannot_be_meant_is_told(shim: &Shim) {
    for bits in [0, 7, 1000, 1 << 30, i64::from(u32::MAX)] {
        shim.align(bits);
        let opened = OpenClDevice::open(0);
        shim.align(-1);
        let error = opened.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(&format!("aligned to {bits} bits")), "{error}");
    }
    works(&OpenClDevice::open(0).unwrap());
}

fn main() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let built = build(folder.path());
    if let Ok(library) = &built {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(forebay_opencl::LIBRARY_VARIABLE, library) };
    }
    let ready = built.and_then(|library| match OpenClDriver::load() {
        Ok(driver) if driver.device_count() > 0 => Ok(Arc::new(Shim::load(&library))),
        Ok(_) => Err("OpenCL shows no device".to_owned()),
        Err(missing) => Err(missing.to_string()),
    });
    let modes = [
        ("", OpenClOptions::new()),
        ("out-of-order/", OpenClOptions::new().out_of_order(true)),
        ("svm/", OpenClOptions::new().svm(true)),
        ("thread/", OpenClOptions::new().host_copies(HostCopies::Thread)),
    ];
    let mut trials = Vec::new();
    for (mode, options) in modes {
        for operation in OPERATIONS {
            let ready = ready.clone();
            let name = format!("{mode}{}", operation.0);
            trials.push(Trial::ignorable_test(name, move || {
                let shim = match ready {
                    Ok(shim) => shim,
                    Err(reason) => {
                        return Ok(Completion::ignored_with(format!("skipped: {reason}")));
                    }
                };
                match OpenClDevice::open_with(0, options) {
                    Ok(device) => refuse_everywhere(&shim, &device, *operation),
                    Err(error) => {
                        return Ok(Completion::ignored_with(format!("skipped: {error}")));
                    }
                }
                Ok(Completion::Completed)
            }));
        }
    }
    let others: [Test; 6] = [
        ("work_is_not_over_because_nobody_says_so", work_is_not_over_because_nobody_says_so),
        ("an_object_that_is_not_there_is_an_error", an_object_that_is_not_there_is_an_error),
        ("an_alignment_that_cannot_be_meant_is_told", an_alignment_that_cannot_be_meant_is_told),
        ("no_memory_from_a_map_is_refused", no_memory_from_a_map_is_refused),
        ("a_copy_that_no_thread_can_make_is_told", a_copy_that_no_thread_can_make_is_told),
        (
            "a_rectangle_that_is_refused_in_every_part_is_an_error",
            a_rectangle_that_is_refused_in_every_part_is_an_error,
        ),
    ];
    for (name, test) in others {
        let ready = ready.clone();
        trials.push(Trial::ignorable_test(name, move || match ready {
            Ok(shim) => {
                test(&shim);
                Ok(Completion::Completed)
            }
            Err(reason) => Ok(Completion::ignored_with(format!("skipped: {reason}"))),
        }));
    }
    let mut arguments = Arguments::from_args();
    // One library refuses for the whole process.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}
