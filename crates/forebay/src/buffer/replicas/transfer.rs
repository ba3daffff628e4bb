//! Copies between two buffers on one device: whole, or a part of every row.

use std::sync::Arc;

use forebay_core::{Bytes, Replica};
use forebay_hal::{self as hal, Place, StreamHandle};

use super::Replicas;
use crate::Result;
use crate::buffer::access::Access;
use crate::buffer::raw::offset;

/// A part of every row of a buffer: `width` bytes, starting at `offset`, in each of `rows` rows `pitch` bytes apart.
#[derive(Clone, Copy, Debug)]
pub(in crate::buffer) struct Strides {
    pub(in crate::buffer) offset: u64,
    pub(in crate::buffer) pitch: u64,
    pub(in crate::buffer) width: u64,
    pub(in crate::buffer) rows: u64,
}

impl Replicas {
    /// Copies all of `from`, which has the same size, on the device. Returns `false`, without effect, if the buffers
    /// are on different devices or the host has newer data.
    pub(in crate::buffer) fn copy_on_device(
        &mut self,
        from: &mut Self,
        stream: StreamHandle,
    ) -> Result<bool> {
        let size = Bytes::new(self.size());
        self.transfer_on_device(from, Access::Overwrite, stream, |to, from| {
            Ok(hal::Copy::linear(to, from, size)?)
        })
    }

    /// As [`copy_on_device`](Self::copy_on_device), but copies the part of every row of `from` given by `strides` to
    /// consecutive bytes.
    pub(in crate::buffer) fn gather_on_device(
        &mut self,
        from: &mut Self,
        Strides { offset: skipped, pitch, width, rows }: Strides,
        stream: StreamHandle,
    ) -> Result<bool> {
        self.transfer_on_device(from, Access::Overwrite, stream, |to, from| {
            let from = Place::Device(offset(from.address(), skipped)?);
            let (pitch, width) = (Bytes::new(pitch), Bytes::new(width));
            Ok(hal::Copy::planes(to, width, from, pitch, (width, rows))?)
        })
    }

    /// The reverse: copies consecutive bytes to a part of every row.
    pub(in crate::buffer) fn scatter_on_device(
        &mut self,
        from: &mut Self,
        Strides { offset: skipped, pitch, width, rows }: Strides,
        stream: StreamHandle,
    ) -> Result<bool> {
        self.transfer_on_device(from, Access::Update, stream, |to, from| {
            let to = Place::Device(offset(to.address(), skipped)?);
            let (pitch, width) = (Bytes::new(pitch), Bytes::new(width));
            Ok(hal::Copy::planes(to, pitch, from, width, (width, rows))?)
        })
    }

    /// Copies on the device from the start of `from` to the start of this buffer, as `copy` specifies. With
    /// [`Access::Update`] bytes that it does not write are kept.
    fn transfer_on_device(
        &mut self,
        from: &mut Self,
        access: Access,
        stream: StreamHandle,
        copy: impl Fn(Place, Place) -> Result<hal::Copy>,
    ) -> Result<bool> {
        self.check_writable(access)?;
        let same = Arc::ptr_eq(self.store.device(), from.store.device());
        let all = 0..self.size();
        let of_source = 0..from.size();
        let is_there = from.device.is_some()
            && from.coherence.needs(Replica::Device, of_source.clone()).is_empty();
        if !same || self.unified || from.unified || !is_there || all.is_empty() {
            return Ok(false);
        }
        let stream = stream.resolved();
        let source = from.acquire_device(of_source, Access::Read, stream)?;
        if access == Access::Update {
            self.acquire_device(all.clone(), Access::Read, stream)?;
        }
        // Allocate and order first; the contents are still the old ones.
        self.check_process()?;
        let device = self.device_handle();
        let side = self.device_side(stream)?;
        side.order(&device, stream, Access::Update, true)?;
        let copy = copy(Place::Device(side.address()), Place::Device(source))?;
        // SAFETY: both are blocks of buffers, which are freed after the work of `stream`; the two are different. The
        // copy stays within them: its caller has checked lengths and strides against both.
        if let Err(error) = unsafe { device.copy(&copy, stream) } {
            if !matches!(error, hal::Error::Invalid { .. }) {
                // The device's bytes are undefined now; the host's are intact.
                self.coherence.invalidated(Replica::Device, all);
            }
            return Err(error.into());
        }
        self.coherence.written(Replica::Device, all);
        Ok(true)
    }
}
