//! Transfers of compressed data: sends its bytes as they are, and decodes them on the device.
//!
//! ```text
//!   host                      device
//!   compressed bytes ──────>  temporary array ── kernel on the array's stream ──> array, and a status for each block
//! ```

use core::time::Duration;
use std::time::Instant;

use bytemuck::Pod;
use forebay_core::transfer::BlockStatus;
use forebay_core::{Bytes, Span};
use forebay_hal::{self as hal, Call, Capabilities, Lz4Blocks, invalid, valid_span};

use super::builder::{Endpoints, Transfer};
use super::compressed::{Compressed, Decoder, Packed, damaged};
use super::engine::TransferEngine;
use super::job::{Direction, Job};
use super::statistics::Progress;
use super::ticket::Ticket;
use crate::handle::Refused;
use crate::range::check_device;
use crate::sync::lock;
use crate::{Allocate, DeviceArray, Error, Result, Tag};

/// From compressed data to an array.
#[derive(Debug)]
pub struct CompressedUpload<T: Pod, A: Allocate> {
    from: Compressed,
    to: DeviceArray<T, A>,
    decoder: Option<Decoder>,
}

/// The two ends of such a transfer, which are returned.
type Pair<T, A> = (Compressed, DeviceArray<T, A>);

/// The error of such a transfer, with its ends.
type RefusedPair<T, A> = Refused<Pair<T, A>>;

/// A transfer of compressed data in flight. It owns its memory until [`wait`](Self::wait).
///
/// Dropping it cancels the transfer and drops the array; the engine keeps what the device still uses.
#[derive(Debug)]
#[must_use = "the data is decoded by `wait`"]
pub struct CompressedTicket<T: Pod + Send, A: Allocate + Clone + Send + 'static> {
    engine: TransferEngine,
    from: Compressed,
    first: usize,
    stage: Stage<T, A>,
}

/// The data in flight.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one for each transfer: a box would be one more allocation"
)]
enum Stage<T: Pod + Send, A: Allocate + Clone + Send + 'static> {
    /// The compressed bytes, with the destination array and the block statuses.
    Packed(Ticket<(Packed, DeviceArray<u8, A>)>, DeviceArray<T, A>, DeviceArray<u32, A>),
    /// The decoded data.
    Decoded(Ticket<(Vec<T>, DeviceArray<T, A>)>),
}

/// How long the same upload took with each decoder, from [`TransferEngine::calibrate_decoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecoderTimes {
    /// With the device; `None` if it cannot decode.
    pub device: Option<Duration>,
    /// With the host.
    pub host: Duration,
}

impl DecoderTimes {
    /// The faster one.
    pub fn faster(&self) -> Decoder {
        match self.device {
            Some(device) if device < self.host => Decoder::Device,
            _ => Decoder::Host,
        }
    }
}

impl TransferEngine {
    /// Uploads compressed data to the elements of `array` from [`at`](Transfer::at) on. The device decodes it if it
    /// can, with memory for the compressed bytes from the array's allocator; else the host does.
    ///
    /// A damaged block fails with [`Error::Compressed`], which names it. The array's contents are then undefined.
    ///
    /// ```
    /// use forebay::transfer::{Compressed, TransferEngine};
    /// use forebay::{HostDevice, Pool};
    ///
    /// let device = HostDevice::open()?; // CudaDevice::open(0)? for the first GPU
    /// let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
    /// let weights: Vec<f32> = (0..60_000_u16).map(|number| f32::from(number / 64)).collect();
    /// let compressed = Compressed::new(&weights)?;
    ///
    /// let array = pool.default_stream().uninit::<f32>(weights.len())?;
    /// let (_compressed, array) = engine.upload_compressed(compressed, array).submit()?.wait()?;
    /// assert_eq!(array.to_vec()?, weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upload_compressed<T, A>(
        &self,
        from: Compressed,
        to: DeviceArray<T, A>,
    ) -> Transfer<'_, CompressedUpload<T, A>>
    where
        T: Pod + Send,
        A: Allocate + Clone + Send + 'static,
    {
        Transfer::new(self, CompressedUpload { from, to, decoder: None })
    }

    /// Uploads compressed data with each decoder, and uses the faster one for later transfers of this engine. Runs each
    /// once beforehand, to exclude one-time costs. The array holds the data afterwards.
    ///
    /// Without calibration, the device decodes if it has its own memory.
    pub fn calibrate_decoder<T, A>(
        &self,
        from: Compressed,
        to: DeviceArray<T, A>,
    ) -> core::result::Result<(Pair<T, A>, DecoderTimes), RefusedPair<T, A>>
    where
        T: Pod + Send,
        A: Allocate + Clone + Send + 'static,
    {
        let time = |(from, to): Pair<T, A>, decoder| {
            let run =
                |(from, to)| self.upload_compressed(from, to).decoded_by(decoder).submit()?.wait();
            let pair = run((from, to))?;
            let begin = Instant::now();
            run(pair).map(|pair| (pair, begin.elapsed()))
        };
        let (pair, host) = time((from, to), Decoder::Host)?;
        let mut times = DecoderTimes { device: None, host };
        let mut pair = pair;
        if self.engine.device.decompression().is_some() {
            let (back, device) = time(pair, Decoder::Device)?;
            (pair, times.device) = (back, Some(device));
        }
        *lock(&self.engine.decoder) = Some(times.faster());
        Ok((pair, times))
    }

    /// The decoder to use if the transfer does not choose one.
    fn usual_decoder(&self) -> Decoder {
        if let Some(decoder) = *lock(&self.engine.decoder) {
            return decoder;
        }
        let device = &self.engine.device;
        let apart = !device.descriptor().capabilities.contains(Capabilities::HOST_VISIBLE);
        if apart && device.decompression().is_some() { Decoder::Device } else { Decoder::Host }
    }
}

impl<T: Pod, A: Allocate> Transfer<'_, CompressedUpload<T, A>> {
    /// Chooses the decoder. The host decodes, during [`submit`](Self::submit), if the device cannot or has no memory
    /// for the compressed bytes.
    pub fn decoded_by(mut self, decoder: Decoder) -> Self {
        self.ends.decoder = Some(decoder);
        self
    }
}

impl<T, A> Endpoints for CompressedUpload<T, A>
where
    T: Pod + Send,
    A: Allocate + Clone + Send + 'static,
{
    type Submitted = core::result::Result<CompressedTicket<T, A>, RefusedPair<T, A>>;

    fn begin(self, engine: &TransferEngine, mut job: Job) -> Self::Submitted {
        let Self { from, to, decoder } = self;
        let first = job.first;
        let stage = match temporary(engine, &from, &to, decoder, &job) {
            Ok(Some((room, statuses))) => {
                job.first = 0;
                match (Transfer { job, ..engine.upload(from.packed(), room) }).submit() {
                    Ok(ticket) => Stage::Packed(ticket, to, statuses),
                    Err(refused) => return Err(refused.map(|_| (from, to))),
                }
            }
            Ok(None) => match from.decode::<T>(engine.engine.options.threads) {
                Ok(data) => match (Transfer { job, ..engine.upload(data, to) }).submit() {
                    Ok(ticket) => Stage::Decoded(ticket),
                    Err(refused) => return Err(refused.map(|(_, to)| (from, to))),
                },
                Err(error) => return Err(Refused::new((from, to), error)),
            },
            Err(error) => return Err(Refused::new((from, to), error)),
        };
        Ok(CompressedTicket { engine: engine.clone(), from, first, stage })
    }
}

/// Memory for the compressed bytes and the block statuses, in the order of the array's stream.
type Temporary<A> = (DeviceArray<u8, A>, DeviceArray<u32, A>);

/// The memory that the device needs to decode; `None` if the host is to decode. Fails for transfers that neither
/// supports.
fn temporary<T: Pod, A: Allocate + Clone>(
    engine: &TransferEngine,
    from: &Compressed,
    to: &DeviceArray<T, A>,
    decoder: Option<Decoder>,
    job: &Job,
) -> Result<Option<Temporary<A>>> {
    let (allocator, stream) = (to.block().allocator(), to.block().stream());
    check_device(allocator.device(), engine.device())?;
    to.check_range(job.first, from.elements::<T>()?)?;
    if job.region.is_some() {
        return Err(invalid(Call::Decompress, "region", "one", "consecutive elements").into());
    }
    let decoder = decoder.unwrap_or_else(|| engine.usual_decoder());
    if decoder == Decoder::Host || engine.device().decompression().is_none() {
        return Ok(None);
    }
    let _tag = Tag::staging().enter();
    let blocks = usize::try_from(from.layout().blocks()).unwrap_or(usize::MAX);
    let room = DeviceArray::new(allocator, from.as_bytes().len(), stream)
        .and_then(|room| Ok((room, DeviceArray::new(allocator, blocks, stream)?)));
    match room {
        Ok(room) => Ok(Some(room)),
        Err(Error::OutOfMemory(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl<T: Pod + Send, A: Allocate + Clone + Send + 'static> CompressedTicket<T, A> {
    /// Waits until the bytes are on the device and decoded there, in the order of the array's stream. This thread helps
    /// to copy meanwhile.
    pub fn wait(self) -> core::result::Result<Pair<T, A>, RefusedPair<T, A>> {
        let Self { engine, from, first, stage } = self;
        let (ticket, to, statuses) = match stage {
            Stage::Packed(ticket, to, statuses) => (ticket, to, statuses),
            Stage::Decoded(ticket) => {
                return match ticket.wait() {
                    Ok((_, to)) => Ok((from, to)),
                    Err(refused) => Err(refused.map(|(_, to)| (from, to))),
                };
            }
        };
        let outcome = match ticket.order() {
            Ok((_, stage)) => decode(&engine, &from, &stage, &to, first, &statuses),
            Err(refused) => Err(refused.into_parts().1),
        };
        match outcome {
            Ok(()) => Ok((from, to)),
            // The driver rejects the kernel, which shows only now. Nothing was enqueued. Later transfers use the host.
            Err(Error::Device(hal::Error::Unsupported { call: Call::Decompress, .. })) => {
                *lock(&engine.engine.decoder) = Some(Decoder::Host);
                let again = engine.upload_compressed(from, to).at(first);
                again.decoded_by(Decoder::Host).submit()?.wait()
            }
            Err(error) => Err(Refused::new((from, to), error)),
        }
    }

    /// The progress of the bytes being sent.
    pub fn progress(&self) -> Progress {
        match &self.stage {
            Stage::Packed(ticket, ..) => ticket.progress(),
            Stage::Decoded(ticket) => ticket.progress(),
        }
    }

    /// As [`Ticket::cancel`].
    pub fn cancel(&self) -> bool {
        match &self.stage {
            Stage::Packed(ticket, ..) => ticket.cancel(),
            Stage::Decoded(ticket) => ticket.cancel(),
        }
    }
}

/// Decodes the contents of `stage` on the device, and checks the statuses.
fn decode<T: Pod, A: Allocate>(
    engine: &TransferEngine,
    from: &Compressed,
    stage: &DeviceArray<u8, A>,
    to: &DeviceArray<T, A>,
    first: usize,
    statuses: &DeviceArray<u32, A>,
) -> Result<()> {
    let stream = to.block().stream_to_use()?;
    let blocks = blocks_of(from, stage, to, first, statuses)?;
    let device = &engine.engine.device;
    let unable = || hal::Error::Unsupported { call: Call::Decompress, missing: "a decoder".into() };
    let decompression = device.decompression().ok_or_else(unable)?;
    // SAFETY: the three arrays are of this device and have room for the spans, as `blocks_of` and the transfer have checked;
    // each is freed in the order of its stream, which is this one. The caller has them all, so nobody else uses them; the
    // stream waits for the transfer to `stage`.
    let enqueue = || unsafe { decompression.decompress(&blocks, stream) };
    engine.engine.retried(Direction::Up, enqueue)?;
    // This also waits for the decoding, which is on the same stream.
    let codes = statuses.to_vec().inspect_err(|_| {
        // The array is returned with the error, so nothing may still write to it.
        let _ = engine.engine.settle(Direction::Up, stream);
    })?;
    let bad = |code: &u32| BlockStatus::from_code(*code) != BlockStatus::Decoded;
    match (0..).zip(&codes).find(|(_, code)| bad(code)) {
        Some((block, code)) => Err(damaged(block, BlockStatus::from_code(*code))),
        None => Ok(()),
    }
}

fn blocks_of<T: Pod, A: Allocate>(
    from: &Compressed,
    stage: &DeviceArray<u8, A>,
    to: &DeviceArray<T, A>,
    first: usize,
    statuses: &DeviceArray<u32, A>,
) -> Result<Lz4Blocks> {
    let layout = from.layout();
    let start = to.check_range(first, from.elements::<T>()?)?;
    let data = stage.check_range(layout.data_start(), stage.len() - layout.data_start())?;
    let table = stage.check_range(layout.table_start(), 0)?;
    let span = |argument, start, size: u64| -> hal::Result<Span> {
        valid_span(Call::Decompress, argument, start, Bytes::new(size))
    };
    let data = span("data", data, (stage.len() - layout.data_start()) as u64)?;
    let to = span("to", start, layout.total())?;
    Ok(Lz4Blocks::new(data, table, to, layout.block(), statuses.address())?)
}
