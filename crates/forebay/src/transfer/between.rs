//! Copies between devices, of any two kinds, through ordinary host memory.
//!
//! ```text
//!   engine of the source   device memory ──> half A of the stage      and then half B, ...
//!   engine of the target                     half A ──> device memory     meanwhile
//! ```

use core::mem::swap;

use bytemuck::Pod;
use forebay_core::{Address, Bytes};
use forebay_hal::{self as hal, Call, Copy, Location, StreamHandle, invalid};

use super::engine::TransferEngine;
use crate::range::{check_device, check_length};
use crate::{Allocate, DeviceArray, Result};

/// Pieces per half of the stage: enough to hide the slow start and end of a transfer.
const PIECES: usize = 8;

impl TransferEngine {
    /// Copies all elements of `from`, an array of this engine's device, to `to`, an array of `target`'s device, after
    /// the work on the streams of both, and waits. The devices may be of any two kinds.
    ///
    /// The data goes through host memory, in parts: one part is uploaded while the next is downloaded. Between devices
    /// of one kind that [reach each other](forebay_hal::Peers), a peer copy avoids the detour.
    ///
    /// Fails, without writing anything, if the lengths differ or an array is not on its engine's device. An error
    /// midway leaves a part of `to` written.
    ///
    /// ```
    /// use forebay::{HostDevice, Pool, TransferEngine};
    ///
    /// let (near, far) = (HostDevice::open()?, HostDevice::open()?); // any two, as devices::open("opencl:0")?
    /// let mut from = Pool::new(&near)?.default_stream().uninit::<u32>(100_000)?;
    /// from.fill(7)?;
    /// let mut to = Pool::new(&far)?.default_stream().uninit::<u32>(100_000)?;
    /// TransferEngine::new(&near)?.copy_between(&from, &TransferEngine::new(&far)?, &mut to)?;
    /// assert_eq!(to.to_vec()?, vec![7; 100_000]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn copy_between<T, A, B>(
        &self,
        from: &DeviceArray<T, A>,
        target: &Self,
        to: &mut DeviceArray<T, B>,
    ) -> Result<()>
    where
        T: Pod + Send + Sync,
        A: Allocate,
        B: Allocate,
    {
        check_device(from.block().allocator().device(), self.device())?;
        check_device(to.block().allocator().device(), target.device())?;
        let length = from.len();
        check_length("from", length, to.len())?;
        let size = Bytes::of::<T>(length as u64)
            .map_err(|error| hal::Error::quantity(Call::Copy, "length", &error))?;
        let source = (from.address(), from.block().stream_to_use()?);
        let sink = (to.address(), to.block().stream_to_use()?);
        // SAFETY: the arrays are of these devices and as long as that. Both are borrowed until this returns, `to` by nobody
        // else.
        unsafe { self.copy_between_raw(source, target, sink, size) }
    }

    /// As [`copy_between`](Self::copy_between), for the bindings: takes memory by address, each with the stream whose
    /// earlier work comes first.
    ///
    /// # Safety
    ///
    /// * `size` bytes at `from` are memory of this engine's device that nothing writes until this returns; as many at
    ///   `to` are memory of the target's device that nothing else uses.
    /// * Each stream is one of its device until then.
    pub unsafe fn copy_between_raw(
        &self,
        from: (Address, StreamHandle),
        target: &Self,
        to: (Address, StreamHandle),
        size: Bytes,
    ) -> Result<()> {
        let quantity = |error| hal::Error::quantity(Call::Copy, "size", &error);
        let size = size.to_usize().map_err(quantity)?;
        let chunk = self.options().chunk.to_usize().unwrap_or(usize::MAX);
        let half = chunk.saturating_mul(PIECES).clamp(1, size.max(1));
        let mut down = vec![0_u8; half.min(size)];
        let mut up = vec![0_u8; half.min(size)];
        let inside = |start: Address, first: usize| {
            let there = start.checked_add(Bytes::new(first as u64));
            there.map(Location::Device).ok_or_else(|| {
                invalid(Call::Copy, "size", format!("{size} B"), "no more than there are addresses")
            })
        };
        let fetch = |first: usize, part: &mut [u8]| {
            let host = Location::Host(Address::of_pointer(part.as_mut_ptr()));
            let copy = Copy::linear(host, inside(from.0, first)?, Bytes::new(part.len() as u64))?;
            // SAFETY: the device's side as the caller promised; the host's is borrowed until the copy is done.
            unsafe { self.copy_raw(copy, from.1) }.submit()?.wait()
        };
        fetch(0, &mut down)?;
        for first in (0..size).step_by(half) {
            swap(&mut down, &mut up);
            let next = size.min(first.saturating_add(half));
            let part = up.get(..next.saturating_sub(first)).unwrap_or_default();
            let host = Location::Host(Address::of_pointer(part.as_ptr()));
            let copy = Copy::linear(inside(to.0, first)?, host, Bytes::new(part.len() as u64))?;
            // SAFETY: the device's side as the caller promised; the host's outlives the ticket, whose drop waits.
            let sent = unsafe { target.copy_raw(copy, to.1) }.submit()?;
            let rest = half.min(size.saturating_sub(next));
            if rest > 0 {
                fetch(next, down.get_mut(..rest).unwrap_or_default())?;
            }
            sent.wait()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_host::HostDevice;

    use super::*;
    use crate::Pool;

    #[test]
    fn arrays_of_other_devices_are_refused_however_short() {
        let [near, far] = [(); 2].map(|()| HostDevice::open().unwrap());
        let [out, back] = [&near, &far].map(|device| TransferEngine::new(device).unwrap());
        for length in [0, 1] {
            let [from, mut to] = [&near, &far].map(|device| {
                Pool::new(device).unwrap().default_stream().uninit::<u8>(length).unwrap()
            });
            out.copy_between(&from, &out, &mut to).unwrap_err();
            back.copy_between(&from, &back, &mut to).unwrap_err();
            out.copy_between(&from, &back, &mut to).unwrap();
        }
    }
}
