//! Many copies in one call.
//!
//! ```text
//!   8 copies and more of up to 64 KiB on average     a kernel of this crate, which reads and writes pinned memory itself
//!   else, and where there is no kernel               one batch call of the driver, from CUDA 12.8 on
//!   default streams, older drivers, captures         one call of the driver for each
//! ```
//!
//! The driver needs 1.5 to 2.5 us for each copy, even in a batch. On an H200, 10,000 copies of 4 KiB from pinned memory
//! to scattered addresses took 29.4 ms one by one and 1.01 ms with the kernel; copies of 32 KiB took 31.4 and 6.7 ms
//! (2026-11-17, `cargo test --release -p forebay --features cuda --test kernels -- "how fast many small copies are"`;
//! record `benches/records/nvidia-h200/2026-11-17/transfer.json`). For large copies the driver's copy engine is faster
//! and leaves the multiprocessors free.
//!
//! The kernel reads a table of pieces from a staging buffer, which is reused once an event after the kernel was
//! reached. `kernels/copy.c` is its source.

use core::ffi::c_void;

use forebay_core::Bytes;
use forebay_hal::{self as hal, Access, Asked, Call, Location, Result};

use crate::context::{RelaxedCapture, host_pointer};
use crate::device::CudaDevice;
use crate::kernel::{WARPS, can_launch};
use crate::space::{Entry, Space, is_for_kernels, is_pinned};
use crate::stream::StreamCore;
use crate::sys::values::{access_order, attribute, capture_status};
use crate::sys::{Code, CopyAttributes, RawStream};

/// Copies that are looked up and enqueued together: the device copies one group while the host looks up the next. Two
/// thousand copies of 4 KiB take the device 170 us, long beside the few that a launch takes.
pub(crate) const GROUP: usize = 2048;

/// Copies that are looked up under one lock of the books.
const LOOKS: usize = 64;

/// The least copies for the kernel. It and its table take as long as a few calls of the driver.
const KERNEL_FROM: u64 = 8;

/// The most bytes of a copy, on average, for the kernel: with more, the driver's call takes less time than the bytes.
const KERNEL_UP_TO: u64 = 64 << 10;

/// The most bytes that one warp copies, so that none is long at work when the others are done. With these, the table of
/// a group is at most 432 KiB.
const PIECE: u64 = 8 << 10;

/// The most thread blocks of the kernel. A thousand warps, with up to 2 KiB under way each, are more than what fills the
/// wire, and an eighth of a large device: the rest is left to other kernels.
const MAX_BLOCKS: u32 = 256;

/// A piece of a copy, as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct BatchPart {
    to: u64,
    from: u64,
    bytes: u64,
}

/// The copies of a batch, as the driver takes them.
#[derive(Default)]
struct Batch {
    to: Vec<u64>,
    from: Vec<u64>,
    sizes: Vec<u64>,
    /// Whether there is one that kernels cannot make.
    not_for_kernels: bool,
}

impl Batch {
    /// Adds a copy of consecutive bytes between pinned memory and the device's own; `None` if it is none.
    /// `near` are the entries of the books that were found last on both sides, and `registered` is whether kernels use
    /// registered memory.
    fn add<'a>(
        &mut self,
        copy: &hal::Copy,
        space: &'a Space,
        near: &mut [Option<&'a Entry>; 2],
        registered: bool,
    ) -> Option<()> {
        let (written, read) = (copy.written(), copy.read());
        let (device, need, host, host_need) = match (copy.to(), copy.from()) {
            (Location::Device(_), Location::Host(_)) => {
                (written, Access::ReadWrite, read, Access::Read)
            }
            (Location::Host(_), Location::Device(_)) => {
                (read, Access::Read, written, Access::ReadWrite)
            }
            _ => return None,
        };
        let [there, here] = near;
        let there = space.book.find_near(there, device.start())?;
        let here = space.book.find_near(here, host.start())?;
        let is_usable = is_pinned(here, host) && there.check(device, need).is_ok();
        if !is_usable || device.size() != copy.extent().bytes() || host.size() != device.size() {
            return None;
        }
        self.not_for_kernels |= !is_for_kernels(there, registered)
            || !is_for_kernels(here, registered)
            || here.check(host, host_need).is_err();
        self.to.push(written.start().get());
        self.from.push(read.start().get());
        self.sizes.push(device.size().get());
        Some(())
    }

    /// Whether the kernel is faster than the driver's calls, and can make them.
    fn suits_kernel(&self) -> bool {
        let (count, bytes) = (self.sizes.len() as u64, self.sizes.iter().sum::<u64>());
        !self.not_for_kernels && count >= KERNEL_FROM && bytes / count <= KERNEL_UP_TO
    }

    /// The copies, cut into pieces.
    fn pieces(&self) -> impl Iterator<Item = BatchPart> {
        let copies = self.to.iter().zip(&self.from).zip(&self.sizes);
        copies.flat_map(|((&to, &from), &size)| {
            (0..size.div_ceil(PIECE)).map(move |index| {
                let offset = index * PIECE;
                let bytes = PIECE.min(size - offset);
                BatchPart { to: to + offset, from: from + offset, bytes }
            })
        })
    }
}

impl CudaDevice {
    /// Enqueues copies by the kernel or in one call of the driver. Returns `false`, with nothing enqueued, if neither can
    /// make them.
    ///
    /// # Safety
    ///
    /// * As for `Transfers::copy_all`.
    pub(crate) unsafe fn enqueue_batch(
        &self,
        copies: &[hal::Copy],
        core: &StreamCore,
    ) -> Result<bool> {
        let batch = if copies.len() > 1 { self.batch_of(copies) } else { None };
        let Some(batch) = batch else { return Ok(false) };
        // SAFETY: as the caller promised. For both.
        unsafe {
            Ok(self.copy_by_kernel(&batch, core).is_some()
                || self.copy_by_driver(&batch, core)?.is_some())
        }
    }

    /// Enqueues a batch in one call of the driver; `None` if it does not take it.
    ///
    /// # Safety
    ///
    /// * As for `Transfers::copy_all`.
    unsafe fn copy_by_driver(&self, batch: &Batch, core: &StreamCore) -> Result<Option<()>> {
        // The driver takes no batch on its default streams.
        let is_default =
            [RawStream::NULL, RawStream::LEGACY, RawStream::PER_THREAD].contains(&core.raw);
        if is_default || self.context.table().memcpy_batch.is_none() {
            return Ok(None);
        }
        let attributes =
            CopyAttributes { source_order: access_order::STREAM, ..CopyAttributes::default() };
        let (first, mut failed) = (0, u64::MAX);
        let enqueued = self.context.call(|table| {
            // SAFETY: three lists of one length, attributes for all from the first on, a live stream; the memory of
            // the device was looked up, and that of the host is pinned and valid, as the caller promised.
            unsafe {
                table.memcpy_batch(
                    batch.to.as_ptr(),
                    batch.from.as_ptr(),
                    batch.sizes.as_ptr(),
                    batch.sizes.len() as u64,
                    &raw const attributes,
                    &raw const first,
                    1,
                    &raw mut failed,
                    core.raw,
                )
            }
        });
        match enqueued {
            Ok(()) => Ok(Some(())),
            // Such as while the stream is captured.
            Err(refusal) if refusal.code == Code::ERROR_NOT_SUPPORTED => Ok(None),
            Err(refusal) => {
                let count = batch.sizes.len();
                let given = format!("{count} copies, of which number {failed} was refused");
                Err(self.refused(
                    Call::Copy,
                    refusal,
                    &Asked::of("copies", given, "allocated memory"),
                ))
            }
        }
    }

    /// Enqueues a batch as a kernel; `None` if it does not suit one or the driver refuses it, and then nothing is enqueued.
    ///
    /// # Safety
    ///
    /// * As for `Transfers::copy_all`.
    unsafe fn copy_by_kernel(&self, batch: &Batch, core: &StreamCore) -> Option<()> {
        let (context, pools) = (self.context, self.pools);
        if !batch.suits_kernel() || !can_launch(context.table()) || self.may_be_captured(core) {
            return None;
        }
        let _relaxed = RelaxedCapture::begin(context)?;
        let function = pools.copy.get_if_taken()?;
        let mut count = u32::try_from(batch.pieces().count()).ok()?;
        let size = Bytes::new(u64::from(count) * size_of::<BatchPart>() as u64);
        let table = pools.stages.take_if_few(size)?;
        let mut address = table.address;
        let mut launched = None;
        if table.size >= size {
            let mut place = host_pointer(address).cast::<BatchPart>();
            for piece in batch.pieces() {
                // SAFETY: the staging buffer has room for all of them, and nobody else has it. It begins at a multiple of 8,
                // as whatever the driver allocates.
                unsafe {
                    place.write(piece);
                    place = place.add(1);
                }
            }
            let blocks = count.div_ceil(WARPS).min(MAX_BLOCKS);
            let mut parameters: [*mut c_void; 2] =
                [(&raw mut address).cast(), (&raw mut count).cast()];
            // SAFETY: a kernel of this context with two arguments of these widths, a live stream, a table that is not used
            // again before the event that `retire` records, and memory that was looked up and that the caller keeps.
            launched = unsafe { context.launch(function, blocks, core.raw, &mut parameters) }.ok();
        }
        pools.stages.retire(table, core.raw);
        launched
    }

    /// Whether the stream is being captured, as far as the driver tells. A graph would run with the table of its capture.
    pub(crate) fn may_be_captured(&self, core: &StreamCore) -> bool {
        let mut status = capture_status::NONE;
        // SAFETY: a live stream, and a place of our own.
        let asked = self
            .context
            .call(|table| unsafe { table.stream_is_capturing(core.raw, &raw mut status) });
        asked.is_err() || status != capture_status::NONE
    }

    /// The lists for the driver, if every copy is of consecutive bytes between pinned memory and this device's own.
    fn batch_of(&self, copies: &[hal::Copy]) -> Option<Batch> {
        let attribute = attribute::HOST_POINTER_FOR_REGISTERED;
        let asked = || self.context.attribute(attribute) != 0;
        let registered = *self.context.registered_for_kernels.get_or_init(asked);
        let mut batch = Batch::default();
        for copies in copies.chunks(LOOKS) {
            let (space, mut near) = (self.space(), [None; 2]);
            for copy in copies.iter().filter(|copy| !copy.extent().is_empty()) {
                batch.add(copy, &space, &mut near, registered)?;
            }
        }
        (batch.sizes.len() > 1).then_some(batch)
    }
}
