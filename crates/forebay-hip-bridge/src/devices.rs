//! Beginning, devices and peers.

use core::ffi::{c_char, c_int};

use forebay_cuda::sys::Code;
use forebay_cuda::sys::values::attribute as cuda;

use crate::runtime::{exports, put, same};

/// What an attribute of HIP is called by CUDA.
fn attribute(number: u32) -> Option<u32> {
    Some(match number {
        3 => cuda::CAN_MAP_HOST_MEMORY,
        4 => cuda::HOST_POINTER_FOR_REGISTERED,
        9 => cuda::CONCURRENT_MANAGED_ACCESS,
        23 => cuda::COMPUTE_MAJOR,
        24 => cuda::MANAGED_MEMORY,
        58 => cuda::MAX_PITCH,
        61 => cuda::COMPUTE_MINOR,
        63 => cuda::MULTIPROCESSORS,
        78 => cuda::STREAM_PRIORITIES,
        85 => cuda::UNIFIED_ADDRESSING,
        89 => cuda::VIRTUAL_MEMORY,
        90 => cuda::HOST_REGISTER,
        92 => cuda::HOST_NUMA_NODE,
        _ => return None,
    })
}

same! {
    hipDrvGetErrorName = get_error_name(code: Code, name: *mut *const c_char);
    hipDeviceGet = device_get(device: *mut c_int, ordinal: c_int);
    hipDeviceGetName = device_get_name(name: *mut c_char, length: c_int, device: c_int);
    hipDeviceCanAccessPeer = device_can_access_peer(can: *mut c_int, device: c_int, peer: c_int);
    hipDeviceSynchronize = context_synchronize();
    hipDeviceGetStreamPriorityRange =
        context_priority_range(least: *mut c_int, greatest: *mut c_int);
}

exports! {
    fn hipInit(flags: u32) |_runtime| {
        if flags == 0 { Ok(()) } else { Err(Code::ERROR_INVALID_VALUE) }
    }

    fn hipDriverGetVersion(version: *mut c_int) |runtime| {
        // SAFETY: a place of the caller's.
        unsafe { put(version, runtime.version) }
    }

    fn hipGetDeviceCount(count: *mut c_int) |runtime| {
        // SAFETY: a place of the caller's.
        unsafe { put(count, runtime.device_count()) }
    }

    fn hipGetDevice(device: *mut c_int) |runtime| {
        // SAFETY: a place of the caller's.
        unsafe { put(device, runtime.device()) }
    }

    fn hipSetDevice(device: c_int) |runtime| {
        runtime.set_device(device)
    }

    fn hipDeviceGetAttribute(value: *mut c_int, number: u32, device: c_int) |runtime| {
        let known = attribute(number).filter(|_| number < 90 || runtime.is_wide());
        let number = known.ok_or(Code::ERROR_INVALID_VALUE)?;
        // SAFETY: a place of the caller's.
        runtime.call(|table| unsafe { table.device_get_attribute(value, number, device) })
    }

    fn hipDeviceEnablePeerAccess(peer: c_int, flags: u32) |runtime| {
        let peer = runtime.context(peer)?;
        // SAFETY: a live context.
        runtime.call(|table| unsafe { table.context_enable_peer(peer, flags) })
    }

    fn hipDeviceDisablePeerAccess(peer: c_int) |runtime| {
        let peer = runtime.context(peer)?;
        // SAFETY: a live context.
        runtime.call(|table| unsafe { table.context_disable_peer(peer) })
    }
}
