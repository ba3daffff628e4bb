//! Kernels. The driver compiles none: it knows the one of forebay by its name, and has the simulated device do by the
//! contract's own call what the kernel does. The kernel itself is tested apart, as C and on hardware.

use core::ffi::{c_char, c_uint, c_void};

use cudarc::driver::sys::{CUfunction, CUmodule, CUresult, CUstream};
use forebay_core::Address;
use forebay_hal::{Decompression, Lz4Blocks};

use crate::answer::{Answer, exports, put, said};
use crate::captures::takes_work;
use crate::context::{handle, here, number};
use crate::control::text;
use crate::machine::{machine, span};
use crate::streams::ordered;

/// The entry of the kernel as PTX declares it, and its name.
const ENTRY: &str = ".visible .entry forebay_lz4_decode(";
const NAME: &str = "forebay_lz4_decode";

/// What stands for the module and for the kernel in it.
const MODULE: u64 = 0x4d4f_4400;
const FUNCTION: u64 = 0x4655_4e00;

/// Threads of a warp, which decodes a block.
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

exports! {
    "cuModuleLoadData" 2000 fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) {
        here()?;
        // SAFETY: text of the caller's that ends with a zero.
        let image = unsafe { text(image.cast::<c_char>()) };
        if !image.contains(ENTRY) {
            return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        }
        // SAFETY: a place of the caller's.
        unsafe { put(module, handle(MODULE)) }
    }

    "cuModuleGetFunction" 2000 fn cuModuleGetFunction(
        function: *mut CUfunction,
        module: CUmodule,
        name: *const c_char,
    ) {
        here()?;
        // SAFETY: a name of the caller's that ends with a zero.
        let name = unsafe { text(name) };
        if number(module) != MODULE || name != NAME {
            return Err(CUresult::CUDA_ERROR_NOT_FOUND);
        }
        // SAFETY: a place of the caller's.
        unsafe { put(function, handle(FUNCTION)) }
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
        if number(function) != FUNCTION || !flat || grid_x == 0 || parameters.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if takes_work(on) {
            return Ok(());
        }
        // SAFETY: the arguments of the kernel, which is the only one.
        unsafe { decode(parameters, u64::from(grid_x) * u64::from(block_x / WARP), on) }
    }
}
