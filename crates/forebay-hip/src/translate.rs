//! Functions with CUDA's signatures that call HIP's.
//!
//! ```text
//!   contexts           HIP has a current device in their place: context n + 1 is device n
//!   attributes         other numbers
//!   pointers           a structure and the allocation's range
//!   copies             memory types, and with three dimensions a structure, that changed with ROCm 6
//!   rows to the host   one call for each row, because HIP makes the caller of one for all wait for the stream;
//!                      forebay-cuda gathers many rows on the device first
//!   fills of rows      one call for each row where HIP has none for all
//!   descriptors        by their address before ROCm 7.1
//! ```

use core::ffi::{c_int, c_void};
use std::cell::Cell;

use forebay_cuda::sys::values::{attribute as cuda, memory_type, pointer};
use forebay_cuda::sys::{Code, Copy2d, Copy3d as CudaCopy3d, RawContext, RawPage, RawStream};

use crate::runtime::{Runtime, call};
use crate::sys::values::{
    DESCRIPTOR_BY_VALUE_FROM, MEMCPY_DEFAULT, MemoryTypes, WIDE_FROM, attribute,
};
use crate::sys::{self, Copy3d, NarrowCopy3d, PointerAttributes};

/// How many pushes may be open at once in a thread. forebay opens one for each driver that it is inside a call of.
const MAX_PUSHES: usize = 16;

/// The devices that were a thread's before each push, and how many there are. Without a destructor, so that it is there
/// while the thread ends.
#[derive(Clone, Copy, Debug)]
struct Before {
    devices: [c_int; MAX_PUSHES],
    count: usize,
}

impl Before {
    fn push(mut self, device: c_int) -> Self {
        // A pop that failed for good leaves its place taken: the oldest gives way.
        if self.count == MAX_PUSHES {
            self.devices.rotate_left(1);
            self.count -= 1;
        }
        if let Some(place) = self.devices.get_mut(self.count) {
            *place = device;
            self.count += 1;
        }
        self
    }

    fn pop(mut self) -> Option<(Self, c_int)> {
        self.count = self.count.checked_sub(1)?;
        Some((self, *self.devices.get(self.count)?))
    }
}

thread_local! {
    static BEFORE: Cell<Before> = const { Cell::new(Before { devices: [0; MAX_PUSHES], count: 0 }) };
}

/// What a function of this file answers.
type Answer = Result<(), Code>;

/// The context that stands for a device.
const fn context_of(device: c_int) -> RawContext {
    RawContext((device.unsigned_abs() as u64) + 1)
}

/// The device that a context stands for; an invalid one for none.
fn device_of(context: RawContext) -> c_int {
    context.0.checked_sub(1).and_then(|device| c_int::try_from(device).ok()).unwrap_or(-1)
}

/// The device of the calling thread.
///
/// # Safety
///
/// * The table's functions are those of a library.
unsafe fn current(table: &sys::Symbols) -> Result<c_int, Code> {
    let mut device = 0;
    // SAFETY: a place of our own.
    unsafe { table.get_device(&raw mut device) }?;
    Ok(device)
}

// SAFETY, for every function below: the caller keeps what CUDA asks of callers of the function it stands for, which is what
// HIP asks; places that are written to are the caller's.

pub(crate) unsafe extern "C" fn driver_get_version<const N: usize>(version: *mut c_int) -> Code {
    call::<N, _>(|runtime| -> Answer {
        // SAFETY: see above.
        unsafe { version.write(runtime.version) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn device_get_attribute<const N: usize>(
    value: *mut c_int,
    number: u32,
    device: c_int,
) -> Code {
    let theirs = match number {
        cuda::CAN_MAP_HOST_MEMORY => attribute::CAN_MAP_HOST_MEMORY,
        cuda::HOST_POINTER_FOR_REGISTERED => attribute::HOST_POINTER_FOR_REGISTERED,
        cuda::CONCURRENT_MANAGED_ACCESS => attribute::CONCURRENT_MANAGED_ACCESS,
        cuda::COMPUTE_MAJOR => attribute::COMPUTE_MAJOR,
        cuda::MANAGED_MEMORY => attribute::MANAGED_MEMORY,
        cuda::MAX_PITCH => attribute::MAX_PITCH,
        cuda::COMPUTE_MINOR => attribute::COMPUTE_MINOR,
        cuda::MULTIPROCESSORS => attribute::MULTIPROCESSORS,
        cuda::STREAM_PRIORITIES => attribute::STREAM_PRIORITIES,
        cuda::UNIFIED_ADDRESSING => attribute::UNIFIED_ADDRESSING,
        // HIP asks for no more: pages that can be created can be exported.
        cuda::VIRTUAL_MEMORY | cuda::SHARE_BY_DESCRIPTOR => attribute::VIRTUAL_MEMORY,
        cuda::HOST_REGISTER => attribute::HOST_REGISTER,
        cuda::HOST_NUMA_NODE => attribute::HOST_NUMA_NODE,
        _ => return Code::ERROR_INVALID_VALUE,
    };
    call::<N, _>(|Runtime { table, version }| {
        if theirs == attribute::HOST_REGISTER && *version < WIDE_FROM {
            // Every device can, and there is no attribute to ask for yet.
            // SAFETY: see above.
            unsafe { value.write(1) };
            return Ok(());
        }
        // SAFETY: see above.
        unsafe { table.device_get_attribute(value, theirs, device) }
    })
}

pub(crate) unsafe extern "C" fn primary_context_retain<const N: usize>(
    context: *mut RawContext,
    device: c_int,
) -> Code {
    // SAFETY: see above.
    unsafe { context.write(context_of(device)) };
    Code::SUCCESS
}

pub(crate) unsafe extern "C" fn context_get_current<const N: usize>(
    context: *mut RawContext,
) -> Code {
    call::<N, _>(|runtime| -> Answer {
        // SAFETY: see above.
        unsafe { context.write(context_of(current(&runtime.table)?)) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn context_push<const N: usize>(context: RawContext) -> Code {
    call::<N, _>(|Runtime { table, .. }| -> Answer {
        // SAFETY: see above.
        let before = unsafe { current(table) }?;
        // SAFETY: the library looks the number up.
        unsafe { table.set_device(device_of(context)) }?;
        BEFORE.set(BEFORE.get().push(before));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn context_pop<const N: usize>(context: *mut RawContext) -> Code {
    call::<N, _>(|Runtime { table, .. }| -> Answer {
        let (stack, before) = BEFORE.get().pop().ok_or(Code::ERROR_INVALID_CONTEXT)?;
        // SAFETY: see above.
        let popped = unsafe { current(table) }?;
        // SAFETY: a device that was current.
        unsafe { table.set_device(before) }?;
        // It is off the stack only when it is current again: who failed to pop may try once more.
        BEFORE.set(stack);
        // SAFETY: see above.
        unsafe { context.write(context_of(popped)) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn context_enable_peer<const N: usize>(
    peer: RawContext,
    flags: u32,
) -> Code {
    // SAFETY: see above.
    call::<N, _>(|runtime| unsafe { runtime.table.enable_peer(device_of(peer), flags) })
}

pub(crate) unsafe extern "C" fn context_disable_peer<const N: usize>(peer: RawContext) -> Code {
    // SAFETY: see above.
    call::<N, _>(|runtime| unsafe { runtime.table.disable_peer(device_of(peer)) })
}

pub(crate) unsafe extern "C" fn pointer_get_attributes<const N: usize>(
    count: u32,
    attributes: *const u32,
    values: *const *mut c_void,
    address: u64,
) -> Code {
    call::<N, _>(|Runtime { table, version }| -> Answer {
        let mut known = PointerAttributes::default();
        let (mut start, mut size) = (0, 0);
        // SAFETY: places of our own. For both.
        unsafe {
            table.pointer_get_attributes(&raw mut known, address)?;
            table.address_range(&raw mut start, &raw mut size, address)?;
        }
        let types = MemoryTypes::of(*version);
        let managed = known.is_managed != 0 || known.kind == types.managed;
        let kind = match known.kind {
            kind if kind == types.device || managed => memory_type::DEVICE,
            kind if kind == types.host => memory_type::HOST,
            // Memory that it does not know.
            _ => return Err(Code::ERROR_INVALID_VALUE),
        };
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: so many attributes and places are the caller's, each as wide as its attribute.
            unsafe {
                let place = values.add(index).read();
                match attributes.add(index).read() {
                    pointer::MEMORY_TYPE => place.cast::<u32>().write(kind),
                    pointer::IS_MANAGED => place.cast::<bool>().write(managed),
                    pointer::DEVICE_ORDINAL => place.cast::<c_int>().write(known.device),
                    pointer::RANGE_START => place.cast::<u64>().write(start),
                    pointer::RANGE_SIZE => place.cast::<u64>().write(size),
                    _ => return Err(Code::ERROR_INVALID_VALUE),
                }
            }
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn mem_import<const N: usize>(
    page: *mut RawPage,
    handle: *mut c_void,
    kind: u32,
) -> Code {
    call::<N, _>(|Runtime { table, version }| {
        // CUDA's argument is the descriptor itself.
        let mut descriptor = c_int::try_from(handle.addr()).unwrap_or(-1);
        let theirs = match *version >= DESCRIPTOR_BY_VALUE_FROM {
            true => handle,
            false => (&raw mut descriptor).cast(),
        };
        // SAFETY: see above.
        unsafe { table.mem_import(page, theirs, kind) }
    })
}

pub(crate) unsafe extern "C" fn stream_get_context<const N: usize>(
    stream: RawStream,
    context: *mut RawContext,
) -> Code {
    call::<N, _>(|runtime| -> Answer {
        let mut device = 0;
        // SAFETY: see above; the device is written to a place of our own.
        unsafe {
            runtime.table.stream_get_device(stream, &raw mut device)?;
            context.write(context_of(device));
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn stream_wait_value<const N: usize>(
    stream: RawStream,
    address: u64,
    value: u32,
    flags: u32,
) -> Code {
    call::<N, _>(|runtime| {
        // SAFETY: see above. Every bit counts.
        unsafe { runtime.table.stream_wait_value(stream, address, value, flags, u32::MAX) }
    })
}

pub(crate) unsafe extern "C" fn memcpy<const N: usize>(
    to: u64,
    from: u64,
    size: u64,
    stream: RawStream,
) -> Code {
    // SAFETY: see above.
    call::<N, _>(|runtime| unsafe { runtime.table.memcpy(to, from, size, MEMCPY_DEFAULT, stream) })
}

/// Whether rows are copied to the host's memory. HIP makes the caller of such a copy wait for the stream, pinned memory
/// or not, which would wait for ever where the stream waits for the caller.
fn is_to_host(Runtime { table, version }: &Runtime, to: u64) -> bool {
    let mut known = PointerAttributes::default();
    // SAFETY: a place of our own.
    let told = unsafe { table.pointer_get_attributes(&raw mut known, to) };
    told.is_ok() && known.is_managed == 0 && known.kind == MemoryTypes::of(*version).host
}

/// Copies rows one by one. Where a row is refused, those before it are done when this returns.
///
/// # Safety
///
/// * The rows are memory until the copy is done, and the stream is live.
unsafe fn copy_rows(
    table: &sys::Symbols,
    rows: impl Iterator<Item = (u64, u64)>,
    width: u64,
    stream: RawStream,
) -> Answer {
    for (done, (to, from)) in rows.enumerate() {
        // SAFETY: as the caller promised.
        let copied = unsafe { table.memcpy(to, from, width, MEMCPY_DEFAULT, stream) };
        if copied.is_err() && done > 0 {
            // SAFETY: as the caller promised.
            unsafe { table.stream_synchronize(stream) }?;
        }
        copied?;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn memcpy_2d<const N: usize>(
    copy: *const Copy2d,
    stream: RawStream,
) -> Code {
    call::<N, _>(|runtime| -> Answer {
        let (table, unified) = (&runtime.table, MemoryTypes::of(runtime.version).unified);
        // SAFETY: see above. Both sides are unified and begin at their addresses, as everywhere in forebay.
        let copy = Copy2d { src_type: unified, dst_type: unified, ..unsafe { copy.read() } };
        if is_to_host(runtime, copy.dst_device) {
            let row = |row: u64| {
                (copy.dst_device + row * copy.dst_pitch, copy.src_device + row * copy.src_pitch)
            };
            // SAFETY: see above.
            return unsafe { copy_rows(table, (0..copy.height).map(row), copy.width, stream) };
        }
        // SAFETY: see above.
        Ok(unsafe { table.memcpy_2d(&raw const copy, stream) }?)
    })
}

pub(crate) unsafe extern "C" fn memcpy_3d<const N: usize>(
    copy: *const CudaCopy3d,
    stream: RawStream,
) -> Code {
    call::<N, _>(|runtime| -> Answer {
        let (table, unified) = (&runtime.table, MemoryTypes::of(runtime.version).unified);
        // SAFETY: see above.
        let copy = unsafe { copy.read() };
        if is_to_host(runtime, copy.dst_device) {
            let rows =
                (0..copy.depth).flat_map(|slice| (0..copy.height).map(move |row| (slice, row)));
            let rows = rows.map(|(slice, row)| {
                let to = (slice * copy.dst_height + row) * copy.dst_pitch;
                let from = (slice * copy.src_height + row) * copy.src_pitch;
                (copy.dst_device + to, copy.src_device + from)
            });
            // SAFETY: see above.
            return unsafe { copy_rows(table, rows, copy.width, stream) };
        }
        let wide = Copy3d {
            src_type: unified,
            src_device: copy.src_device,
            src_pitch: copy.src_pitch,
            src_height: copy.src_height,
            dst_type: unified,
            dst_device: copy.dst_device,
            dst_pitch: copy.dst_pitch,
            dst_height: copy.dst_height,
            width: copy.width,
            height: copy.height,
            depth: copy.depth,
            ..Copy3d::default()
        };
        if runtime.version >= WIDE_FROM {
            // SAFETY: see above, and the structure is that of the version.
            return Ok(unsafe { table.memcpy_3d((&raw const wide).cast(), stream) }?);
        }
        let narrow = NarrowCopy3d::of(&wide).ok_or(Code::ERROR_INVALID_VALUE)?;
        // SAFETY: as above.
        Ok(unsafe { table.memcpy_3d((&raw const narrow).cast(), stream) }?)
    })
}

pub(crate) unsafe extern "C" fn memcpy_peer<const N: usize>(
    to: u64,
    to_context: RawContext,
    from: u64,
    from_context: RawContext,
    size: u64,
    stream: RawStream,
) -> Code {
    let (to_device, from_device) = (device_of(to_context), device_of(from_context));
    call::<N, _>(|runtime| {
        // SAFETY: see above.
        unsafe { runtime.table.memcpy_peer(to, to_device, from, from_device, size, stream) }
    })
}

pub(crate) unsafe extern "C" fn memset_2d_8<const N: usize>(
    address: u64,
    pitch: u64,
    value: u8,
    width: u64,
    height: u64,
    stream: RawStream,
) -> Code {
    call::<N, _>(|runtime| {
        // SAFETY: see above.
        unsafe { runtime.table.memset_2d_8(address, pitch, value.into(), width, height, stream) }
    })
}

/// Makes a function that fills rows, one call for each where the library has none for all.
macro_rules! fill_rows {
    ($name:ident $value:ty, $row:ident) => {
        pub(crate) unsafe extern "C" fn $name<const N: usize>(
            address: u64,
            pitch: u64,
            value: $value,
            width: u64,
            height: u64,
            stream: RawStream,
        ) -> Code {
            call::<N, _>(|Runtime { table, .. }| {
                if table.$name.is_some() {
                    // SAFETY: see above.
                    return unsafe { table.$name(address, pitch, value, width, height, stream) };
                }
                (0..height).try_for_each(|row| {
                    // SAFETY: see above, of a row inside the rows.
                    unsafe { table.$row(address + row * pitch, value, width, stream) }
                })
            })
        }
    };
}

fill_rows!(memset_2d_16 u16, memset_16);
fill_rows!(memset_2d_32 u32, memset_32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_current_comes_back_in_order_however_deep() {
        let empty = Before { devices: [0; MAX_PUSHES], count: 0 };
        let mut stack = (0..20).fold(empty, Before::push);
        for device in (4..20).rev() {
            let (rest, popped) = stack.pop().unwrap();
            assert_eq!(popped, device);
            stack = rest;
        }
        assert!(stack.pop().is_none());
    }

    #[test]
    fn contexts_stand_for_devices() {
        assert_eq!(device_of(context_of(7)), 7);
        assert_ne!(context_of(0), RawContext::NULL);
        assert_eq!(device_of(RawContext::NULL), -1, "no device");
        assert_eq!(device_of(RawContext(u64::MAX)), -1, "no device");
    }
}
