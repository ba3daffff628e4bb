//! Tools that the RIM workloads share: clocks, devices, counts, targets.

use core::fmt::Display;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use forebay::{MemoryClass, Pool, PoolOptions};
use forebay_core::{Bytes, KIB};
use forebay_hal::{Call, Device, Priority, Stream, StreamHandle};
use forebay_sim::{CallCounts, MemoryModel, SimMachine};

use crate::bench::ground::{BenchSetup, Effort, clock_overhead};
use crate::bench::row::{Each, Figures, Row, Target};

/// The size of the pairs: every thread cache holds it.
pub(super) const PAIR: Bytes = Bytes::new(4 * KIB);

/// Stacks of threads that do nothing but pairs: 10,000 of them are 1.2 GiB of addresses.
pub(super) const STACK: usize = 128 << 10;

impl Row {
    /// The figures of a row of this family.
    pub(super) fn figures(&mut self) -> &mut Figures {
        self.figures.get_or_insert_default()
    }

    /// Sets a bound on a figure of the row.
    pub(super) fn aim(&mut self, what: impl Into<String>, value: Option<f64>, at_most: f64) {
        let figures = self.figures();
        figures.targets.push(Target { what: what.into(), value, at_most });
        let met = |target: &Target| target.value.map(|value| value <= target.at_most);
        let met: Option<Vec<bool>> = figures.targets.iter().map(met).collect();
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

/// The error in words.
pub(super) fn said(error: impl Display) -> String {
    error.to_string()
}

/// Whole nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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

/// A simulated device of so many GiB that has addresses alone, and the machine that counts its
/// calls.
pub(super) fn phantom(gib: u64) -> Result<(SimMachine, Arc<dyn Device>), String> {
    let machine = SimMachine::builder()
        .memory(MemoryModel::Phantom)
        .capacity(Bytes::gib(gib))
        .checked(false)
        .build()
        .map_err(said)?;
    let device = machine.device(0).ok_or("the simulated machine has no device")?;
    Ok((machine, device))
}

/// A pool of `class` with the settings in force.
pub(super) fn pool_of(
    setup: BenchSetup<'_>,
    device: &Arc<dyn Device>,
    class: MemoryClass,
) -> Result<Pool, String> {
    PoolOptions::with(setup.settings.clone()).class(class).build(device).map_err(said)
}

/// Streams of `device`.
pub(super) fn streams(device: &Arc<dyn Device>, count: usize) -> Result<Vec<Stream>, String> {
    (0..count).map(|_| Stream::new(device, Priority::Normal).map_err(said)).collect()
}

/// Calls with which the host waits for the device.
pub(super) fn host_waits(calls: &CallCounts) -> u64 {
    [Call::SynchronizeEvent, Call::SynchronizeStream, Call::SynchronizeDevice]
        .map(|call| calls.of(call))
        .iter()
        .sum()
}

/// So many pairs one after the other.
pub(super) fn pairs(pool: &Pool, stream: StreamHandle, count: u32) -> Result<Duration, String> {
    let began = Instant::now();
    for _ in 0..count {
        let block = pool.allocate(PAIR, stream).map_err(said)?;
        pool.free(block.address(), stream).map_err(said)?;
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

/// "10,000".
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 stream", "1,024 streams".
pub(super) fn counted(number: usize, what: &str) -> String {
    forebay_core::counted(grouped(number), what)
}
