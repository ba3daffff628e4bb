//! Kernels. The driver compiles none: it knows those of forebay by their names, and does by the simulated device what they
//! do. The kernels themselves are tested apart, as C and on hardware.

use core::ffi::{c_char, c_uint, c_void};

use cudarc::driver::sys::{CUfunction, CUmodule, CUresult, CUstream};
use forebay_core::Address;
use forebay_hal::{Decompression, Lz4Blocks, Streams};

use crate::answer::{Answer, exports, put, said};
use crate::captures::takes_work;
use crate::context::{handle, here, number};
use crate::control::text;
use crate::machine::{Machine, machine, span};
use crate::streams::ordered;

/// A kernel of forebay's.
#[derive(Clone, Copy)]
enum Kernel {
    Decode = 1,
    Copy = 2,
}

const KERNELS: [(Kernel, &str); 2] =
    [(Kernel::Decode, "forebay_lz4_decode"), (Kernel::Copy, "forebay_copy")];

/// What stands for modules and for the kernels in them, and the number of the kernel.
const MODULE: u64 = 0x4d4f_4400;
const FUNCTION: u64 = 0x4655_4e00;

/// Threads of a warp, which decodes a block or copies a piece.
const WARP: u32 = 32;

/// An argument of a kernel.
///
/// # Safety
///
/// * `parameters` has more than `index` pointers, and that one is to a `T`.
unsafe fn argument<T: Copy>(parameters: *mut *mut c_void, index: usize) -> T {
    // SAFETY: as the caller promised.
    unsafe { parameters.add(index).read().cast::<T>().read_unaligned() }
}

/// Decodes blocks by the kernel's arguments.
///
/// # Safety
///
/// * `parameters` are those of the kernel.
unsafe fn decode(parameters: *mut *mut c_void, warps: u64, on: CUstream) -> Answer {
    let entry = ordered(on)?;
    // SAFETY: the kernel has these eight.
    let (data, table, to, block, count, statuses) = unsafe {
        let two =
            |index| (argument::<u64>(parameters, index), argument::<u64>(parameters, index + 1));
        let (data, to) = (two(0), two(3));
        let (block, count) = (argument::<u32>(parameters, 5), argument::<u32>(parameters, 6));
        (data, argument::<u64>(parameters, 2), to, block, count, argument::<u64>(parameters, 7))
    };
    let (data, to) = (span(data.0, data.1)?, span(to.0, to.1)?);
    let blocks = Lz4Blocks::new(data, Address::new(table), to, block, Address::new(statuses));
    let blocks = said(blocks)?;
    // A kernel with fewer warps would leave blocks out.
    if blocks.count() != count || warps < u64::from(count) {
        return Err(CUresult::CUDA_ERROR_LAUNCH_FAILED);
    }
    // SAFETY: the caller of the driver's function has promised that the memory stays until it is done.
    said(unsafe { machine()?.device(entry.device)?.decompress(&blocks, entry.stream) })
}

/// A piece that the kernel copies.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelPart {
    to: u64,
    from: u64,
    bytes: u64,
}

fn pointer<T>(address: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// Copies a piece, both of whose ends must be memory of the machine's.
fn copy_piece(machine: &Machine, piece: KernelPart) -> Option<()> {
    let last = piece.bytes.checked_sub(1)?;
    for start in [piece.to, piece.from] {
        machine.find(start)?;
        machine.find(start.checked_add(last)?)?;
    }
    let (to, from, bytes) = (pointer::<u8>(piece.to), pointer::<u8>(piece.from), piece.bytes);
    // SAFETY: memory of the simulated machine, which the host sees at the same address, and which the caller of the driver's
    // function keeps and lets nobody else use until the work is done.
    unsafe { core::ptr::copy_nonoverlapping(from, to, usize::try_from(bytes).ok()?) };
    Some(())
}

/// Copies pieces by the kernel's arguments. The table is read when their turn comes, as a device does.
///
/// # Safety
///
/// * `parameters` are those of the kernel.
unsafe fn copy(parameters: *mut *mut c_void, on: CUstream) -> Answer {
    let entry = ordered(on)?;
    // SAFETY: the kernel has these two.
    let (table, count) =
        unsafe { (argument::<u64>(parameters, 0), argument::<u32>(parameters, 1)) };
    let task = Box::new(move || {
        let Ok(machine) = machine() else { return };
        for index in 0..u64::from(count) {
            let place = table + index * size_of::<KernelPart>() as u64;
            // SAFETY: pinned memory, which the caller of the driver's function keeps until the work is done.
            let piece = machine.find(place).map(|_| unsafe { pointer::<KernelPart>(place).read() });
            if piece.and_then(|piece| copy_piece(machine, piece)).is_none() {
                // As a kernel does that writes where it must not.
                machine.sim.lose(entry.device);
                return;
            }
        }
    });
    said(machine()?.device(entry.device)?.enqueue_host(task, entry.stream))
}

exports! {
    "cuModuleLoadData" 2000 fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) {
        here()?;
        // SAFETY: text of the caller's that ends with a zero.
        let image = unsafe { text(image.cast::<c_char>()) };
        let declares =
            |(_, name): &&(Kernel, &str)| image.contains(&format!(".visible .entry {name}("));
        let found = KERNELS.iter().find(declares);
        let (kernel, _) = found.ok_or(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)?;
        // SAFETY: a place of the caller's.
        unsafe { put(module, handle(MODULE + *kernel as u64)) }
    }

    "cuModuleGetFunction" 2000 fn cuModuleGetFunction(
        function: *mut CUfunction,
        module: CUmodule,
        name: *const c_char,
    ) {
        here()?;
        // SAFETY: a name of the caller's that ends with a zero.
        let name = unsafe { text(name) };
        let is_meant = |(kernel, known): &&(Kernel, &str)| {
            number(module) == MODULE + *kernel as u64 && name == *known
        };
        let found = KERNELS.iter().find(is_meant);
        let (kernel, _) = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: a place of the caller's.
        unsafe { put(function, handle(FUNCTION + *kernel as u64)) }
    }

    "cuLaunchKernel" 4000 fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        _shared: c_uint,
        on: CUstream,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) {
        let flat = [grid_y, grid_z, block_y, block_z] == [1; 4];
        let warps = u64::from(grid_x) * u64::from(block_x / WARP);
        let is_meant =
            |(kernel, _): &&(Kernel, &str)| number(function) == FUNCTION + *kernel as u64;
        let found = KERNELS.iter().find(is_meant).filter(|_| flat && warps > 0);
        let (kernel, _) = found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if parameters.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if takes_work(on) {
            return Ok(());
        }
        // SAFETY: the arguments of that kernel.
        unsafe {
            match kernel {
                Kernel::Decode => decode(parameters, warps, on),
                Kernel::Copy => copy(parameters, on),
            }
        }
    }
}
