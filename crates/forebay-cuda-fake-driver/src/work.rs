//! Copies, fills, and what stands for kernels.

use core::ffi::{c_uchar, c_uint, c_ushort};

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUcontext, CUdeviceptr, CUmemcpyAttributes,
    CUmemcpySrcAccessOrder, CUmemorytype, CUresult, CUstream,
};
use forebay_core::{Address, Bytes, DeviceOrdinal};
use forebay_hal::{
    Copy, Extent, Fill, Location, Pattern, PeerCopy, PeerLocation, Peers, Pitch, PointerKind,
    Streams, Transfers,
};

use crate::answer::{Answer, exports, said};
use crate::captures::takes_work;
use crate::context::{device_of, number};
use crate::machine::machine;
use crate::streams::ordered;

/// One end of a copy, as its address tells, and whose memory it is if a device's.
fn place(address: u64) -> Answer<(Location, Option<u32>)> {
    let at = Address::new(address);
    Ok(match machine()?.find(address) {
        Some((owner, class)) if class.kind != PointerKind::Pinned => {
            (Location::Device(at), Some(owner))
        }
        _ => (Location::Host(at), None),
    })
}

/// A copy of any shape by the addresses alone.
pub(crate) fn copy(
    to: u64,
    to_pitch: Pitch,
    from: u64,
    from_pitch: Pitch,
    extent: Extent,
    on: CUstream,
) -> Answer {
    if takes_work(on) {
        return Ok(());
    }
    let entry = ordered(on)?;
    let ((to, to_owner), (from, from_owner)) = (place(to)?, place(from)?);
    if to_owner.or(from_owner).is_some_and(|owner| owner != entry.device)
        || (to_owner.is_some() && from_owner.is_some() && to_owner != from_owner)
    {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let copy = said(Copy::volumes(to, to_pitch, from, from_pitch, extent))?;
    // SAFETY: the caller of the driver's function has promised that both sides are memory until the
    // copy is done.
    said(unsafe { machine()?.device(entry.device)?.copy(&copy, entry.stream) })
}

fn fill(to: u64, pitch: u64, (width, rows): (u64, u64), pattern: Pattern, on: CUstream) -> Answer {
    if takes_work(on) {
        return Ok(());
    }
    let entry = ordered(on)?;
    let width = width.checked_mul(pattern.width().get());
    let width = Bytes::new(width.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?);
    let fill = said(Fill::plane(Address::new(to), Bytes::new(pitch), (width, rows), pattern))?;
    // SAFETY: as for `copy`.
    said(unsafe { machine()?.device(entry.device)?.fill(&fill, entry.stream) })
}

/// The address a structure names for a side.
fn side(kind: CUmemorytype, host: u64, device: u64) -> Answer<u64> {
    match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => Ok(host),
        CUmemorytype::CU_MEMORYTYPE_DEVICE | CUmemorytype::CU_MEMORYTYPE_UNIFIED => Ok(device),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

fn pitch(row: usize, height: usize) -> Pitch {
    let row = row as u64;
    Pitch { row: Bytes::new(row), slice: Bytes::new(row.saturating_mul(height as u64)) }
}

exports! {
    "cuMemcpy" 4000 fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, size: usize) {
        let (none, stream) = (Pitch::default(), core::ptr::null_mut());
        copy(to, none, from, none, Extent::linear(Bytes::new(size as u64)), stream)?;
        let entry = ordered(stream)?;
        said(machine()?.device(entry.device)?.synchronize_stream(entry.stream))
    }

    "cuMemcpyAsync" 4000 fn cuMemcpyAsync(
        to: CUdeviceptr,
        from: CUdeviceptr,
        size: usize,
        stream: CUstream,
    ) {
        let none = Pitch::default();
        copy(to, none, from, none, Extent::linear(Bytes::new(size as u64)), stream)
    }

    "cuMemcpyBatchAsync" 12080 fn cuMemcpyBatchAsync(
        to: *const CUdeviceptr,
        from: *const CUdeviceptr,
        sizes: *const usize,
        count: usize,
        attributes: *const CUmemcpyAttributes,
        first_of_attributes: *const usize,
        attribute_count: usize,
        failed: *mut usize,
        stream: CUstream,
    ) {
        // As the driver does: attributes for all from the first on, and no default stream.
        // SAFETY: the caller's lists.
        let is_whole = attribute_count == 1 && unsafe { first_of_attributes.read() } == 0;
        // SAFETY: the caller's structure.
        let order = unsafe { attributes.read() }.srcAccessOrder;
        if !is_whole
            || count == 0
            || number(stream) <= 2
            || order != CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let none = Pitch::default();
        for index in 0..count {
            // SAFETY: lists of `count`, of the caller's.
            let (to, from, size) =
                unsafe { (to.add(index).read(), from.add(index).read(), sizes.add(index).read()) };
            let extent = Extent::linear(Bytes::new(size as u64));
            copy(to, none, from, none, extent, stream).inspect_err(|_| {
                // SAFETY: a place of the caller's.
                unsafe { failed.write(index) };
            })?;
        }
        Ok(())
    }

    "cuMemcpy2DAsync" 3020 fn cuMemcpy2DAsync_v2(shape: *const CUDA_MEMCPY2D, stream: CUstream) {
        // SAFETY: a structure of the caller's.
        let shape = unsafe { shape.read() };
        let to = side(shape.dstMemoryType, number(shape.dstHost), shape.dstDevice)?;
        let from =
            side(shape.srcMemoryType, number(shape.srcHost.cast_mut()), shape.srcDevice)?;
        let extent = Extent::plane(Bytes::new(shape.WidthInBytes as u64), shape.Height as u64);
        copy(to, pitch(shape.dstPitch, 0), from, pitch(shape.srcPitch, 0), extent, stream)
    }

    "cuMemcpy3DAsync" 3020 fn cuMemcpy3DAsync_v2(shape: *const CUDA_MEMCPY3D, stream: CUstream) {
        // SAFETY: a structure of the caller's.
        let shape = unsafe { shape.read() };
        let to = side(shape.dstMemoryType, number(shape.dstHost), shape.dstDevice)?;
        let from =
            side(shape.srcMemoryType, number(shape.srcHost.cast_mut()), shape.srcDevice)?;
        let extent = Extent {
            width: Bytes::new(shape.WidthInBytes as u64),
            rows: shape.Height as u64,
            slices: shape.Depth as u64,
        };
        let to_pitch = pitch(shape.dstPitch, shape.dstHeight);
        copy(to, to_pitch, from, pitch(shape.srcPitch, shape.srcHeight), extent, stream)
    }

    "cuMemcpyPeerAsync" 4000 fn cuMemcpyPeerAsync(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        size: usize,
        on: CUstream,
    ) {
        if takes_work(on) {
            return Ok(());
        }
        let entry = ordered(on)?;
        let place = |context, address| -> Answer<PeerLocation> {
            let device = DeviceOrdinal(device_of(number(context))?);
            Ok(PeerLocation { device, address: Address::new(address) })
        };
        let size = Bytes::new(size as u64);
        let copy = said(PeerCopy::new(place(to_context, to)?, place(from_context, from)?, size))?;
        // SAFETY: as for `copy`.
        said(unsafe { machine()?.device(entry.device)?.copy_peer(&copy, entry.stream) })
    }

    "cuMemsetD8Async" 3020 fn cuMemsetD8Async(
        to: CUdeviceptr,
        value: c_uchar,
        count: usize,
        stream: CUstream,
    ) {
        fill(to, 0, (count as u64, 1), Pattern::U8(value), stream)
    }

    "cuMemsetD16Async" 3020 fn cuMemsetD16Async(
        to: CUdeviceptr,
        value: c_ushort,
        count: usize,
        stream: CUstream,
    ) {
        fill(to, 0, (count as u64, 1), Pattern::U16(value), stream)
    }

    "cuMemsetD32Async" 3020 fn cuMemsetD32Async(
        to: CUdeviceptr,
        value: c_uint,
        count: usize,
        stream: CUstream,
    ) {
        fill(to, 0, (count as u64, 1), Pattern::U32(value), stream)
    }

    "cuMemsetD2D8Async" 3020 fn cuMemsetD2D8Async(
        to: CUdeviceptr,
        pitch: usize,
        value: c_uchar,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(to, pitch as u64, (width as u64, height as u64), Pattern::U8(value), stream)
    }

    "cuMemsetD2D16Async" 3020 fn cuMemsetD2D16Async(
        to: CUdeviceptr,
        pitch: usize,
        value: c_ushort,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(to, pitch as u64, (width as u64, height as u64), Pattern::U16(value), stream)
    }

    "cuMemsetD2D32Async" 3020 fn cuMemsetD2D32Async(
        to: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(to, pitch as u64, (width as u64, height as u64), Pattern::U32(value), stream)
    }
}
