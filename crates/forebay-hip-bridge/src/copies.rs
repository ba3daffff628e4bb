//! Copies and fills.

use core::ffi::{c_int, c_void};

use forebay_cuda::sys::values::memory_type;
use forebay_cuda::sys::{Code, Copy2d, Copy3d, CopyAttributes, RawStream};

use crate::memory::is_host;
use crate::runtime::{Answer, Runtime, exports, same};

/// `hipMemcpyDefault`.
const DEFAULT: u32 = 4;

/// One side of `HIP_MEMCPY3D`, whose sizes are of this type.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyTerm<S> {
    x: S,
    y: S,
    z: S,
    lod: S,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: S,
    height: S,
}

/// `HIP_MEMCPY3D` from 6.0 on.
#[repr(C)]
struct Wide {
    src: CopyTerm<u64>,
    dst: CopyTerm<u64>,
    width: u64,
    height: u64,
    depth: u64,
}

/// `HIP_MEMCPY3D` before 6.0.
#[repr(C)]
struct Narrow {
    src: CopyTerm<u32>,
    dst: CopyTerm<u32>,
    width: u32,
    height: u32,
    depth: u32,
}

/// CUDA's memory type for one of HIP's. forebay uses one alone.
fn kind(runtime: &Runtime, kind: u32) -> Result<u32, Code> {
    let unified = if runtime.is_wide() { 11 } else { 3 };
    if kind == unified { Ok(memory_type::UNIFIED) } else { Err(Code::ERROR_INVALID_VALUE) }
}

fn widen(side: CopyTerm<u32>) -> CopyTerm<u64> {
    let CopyTerm { x, y, z, lod, kind, host, device, array, pitch, height } = side;
    CopyTerm {
        x: x.into(),
        y: y.into(),
        z: z.into(),
        lod: lod.into(),
        kind,
        host,
        device,
        array,
        pitch: pitch.into(),
        height: height.into(),
    }
}

/// Reads the structure of the version.
///
/// # Safety
///
/// * `copy` points to it.
unsafe fn read(runtime: &Runtime, copy: *const c_void) -> Wide {
    if runtime.is_wide() {
        // SAFETY: as the caller promised.
        return unsafe { copy.cast::<Wide>().read() };
    }
    // SAFETY: as the caller promised.
    let Narrow { src, dst, width, height, depth } = unsafe { copy.cast::<Narrow>().read() };
    let (width, height, depth) = (width.into(), height.into(), depth.into());
    Wide { src: widen(src), dst: widen(dst), width, height, depth }
}

/// Waits for a stream with a copy of rows to the host's memory, as HIP does, pinned or not.
fn wait_if_to_host(runtime: &Runtime, to: u64, stream: RawStream) -> Answer {
    if !is_host(runtime, to) {
        return Ok(());
    }
    // SAFETY: a live stream.
    runtime.call(|table| unsafe { table.stream_synchronize(stream) })
}

same! {
    hipMemcpyBatchAsync = memcpy_batch(
        to: *const u64, from: *const u64, sizes: *const u64, count: u64,
        attributes: *const CopyAttributes, first_of_attributes: *const u64, attribute_count: u64,
        failed: *mut u64, stream: RawStream,
    );
    hipMemsetD8Async = memset_8(address: u64, value: u8, count: u64, stream: RawStream);
    hipMemsetD16Async = memset_16(address: u64, value: u16, count: u64, stream: RawStream);
    hipMemsetD32Async = memset_32(address: u64, value: u32, count: u64, stream: RawStream);
    hipMemsetD2D16Async = memset_2d_16(
        address: u64, pitch: u64, value: u16, width: u64, height: u64, stream: RawStream,
    );
    hipMemsetD2D32Async = memset_2d_32(
        address: u64, pitch: u64, value: u32, width: u64, height: u64, stream: RawStream,
    );
}

exports! {
    fn hipMemcpyAsync(to: u64, from: u64, size: u64, direction: u32, stream: RawStream) |runtime| {
        if direction != DEFAULT {
            return Err(Code::HIP_INVALID_COPY_DIRECTION);
        }
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.memcpy(to, from, size, stream) })
    }

    fn hipMemcpyParam2DAsync(copy: *const Copy2d, stream: RawStream) |runtime| {
        // SAFETY: the caller's structure.
        let copy = unsafe { copy.read() };
        let (src_type, dst_type) = (kind(runtime, copy.src_type)?, kind(runtime, copy.dst_type)?);
        let copy = Copy2d { src_type, dst_type, ..copy };
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.memcpy_2d(&raw const copy, stream) })?;
        wait_if_to_host(runtime, copy.dst_device, stream)
    }

    fn hipDrvMemcpy3DAsync(copy: *const c_void, stream: RawStream) |runtime| {
        // SAFETY: the caller's structure, of the version.
        let Wide { src, dst, width, height, depth } = unsafe { read(runtime, copy) };
        let copy = Copy3d {
            src_x: src.x,
            src_y: src.y,
            src_z: src.z,
            src_lod: src.lod,
            src_type: kind(runtime, src.kind)?,
            src_host: src.host,
            src_device: src.device,
            src_array: src.array,
            src_pitch: src.pitch,
            src_height: src.height,
            dst_x: dst.x,
            dst_y: dst.y,
            dst_z: dst.z,
            dst_lod: dst.lod,
            dst_type: kind(runtime, dst.kind)?,
            dst_host: dst.host,
            dst_device: dst.device,
            dst_array: dst.array,
            dst_pitch: dst.pitch,
            dst_height: dst.height,
            width,
            height,
            depth,
            ..Copy3d::default()
        };
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.memcpy_3d(&raw const copy, stream) })?;
        wait_if_to_host(runtime, copy.dst_device, stream)
    }

    fn hipMemcpyPeerAsync(
        to: u64,
        to_device: c_int,
        from: u64,
        from_device: c_int,
        size: u64,
        stream: RawStream,
    ) |runtime| {
        let (to_context, from_context) =
            (runtime.context(to_device)?, runtime.context(from_device)?);
        runtime.call(|table| {
            // SAFETY: as the caller of HIP's function promised, with live contexts.
            unsafe { table.memcpy_peer(to, to_context, from, from_context, size, stream) }
        })
    }

    fn hipMemset2DAsync(
        address: u64,
        pitch: u64,
        value: c_int,
        width: u64,
        height: u64,
        stream: RawStream,
    ) |runtime| {
        // HIP takes the lowest byte.
        let [value, ..] = value.to_le_bytes();
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe {
            table.memset_2d_8(address, pitch, value, width, height, stream)
        })
    }
}
