//! Verifies that blocks keep what is written to them.
//!
//! ```text
//!   allocated    write ──► on the block's stream, when it gets there
//!   freed        read  ──► on the stream of the free, after the write; then the free
//!   later        the host waits, and compares what was read with what was written
//! ```
//!
//! Every block gets different bytes, which also depend on the position in the block. So this detects memory that two
//! blocks share, a page that is mapped twice in one block, and work that ran too early. If frees are in stream order,
//! nothing waits in between, so an allocator that forgets a wait is caught on any device that really runs late.
//!
//! A block of up to 64 KiB is written whole. In a larger one, 64 bytes of every 4 KiB and the last 64 bytes are
//! written: every page of the processor, at a sixty-fourth of the cost.

mod pattern;
#[cfg(test)]
mod tests;

use core::fmt;
use std::collections::HashMap;
use std::sync::Arc;

use forebay_core::{Address, Bytes};
use forebay_hal::{
    Call, Capabilities, Copy, Device, Error, Event, EventKind, Location, StreamHandle,
};

use self::pattern::{PatternPart, Salt};
use super::{AddressedPlayer, FreeOrder, Player, ReplayError};
use crate::{BlockIndex, StreamIndex, TransferDirection};

/// How much host memory work under way may be using before it is waited for.
const MAX_LENT: usize = 64 << 20;

/// The error for a device whose memory keeps nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoData {
    /// The device.
    pub device: String,
}

impl fmt::Display for NoData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} has addresses and no memory behind them: what blocks hold cannot be verified there; \
             verify on a device that keeps data",
            self.device
        )
    }
}

impl core::error::Error for NoData {}

/// A block that did not hold what was written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The block.
    pub block: BlockIndex,
    /// Its size.
    pub size: Bytes,
    /// The offset of the first wrong byte.
    pub offset: Bytes,
    /// The byte written there.
    pub expected: u8,
    /// The byte found there.
    pub found: u8,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, size, offset, expected, found } = self;
        write!(
            f,
            "{block} of {} B: the byte at {} was written as {expected:#04x} and read as {found:#04x}; \
             its memory was somebody else's too, or was used out of order",
            size.get(),
            offset.get()
        )
    }
}

/// The result of verifying a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The number of blocks read back.
    pub blocks: u64,
    /// The number of wrong blocks.
    pub mismatches: u64,
    /// The first mismatch.
    pub first: Option<Mismatch>,
}

/// What is known of a block that was written.
#[derive(Clone, Copy, Debug)]
struct WrittenBlock {
    address: Address,
    size: Bytes,
    salt: Salt,
    stream: StreamHandle,
}

/// A block that was read, or will have been when the device is done.
#[derive(Debug)]
struct PendingRead {
    block: BlockIndex,
    mark: WrittenBlock,
    pieces: Vec<(PatternPart, Vec<u8>)>,
}

/// Writes blocks when they are allocated and reads them before they are freed.
///
/// Given to a replay by [`ReplayOptions::verify`](super::ReplayOptions::verify).
#[derive(Debug)]
pub struct Verifier {
    device: Arc<dyn Device>,
    serial: u64,
    live: HashMap<BlockIndex, WrittenBlock>,
    /// What work under way reads from: kept until the device is done, then let go.
    written: Vec<Vec<u8>>,
    /// What work under way writes to: kept until the device is done, then compared.
    readings: Vec<PendingRead>,
    lent: usize,
    verdict: Verdict,
}

impl Verifier {
    /// Creates a verifier for players on `device`, which must keep what is written to it.
    pub fn new(device: Arc<dyn Device>) -> Result<Self, NoData> {
        let descriptor = device.descriptor();
        if !descriptor.capabilities.contains(Capabilities::DATA) {
            return Err(NoData { device: descriptor.to_string() });
        }
        Ok(Self {
            device,
            serial: 0,
            live: HashMap::new(),
            written: Vec::new(),
            readings: Vec::new(),
            lent: 0,
            verdict: Verdict::default(),
        })
    }

    /// Writes a block that was just allocated, in the order of its stream.
    pub(super) fn write(
        &mut self,
        player: &mut dyn Player,
        block: BlockIndex,
        size: Bytes,
        stream: StreamIndex,
    ) -> Result<(), ReplayError> {
        let placed = player.placed().ok_or(ReplayError::NotPlaced)?;
        let address = address_of(placed, block)?;
        let stream = placed.stream(stream)?;
        self.serial += 1;
        let mark = WrittenBlock { address, size, salt: Salt::new(self.serial), stream };
        for piece in PatternPart::of_block(size) {
            let mut buffer = Vec::new();
            piece.fill(mark.salt, &mut buffer);
            self.transfer(mark, piece, &mut buffer, TransferDirection::Upload, stream)?;
            self.lent += buffer.len();
            self.written.push(buffer);
        }
        self.live.insert(block, mark);
        self.settle_when_much_is_lent()
    }

    /// Reads a block that is about to be freed, in the order of the free.
    pub(super) fn read(
        &mut self,
        player: &mut dyn Player,
        block: BlockIndex,
        stream: StreamIndex,
    ) -> Result<(), ReplayError> {
        let placed = player.placed().ok_or(ReplayError::NotPlaced)?;
        let Some(mark) = self.live.remove(&block) else {
            return Err(ReplayError::Inconsistent { block, what: "is read and was never written" });
        };
        if address_of(placed, block)? != mark.address {
            return Err(ReplayError::Inconsistent { block, what: "has moved while it was live" });
        }
        let stream = placed.stream(stream)?;
        let order = placed.free_order();
        if stream != mark.stream {
            self.order(mark.stream, stream).map_err(ReplayError::Device)?;
        }
        let mut pieces = Vec::new();
        for piece in PatternPart::of_block(mark.size) {
            let mut buffer = vec![0; piece.length()];
            self.transfer(mark, piece, &mut buffer, TransferDirection::Download, stream)?;
            self.lent += buffer.len();
            pieces.push((piece, buffer));
        }
        self.readings.push(PendingRead { block, mark, pieces });
        match order {
            FreeOrder::Idle => self.settle().map_err(ReplayError::Device),
            FreeOrder::Stream => self.settle_when_much_is_lent(),
        }
    }

    /// Makes what comes on `later` come after what is on `earlier`.
    fn order(&self, earlier: StreamHandle, later: StreamHandle) -> Result<(), Error> {
        let event = Event::new(&self.device, EventKind::Order)?;
        self.device.record_event(event.handle(), earlier)?;
        self.device.wait_event(later, event.handle())
    }

    /// Enqueues the copy of one piece between a block and `buffer`, which the caller keeps until
    /// the device is done with it.
    fn transfer(
        &self,
        mark: WrittenBlock,
        piece: PatternPart,
        buffer: &mut Vec<u8>,
        towards: TransferDirection,
        stream: StreamHandle,
    ) -> Result<(), ReplayError> {
        let start = mark.address.checked_add(piece.offset).ok_or_else(|| {
            let what = forebay_core::QuantityError::Overflow {
                sum: format!("{} + {} B", mark.address, piece.offset.get()),
            };
            ReplayError::Device(Error::quantity(Call::Copy, "block", &what))
        })?;
        let block = (Location::Device(start), piece.pitch);
        let host = (Location::Host(Address::of_pointer(buffer.as_mut_ptr())), piece.width);
        let (to, from) = match towards {
            TransferDirection::Upload => (block, host),
            TransferDirection::Download => (host, block),
        };
        let copy = Copy::planes(to.0, to.1, from.0, from.1, (piece.width, piece.rows));
        copy.and_then(|copy| {
            // SAFETY: the host's rows are the buffer, which is as long as the piece and which the
            // verifier neither touches nor lets go of before it has waited for the device; those
            // of the device are a live block, by the promise of `AddressedPlayer`, and stay so until the
            // free that comes after this in the order the player asks for.
            unsafe { self.device.copy(&copy, stream) }
        })
        .map_err(ReplayError::Device)
    }

    fn settle_when_much_is_lent(&mut self) -> Result<(), ReplayError> {
        if self.lent < MAX_LENT {
            return Ok(());
        }
        self.settle().map_err(ReplayError::Device)
    }

    /// Waits for the device, and compares what was read.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        if self.lent == 0 {
            return Ok(());
        }
        self.lent = 0;
        let (written, readings) =
            (core::mem::take(&mut self.written), core::mem::take(&mut self.readings));
        if let Err(error) = self.device.synchronize_device() {
            // A device that cannot be waited for may still be using what was lent to it: it is
            // better lost than taken back.
            core::mem::forget((written, readings));
            return Err(error);
        }
        for reading in &readings {
            self.verdict.blocks += 1;
            if let Some(mismatch) = reading.compare() {
                self.verdict.mismatches += 1;
                self.verdict.first.get_or_insert(mismatch);
            }
        }
        Ok(())
    }

    /// What came of it since this was asked last, with everything waited for.
    pub(super) fn verdict(&mut self) -> Result<Verdict, ReplayError> {
        self.settle().map_err(ReplayError::Device)?;
        Ok(core::mem::take(&mut self.verdict))
    }
}

impl PendingRead {
    /// The first byte that is not what was written.
    fn compare(&self) -> Option<Mismatch> {
        let mut expected = Vec::new();
        self.pieces.iter().find_map(|(piece, found)| {
            piece.fill(self.mark.salt, &mut expected);
            let index = expected.iter().zip(found).position(|(one, other)| one != other)?;
            Some(Mismatch {
                block: self.block,
                size: self.mark.size,
                offset: piece.offset_of(index),
                expected: expected.get(index).copied().unwrap_or_default(),
                found: found.get(index).copied().unwrap_or_default(),
            })
        })
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        // What was lent must not go before the device is done with it; nobody is left to be told.
        let _ = self.settle();
    }
}

fn address_of(placed: &dyn AddressedPlayer, block: BlockIndex) -> Result<Address, ReplayError> {
    let what = "is live and lies nowhere";
    placed.address(block).ok_or(ReplayError::Inconsistent { block, what })
}
