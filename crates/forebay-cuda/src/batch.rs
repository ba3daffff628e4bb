//! Many copies in one call.

use forebay_hal::{self as hal, Call, Place, Result, StreamHandle, Transfers};

use crate::CudaDevice;
use crate::refusal::CallInfo;
use crate::space::{SpanCheck, Use};
use crate::sys::values::access_order;
use crate::sys::{Code, CopyAttributes, RawStream};

/// The copies of a batch, as the driver takes them.
#[derive(Default)]
struct Batch {
    to: Vec<u64>,
    from: Vec<u64>,
    sizes: Vec<u64>,
}

impl CudaDevice {
    /// Enqueues copies in one call of the driver, if it has one for that and takes these; else one by one.
    ///
    /// # Safety
    ///
    /// * As for `Transfers::copy_all`.
    pub(crate) unsafe fn enqueue_batch(
        &self,
        copies: &[hal::Copy],
        stream: StreamHandle,
    ) -> Result<()> {
        let core = self.stream(Call::Copy, stream)?;
        // SAFETY: as the caller promised.
        let one_by_one = || copies.iter().try_for_each(|copy| unsafe { self.copy(copy, stream) });
        // The driver takes no batch on its default streams.
        let is_own =
            ![RawStream::NULL, RawStream::LEGACY, RawStream::PER_THREAD].contains(&core.raw);
        let batch = if is_own && copies.len() > 1 { self.batch_of(copies) } else { None };
        let Some(batch) = batch else { return one_by_one() };
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
            Ok(()) => Ok(()),
            // Such as while the stream is captured.
            Err(refusal) if refusal.code == Code::ERROR_NOT_SUPPORTED => one_by_one(),
            Err(refusal) => {
                let given =
                    format!("{} copies, of which number {failed} was refused", copies.len());
                Err(self.refused(
                    Call::Copy,
                    refusal,
                    &CallInfo::of("copies", given, "allocated memory"),
                ))
            }
        }
    }

    /// The lists for the driver, if it has the call, and every copy is of consecutive bytes between pinned memory and
    /// this device's own.
    fn batch_of(&self, copies: &[hal::Copy]) -> Option<Batch> {
        self.context.table().memcpy_batch?;
        let mut batch = Batch::default();
        for copy in copies.iter().filter(|copy| !copy.extent().is_empty()) {
            let (to, from, device, host, usage) = match (copy.to(), copy.from()) {
                (Place::Device(to), Place::Host(from)) => {
                    (to, from, copy.written(), copy.read(), Use::Write)
                }
                (Place::Host(to), Place::Device(from)) => {
                    (to, from, copy.read(), copy.written(), Use::Read)
                }
                _ => return None,
            };
            let space = self.space();
            let is_usable = space.is_pinned(host)
                && space.check(Call::Copy, "copies", device, usage) == SpanCheck::Usable;
            if !is_usable || device.size() != copy.extent().bytes() || host.size() != device.size()
            {
                return None;
            }
            batch.to.push(to.get());
            batch.from.push(from.get());
            batch.sizes.push(device.size().get());
        }
        (batch.sizes.len() > 1).then_some(batch)
    }
}
