//! Tools that the stress workloads share: clocks, devices, counts, targets.

use core::fmt::Display;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Instant;

use forebay::{MemoryClass, Pool, PoolOptions};
use forebay_core::{Bytes, KIB};
use forebay_hal::{Call, Device, StreamHandle};
use forebay_sim::{CallCounts, MemoryModel, SimMachine};

use crate::bench::row::{Each, Figures, Row, Target};
use crate::bench::setup::{BenchSetup, Effort, clock_overhead};
use crate::layout::grouped;
use crate::output::{Fault, nanos};
use crate::replay::simulated;

/// The size of the pairs: every thread cache holds it.
pub(super) const PAIR: Bytes = Bytes::new(4 * KIB);

/// Stacks of threads that do nothing but pairs: 10,000 of them are 1.2 GiB of addresses.
pub(super) const STACK: usize = 128 << 10;

/// A row for the pool.
pub(super) fn new_row(setup: BenchSetup<'_>, case: impl Into<String>) -> Row {
    row_of(setup, case, "forebay")
}

/// A row for `allocator`. The workload's name is entered when it has been measured.
pub(super) fn row_of(
    setup: BenchSetup<'_>,
    case: impl Into<String>,
    allocator: &'static str,
) -> Row {
    let figures = Some(Figures::default());
    Row { figures, rounds: 1, ..Row::of("", case, setup, allocator) }
}

impl Row {
    /// Times operations one by one: so many, or as many as there is time for in these seconds, which the row then says.
    pub(super) fn time(
        &mut self,
        setup: BenchSetup<'_>,
        seconds: u64,
        most: usize,
        mut operation: impl FnMut(usize, &mut Times) -> Result<(), Fault>,
    ) -> Result<Times, Fault> {
        let deadline = Deadline::after(setup.effort, seconds);
        let mut times = Times::default();
        for number in 0..most {
            operation(number, &mut times)?;
            if deadline.is_over() && number + 1 < most {
                self.cut_off(deadline.cut(format_args!("{} of {most} operations", number + 1)));
                break;
            }
        }
        Ok(times)
    }

    /// Says why the case was left out or cut short, unless there is a reason already.
    pub(super) fn cut_off(&mut self, why: String) {
        self.figures().cut_off.get_or_insert(why);
    }

    /// The figures of a row of this family.
    pub(super) fn figures(&mut self) -> &mut Figures {
        self.figures.get_or_insert_default()
    }

    /// Sets a bound on a figure of the row.
    pub(super) fn aim(&mut self, what: impl Into<String>, value: Option<f64>, at_most: f64) {
        let figures = self.figures();
        figures.targets.push(Target { what: what.into(), value, at_most });
        let met: Option<Vec<bool>> = figures.targets.iter().map(Target::is_met).collect();
        figures.ok = met.map(|met| met.iter().all(|&met| met));
    }

    /// The middle operation without the reading of the clock.
    pub(super) fn median_ns(&self) -> Option<f64> {
        let each = self.each?;
        Some(each.p50_ns.saturating_sub(each.clock_ns).max(1) as f64)
    }
}

/// One figure over another.
pub(super) fn ratio(this: Option<f64>, that: Option<f64>) -> Option<f64> {
    this.zip(that.filter(|&that| that > 0.0)).map(|(this, that)| this / that)
}

/// Operations timed one by one.
#[derive(Default)]
pub(super) struct Times(Vec<u64>);

impl Times {
    /// Times one operation.
    #[inline]
    pub(super) fn time<T>(&mut self, operation: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = operation();
        self.push(nanos(began.elapsed()));
        result
    }

    /// Adds a time that was taken elsewhere.
    pub(super) fn push(&mut self, nanos: u64) {
        self.0.push(nanos);
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The longest.
    pub(super) fn most(&self) -> Option<u64> {
        self.0.iter().copied().max()
    }

    /// The shortest.
    pub(super) fn least(&self) -> Option<u64> {
        self.0.iter().copied().min()
    }

    /// Fills in how many there were, their mean and their quantiles.
    pub(super) fn enter(self, row: &mut Row) {
        let sum: f64 = self.0.iter().map(|&nanos| nanos as f64).sum();
        row.ops = self.count();
        row.ns_per_op = (row.ops > 0).then(|| sum / row.ops as f64);
        row.each = Each::of(self.0, clock_overhead());
    }
}

/// When a case is cut off.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    began: Instant,
    allowed: Duration,
}

impl Deadline {
    /// So many seconds from now; few where the run is to be quick.
    pub(super) fn after(effort: Effort, seconds: u64) -> Self {
        let allowed = match effort {
            Effort::Full => Duration::from_secs(seconds),
            Effort::Quick => Duration::from_millis(500),
        };
        Self { began: Instant::now(), allowed }
    }

    /// Whether the time is over.
    pub(super) fn is_over(self) -> bool {
        self.began.elapsed() >= self.allowed
    }

    /// "cut off after 5.0 s: " and how far it came.
    pub(super) fn cut(self, how_far: impl Display) -> String {
        format!("cut off after {:.1} s: {how_far}", self.began.elapsed().as_secs_f64())
    }
}

/// A simulated device of so many GiB, and the machine that counts its calls.
pub(super) fn phantom(gib: u64) -> Result<(SimMachine, Arc<dyn Device>), Fault> {
    simulated(Some(Bytes::gib(gib)), MemoryModel::Phantom)
}

/// A pool of `class` with the settings in force.
pub(super) fn pool_of(
    setup: BenchSetup<'_>,
    device: &Arc<dyn Device>,
    class: MemoryClass,
) -> Result<Pool, Fault> {
    Ok(PoolOptions::with(setup.settings.clone()).class(class).build(device)?)
}

/// Allocations that grow the pool, with a pause after each, so that the scheduler owes the thread time.
pub(super) fn grow(
    setup: BenchSetup<'_>,
    pool: &Pool,
    (size, growths, pause): (Bytes, u32, Duration),
    row: &mut Row,
) -> Result<Times, Fault> {
    row.time(setup, 15, growths as usize, |_, times| {
        times.time(|| pool.allocate(size, StreamHandle::DEFAULT))?;
        sleep(pause);
        Ok(())
    })
}

/// Calls with which the host waits for the device.
pub(super) fn host_waits(calls: &CallCounts) -> u64 {
    [Call::SynchronizeEvent, Call::SynchronizeStream, Call::SynchronizeDevice]
        .map(|call| calls.of(call))
        .iter()
        .sum()
}

/// So many pairs one after the other.
pub(super) fn pairs(pool: &Pool, stream: StreamHandle, count: u32) -> Result<Duration, Fault> {
    let began = Instant::now();
    for _ in 0..count {
        let block = pool.allocate(PAIR, stream)?;
        pool.free(block.address(), stream)?;
    }
    Ok(began.elapsed())
}

/// A figure of the process by its key in /proc/self/status: VmRSS, what it has in main memory, or
/// VmSize, its addresses. `None` where the system has no such file.
pub(super) fn process_bytes(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(KIB)
}

/// Holds threads until it is opened.
#[derive(Default)]
pub(super) struct Latch {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    /// Waits until it is open.
    pub(super) fn wait(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while !*open {
            open = self.opened.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets all of them continue.
    pub(super) fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

/// Opens a gate when it goes, so that no early return leaves threads waiting.
pub(super) struct OpensAtEnd<'a>(pub(super) &'a Latch);

impl Drop for OpensAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// "1 stream", "1,024 streams".
pub(super) fn counted(number: usize, what: &str) -> String {
    forebay_core::counted(grouped(number), what)
}
