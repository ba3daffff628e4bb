//! Beginning, devices, contexts, and finding functions.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdriverProcAddressQueryResult, CUresult, cuuint64_t,
};
use forebay_core::DeviceOrdinal;
use forebay_hal::{Device, Peers, Streams};

use crate::answer::{Answer, Export, exports, put, said};
use crate::control::{settings, text};
use crate::machine::{self, Machine, machine};
use crate::{captures, cudarc_calls, kernels, memory, pages, pools, streams, work};

/// Primary contexts are this and the device's number.
const PRIMARY: u64 = 0x1000_0000;

/// Other contexts are this and their place in the list.
const OTHER: u64 = 0x2000_0000;

/// The devices of contexts that are not primary.
static OTHERS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// The devices whose primary context somebody has retained.
static RETAINED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn retained() -> MutexGuard<'static, Vec<u32>> {
    RETAINED.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The thread's contexts, the current one last.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Makes a context that is not primary.
pub(crate) fn make(ordinal: u32) -> u64 {
    let mut others = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
    others.push(ordinal);
    OTHER + others.len() as u64 - 1
}

/// A handle as CUDA's types have it.
pub(crate) fn handle<T>(value: u64) -> *mut T {
    core::ptr::without_provenance_mut(usize::try_from(value).unwrap_or(0))
}

/// The number behind a handle.
pub(crate) fn number<T>(handle: *mut T) -> u64 {
    handle.addr() as u64
}

/// The device of a context.
pub(crate) fn device_of(context: u64) -> Answer<u32> {
    let invalid = CUresult::CUDA_ERROR_INVALID_CONTEXT;
    if let Some(place) = context.checked_sub(OTHER) {
        let others = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
        let place = usize::try_from(place).map_err(|_| invalid)?;
        return others.get(place).copied().ok_or(invalid);
    }
    let ordinal = context.checked_sub(PRIMARY).and_then(|ordinal| u32::try_from(ordinal).ok());
    ordinal.ok_or(invalid)
}

/// The thread's current context; an error where it has none, as most calls answer.
pub(crate) fn current() -> Answer<(u64, u32)> {
    let context = STACK.with_borrow(|stack| stack.last().copied());
    let context = context.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    Ok((context, device_of(context)?))
}

/// The machine, and the device of the current context.
pub(crate) fn here() -> Answer<(&'static Machine, u32)> {
    let (_, ordinal) = current()?;
    Ok((machine()?, ordinal))
}

pub(crate) fn ordinal_of(device: CUdevice) -> Answer<u32> {
    let ordinal = u32::try_from(device).map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    machine()?.device(ordinal)?;
    Ok(ordinal)
}

/// What the device answers of itself.
fn attribute(attribute: CUdevice_attribute) -> c_int {
    use CUdevice_attribute as A;
    match attribute {
        A::CU_DEVICE_ATTRIBUTE_MAX_PITCH => settings().max_pitch,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        A::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 132,
        A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => 48 << 10,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 227 << 10,
        A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => 1,
        _ => 0,
    }
}

/// Every function, wherever it is.
fn all() -> impl Iterator<Item = &'static Export> {
    [
        EXPORTS,
        captures::EXPORTS,
        cudarc_calls::EXPORTS,
        kernels::EXPORTS,
        memory::EXPORTS,
        pages::EXPORTS,
        pools::EXPORTS,
        streams::EXPORTS,
        work::EXPORTS,
    ]
    .into_iter()
    .flatten()
}

exports! {
    "cuInit" 2000 fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        machine::start()
    }

    "cuDriverGetVersion" 2020 fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: a place of the caller's.
        unsafe { put(version, settings().version) }
    }

    "cuGetProcAddress" 12000 fn cuGetProcAddress_v2(
        symbol: *const c_char,
        function: *mut *mut c_void,
        version: c_int,
        flags: cuuint64_t,
        status: *mut CUdriverProcAddressQueryResult,
    ) {
        // SAFETY: a string of the caller's.
        let name = unsafe { text(symbol) };
        let lacks = settings().missing.contains(&name);
        let known = all().filter(|export| export.name == name && export.version <= version);
        let found = known.max_by_key(|export| export.version).filter(|_| !lacks && flags <= 1);
        let address = found.map_or(core::ptr::null(), |export| export.address);
        let answer = match found {
            Some(_) => CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS,
            None => CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        };
        // SAFETY: two places of the caller's.
        unsafe { put(function, address.cast_mut().cast()).and_then(|()| put(status, answer)) }?;
        found.map(drop).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }

    "cuGetErrorName" 6000 fn cuGetErrorName(_code: CUresult, name: *mut *const c_char) {
        // SAFETY: a place of the caller's.
        unsafe { put(name, c"CUDA_ERROR_OF_THE_FAKE_DRIVER".as_ptr()) }
    }

    "cuGetErrorString" 6000 fn cuGetErrorString(_code: CUresult, text: *mut *const c_char) {
        // SAFETY: a place of the caller's.
        unsafe { put(text, c"an error of the fake driver".as_ptr()) }
    }

    "cuDeviceGetCount" 2000 fn cuDeviceGetCount(count: *mut c_int) {
        let devices = c_int::try_from(machine()?.devices.len()).unwrap_or(c_int::MAX);
        // SAFETY: a place of the caller's.
        unsafe { put(count, devices) }
    }

    "cuDeviceGet" 2000 fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        ordinal_of(ordinal)?;
        // SAFETY: a place of the caller's.
        unsafe { put(device, ordinal) }
    }

    "cuDeviceGetName" 2000 fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) {
        ordinal_of(device)?;
        let text = c"Fake NVIDIA device".to_bytes_with_nul();
        let length = usize::try_from(length).unwrap_or(0);
        if name.is_null() || length < text.len() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: a place of the caller's of that length, which is enough.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
        Ok(())
    }

    "cuDeviceTotalMem" 3020 fn cuDeviceTotalMem_v2(total: *mut usize, device: CUdevice) {
        let info = said(machine()?.device(ordinal_of(device)?)?.memory_info())?;
        // SAFETY: a place of the caller's.
        unsafe { put(total, info.total.to_usize().unwrap_or(usize::MAX)) }
    }

    "cuDeviceGetAttribute" 2000 fn cuDeviceGetAttribute(
        value: *mut c_int,
        number: CUdevice_attribute,
        device: CUdevice,
    ) {
        ordinal_of(device)?;
        // SAFETY: a place of the caller's.
        unsafe { put(value, attribute(number)) }
    }

    "cuDeviceCanAccessPeer" 4000 fn cuDeviceCanAccessPeer(
        can: *mut c_int,
        device: CUdevice,
        peer: CUdevice,
    ) {
        let (device, peer) = (ordinal_of(device)?, ordinal_of(peer)?);
        let reaches = said(machine()?.device(device)?.can_reach(DeviceOrdinal(peer)))?;
        // CUDA says no of a device and itself.
        // SAFETY: a place of the caller's.
        unsafe { put(can, c_int::from(reaches && device != peer)) }
    }

    "cuDevicePrimaryCtxRetain" 7000 fn cuDevicePrimaryCtxRetain(
        context: *mut CUcontext,
        device: CUdevice,
    ) {
        let ordinal = ordinal_of(device)?;
        if !retained().contains(&ordinal) {
            retained().push(ordinal);
        }
        // SAFETY: a place of the caller's.
        unsafe { put(context, handle(PRIMARY + u64::from(ordinal))) }
    }

    "cuDevicePrimaryCtxGetState" 7000 fn cuDevicePrimaryCtxGetState(
        device: CUdevice,
        flags: *mut c_uint,
        active: *mut c_int,
    ) {
        let active_now = retained().contains(&ordinal_of(device)?);
        // SAFETY: two places of the caller's.
        unsafe { put(flags, 0).and_then(|()| put(active, c_int::from(active_now))) }
    }

    "cuCtxSetCurrent" 4000 fn cuCtxSetCurrent(context: CUcontext) {
        let context = number(context);
        if context != 0 {
            device_of(context)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend((context != 0).then_some(context));
        });
        Ok(())
    }

    "cuCtxGetCurrent" 4000 fn cuCtxGetCurrent(context: *mut CUcontext) {
        let now = STACK.with_borrow(|stack| stack.last().copied()).unwrap_or(0);
        // SAFETY: a place of the caller's.
        unsafe { put(context, handle(now)) }
    }

    "cuCtxPushCurrent" 4000 fn cuCtxPushCurrent_v2(context: CUcontext) {
        device_of(number(context))?;
        STACK.with_borrow_mut(|stack| stack.push(number(context)));
        Ok(())
    }

    "cuCtxPopCurrent" 4000 fn cuCtxPopCurrent_v2(context: *mut CUcontext) {
        let popped = STACK.with_borrow_mut(Vec::pop);
        let popped = popped.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        // SAFETY: a place of the caller's.
        unsafe { put(context, handle(popped)) }
    }

    "cuCtxGetDevice" 2000 fn cuCtxGetDevice(device: *mut CUdevice) {
        let (_, ordinal) = current()?;
        // SAFETY: a place of the caller's.
        unsafe { put(device, CUdevice::try_from(ordinal).unwrap_or(0)) }
    }

    "cuCtxSynchronize" 2000 fn cuCtxSynchronize() {
        let (machine, device) = here()?;
        captures::refuse_device_wait()?;
        said(machine.device(device)?.synchronize_device())
    }

    "cuCtxGetStreamPriorityRange" 5050 fn cuCtxGetStreamPriorityRange(
        least: *mut c_int,
        greatest: *mut c_int,
    ) {
        current()?;
        // SAFETY: two places of the caller's.
        unsafe { put(least, 0).and_then(|()| put(greatest, -5)) }
    }

    "cuCtxEnablePeerAccess" 4000 fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) {
        let (machine, device) = here()?;
        let peer = device_of(number(peer))?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let enabled = machine.device(device)?.enable_peer(DeviceOrdinal(peer));
        enabled.map_err(|_| CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    }

    "cuCtxDisablePeerAccess" 4000 fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let (machine, device) = here()?;
        let peer = device_of(number(peer))?;
        let disabled = machine.device(device)?.disable_peer(DeviceOrdinal(peer));
        disabled.map_err(|_| CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
    }
}
