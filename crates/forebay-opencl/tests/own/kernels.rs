//! Kernels of a program's own, launched on forebay's memory by plain calls of OpenCL.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

use core::ptr;

use forebay_hal::StreamHandle;
use forebay_opencl::OpenClDevice;
use forebay_opencl::cl3::command_queue::enqueue_nd_range_kernel;
use forebay_opencl::cl3::kernel::{create_kernel, release_kernel, set_kernel_arg};
use forebay_opencl::cl3::program::{build_program, create_program_with_source, release_program};
use forebay_opencl::cl3::types::{cl_kernel, cl_mem};

/// Adds a number to bytes of a buffer from an offset on.
pub(crate) const ADD: &str = "__kernel void run(__global uchar *bytes, ulong from, ulong add) {
    bytes[from + get_global_id(0)] += (uchar)add;
}";

/// Counts for a while, and writes what it came to.
pub(crate) const SPIN: &str = "__kernel void run(__global uint *bytes, ulong turns, ulong seed) {
    uint x = (uint)seed;
    for (ulong i = 0; i < turns; i++) x = x * 1664525u + 1013904223u + (x >> 7);
    bytes[0] = x;
}";

/// A kernel that takes a buffer and two numbers.
pub(crate) struct Kernel(cl_kernel);

impl Kernel {
    pub(crate) fn build(device: &OpenClDevice, source: &str) -> Self {
        let program = create_program_with_source(device.raw_context(), &[source]).unwrap();
        build_program(program, &[device.raw_device()], c"", None, ptr::null_mut()).unwrap();
        let kernel = create_kernel(program, c"run").unwrap();
        // SAFETY: the kernel keeps the program.
        unsafe { release_program(program) }.unwrap();
        Self(kernel)
    }

    pub(crate) fn add(
        &self,
        device: &OpenClDevice,
        buffer: cl_mem,
        from: u64,
        count: u64,
        add: u64,
        stream: StreamHandle,
    ) {
        self.launch(device, (buffer, from, add), usize::try_from(count).unwrap(), stream);
    }

    pub(crate) fn spin(
        &self,
        device: &OpenClDevice,
        buffer: cl_mem,
        turns: u64,
        stream: StreamHandle,
    ) {
        self.launch(device, (buffer, turns, 1), 1, stream);
    }

    fn launch(
        &self,
        device: &OpenClDevice,
        (buffer, one, two): (cl_mem, u64, u64),
        count: usize,
        stream: StreamHandle,
    ) {
        // SAFETY: the arguments are of the kernel's widths, and the test keeps the memory.
        unsafe {
            set_kernel_arg(self.0, 0, size_of::<cl_mem>(), (&raw const buffer).cast()).unwrap();
            set_kernel_arg(self.0, 1, 8, (&raw const one).cast()).unwrap();
            set_kernel_arg(self.0, 2, 8, (&raw const two).cast()).unwrap();
            device.launch(stream, |queue, wait| {
                let (start, group) = (ptr::null(), ptr::null());
                let events = if wait.is_empty() { ptr::null() } else { wait.as_ptr() };
                let waits = u32::try_from(wait.len()).unwrap();
                enqueue_nd_range_kernel(
                    queue,
                    self.0,
                    1,
                    start,
                    &raw const count,
                    group,
                    waits,
                    events,
                )
            })
        }
        .unwrap();
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: commands keep the kernels they run.
        unsafe { release_kernel(self.0) }.unwrap();
    }
}
