//! Every aid catches the mistake it is for, and takes nothing right for one.

mod correct;
mod faults;
mod guards;
mod hosted;
mod mistakes;
mod streams;
mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::address_space::Growth;
use forebay_core::{Address, Bytes, PageSize, Random, Span};
use forebay_hal::{Device, EventKind, StreamHandle, Streams};
use forebay_sim::{Kernel, SimDevice, SimMachine, SimOptions};

use crate::config::{Counting, Preset, SettingsBuilder, Zeroing};
use crate::{Block, Pool, PoolOptions};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// A change of settings.
type Change = fn(SettingsBuilder) -> SettingsBuilder;

/// A simulated device and a pool on it.
struct Stage {
    machine: SimMachine,
    device: Arc<SimDevice>,
    pool: Pool,
}

fn small_machine(seed: u64) -> SimOptions {
    SimMachine::builder().seed(seed).granularity(PageSize::HOST).capacity(Bytes::mib(4))
}

/// Pages small enough that programs of a few megabytes have many.
fn small_pages() -> PoolOptions {
    let mut growth = Growth::default();
    growth.largest_page = Bytes::new(64 << 10);
    // By what the program holds alone: these devices are tiny.
    growth.reach_part = 1;
    PoolOptions::new().growth(growth)
}

impl Stage {
    fn new(machine: SimOptions, options: PoolOptions) -> Self {
        let machine = machine.build().unwrap();
        let device = machine.device(0).unwrap();
        let shared: Arc<dyn Device> = device.clone();
        let pool = options.build(&shared).unwrap();
        Self { machine, device, pool }
    }

    /// One with plenty of memory.
    fn with(change: Change) -> Self {
        Self::new(SimMachine::builder(), PoolOptions::new().set(change))
    }

    fn write(&self, span: Span, byte: u8, stream: StreamHandle) {
        write(&self.device, span, byte, stream);
    }

    fn count_other(&self, span: Span, byte: u8, stream: StreamHandle) -> u64 {
        let count = Arc::new(AtomicU64::new(0));
        count_other(&self.device, span, byte, stream, &count);
        self.device.synchronize_stream(stream).unwrap();
        count.load(Ordering::Relaxed)
    }

    fn assert_no_findings(&self) {
        assert_eq!(self.machine.finding_count(), 0, "{}", self.machine.findings()[0]);
        assert_eq!(self.pool.findings(), []);
    }
}

fn span_of(block: Block) -> Span {
    Span::new(block.address(), block.size()).unwrap()
}

fn span(start: Address, size: u64) -> Span {
    Span::new(start, Bytes::new(size)).unwrap()
}

/// `size` bytes, `offset` bytes into a block.
fn part(block: Block, offset: u64, size: u64) -> Span {
    span(block.address().checked_add(Bytes::new(offset)).unwrap(), size)
}

/// Writes `byte` over `span`, in the order of a stream.
fn write(device: &SimDevice, span: Span, byte: u8, stream: StreamHandle) {
    let size = usize::try_from(span.size().get()).unwrap();
    let kernel = Kernel::new(format!("write {byte}")).writes(span).body(move |memory| {
        assert!(memory.write(span, &vec![byte; size]));
    });
    // SAFETY: the memory is mapped until the pool has seen the end of the work on it, or the mistake
    // is the point of the test: then the simulation tells, and harms nobody.
    unsafe { device.launch(kernel, stream) }.unwrap();
}

/// Counts the bytes of `span` that are not `byte`, in the order of a stream.
fn count_other(
    device: &SimDevice,
    span: Span,
    byte: u8,
    stream: StreamHandle,
    count: &Arc<AtomicU64>,
) {
    let count = Arc::clone(count);
    let kernel = Kernel::new(format!("check {byte}")).reads(span).body(move |memory| {
        let bytes = memory.read(span).unwrap();
        let other = bytes.iter().filter(|&&found| found != byte).count();
        count.fetch_add(other as u64, Ordering::Relaxed);
    });
    // SAFETY: as for writing.
    unsafe { device.launch(kernel, stream) }.unwrap();
}

/// Makes later work on `to` wait for what is enqueued on `from`.
fn order(device: &SimDevice, from: StreamHandle, to: StreamHandle) {
    let event = device.create_event(EventKind::Order).unwrap();
    device.record_event(event, from).unwrap();
    device.wait_event(to, event).unwrap();
    device.destroy_event(event).unwrap();
}

/// A size of any magnitude up to a power of two.
fn size_up_to(random: &mut Random, most: u64) -> Bytes {
    let magnitude = random.between(4, most);
    Bytes::new(1 + random.below(1 << magnitude))
}

/// Every aid alone, and those that meet.
const COMBINATIONS: &[(&str, Change)] = &[
    ("zero pages", |settings| settings.zero(Zeroing::Pages)),
    ("zero blocks", |settings| settings.zero(Zeroing::Blocks)),
    ("poison", |settings| settings.poison(true)),
    ("canaries", |settings| settings.canaries(true)),
    ("quarantine", |settings| settings.quarantine(Bytes::new(200 << 10))),
    ("strict streams", |settings| settings.strict_streams(true)),
    ("exact", |settings| settings.statistics(Counting::Exact)),
    ("guard pages", |settings| settings.guard_pages(true)),
    ("poison, quarantine", |settings| {
        settings.poison(true).quarantine(Bytes::new(200 << 10)).zero(Zeroing::Pages)
    }),
    ("all in the heap", |settings| {
        settings
            .poison(true)
            .canaries(true)
            .quarantine(Bytes::new(200 << 10))
            .strict_streams(true)
            .zero(Zeroing::Blocks)
            .statistics(Counting::Exact)
            .history(100_u64)
    }),
    ("the preset", |settings| settings.preset(Preset::Debug)),
];
