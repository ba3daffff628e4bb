//! Functions that cudarc calls and forebay does not, for the tests of the two together.
//!
//! Copies with memory of the host end before they return, as the driver's do where that is not pinned. Memory that is freed
//! in the order of a stream is freed once that is idle.

use core::ffi::{c_uint, c_void};

use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUmodule, CUresult, CUstream};
use forebay_core::{Alignment, Bytes};
use forebay_hal::{Extent, Memory, Pitch, PointerKind, Streams};

use crate::answer::{Answer, exports, put, said};
use crate::context::{current, handle, here, ordinal_of};
use crate::machine::machine;
use crate::memory::free;
use crate::streams::{make_stream, ordered, tie_of};
use crate::work::copy;

fn linear(to: u64, from: u64, size: usize, stream: CUstream) -> Answer {
    let none = Pitch::default();
    copy(to, none, from, none, Extent::linear(Bytes::new(size as u64)), stream)
}

fn wait_for(stream: CUstream) -> Answer {
    let entry = ordered(stream)?;
    said(machine()?.device(entry.device)?.synchronize_stream(entry.stream))
}

exports! {
    "cuDevicePrimaryCtxRelease" 7000 fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        // forebay retains it for the rest of the process.
        ordinal_of(device).map(drop)
    }

    "cuStreamCreate" 2000 fn cuStreamCreate(place: *mut CUstream, flags: c_uint) {
        let (context, device) = current()?;
        let made = make_stream(context, device, 0, tie_of(flags))?;
        // SAFETY: a place of the caller's.
        unsafe { put(place, handle(made)) }
    }

    "cuMemcpyHtoDAsync" 3020 fn cuMemcpyHtoDAsync_v2(
        to: CUdeviceptr,
        from: *const c_void,
        size: usize,
        stream: CUstream,
    ) {
        linear(to, from.expose_provenance() as u64, size, stream)?;
        wait_for(stream)
    }

    "cuMemcpyDtoHAsync" 3020 fn cuMemcpyDtoHAsync_v2(
        to: *mut c_void,
        from: CUdeviceptr,
        size: usize,
        stream: CUstream,
    ) {
        linear(to.expose_provenance() as u64, from, size, stream)?;
        wait_for(stream)
    }

    "cuMemcpyDtoDAsync" 3020 fn cuMemcpyDtoDAsync_v2(
        to: CUdeviceptr,
        from: CUdeviceptr,
        size: usize,
        stream: CUstream,
    ) {
        linear(to, from, size, stream)
    }

    "cuMemAllocAsync" 11020 fn cuMemAllocAsync(
        address: *mut CUdeviceptr,
        size: usize,
        stream: CUstream,
    ) {
        let (machine, ordinal) = here()?;
        ordered(stream)?;
        if size == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let memory =
            said(machine.device(ordinal)?.allocate(Bytes::new(size as u64), Alignment::BLOCK))?;
        // SAFETY: a place of the caller's.
        unsafe { put(address, memory.get()) }
    }

    "cuMemFreeAsync" 11020 fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) {
        wait_for(stream)?;
        free(address, &[PointerKind::Device])
    }

    "cuModuleUnload" 2000 fn cuModuleUnload(_module: CUmodule) {
        here().map(drop)
    }
}
