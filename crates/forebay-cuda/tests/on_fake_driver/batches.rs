//! Many copies in one call: by the kernel where it is faster, by the driver elsewhere, and right either way.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers of the tests' own")]

use std::sync::Arc;

use crate::fake_driver::{FakeDriver, hold};
use forebay_core::{Address, Alignment, Bytes};
use forebay_cuda::CudaDevice;
use forebay_cuda::sys::{Code, RawContext, RawStream};
use forebay_hal::{
    Access, Call, Copy, Device, Error, Fill, ForeignStreams, Location, ManagedMemory, Memory,
    PageOptions, Pattern, PinnedFlags, PinnedMemory, Priority, Progress, StreamHandle, Streams,
    Transfers, VirtualMemory, valid_span,
};

/// What the memory of both sides is filled with before.
const BEFORE: u8 = 0xee;

/// Numbers that look random.
fn noise(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |limit| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % limit
    }
}

/// A device with memory of its own and memory of the host, of which nothing is ever given back.
struct Bench {
    fake: FakeDriver,
    device: Arc<CudaDevice>,
    stream: StreamHandle,
    memory: Address,
    /// What is sent.
    host: Address,
    /// What comes back.
    back: Address,
    size: u64,
}

/// How often each way was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ways {
    kernel: u64,
    batch: u64,
    one_by_one: u64,
}

impl Bench {
    fn new(name: &str, size: u64) -> Self {
        Self::with(FakeDriver::load(name).unwrap(), size)
    }

    fn with(fake: FakeDriver, size: u64) -> Self {
        let device = CudaDevice::open_with(fake.driver, 0).unwrap();
        let stream = device.create_stream(Priority::Normal).unwrap();
        let memory = device.allocate(Bytes::new(size), Alignment::BLOCK).unwrap();
        let pinned = || device.allocate_pinned(Bytes::new(size), PinnedFlags::empty()).unwrap();
        let (host, back) = (pinned(), pinned());
        Self { fake, device, stream, memory, host, back, size }
    }

    /// What is on the host's side, which no work uses meanwhile.
    fn on_host(&self, host: Address) -> Vec<u8> {
        let pointer = core::ptr::with_exposed_provenance(host.get() as usize);
        // SAFETY: memory of this size that is never given back.
        unsafe { core::slice::from_raw_parts(pointer, self.size as usize) }.to_vec()
    }

    /// Writes there.
    fn set_host(&self, host: Address, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, self.size);
        let pointer = core::ptr::with_exposed_provenance_mut(host.get() as usize);
        // SAFETY: as above, and as long as the bytes.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer, bytes.len()) };
    }

    /// Random bytes, which are what is sent.
    fn send_noise(&self, seed: u64) -> Vec<u8> {
        let mut random = noise(seed);
        let bytes: Vec<u8> = (0..self.size).map(|_| random(256) as u8).collect();
        self.set_host(self.host, &bytes);
        bytes
    }

    fn up(&self, to: u64, from: u64, size: u64) -> Copy {
        let (to, from) = (Address::new(self.memory.get() + to), self.host.get() + from);
        let from = Location::Host(Address::new(from));
        Copy::linear(Location::Device(to), from, Bytes::new(size)).unwrap()
    }

    fn down(&self, to: u64, from: u64, size: u64) -> Copy {
        let (to, from) = (Address::new(self.back.get() + to), self.memory.get() + from);
        let from = Location::Device(Address::new(from));
        Copy::linear(Location::Host(to), from, Bytes::new(size)).unwrap()
    }

    fn copy_all(&self, copies: &[Copy], stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: memory that is never given back; the tests leave it alone meanwhile.
        unsafe { self.device.copy_all(copies, stream) }
    }

    fn fill(&self, stream: StreamHandle) {
        let fill = Fill::linear(self.memory, Bytes::new(self.size), Pattern::U8(BEFORE)).unwrap();
        // SAFETY: as for `copy_all`.
        unsafe { self.device.fill(&fill, stream) }.unwrap();
    }

    /// What is on the device, after all work.
    fn on_device(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        let to = Location::Host(Address::of_pointer(bytes.as_mut_ptr()));
        let from = Location::Device(self.memory);
        let copy = Copy::linear(to, from, Bytes::new(self.size)).unwrap();
        self.device.synchronize_device().unwrap();
        // SAFETY: as for `copy_all`, and waited for.
        unsafe { self.device.copy(&copy, self.stream) }.unwrap();
        self.device.synchronize_stream(self.stream).unwrap();
        bytes
    }

    fn ways(&self) -> Ways {
        Ways {
            kernel: self.fake.calls_of("cuLaunchKernel"),
            batch: self.fake.calls_of("cuMemcpyBatchAsync"),
            one_by_one: self.fake.calls_of("cuMemcpyAsync"),
        }
    }

    /// The ways that a call takes.
    fn ways_of(&self, work: impl FnOnce()) -> Ways {
        let before = self.ways();
        work();
        let after = self.ways();
        Ways {
            kernel: after.kernel - before.kernel,
            batch: after.batch - before.batch,
            one_by_one: after.one_by_one - before.one_by_one,
        }
    }

    /// Uploads `count` copies of `size` bytes, waits, and checks the bytes. Returns the ways taken.
    fn try_uploads(&self, count: u64, size: u64, stream: StreamHandle) -> Ways {
        let host = self.send_noise(count + size);
        self.fill(stream);
        let copies: Vec<_> =
            (0..count).map(|at| self.up(at * (size + 1), (count - 1 - at) * size, size)).collect();
        let ways = self.ways_of(|| self.copy_all(&copies, stream).unwrap());
        let found = self.on_device();
        for (at, found) in (0..count).zip(found.chunks(size as usize + 1)) {
            let from = ((count - 1 - at) * size) as usize;
            let (found, gap) = found.split_at(size as usize);
            assert!(found == &host[from..from + size as usize], "copy {at} of {count}");
            assert!(gap.iter().all(|&byte| byte == BEFORE), "after copy {at} of {count}");
        }
        ways
    }
}

const KERNEL: Ways = Ways { kernel: 1, batch: 0, one_by_one: 0 };
const BATCH: Ways = Ways { kernel: 0, batch: 1, one_by_one: 0 };

const fn one_by_one(count: u64) -> Ways {
    Ways { kernel: 0, batch: 0, one_by_one: count }
}

/// Spans of random sizes that do not overlap, on two sides: where each begins there, and how long it is.
fn layout(random: &mut impl FnMut(u64) -> u64, room: u64) -> Vec<(u64, u64, u64)> {
    let (mut spans, mut one, mut other) = (Vec::new(), 0, 0);
    // Small ones, with some in between that are cut in pieces.
    while spans.len() < 200 {
        let most = [40, 5000, 5000, 40_000][random(4) as usize];
        let size = random(most);
        (one, other) = (one + random(20), other + random(20));
        if one.max(other) + size > room {
            break;
        }
        spans.push((one, other, size));
        (one, other) = (one + size, other + size);
    }
    // In no order: what is first on one side is anywhere in the list.
    for index in (1..spans.len()).rev() {
        let with = random(index as u64 + 1) as usize;
        spans.swap(index, with);
    }
    spans
}

#[test]
fn random_batches_arrive_in_both_directions_on_every_kind_of_stream() {
    let bench = Bench::new("batch-random", 1 << 20);
    // SAFETY: the value means the stream of whichever thread uses it, which is always there.
    let own = unsafe { bench.device.adopt_stream(RawStream::PER_THREAD.0) }.unwrap();
    for seed in 0..60 {
        let stream = [bench.stream, StreamHandle::DEFAULT, own][seed as usize % 3];
        let mut random = noise(seed + 1);
        let (ups, downs) = (layout(&mut random, bench.size), layout(&mut random, bench.size));
        let source = bench.send_noise(seed);
        bench.set_host(bench.back, &vec![BEFORE; source.len()]);
        let copies = |spans: &[(u64, u64, u64)], copy: &dyn Fn(u64, u64, u64) -> Copy| {
            spans.iter().map(|&(to, from, size)| copy(to, from, size)).collect::<Vec<_>>()
        };
        let uploads = copies(&ups, &|to, from, size| bench.up(to, from, size));
        let downloads = copies(&downs, &|to, from, size| bench.down(to, from, size));
        let ways = bench.ways_of(|| {
            // In the order of the stream, without a wait.
            bench.fill(stream);
            bench.copy_all(&uploads, stream).unwrap();
            bench.copy_all(&downloads, stream).unwrap();
            bench.device.synchronize_stream(stream).unwrap();
        });
        assert_eq!(ways, Ways { kernel: 2, ..KERNEL }, "seed {seed}");
        let mut right = vec![BEFORE; bench.size as usize];
        let mut right_back = right.clone();
        let range = |start: u64, size: u64| start as usize..(start + size) as usize;
        for &(to, from, size) in &ups {
            right[range(to, size)].copy_from_slice(&source[range(from, size)]);
        }
        for &(to, from, size) in &downs {
            right_back[range(to, size)].copy_from_slice(&right[range(from, size)]);
        }
        assert!(bench.on_device() == right, "seed {seed}: other bytes on the device");
        assert!(bench.on_host(bench.back) == right_back, "seed {seed}: other bytes on the host");
    }
}

#[test]
fn the_kernel_copies_where_it_is_faster() {
    let bench = Bench::new("batch-threshold", 2 << 20);
    let stream = bench.stream;
    assert_eq!(bench.try_uploads(7, 4096, stream), BATCH);
    assert_eq!(bench.try_uploads(8, 4096, stream), KERNEL);
    assert_eq!(bench.try_uploads(16, 64 << 10, stream), KERNEL);
    assert_eq!(bench.try_uploads(16, (64 << 10) + 1, stream), BATCH);
    // On a default stream the driver takes no batches, and runs kernels.
    assert_eq!(bench.try_uploads(7, 4096, StreamHandle::DEFAULT), one_by_one(7));
    assert_eq!(bench.try_uploads(8, 4096, StreamHandle::DEFAULT), KERNEL);
    assert_eq!(bench.try_uploads(1, 4096, stream), one_by_one(1));
    // Copies of nothing do not count.
    let mut copies: Vec<_> = (0..7).map(|at| bench.up(at * 100, at * 100, 10)).collect();
    copies.extend((0..7).map(|at| bench.up(at * 100, at * 100, 0)));
    assert_eq!(bench.ways_of(|| bench.copy_all(&copies, stream).unwrap()), BATCH);
    // One large copy is cut, so that it suits the kernel with small ones beside it.
    let mut copies: Vec<_> = (0..20).map(|at| bench.up(at, at, 1)).collect();
    copies.push(bench.up(1000, 1000, 1_000_001));
    assert_eq!(bench.ways_of(|| bench.copy_all(&copies, stream).unwrap()), KERNEL);
    assert!(bench.on_device()[1000..1_001_001] == bench.on_host(bench.host)[1000..1_001_001]);
}

#[test]
fn more_copies_than_one_launch_takes_arrive() {
    let bench = Bench::new("batch-many", 2 << 20);
    let ways = bench.try_uploads(20_000, 97, bench.stream);
    assert_eq!(ways, Ways { kernel: 10, ..KERNEL });
    // What is left over after whole groups goes as few copies do.
    let ways = bench.try_uploads(2 * 2048 + 1, 97, bench.stream);
    assert_eq!(ways, Ways { kernel: 2, one_by_one: 1, batch: 0 });
}

#[test]
fn a_table_is_not_used_again_before_its_kernel_ran() {
    let bench = Bench::new("batch-tables", 1 << 16);
    let other = bench.device.create_stream(Priority::Normal).unwrap();
    let host = bench.send_noise(5);
    bench.fill(bench.stream);
    bench.device.synchronize_device().unwrap();
    let gate = hold(&bench.device, bench.stream);
    // Two batches behind the gate, and one on a stream that goes on.
    let batch = |third: u64| -> Vec<Copy> {
        let starts = (0..100).map(|at| third * 20_000 + at * 200);
        starts.map(|start| bench.up(start, start, 150)).collect()
    };
    bench.copy_all(&batch(0), bench.stream).unwrap();
    bench.copy_all(&batch(1), bench.stream).unwrap();
    bench.copy_all(&batch(2), other).unwrap();
    bench.device.synchronize_stream(other).unwrap();
    assert_eq!(bench.device.query_stream(bench.stream).unwrap(), Progress::Pending);
    drop(gate);
    let found = bench.on_device();
    for (number, start) in (0..300).map(|at| at * 200).enumerate() {
        assert!(found[start..start + 150] == host[start..start + 150], "copy {number}");
        assert!(found[start + 150..start + 200].iter().all(|&byte| byte == BEFORE));
    }
}

#[test]
fn tables_do_not_grow_without_bound() {
    let bench = Bench::new("batch-bound", 1 << 16);
    let copies: Vec<_> = (0..8).map(|at| bench.up(at * 500, at * 500, 300)).collect();
    let gate = hold(&bench.device, bench.stream);
    let alive = bench.fake.alive();
    let ways = bench.ways_of(|| {
        for _ in 0..200 {
            bench.copy_all(&copies, bench.stream).unwrap();
        }
    });
    assert_eq!(ways, Ways { kernel: 64, batch: 136, one_by_one: 0 });
    assert!(bench.fake.alive() <= alive + 64, "{} alive after {alive}", bench.fake.alive());
    drop(gate);
    bench.device.synchronize_device().unwrap();
    assert_eq!(bench.ways_of(|| bench.copy_all(&copies, bench.stream).unwrap()), KERNEL);
    assert!(bench.fake.alive() <= alive + 64, "they are used again");
}

#[test]
fn a_captured_stream_gets_plain_copies_and_no_capture_is_broken() {
    let bench = Bench::new("batch-captured", 1 << 16);
    let table = bench.fake.driver.table();
    let raw = bench.device.raw_stream(bench.stream);
    let copies: Vec<_> = (0..50).map(|at| bench.up(at * 500, at * 500, 300)).collect();
    // SAFETY: the context is live.
    unsafe { table.context_push(RawContext(bench.device.raw_context())) }.unwrap();
    let other = bench.device.create_stream(Priority::Normal).unwrap();
    // While this thread captures a stream, the kernel is loaded and runs on another.
    bench.fake.begin_capture(raw);
    let ways = bench.ways_of(|| bench.copy_all(&copies, other).unwrap());
    assert_eq!(ways, KERNEL);
    assert_eq!(bench.fake.calls_of("cuModuleLoadData"), 1);
    // On the captured one copies are nodes of the graph.
    let ways = bench.ways_of(|| bench.copy_all(&copies, bench.stream).unwrap());
    assert_eq!((ways.kernel, ways.one_by_one + ways.batch * 50), (0, 50));
    assert_eq!(bench.fake.end_capture(raw), Code::SUCCESS);
    bench.device.synchronize_stream(other).unwrap();
    assert_eq!(bench.try_uploads(8, 300, bench.stream), KERNEL);
    // Where a capture forbids work on the default stream, no kernel is tried there.
    let mut blocking = RawStream::NULL;
    // SAFETY: a place of our own.
    unsafe { table.stream_create(&raw mut blocking, 0, 0) }.unwrap();
    bench.fake.begin_capture(blocking.0);
    let ways = bench.ways_of(|| {
        let refused = bench.copy_all(&copies, StreamHandle::DEFAULT).unwrap_err();
        assert!(matches!(refused, Error::Busy { call: Call::Copy, .. }), "{refused}");
    });
    assert_eq!(ways, one_by_one(1));
    bench.fake.end_capture(blocking.0);
    let mut popped = RawContext::NULL;
    // SAFETY: what was pushed above, and a place of our own.
    unsafe { table.context_pop(&raw mut popped) }.unwrap();
}

#[test]
fn a_driver_that_refuses_the_kernel_copies_by_its_own_calls() {
    let bench = Bench::new("batch-refused", 1 << 16);
    // What may pass is tried again.
    bench.fake.fail(Some("cuModuleLoadData"), 0, Code::ERROR_OUT_OF_MEMORY);
    assert_eq!(bench.try_uploads(50, 300, bench.stream), BATCH);
    assert_eq!(bench.try_uploads(50, 300, bench.stream), KERNEL);
    bench.fake.fail(Some("cuLaunchKernel"), 0, Code::ERROR_LAUNCH_OUT_OF_RESOURCES);
    let ways = bench.try_uploads(50, 300, bench.stream);
    assert_eq!(ways, Ways { kernel: 1, batch: 1, one_by_one: 0 }, "a launch that is refused");
    assert_eq!(bench.try_uploads(50, 300, bench.stream), KERNEL);
    assert_eq!(bench.fake.calls_of("cuModuleLoadData"), 2, "it is loaded once");
    // Text that the driver does not take is not tried again.
    for code in [Code::ERROR_NO_BINARY_FOR_GPU, Code::ERROR_UNSUPPORTED_PTX_VERSION] {
        let bench = Bench::new(&format!("batch-refused-{}", code.0), 1 << 16);
        bench.fake.fail(Some("cuModuleLoadData"), 0, code);
        assert_eq!(bench.try_uploads(50, 300, bench.stream), BATCH);
        assert_eq!(bench.try_uploads(50, 300, bench.stream), BATCH);
        assert_eq!(bench.try_uploads(50, 300, StreamHandle::DEFAULT), one_by_one(50));
        assert_eq!(bench.fake.calls_of("cuModuleLoadData"), 1);
    }
}

#[test]
fn drivers_without_what_the_kernel_takes_copy_by_their_own_calls() {
    for lacks in [
        "cuLaunchKernel",
        "cuModuleLoadData",
        "cuStreamIsCapturing",
        "cuThreadExchangeStreamCaptureMode",
    ] {
        let fake = FakeDriver::load_with(&format!("batch-{lacks}"), 13_000, 1, &[lacks]).unwrap();
        let bench = Bench::with(fake, 1 << 16);
        assert_eq!(bench.try_uploads(50, 300, bench.stream), BATCH, "without {lacks}");
    }
    // And one from before batches runs the kernel.
    let fake = FakeDriver::load_with("batch-old", 12_000, 1, &[]).unwrap();
    let bench = Bench::with(fake, 1 << 16);
    assert_eq!(bench.try_uploads(7, 300, bench.stream), one_by_one(7));
    assert_eq!(bench.try_uploads(50, 300, bench.stream), KERNEL);
}

#[test]
fn memory_that_kernels_may_not_use_by_its_address_is_left_to_the_driver() {
    let mut bench = Bench::new("batch-kinds", 1 << 21);
    let size = Bytes::new(bench.size);
    let combined = bench.device.allocate_pinned(size, PinnedFlags::WRITE_COMBINED).unwrap();
    let managed = bench.device.allocate_managed(size).unwrap();
    let ordinary = vec![0_u8; bench.size as usize].leak();
    let ordinary = Address::of_pointer(ordinary.as_ptr());
    let span = valid_span(Call::Register, "span", ordinary, size).unwrap();
    // SAFETY: leaked, so that it stays mapped.
    unsafe { bench.device.register(span, PinnedFlags::empty()) }.unwrap();
    for (host, way) in [(combined, BATCH), (managed, BATCH), (ordinary, KERNEL)] {
        bench.host = host;
        assert_eq!(bench.try_uploads(50, 300, bench.stream), way, "{host}");
    }
}

/// Pages side by side with access for the device.
fn mapped(device: &CudaDevice, pages: u64, options: PageOptions) -> Address {
    let page = Bytes::mib(2);
    let region = device.reserve(Bytes::new(page.get() * pages), Alignment::ONE).unwrap();
    for number in 0..pages {
        let made = device.create_page(page, options).unwrap();
        device.map(Address::new(region.start().get() + number * page.get()), made).unwrap();
    }
    // SAFETY: nobody uses the region yet.
    unsafe { device.set_access(region, Access::ReadWrite, device.descriptor().ordinal) }.unwrap();
    region.start()
}

#[test]
fn mapped_pages_are_copied_across_their_borders() {
    let mut bench = Bench::new("batch-pages", 4 << 20);
    bench.memory = mapped(&bench.device, 2, PageOptions::default());
    // Copy 409 lies across the border of the pages.
    assert_eq!(bench.try_uploads(800, 5119, bench.stream), KERNEL);
    bench.host = mapped(&bench.device, 2, PageOptions::pinned());
    assert_eq!(bench.try_uploads(800, 5119, bench.stream), KERNEL);
    // Where a part has no access, the copies are refused as ever.
    let second = Address::new(bench.memory.get() + (2 << 20));
    let span = valid_span(Call::SetAccess, "span", second, Bytes::mib(2)).unwrap();
    let ordinal = bench.device.descriptor().ordinal;
    // SAFETY: all work is done.
    unsafe { bench.device.set_access(span, Access::Read, ordinal) }.unwrap();
    let copies: Vec<_> = (0..800).map(|at| bench.up(at * 5120, at * 5120, 5119)).collect();
    let error = bench.copy_all(&copies, bench.stream).unwrap_err();
    assert!(matches!(error, Error::Invalid { call: Call::Copy, .. }), "{error}");
}

#[test]
fn a_batch_with_memory_of_nobody_is_refused() {
    let bench = Bench::new("batch-nobody", 1 << 16);
    let mut copies: Vec<_> = (0..50).map(|at| bench.up(at * 500, at * 500, 300)).collect();
    copies.push(bench.up((1 << 16) - 100, 0, 300));
    let error = bench.copy_all(&copies, bench.stream).unwrap_err();
    assert!(matches!(error, Error::Invalid { call: Call::Copy, .. }), "{error}");
    assert_eq!(bench.fake.calls_of("cuLaunchKernel"), 0);
}
