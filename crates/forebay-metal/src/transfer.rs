//! Copies and fills.
//!
//! ```text
//!   buffer -> buffer     one command buffer: a blit, or a kernel
//!   host   -> buffer     host function: host -> stage;   command buffer: stage -> buffer;   and again, if it does not fit
//!   buffer -> host       command buffer: buffer -> stage;   host function: stage -> host
//!   host   -> host       a host function
//! ```
//!
//! Pinned memory is a buffer. One stage serves all rounds of a copy, because the work of a stream does not overlap.

use std::sync::Arc;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{
    Call, Copy, Error, Extent, Fill, Location, PinnedFlags, Pitch, Result, StreamHandle, Transfers,
    invalid,
};
use forebay_sync::lock;
use objc2_foundation::NSRange;
use objc2_metal::{MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandEncoder};

use crate::MetalDevice;
use crate::buffer::BufferRef;
use crate::device::Inner;
use crate::kernel::{Rows, no_encoder};
use crate::space::BufferOffset;
use crate::stage::{Part, rounds};
use crate::stream::{Commands, StreamCore};

/// How much is staged at once.
const STAGE: u64 = 32 << 20;

/// Blits take offsets and sizes that are multiples of this, on every GPU of a Mac.
const BLIT: u64 = 4;

/// One side of a copy.
enum CopyOperand {
    /// A buffer, from this place on.
    Buffer(BufferOffset<BufferRef>),
    /// Memory that the GPU does not reach.
    Host,
}

/// A number as Metal takes it: sizes and offsets of live memory fit.
fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn pointer(address: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(count(address))
}

impl Inner {
    fn operand(&self, argument: &'static str, place: Location, span: Span) -> Result<CopyOperand> {
        let space = lock(&self.space);
        match place {
            Location::Device(_) => space
                .on_device(span)
                .map(CopyOperand::Buffer)
                .ok_or_else(|| not_device_memory(Call::Copy, argument, span)),
            Location::Host(_) => {
                Ok(space.on_host(span).map_or(CopyOperand::Host, CopyOperand::Buffer))
            }
        }
    }

    /// Encodes a copy between buffers.
    fn encode_copy(
        &self,
        commands: &Commands,
        to: Rows<'_>,
        from: Rows<'_>,
        extent: Extent,
    ) -> Result<()> {
        let width = extent.width.get();
        let aligned = [to.0.offset, from.0.offset, width].iter().all(|n| n.is_multiple_of(BLIT));
        if extent.rows > 1 || extent.slices > 1 || !aligned {
            return self.kernels(Call::Copy)?.copy(commands, to, from, extent);
        }
        let encoder = commands.blitCommandEncoder().ok_or_else(|| no_encoder(Call::Copy))?;
        // SAFETY: both spots lie in their buffers with all of the width; the command buffer keeps them.
        unsafe {
            encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                from.0.buffer.raw(),
                count(from.0.offset),
                to.0.buffer.raw(),
                count(to.0.offset),
                count(width),
            );
        }
        encoder.endEncoding();
        Ok(())
    }

    /// Copies parts between a staging buffer and a buffer of the device's.
    fn submit_parts(
        &self,
        core: &Arc<StreamCore>,
        parts: &[Part],
        device: &BufferOffset<BufferRef>,
        stage: &BufferRef,
        is_upload: bool,
    ) -> Result<u64> {
        let kept = vec![Arc::clone(&device.buffer), Arc::clone(stage)];
        core.submit(Call::Copy, kept, |commands| {
            parts.iter().try_for_each(|part| {
                let there = BufferOffset {
                    buffer: Arc::clone(&device.buffer),
                    offset: device.offset + part.device,
                };
                let staged = BufferOffset { buffer: Arc::clone(stage), offset: part.stage };
                let (to, from) = if is_upload { (&there, &staged) } else { (&staged, &there) };
                let (none, extent) = (Pitch::default(), Extent::linear(Bytes::new(part.bytes)));
                self.encode_copy(commands, (to, none), (from, none), extent)
            })
        })
    }

    /// Copies between memory of the host and a buffer, in rounds through a staging buffer.
    fn copy_staged(
        &self,
        core: &Arc<StreamCore>,
        copy: &Copy,
        device: &BufferOffset<BufferRef>,
        is_upload: bool,
    ) -> Result<()> {
        let call = Call::Copy;
        let base = if is_upload { copy.to() } else { copy.from() }.address();
        let rows = copy.rows().map(|(to, from)| if is_upload { (from, to) } else { (to, from) });
        // Parts of rows begin at multiples of 4, so a stage may be larger than all the bytes.
        let rows: Vec<_> = rows.collect();
        let needed = rows.iter().map(|(host, _)| host.size().get().next_multiple_of(4));
        let size = needed.fold(0, u64::saturating_add).clamp(4, STAGE);
        let size_of_stage = Bytes::new(size);
        let stage = self.shared(call, size_of_stage, size_of_stage, PinnedFlags::empty())?;
        let mut enqueued = 0;
        for round in rounds(rows, base, size) {
            enqueued =
                self.stage_round(core, round, device, &stage, is_upload).inspect_err(|_| {
                    // What was enqueued must be done with the caller's memory before the call fails.
                    let _ = core.wait(call, enqueued);
                })?;
        }
        Ok(())
    }

    /// One round of a staged copy; its last value.
    fn stage_round(
        &self,
        core: &Arc<StreamCore>,
        round: Vec<Part>,
        device: &BufferOffset<BufferRef>,
        stage: &BufferRef,
        is_upload: bool,
    ) -> Result<u64> {
        let through_stage = {
            let (parts, stage) = (round.clone(), Arc::clone(stage));
            move || {
                let staged = stage.contents().cast::<u8>();
                for part in parts {
                    let (host, bytes) = (pointer(part.host), count(part.bytes));
                    // SAFETY: the part lies within the stage, which is nobody else's, and the host's side is the caller's
                    // memory until the copy is done. This is its turn in the order of the stream.
                    unsafe {
                        let staged = staged.as_ptr().add(count(part.stage));
                        if is_upload {
                            core::ptr::copy_nonoverlapping(host, staged, bytes);
                        } else {
                            core::ptr::copy_nonoverlapping(staged, host, bytes);
                        }
                    }
                }
            }
        };
        if is_upload {
            let copied = core.task(Call::Copy, through_stage)?;
            // The host's memory was read by then, whatever becomes of the other half.
            self.submit_parts(core, &round, device, stage, true).inspect_err(|_| {
                let _ = core.wait(Call::Copy, copied);
            })
        } else {
            self.submit_parts(core, &round, device, stage, false)?;
            core.task(Call::Copy, through_stage)
        }
    }

    fn copy(&self, core: &Arc<StreamCore>, copy: &Copy) -> Result<()> {
        let to = self.operand("to", copy.to(), copy.written())?;
        let from = self.operand("from", copy.from(), copy.read())?;
        match (to, from) {
            (CopyOperand::Buffer(to), CopyOperand::Buffer(from)) => {
                let kept = vec![Arc::clone(&to.buffer), Arc::clone(&from.buffer)];
                let (to, from) = ((&to, copy.to_pitch()), (&from, copy.from_pitch()));
                core.submit(Call::Copy, kept, |commands| {
                    self.encode_copy(commands, to, from, copy.extent())
                })
                .map(drop)
            }
            (CopyOperand::Buffer(to), CopyOperand::Host) => self.copy_staged(core, copy, &to, true),
            (CopyOperand::Host, CopyOperand::Buffer(from)) => {
                self.copy_staged(core, copy, &from, false)
            }
            (CopyOperand::Host, CopyOperand::Host) => {
                let copy = *copy;
                let task = move || {
                    for (to, from) in copy.rows() {
                        let (to_start, from_start) = (to.start().get(), from.start().get());
                        // SAFETY: memory of the caller's until the copy is done; no row written shares a byte with one
                        // read.
                        unsafe {
                            core::ptr::copy_nonoverlapping(
                                pointer(from_start),
                                pointer(to_start),
                                count(to.size().get()),
                            );
                        }
                    }
                };
                core.task(Call::Copy, task).map(drop)
            }
        }
    }

    fn fill(&self, core: &Arc<StreamCore>, fill: &Fill) -> Result<()> {
        let span = fill.written();
        let to = lock(&self.space).on_device(span);
        let to = to.ok_or_else(|| not_device_memory(Call::Fill, "to", span))?;
        let (extent, pattern) = (fill.extent(), fill.pattern().four_bytes());
        let [byte, ..] = pattern;
        let width = extent.width.get();
        let aligned = to.offset.is_multiple_of(BLIT) && width.is_multiple_of(BLIT);
        let is_blit = pattern == [byte; 4] && extent.rows == 1 && extent.slices == 1 && aligned;
        core.submit(Call::Fill, vec![Arc::clone(&to.buffer)], |commands| {
            if !is_blit {
                let kernels = self.kernels(Call::Fill)?;
                return kernels.fill(commands, (&to, fill.pitch()), pattern, extent);
            }
            let encoder = commands.blitCommandEncoder().ok_or_else(|| no_encoder(Call::Fill))?;
            let range = NSRange { location: count(to.offset), length: count(width) };
            encoder.fillBuffer_range_value(to.buffer.raw(), range, byte);
            encoder.endEncoding();
            Ok(())
        })
        .map(drop)
    }

    /// The location of an address of plain or mapped memory.
    pub(crate) fn locate(&self, address: Address) -> Option<BufferOffset<BufferRef>> {
        lock(&self.space).on_device(Span::new(address, Bytes::new(1)).ok()?)
    }
}

// SAFETY: the rows of the shape are what blits, kernels and host functions are given, no more and no less. All of it is
// enqueued on the stream, in order. Addresses are looked up in the books. A staged copy that fails half way waits for what
// it has enqueued before it returns; the stage itself lives until the work that uses it is done.
unsafe impl Transfers for MetalDevice {
    unsafe fn copy(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        let inner = self.inner(Call::Copy)?;
        let core = lock(&inner.streams).get(Call::Copy, stream)?;
        if copy.extent().is_empty() {
            return Ok(());
        }
        inner.copy(&core, copy)
    }

    unsafe fn fill(&self, fill: &Fill, stream: StreamHandle) -> Result<()> {
        let inner = self.inner(Call::Fill)?;
        let core = lock(&inner.streams).get(Call::Fill, stream)?;
        if fill.extent().is_empty() {
            return Ok(());
        }
        inner.fill(&core, fill)
    }
}

/// The error of a copy or fill whose device side is not this device's.
fn not_device_memory(call: Call, argument: &'static str, span: Span) -> Error {
    invalid(call, argument, span, "live memory of this device, in one piece")
}

/// The error of kernels that Metal does not compile.
pub(crate) fn no_kernels(call: Call, reason: &str) -> Error {
    let missing = format!("kernels for unaligned copies and fills: Metal says \"{reason}\"");
    Error::Unsupported { call, missing: missing.into() }
}
