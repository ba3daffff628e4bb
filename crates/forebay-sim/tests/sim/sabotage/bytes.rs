//! Devices that move the wrong bytes.

use forebay_core::{Bytes, DeviceOrdinal, Span};
use forebay_hal::{
    Copy, Device, Extent, Fill, Lz4Blocks, Pattern, PeerCopy, Pitch, Result, StreamHandle,
};

use super::tamper::Tamper;

/// The same copy with another extent and other pitches.
fn reshaped(copy: &Copy, extent: Extent, to: Pitch, from: Pitch) -> Result<Copy> {
    Copy::volumes(copy.to(), to, copy.from(), from, extent)
}

fn one_less(size: Bytes) -> Bytes {
    size.saturating_sub(Bytes::new(1))
}

/// Copies longer than this many bytes lose the last byte of each row.
#[derive(Debug)]
pub(crate) struct CopiesForgetTheTail {
    pub(crate) above: u64,
}

impl Tamper for CopiesForgetTheTail {
    unsafe fn copy(&self, inner: &dyn Device, copy: &Copy, stream: StreamHandle) -> Result<()> {
        let mut extent = copy.extent();
        if extent.bytes().get() > self.above {
            extent.width = one_less(extent.width);
        }
        let short = reshaped(copy, extent, copy.to_pitch(), copy.from_pitch())?;
        // SAFETY: these are bytes of the caller's copy.
        unsafe { inner.copy(&short, stream) }
    }
}

/// Fills of single bytes come out longer or shorter than asked.
#[derive(Debug)]
pub(crate) enum FillsMissTheEnd {
    ByOneTooFew,
    ByOneTooMany,
}

impl Tamper for FillsMissTheEnd {
    unsafe fn fill(&self, inner: &dyn Device, fill: &Fill, stream: StreamHandle) -> Result<()> {
        let extent = fill.extent();
        let width = match self {
            _ if fill.pattern().width().get() > 1 || extent.rows != 1 => extent.width,
            Self::ByOneTooFew => one_less(extent.width),
            Self::ByOneTooMany => extent.width.saturating_add(Bytes::new(1)),
        };
        let wrong = Fill::linear(fill.to(), width, fill.pattern());
        let wrong = if extent.rows == 1 { wrong? } else { *fill };
        // SAFETY: the cases fill with room to spare on both sides.
        unsafe { inner.fill(&wrong, stream) }
    }
}

/// Rows are taken to lie side by side.
#[derive(Debug)]
pub(crate) struct IgnoresPitch;

impl Tamper for IgnoresPitch {
    unsafe fn copy(&self, inner: &dyn Device, copy: &Copy, stream: StreamHandle) -> Result<()> {
        let extent = copy.extent();
        let slice = extent.width.checked_mul(extent.rows).unwrap_or_default();
        let tight = Pitch { row: extent.width, slice };
        let flat = reshaped(copy, extent, tight, tight)?;
        // SAFETY: rows side by side reach no further than the caller's.
        unsafe { inner.copy(&flat, stream) }
    }

    unsafe fn fill(&self, inner: &dyn Device, fill: &Fill, stream: StreamHandle) -> Result<()> {
        let extent = fill.extent();
        let flat =
            Fill::plane(fill.to(), extent.width, (extent.width, extent.rows), fill.pattern())?;
        // SAFETY: as above.
        unsafe { inner.fill(&flat, stream) }
    }
}

/// The slice pitch is taken to be the rows' alone.
#[derive(Debug)]
pub(crate) struct IgnoresSlicePitch;

impl Tamper for IgnoresSlicePitch {
    unsafe fn copy(&self, inner: &dyn Device, copy: &Copy, stream: StreamHandle) -> Result<()> {
        let extent = copy.extent();
        let tight = |pitch: Pitch| {
            let row = if extent.rows > 1 { pitch.row } else { extent.width };
            Pitch { slice: row.checked_mul(extent.rows).unwrap_or_default(), ..pitch }
        };
        let flat = reshaped(copy, extent, tight(copy.to_pitch()), tight(copy.from_pitch()))?;
        // SAFETY: slices side by side reach no further than the caller's.
        unsafe { inner.copy(&flat, stream) }
    }
}

/// The gaps between rows are filled too.
#[derive(Debug)]
pub(crate) struct FillsTheGaps;

impl Tamper for FillsTheGaps {
    unsafe fn fill(&self, inner: &dyn Device, fill: &Fill, stream: StreamHandle) -> Result<()> {
        let whole = Fill::linear(fill.to(), fill.written().size(), fill.pattern())?;
        // SAFETY: the gaps lie between the caller's rows, in the same memory.
        unsafe { inner.fill(&whole, stream) }
    }
}

/// Patterns of several bytes are filled by their first byte.
#[derive(Debug)]
pub(crate) struct FillsByTheFirstByte;

impl Tamper for FillsByTheFirstByte {
    unsafe fn fill(&self, inner: &dyn Device, fill: &Fill, stream: StreamHandle) -> Result<()> {
        let extent = (fill.extent().width, fill.extent().rows);
        let pattern = Pattern::U8(fill.pattern().four_bytes()[0]);
        let wrong = Fill::plane(fill.to(), fill.pitch().row, extent, pattern)?;
        // SAFETY: the same bytes are written.
        unsafe { inner.fill(&wrong, stream) }
    }
}

/// Pitches are cut to 32 bits.
#[derive(Debug)]
pub(crate) struct CutsPitchesTo32Bits;

impl Tamper for CutsPitchesTo32Bits {
    unsafe fn copy(&self, inner: &dyn Device, copy: &Copy, stream: StreamHandle) -> Result<()> {
        let extent = copy.extent();
        let cut = |pitch: Pitch| {
            let row = Bytes::new(pitch.row.get() & u64::from(u32::MAX));
            if extent.rows > 1 { Pitch { row: row.max(extent.width), ..pitch } } else { pitch }
        };
        let wrong = reshaped(copy, extent, cut(copy.to_pitch()), cut(copy.from_pitch()))?;
        // SAFETY: the rows come to lie nearer together, in the first row's page.
        unsafe { inner.copy(&wrong, stream) }
    }
}

/// Copies between devices lose the last byte.
#[derive(Debug)]
pub(crate) struct PeerCopiesForgetTheTail;

impl Tamper for PeerCopiesForgetTheTail {
    unsafe fn copy_peer(
        &self,
        inner: &dyn Device,
        copy: &PeerCopy,
        stream: StreamHandle,
    ) -> Result<()> {
        let short = PeerCopy::new(copy.to(), copy.from(), one_less(copy.size()))?;
        let Some(peers) = inner.peers() else { return Ok(()) };
        // SAFETY: these are bytes of the caller's copy.
        unsafe { peers.copy_peer(&short, stream) }
    }
}

/// The last block is not decoded.
#[derive(Debug)]
pub(crate) struct DecodingForgetsTheTail;

impl Tamper for DecodingForgetsTheTail {
    unsafe fn decompress(
        &self,
        inner: &dyn Device,
        blocks: &Lz4Blocks,
        stream: StreamHandle,
    ) -> Result<()> {
        let to = Span::new(blocks.to().start(), one_less(blocks.to().size())).unwrap();
        let (table, statuses) = (blocks.table().start(), blocks.statuses().start());
        let short = Lz4Blocks::new(blocks.data(), table, to, blocks.block(), statuses)?;
        let Some(inner) = inner.decompression() else { return Ok(()) };
        // SAFETY: these are bytes of the caller's.
        unsafe { inner.decompress(&short, stream) }
    }
}

/// Prefetching leaves zeros.
#[derive(Debug)]
pub(crate) struct PrefetchingClears;

impl Tamper for PrefetchingClears {
    fn prefetch(
        &self,
        inner: &dyn Device,
        span: Span,
        _: Option<DeviceOrdinal>,
        stream: StreamHandle,
    ) -> Result<()> {
        let clear = Fill::linear(span.start(), span.size(), Pattern::U8(0))?;
        // SAFETY: the span is managed memory of the caller's.
        unsafe { inner.fill(&clear, stream) }
    }
}
