//! The memory of a slice is used again only after the work that used it, on whichever stream that was.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaFunction, CudaStream, DevicePtrMut, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use forebay_cudarc::{AdoptedStream, Slice};

use crate::driver::{Bench, LENGTH, fail, hold};
use crate::{Case, Needs};

pub(crate) const CASES: &[Case] = &[
    ("copies_on_two_streams_end_before_the_memory_is_reused", copies_on_two_streams, Needs::Any),
    ("copies_of_views_end_before_the_memory_is_reused", copies_of_views, Needs::Any),
    ("kernels_end_before_the_memory_is_reused", kernels, Needs::Any),
    ("noted_streams_end_before_the_memory_is_reused", noted_streams, Needs::Any),
    ("kernels_of_destroyed_streams_end_first", kernels_of_destroyed_streams, Needs::Any),
    ("copies_of_destroyed_streams_end_first", copies_of_destroyed_streams, Needs::Any),
    ("writes_wait_for_reads_of_all_streams", writes_wait, Needs::Any),
    ("reads_of_a_stream_and_of_its_successor_end_first", reused_handles, Needs::FakeDriverAlone),
    ("reads_end_first_where_a_writes_guard_is_forgotten", forgotten_guards, Needs::Any),
    ("kernels_that_write_wait_for_copies", kernels_that_write, Needs::Any),
    ("copies_on_the_per_thread_stream_are_waited_for", per_thread_copies, Needs::Any),
    ("noted_per_thread_streams_are_waited_for", noted_per_thread_streams, Needs::Any),
    ("new_memory_waits_for_earlier_work_of_its_stream", new_memory, Needs::Any),
    ("a_drop_waits_where_the_driver_records_nothing", refused_events, Needs::FakeDriverAlone),
    ("a_drop_waits_where_a_copy_recorded_nothing", unrecorded_copies, Needs::FakeDriverAlone),
    ("memory_that_may_be_in_use_is_not_given_back", lost_order, Needs::FakeDriverAlone),
];

const OLD: u32 = 7;

/// Long beside all that does not wait.
const MOMENT: Duration = Duration::from_millis(60);

/// Frees `slice`, writes zeros to the same memory on its stream, and opens the gates only then.
fn reuse<T: forebay::handle::Pod>(
    bench: &Bench,
    home: &Arc<AdoptedStream>,
    slice: Slice<T>,
    gates: Vec<Sender<()>>,
) {
    let (address, length) = (slice.address(), slice.len() * size_of::<T>());
    drop(slice);
    let mut again = home.slice::<u8, _>(&bench.pool, length).unwrap();
    assert_eq!(again.address(), address, "the memory is the next to be used");
    home.cuda().memset_zeros(&mut again).unwrap();
    std::thread::sleep(MOMENT);
    drop(gates);
    assert_eq!(home.cuda().clone_dtoh(&again).unwrap(), vec![0; length]);
}

fn assert_old(stream: &Arc<CudaStream>, slice: &Slice<u32>) {
    let values = stream.clone_dtoh(slice).unwrap();
    let wrong = values.iter().filter(|&&value| value != OLD).count();
    assert_eq!(wrong, 0, "of {LENGTH} values were read from memory that was in use again");
}

fn copies_on_two_streams() {
    let bench = Bench::new();
    let [home, one, other] = [(); 3].map(|()| bench.stream());
    let slice = bench.filled(&home, OLD);
    let mut copies = [&one, &other].map(|stream| bench.filled(stream, 0));
    let gates = vec![hold(&one), hold(&other)];
    for (stream, copy) in [&one, &other].into_iter().zip(&mut copies) {
        stream.cuda().memcpy_dtod(&slice, copy).unwrap();
    }
    // The last read is on the slice's own stream: cudarc would remember that alone.
    let mut third = bench.filled(&home, 0);
    home.cuda().memcpy_dtod(&slice, &mut third).unwrap();
    reuse(&bench, &home, slice, gates);
    for copy in &copies {
        assert_old(home.cuda(), copy);
    }
}

fn copies_of_views() {
    let bench = Bench::new();
    let [home, one, other] = [(); 3].map(|()| bench.stream());
    let slice = bench.filled(&home, OLD);
    let mut copies = [&one, &other].map(|stream| bench.filled(stream, 0));
    let gates = vec![hold(&one), hold(&other)];
    for (stream, copy) in [&one, &other].into_iter().zip(&mut copies) {
        let (from, mut to) = (slice.slice(..), copy.slice_mut(..));
        let (from, to) = (from.as_ref().unwrap(), to.as_mut().unwrap());
        stream.cuda().memcpy_dtod(from, to).unwrap();
    }
    reuse(&bench, &home, slice, gates);
    for copy in &copies {
        assert_old(home.cuda(), copy);
    }
}

/// forebay's kernel that copies what a table of addresses and sizes names: a wrong table shows.
fn copy_kernel(bench: &Bench) -> CudaFunction {
    let text = include_str!("../../../forebay-cuda/kernels/copy.ptx");
    let module = bench.context.load_module(Ptx::from_src(text)).unwrap();
    module.load_function("forebay_copy").unwrap()
}

/// A table for that kernel.
fn table(
    bench: &Bench,
    home: &Arc<AdoptedStream>,
    to: &Slice<u32>,
    from: &Slice<u32>,
) -> Slice<u64> {
    let bytes = size_of::<[u32; LENGTH]>() as u64;
    let mut table = home.slice::<u64, _>(&bench.pool, 3).unwrap();
    let values = [to.address().get(), from.address().get(), bytes];
    home.cuda().memcpy_htod(&values, &mut table).unwrap();
    table
}

fn launch(stream: &CudaStream, kernel: &CudaFunction, table: &Slice<u64>) {
    let (count, shape) = (1_u32, LaunchConfig::for_num_elems(32));
    let mut launch = stream.launch_builder(kernel);
    // SAFETY: the kernel takes a table and its length; source and destination outlive the work.
    unsafe { launch.arg(table).arg(&count).launch(shape) }.unwrap();
}

fn kernels() {
    let bench = Bench::new();
    let kernel = copy_kernel(&bench);
    let [home, other] = [(); 2].map(|()| bench.stream());
    let (from, to) = (bench.filled(&other, OLD), bench.filled(&other, 0));
    let table = table(&bench, &home, &to, &from);
    let gates = vec![hold(&other)];
    launch(other.cuda(), &kernel, &table);
    reuse(&bench, &home, table, gates);
    other.cuda().synchronize().unwrap();
    assert_old(other.cuda(), &to);
}

fn noted_streams() {
    let bench = Bench::new();
    // SAFETY: the streams are noted below, which is all the order that is needed.
    unsafe { bench.context.disable_event_tracking() };
    let kernel = copy_kernel(&bench);
    let [home, one, other] = [(); 3].map(|()| bench.stream());
    let from = bench.filled(&home, OLD);
    let copies = [&one, &other].map(|stream| bench.filled(stream, 0));
    let tables = copies.each_ref().map(|to| table(&bench, &home, to, &from));
    bench.context.synchronize().unwrap();
    let gates = vec![hold(&one), hold(&other)];
    for (stream, table) in [&one, &other].into_iter().zip(&tables) {
        launch(stream.cuda(), &kernel, table);
        table.used_on(stream.cuda());
    }
    let [first, second] = tables;
    let address = second.address();
    drop(second);
    let mut again = home.slice::<u64, _>(&bench.pool, 3).unwrap();
    assert_eq!(again.address(), address);
    home.cuda().memset_zeros(&mut again).unwrap();
    reuse(&bench, &home, first, gates);
    for (stream, copy) in [&one, &other].into_iter().zip(&copies) {
        stream.cuda().synchronize().unwrap();
        assert_old(stream.cuda(), copy);
    }
}

/// A bench whose context has a stream besides the default one, until that is dropped; and one that has its own.
fn with_one_stream() -> (Bench, Arc<AdoptedStream>, Arc<AdoptedStream>, Arc<AdoptedStream>) {
    let (bench, theirs) = (Bench::new(), Bench::new());
    let home = AdoptedStream::new(&bench.device, &bench.context.default_stream()).unwrap();
    let (keeper, other) = (theirs.stream(), bench.stream());
    (bench, home, keeper, other)
}

fn kernels_of_destroyed_streams() {
    let (bench, home, keeper, other) = with_one_stream();
    let kernel = copy_kernel(&bench);
    let (from, to) = (bench.filled(&keeper, OLD), bench.filled(&keeper, 0));
    let table = table(&bench, &home, &to, &from);
    // The kernel finds them by address: nothing orders it after they were filled.
    keeper.cuda().synchronize().unwrap();
    let gates = vec![hold(&other)];
    launch(other.cuda(), &kernel, &table);
    drop(other);
    assert!(!bench.context.is_managing_stream_synchronization());
    reuse(&bench, &home, table, gates);
    bench.context.synchronize().unwrap();
    assert_old(keeper.cuda(), &to);
}

fn copies_of_destroyed_streams() {
    let (bench, home, keeper, other) = with_one_stream();
    let (slice, mut copy) = (bench.filled(&home, OLD), bench.filled(&keeper, 0));
    let gates = vec![hold(&other)];
    other.cuda().memcpy_dtod(&slice, &mut copy).unwrap();
    drop(other);
    assert!(!bench.context.is_managing_stream_synchronization());
    reuse(&bench, &home, slice, gates);
    bench.context.synchronize().unwrap();
    assert_old(keeper.cuda(), &copy);
}

fn writes_wait() {
    let bench = Bench::new();
    let [home, one, other] = [(); 3].map(|()| bench.stream());
    let mut slice = bench.filled(&home, OLD);
    let mut copies = [&one, &other].map(|stream| bench.filled(stream, 0));
    let mut zeros = bench.filled(&home, 0);
    let gates = [hold(&one), hold(&other)];
    for (stream, copy) in [&one, &other].into_iter().zip(&mut copies) {
        stream.cuda().memcpy_dtod(&slice, copy).unwrap();
    }
    home.cuda().memcpy_dtod(&zeros, &mut slice).unwrap();
    // And the other way round: what reads after the write waits for it.
    home.cuda().memset_zeros(&mut zeros).unwrap();
    std::thread::sleep(MOMENT);
    drop(gates);
    for copy in &copies {
        assert_old(home.cuda(), copy);
    }
    assert_eq!(one.cuda().clone_dtoh(&slice).unwrap(), [0; LENGTH]);
}

/// Drivers give a new stream the handle of a destroyed one, whose work may still be to do.
fn reused_handles() {
    let bench = Bench::new();
    let [home, writer, reader] = [(); 3].map(|()| bench.stream());
    let mut slice = bench.filled(&home, OLD);
    let mut copies = [(); 2].map(|()| bench.filled(&home, 0));
    bench.context.synchronize().unwrap();
    let (handle, gate) = (reader.handle(), hold(&reader));
    let [first, second] = &mut copies;
    reader.cuda().memcpy_dtod(&slice, first).unwrap();
    drop(reader);
    let successor = bench.stream();
    assert_eq!(successor.handle(), handle);
    successor.cuda().memcpy_dtod(&slice, second).unwrap();
    writer.cuda().memset_zeros(&mut slice).unwrap();
    std::thread::sleep(MOMENT);
    drop(gate);
    bench.context.synchronize().unwrap();
    for copy in &copies {
        assert_old(home.cuda(), copy);
    }
}

fn forgotten_guards() {
    let bench = Bench::new();
    let [home, reader, writer] = [(); 3].map(|()| bench.stream());
    let mut slice = bench.filled(&home, OLD);
    let mut copy = bench.filled(&reader, 0);
    let gates = vec![hold(&reader)];
    reader.cuda().memcpy_dtod(&slice, &mut copy).unwrap();
    // Nothing is written, and no event tells that.
    let (_, guard) = slice.device_ptr_mut(writer.cuda());
    core::mem::forget(guard);
    reuse(&bench, &home, slice, gates);
    assert_old(home.cuda(), &copy);
}

fn kernels_that_write() {
    let bench = Bench::new();
    let kernel = copy_kernel(&bench);
    let [home, reader, writer] = [(); 3].map(|()| bench.stream());
    // The kernel reads its table by an argument that is said to be written: what matters is the order.
    let (from, to) = (bench.filled(&home, OLD), bench.filled(&home, 0));
    let mut table = table(&bench, &home, &to, &from);
    let mut copy = reader.slice::<u64, _>(&bench.pool, 3).unwrap();
    let gate = hold(&reader);
    reader.cuda().memcpy_dtod(&table, &mut copy).unwrap();
    let (count, shape) = (1_u32, LaunchConfig::for_num_elems(32));
    let mut launch = writer.cuda().launch_builder(&kernel);
    // SAFETY: the kernel takes a table and its length; source and destination outlive the work.
    unsafe { launch.arg(&mut table).arg(&count).launch(shape) }.unwrap();
    std::thread::sleep(MOMENT);
    let state = writer.stream().query().unwrap();
    assert_eq!(state, forebay::hal::Progress::Pending, "it did not wait for the copy");
    drop(gate);
    writer.cuda().synchronize().unwrap();
    assert_old(home.cuda(), &to);
}

fn per_thread_copies() {
    let bench = Bench::new();
    let home = bench.stream();
    let slice = bench.filled(&home, OLD);
    let own = AdoptedStream::new(&bench.device, &bench.context.per_thread_stream()).unwrap();
    let mut copy = bench.filled(&home, 0);
    let (gate, begin) = (hold(&own), Instant::now());
    let opener = open_later(gate);
    own.cuda().memcpy_dtod(&slice, &mut copy).unwrap();
    assert!(begin.elapsed() >= MOMENT, "no event can be recorded on it by other threads");
    opener.join().unwrap();
    reuse(&bench, &home, slice, Vec::new());
    assert_old(home.cuda(), &copy);
}

fn noted_per_thread_streams() {
    let bench = Bench::new();
    let kernel = copy_kernel(&bench);
    let home = AdoptedStream::new(&bench.device, &bench.context.default_stream()).unwrap();
    // Without a stream of its own the context tracks nothing, and the legacy default stream waits for all threads' own:
    // so the slice belongs to a stream that does not.
    let other = Bench::new().stream();
    let (from, to) = (bench.filled(&home, OLD), bench.filled(&home, 0));
    let table = table(&bench, &other, &to, &from);
    bench.context.synchronize().unwrap();
    let own = AdoptedStream::new(&bench.device, &bench.context.per_thread_stream()).unwrap();
    let (gate, begin) = (hold(&own), Instant::now());
    let opener = open_later(gate);
    launch(own.cuda(), &kernel, &table);
    table.used_on(own.cuda());
    // Another thread, which has another default stream.
    std::thread::scope(|scope| scope.spawn(|| drop(table)).join().unwrap());
    assert!(begin.elapsed() >= MOMENT, "it did not wait for the kernel");
    opener.join().unwrap();
    own.cuda().synchronize().unwrap();
    assert_old(home.cuda(), &to);
}

/// Opens a gate while the caller waits for it.
fn open_later(gate: Sender<()>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(MOMENT);
        drop(gate);
    })
}

fn new_memory() {
    let bench = Bench::new();
    let [home, other] = [(); 2].map(|()| bench.stream());
    let old = bench.filled(&home, OLD);
    let mut copy = bench.filled(&home, 0);
    let gate = hold(&home);
    home.cuda().memcpy_dtod(&old, &mut copy).unwrap();
    let address = old.address();
    drop(old);
    // Free in the order of `home`, whose work is held back; another stream writes to it first.
    let mut again = home.slice::<u32, _>(&bench.pool, LENGTH).unwrap();
    assert_eq!(again.address(), address);
    other.cuda().memset_zeros(&mut again).unwrap();
    std::thread::sleep(MOMENT);
    drop(gate);
    assert_old(home.cuda(), &copy);
}

fn refused_events() {
    let bench = Bench::new();
    let [home, other] = [(); 2].map(|()| bench.stream());
    let slice = bench.filled(&home, OLD);
    let mut copy = bench.filled(&other, 0);
    let gate = hold(&other);
    other.cuda().memcpy_dtod(&slice, &mut copy).unwrap();
    fail("cuStreamWaitEvent", 0);
    let begin = Instant::now();
    let opener = open_later(gate);
    drop(slice);
    assert!(begin.elapsed() >= MOMENT, "it did not wait for the copy");
    opener.join().unwrap();
    assert_eq!(crate::driver::clear_faults(), 0);
    bench.context.check_err().unwrap();
    assert_old(other.cuda(), &copy);
}

fn unrecorded_copies() {
    let bench = Bench::new();
    let [home, other] = [(); 2].map(|()| bench.stream());
    let slice = bench.filled(&home, OLD);
    let mut copy = bench.filled(&other, 0);
    let gate = hold(&other);
    // The first event is that of the copy's destination.
    fail("cuEventRecord", 1);
    other.cuda().memcpy_dtod(&slice, &mut copy).unwrap();
    assert_eq!(crate::driver::clear_faults(), 0);
    let begin = Instant::now();
    let opener = open_later(gate);
    drop(slice);
    assert!(begin.elapsed() >= MOMENT, "it did not wait for the copy");
    opener.join().unwrap();
    bench.context.check_err().unwrap_err();
    assert_old(other.cuda(), &copy);
}

fn lost_order() {
    let bench = Bench::new();
    let [home, other] = [(); 2].map(|()| bench.stream());
    let slice = bench.filled(&home, OLD);
    let mut copy = bench.filled(&other, 0);
    let gate = hold(&other);
    other.cuda().memcpy_dtod(&slice, &mut copy).unwrap();
    let (live, size) = (bench.pool.statistics().live, slice.block().unwrap().size());
    fail("cuStreamWaitEvent", 0);
    fail("cuCtxSynchronize", 0);
    drop(slice);
    assert_eq!(crate::driver::clear_faults(), 0);
    assert_eq!(bench.pool.statistics().live, live, "{size} that the device may use stay");
    drop(gate);
    assert_old(other.cuda(), &copy);
}
