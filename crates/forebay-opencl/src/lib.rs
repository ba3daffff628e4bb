//! OpenCL as a forebay device.
//!
//! The library is found at run time: building a program needs nothing of OpenCL, and loading it on a machine without it
//! returns an error that says what to install, never a panic.
//!
//! ```
//! use forebay_opencl::OpenClDriver;
//!
//! match OpenClDriver::load() {
//!     Ok(driver) => driver.devices().iter().for_each(|device| println!("{device}")),
//!     // "no OpenCL: libOpenCL.so.1 could not be loaded (...); install ..."
//!     Err(missing) => println!("{missing}"),
//! }
//! ```
//!
//! # How each group is implemented
//!
//! ```text
//!   plain memory            clCreateBuffer, with addresses reserved on the host; one byte is written at once, so
//!                           that memory which is not there is refused by the allocation
//!   managed memory          clSVMAlloc, fine-grained; with OpenClOptions::svm plain memory is coarse-grained
//!   pinned memory           CL_MEM_ALLOC_HOST_PTR, mapped until it is freed
//!   streams                 pooled in-order queues; the event of the last command tells how far they are
//!   waits                   clEnqueueBarrierWithWaitList; between contexts a user event
//!   host functions          threads of our own, handed over by clSetEventCallback; a user event holds the queue
//!   ordinary host memory    clEnqueueReadBuffer and clEnqueueWriteBuffer that do not block; by a thread of our own
//!                           where the driver makes the caller wait all the same
//!   LZ4 blocks              a kernel that the driver compiles
//! ```
//!
//! # Kernels on forebay's memory
//!
//! An address stands for a buffer and an offset. [`OpenClDevice::buffer_at`] returns both, [`OpenClDevice::sub_buffer`]
//! a buffer that begins there, and [`OpenClDevice::launch`] enqueues in the order of a stream:
//!
//! ```
//! use core::ptr;
//!
//! use forebay_core::{Alignment, Bytes, Span};
//! use forebay_hal::{Fill, Memory, Pattern, StreamHandle, Streams, Transfers};
//! use forebay_opencl::cl3::{command_queue, kernel, program, types};
//! use forebay_opencl::{MapAccess, OpenClDevice};
//!
//! const SOURCE: &str = "__kernel void twice(__global uint *x) { x[get_global_id(0)] *= 2; }";
//!
//! // Nothing to show on a machine without OpenCL.
//! let Ok(device) = OpenClDevice::open(0) else { return Ok(()) };
//! let (memory, size) = (device.allocate(Bytes::kib(4), Alignment::BLOCK)?, Bytes::kib(4));
//! let (stream, span) = (StreamHandle::DEFAULT, Span::new(memory, size)?);
//! let words = 1024_usize;
//!
//! let code = |code: i32| format!("OpenCL said {code}");
//! let built = program::create_program_with_source(device.raw_context(), &[SOURCE]).map_err(code)?;
//! program::build_program(built, &[device.raw_device()], c"", None, ptr::null_mut()).map_err(code)?;
//! let twice = kernel::create_kernel(built, c"twice").map_err(code)?;
//! let part = device.sub_buffer(span)?;
//! let buffer = part.raw();
//!
//! // SAFETY: the kernel stays inside the buffer, and the memory is freed after the stream was waited for.
//! unsafe {
//!     device.fill(&Fill::linear(memory, size, Pattern::U32(21))?, stream)?;
//!     kernel::set_kernel_arg(twice, 0, size_of::<types::cl_mem>(), (&raw const buffer).cast())
//!         .map_err(code)?;
//!     device.launch(stream, |queue, wait| {
//!         let (count, events) = (wait.len() as u32, if wait.is_empty() { ptr::null() } else { wait.as_ptr() });
//!         command_queue::enqueue_nd_range_kernel(
//!             queue, twice, 1, ptr::null(), &raw const words, ptr::null(), count, events,
//!         )
//!     })?;
//!     let mapped = device.map(span, MapAccess::Read, stream)?;
//!     assert_eq!(mapped.bytes()[4092..], 42_u32.to_ne_bytes());
//! }
//! device.synchronize_stream(stream)?;
//! drop(part);
//! // SAFETY: no work uses the memory any more, nor the kernel and its program.
//! unsafe {
//!     device.free(memory)?;
//!     kernel::release_kernel(twice).map_err(code)?;
//!     program::release_program(built).map_err(code)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod code;
mod context;
mod decompression;
mod device;
mod driver;
mod event;
mod info;
mod managed;
mod map;
mod memory;
mod missing;
mod object;
mod options;
mod pinned;
mod space;
mod stream;
mod stream_calls;
mod task;
mod transfer;

/// The functions and types of OpenCL, for kernels on this library's memory.
pub use cl3;
pub use code::Code;
pub use device::OpenClDevice;
pub use driver::{LIBRARY_VARIABLE, OpenClDriver};
pub use info::{OpenClDeviceInfo, OpenClDeviceType, SvmSupport};
pub use map::{MapAccess, MappedMemory};
pub use memory::SubBuffer;
pub use missing::OpenClMissing;
pub use object::ObjectCounts;
pub use options::{HostCopies, OpenClOptions};
