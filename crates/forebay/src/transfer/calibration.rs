//! Calibration: measures how fast a machine copies, and derives options from it.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Bytes, DeviceOrdinal};
use forebay_hal::{Capabilities, Copy, Device, DeviceKind, Priority, Stream, ToDevice};

use super::engine::TransferEngine;
use super::job::Direction;
use super::options::TransferOptions;
use crate::Result;
use crate::config::Settings;
use crate::handle::DeviceArray;
use crate::pinned::{PinnedArray, PinnedOptions, PinnedPool};
use crate::pool::Pool;
use crate::sync::fork::PerProcess;

/// Bytes moved per measurement of the bus.
const SAMPLE: Bytes = Bytes::mib(64);

/// Bytes moved per measurement of the engine, unless the host sees the device's memory: more than most processors'
/// caches hold, like a program's data.
const LARGE_SAMPLE: Bytes = Bytes::mib(256);

/// Time limit: no further choice is tried after it.
const MAX_TIME: Duration = Duration::from_millis(500);

/// Rounds per choice, of which the best counts.
const ROUNDS: u32 = 2;

/// The thread counts and piece sizes to try.
const THREADS: [usize; 6] = [1, 2, 4, 8, 12, 16];
const CHUNKS: [Bytes; 3] = [Bytes::mib(1), Bytes::mib(2), Bytes::mib(8)];

/// Speed-up that a choice needs over the one before: more threads or memory must pay off.
const GAIN: f64 = 1.05;

/// The calibrations of this process.
static KNOWN: PerProcess<Vec<(Which, Calibration)>> = PerProcess::new();

type Which = (DeviceKind, DeviceOrdinal, String);

/// How fast this machine copies to and from a device, and the best options for it. Bandwidths are in bytes per second.
///
/// ```
/// use forebay::transfer::{Calibration, TransferOptions};
/// use forebay::HostDevice;
///
/// let device = HostDevice::open()?;
/// let found = Calibration::of(&device)?; // once for each device of a process
/// println!("{:.1} GB/s with {} threads", found.upload / 1e9, found.threads);
/// let engine = TransferOptions::new().calibrated(&found).build(&device)?;
/// # drop(engine);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Calibration {
    /// Pinned memory to the device: the limit of an upload.
    pub upload_limit: f64,
    /// Pinned memory from the device: the limit of a download.
    pub download_limit: f64,
    /// Ordinary memory to the device through the engine, with the best options.
    pub upload: f64,
    /// Ordinary memory from the device through the engine, with the best options for uploads.
    pub download: f64,
    /// The threads that copy on the host.
    pub threads: usize,
    /// The size of a piece.
    pub chunk: Bytes,
    /// Whether slots are filled with stores that bypass the caches.
    pub past_caches: bool,
    /// The duration of the calibration.
    pub took: Duration,
}

impl Calibration {
    /// Measures a device, or returns this process's earlier measurement. Tries no further choice after half a second,
    /// but always measures the first one. Meanwhile uses at most 580 MiB of host memory, 324 MiB of it pinned, and 256
    /// MiB of device memory.
    ///
    /// Other load on the machine lowers the figures. Concurrent measurements disturb each other; the first one to
    /// finish is kept.
    pub fn of(device: &impl ToDevice) -> Result<Self> {
        let device = device.to_device();
        let which = which(&device);
        if let Some(found) = known(&which) {
            return Ok(found);
        }
        let found = Bench::new(&device)?.calibrate()?;
        let mut all = KNOWN.lock();
        if let Some((_, first)) = all.iter().find(|(known, _)| *known == which) {
            return Ok(first.clone());
        }
        all.push((which, found.clone()));
        Ok(found)
    }
}

impl TransferOptions {
    /// Applies the threads, piece size and kind of copies of a calibration.
    pub fn calibrated(self, found: &Calibration) -> Self {
        let options = self.threads(found.threads).chunk(found.chunk);
        if found.past_caches { options.past_caches(true) } else { options }
    }

    /// The options for a device. The process's settings `transfer_threads` and `transfer_chunk` take precedence; then
    /// the [`Calibration`] of the device, if this process has made one; then the [defaults](Self::new).
    pub fn for_device(device: &impl ToDevice) -> Result<Self> {
        let settings = match Pool::process_settings() {
            Some(settings) => settings,
            None => Settings::from_environment()?,
        };
        let mut options = Self::new();
        if let Some(found) = known(&which(&device.to_device())) {
            options = options.calibrated(&found);
        }
        if let Some(threads) = usize::try_from(settings.transfer_threads()).ok().filter(|&n| n > 0)
        {
            options = options.threads(threads);
        }
        let chunk = settings.transfer_chunk();
        Ok(if chunk > Bytes::ZERO { options.chunk(chunk) } else { options })
    }
}

/// Identifies a device.
fn which(device: &Arc<dyn Device>) -> Which {
    let of = device.descriptor();
    (of.kind, of.ordinal, of.name.clone())
}

/// The earlier calibration of a device.
fn known(which: &Which) -> Option<Calibration> {
    KNOWN.lock().iter().find(|(known, _)| known == which).map(|(_, found)| found.clone())
}

/// The memory and streams of a measurement.
struct Bench {
    device: Arc<dyn Device>,
    slots: PinnedPool,
    array: DeviceArray<u8>,
    pinned: PinnedArray<u8>,
    ordinary: Vec<u8>,
    began: Instant,
    /// The stream of the array, to be dropped after it.
    stream: Stream,
}

impl Bench {
    fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let began = Instant::now();
        let size = |of: Bytes| usize::try_from(of.get()).unwrap_or(0);
        let is_visible = device.descriptor().capabilities.contains(Capabilities::HOST_VISIBLE);
        let large = if is_visible { SAMPLE } else { LARGE_SAMPLE };
        // Room for the pinned source and for the slots.
        let most = SAMPLE.saturating_add(LARGE_SAMPLE).saturating_add(Bytes::mib(4));
        let slots = PinnedOptions::new().max_bytes(most).build(device)?;
        let stream = Stream::new(device, Priority::Normal)?;
        let array = Pool::new(device)?.on(stream.handle()).uninit(size(large))?;
        let mut pinned = slots.array(size(SAMPLE))?;
        // Not zero: zeros would be skipped.
        pinned.host_mut()?.fill(1);
        let (device, ordinary) = (Arc::clone(device), vec![1; size(large)]);
        Ok(Self { device, slots, array, pinned, ordinary, began, stream })
    }

    fn calibrate(mut self) -> Result<Calibration> {
        let large = Bytes::new(self.ordinary.len() as u64);
        let upload_limit = self.best(SAMPLE, |bench| bench.copy_pinned(true))?;
        let download_limit = self.best(SAMPLE, |bench| bench.copy_pinned(false))?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // With many processors, trying few threads wastes the available time.
        let fewest = (processors / 4).min(4);
        let mut best = (TransferOptions::new().threads(1), 0.0);
        for threads in THREADS.into_iter().filter(|n| (fewest..=processors).contains(n)) {
            self.try_options(best.0.clone().threads(threads), &mut best)?;
        }
        for chunk in CHUNKS {
            self.try_options(best.0.clone().chunk(chunk), &mut best)?;
        }
        self.try_options(best.0.clone().past_caches(true), &mut best)?;
        let (options, upload) = best;
        let engine = self.engine(&options)?;
        let download = self.best(large, |bench| bench.download(&engine))?;
        Ok(Calibration {
            upload_limit,
            download_limit,
            upload,
            download,
            threads: options.threads,
            chunk: options.chunk,
            past_caches: options.past_caches == Some(true),
            took: self.began.elapsed(),
        })
    }

    /// Measures uploads with `options`, and keeps them as the best if faster by enough. Does nothing if time is up.
    fn try_options(
        &mut self,
        options: TransferOptions,
        best: &mut (TransferOptions, f64),
    ) -> Result<()> {
        if best.1 > 0.0 && self.began.elapsed() >= MAX_TIME {
            return Ok(());
        }
        let engine = self.engine(&options)?;
        let size = Bytes::new(self.ordinary.len() as u64);
        let speed = self.best(size, |bench| bench.upload(&engine))?;
        end(engine);
        if speed > best.1 * GAIN {
            *best = (options, speed);
        }
        Ok(())
    }

    /// An engine over the shared pinned memory, with no more slots than one measurement fills, and with threads that
    /// exit at once.
    fn engine(&self, options: &TransferOptions) -> Result<TransferEngine> {
        let parts = LARGE_SAMPLE.get().div_ceil(options.chunk.get().max(1));
        let slots = options.slots_in_use().min(usize::try_from(parts).unwrap_or(usize::MAX));
        let mut options = options.clone().slots(slots);
        options.linger = Duration::ZERO;
        options.build_over(&self.device, self.slots.clone())
    }

    /// The best bandwidth of some rounds, in bytes per second. A first, uncounted one makes slots and threads.
    fn best(&mut self, size: Bytes, mut round: impl FnMut(&mut Self) -> Result<()>) -> Result<f64> {
        round(self)?;
        let mut shortest = Duration::MAX;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            round(self)?;
            shortest = shortest.min(began.elapsed());
        }
        #[allow(clippy::cast_precision_loss)] // a figure for people
        let bytes = size.get() as f64;
        Ok(bytes / shortest.as_secs_f64().max(1e-9))
    }

    fn copy_pinned(&mut self, up: bool) -> Result<()> {
        let stream = self.stream.handle();
        let direction = if up { Direction::Up } else { Direction::Down };
        let (to, from) = direction.ends(self.pinned.address(), self.array.address());
        let copy = Copy::linear(to, from, SAMPLE)?;
        // SAFETY: both are as large, and the array notes the work of its stream, as the pinned memory does below.
        let enqueued = unsafe { self.device.copy(&copy, stream) };
        if up { self.pinned.read_on(stream) } else { self.pinned.written_on(stream) }?;
        enqueued?;
        Ok(self.stream.synchronize()?)
    }

    fn upload(&mut self, engine: &TransferEngine) -> Result<()> {
        let (source, array) = (&self.ordinary, &mut self.array);
        engine.scope(|transfers| transfers.upload(source, array).submit()?.wait())?
    }

    fn download(&mut self, engine: &TransferEngine) -> Result<()> {
        let (sink, array) = (&mut self.ordinary, &self.array);
        engine.scope(|transfers| transfers.download(array, sink).submit()?.wait())?
    }
}

/// Drops an engine once its threads have exited, so that its slots are free for the next.
fn end(engine: TransferEngine) {
    let began = Instant::now();
    while Arc::strong_count(&engine.engine) > 1 && began.elapsed() < MAX_TIME {
        std::thread::sleep(Duration::from_micros(100));
    }
}
