//! Copies between two buffers on one device.

use std::sync::Arc;

use forebay_core::{Address, Replica};
use forebay_hal::{self as hal, StreamHandle};

use super::Replicas;
use crate::Result;
use crate::buffer::access::Access;

impl Replicas {
    /// Enqueues the `copy` between the addresses of `from` and of this buffer, to the latter. With [`Access::Update`]
    /// bytes that it does not write are kept. Returns `false`, without effect, if the buffers are on different devices
    /// or the host has newer data.
    pub(in crate::buffer) fn copy_on_device(
        &mut self,
        from: &mut Self,
        access: Access,
        stream: StreamHandle,
        copy: impl FnOnce(Address, Address) -> Result<hal::Copy>,
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
        let copy = copy(source, side.address())?;
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
