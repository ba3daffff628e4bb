//! Decodes LZ4 blocks with a kernel that the driver compiles from its source, `kernels/lz4.c`.

use core::ffi::c_void;
use core::ptr;

use cl3::command_queue::enqueue_nd_range_kernel;
use cl3::device::{CL_DEVICE_COMPILER_AVAILABLE, CL_DEVICE_ENDIAN_LITTLE};
use cl3::kernel::{create_kernel, release_kernel, set_kernel_arg};
use cl3::program::{
    CL_PROGRAM_BUILD_LOG, build_program, create_program_with_source, get_program_build_data,
    release_program,
};
use cl3::types::{cl_kernel, cl_mem, cl_program};
use forebay_hal::{Asked, Call, Decompression, Error, Lz4Blocks, Result, StreamHandle};
use forebay_sync::lock;

use crate::code::{Made, Named, Outcome};
use crate::context::Context;
use crate::driver::DeviceId;
use crate::info::{number, text_of};
use crate::{OpenClDevice, OpenClDeviceType};

/// The kernel, and one that takes places in buffers.
const SOURCE: &str = concat!(include_str!("../kernels/lz4.c"), include_str!("../kernels/lz4_at.c"));

/// The work items of a block on devices that run them side by side: as many as the smallest group that they
/// schedule at once. A processor decodes faster alone.
const LANES: usize = 32;

/// Whether the device can compile the kernel, and reads numbers as the blocks' table has them.
pub(crate) fn can_decompress(id: DeviceId) -> bool {
    let is = |name| number(id.device, name) & 1 == 1;
    is(CL_DEVICE_COMPILER_AVAILABLE) && is(CL_DEVICE_ENDIAN_LITTLE)
}

/// The compiled source, kept as long as the context.
#[derive(Debug)]
pub(crate) struct Program(cl_program);

// SAFETY: the name of a program, of which every thread may make kernels.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    /// Compiles the source; else the reason, with what the compiler said.
    pub(crate) fn build(context: &Context) -> core::result::Result<Self, String> {
        let (device, raw) = (context.id().device, context.raw());
        let program = create_program_with_source(raw, &[SOURCE])
            .made("clCreateProgramWithSource")
            .map_err(|refusal| refusal.to_string())?;
        build_program(program, &[device], c"", None, ptr::null_mut())
            .of("clBuildProgram")
            .map_err(|refusal| {
                let log = get_program_build_data(program, device, CL_PROGRAM_BUILD_LOG);
                // SAFETY: nobody has the program.
                let _ = unsafe { release_program(program) };
                format!("{refusal}: {}", text_of(&log.unwrap_or_default()))
            })?;
        Ok(Self(program))
    }
}

/// A kernel for one launch: setting arguments is not for several threads at once.
struct Kernel(cl_kernel);

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: one reference, and commands have their own.
        let _ = unsafe { release_kernel(self.0) };
    }
}

impl Kernel {
    /// Sets the arguments in their order.
    fn set(&self, arguments: &[Argument]) -> Outcome<()> {
        for (argument, index) in arguments.iter().zip(0..) {
            let (size, value): (usize, *const c_void) = match argument {
                Argument::Buffer(buffer) => (size_of::<cl_mem>(), (&raw const *buffer).cast()),
                Argument::Long(value) => (size_of::<u64>(), (&raw const *value).cast()),
                Argument::Int(value) => (size_of::<u32>(), (&raw const *value).cast()),
            };
            // SAFETY: the value is as wide as that, and read during the call. A width that is not the
            // argument's is refused.
            unsafe { set_kernel_arg(self.0, index, size, value) }.of("clSetKernelArg")?;
        }
        Ok(())
    }
}

/// An argument of a kernel.
enum Argument {
    Buffer(cl_mem),
    Long(u64),
    Int(u32),
}

// SAFETY: the kernel reads and writes only within the spans that it is given, whatever the blocks and their
// table hold, and writes a status for each; the tests of its source show it. The spans are looked up first, and
// lie each in one buffer.
unsafe impl Decompression for OpenClDevice {
    unsafe fn decompress(&self, blocks: &Lz4Blocks, stream: StreamHandle) -> Result<()> {
        let call = Call::Decompress;
        let queue = self.queue(call, stream)?;
        if blocks.count() == 0 {
            return Ok(());
        }
        let locate = |argument, span| lock(&self.space).locate(call, argument, span);
        let data = locate("data", blocks.data())?;
        let table = locate("table", blocks.table())?;
        let to = locate("to", blocks.to())?;
        let statuses = locate("statuses", blocks.statuses())?;
        let program = self.context.lz4().map_err(|reason| Error::Unsupported {
            call,
            missing: format!("the driver does not take the kernel: {reason}").into(),
        })?;
        let arguments = [
            Argument::Buffer(data.memory.buffer.raw()),
            Argument::Long(data.offset.get()),
            Argument::Long(blocks.data().size().get()),
            Argument::Buffer(table.memory.buffer.raw()),
            Argument::Long(table.offset.get()),
            Argument::Buffer(to.memory.buffer.raw()),
            Argument::Long(to.offset.get()),
            Argument::Long(blocks.to().size().get()),
            Argument::Int(blocks.block()),
            Argument::Int(blocks.count()),
            Argument::Buffer(statuses.memory.buffer.raw()),
            Argument::Long(statuses.offset.get()),
        ];
        let lanes = match self.context.info.device_type {
            OpenClDeviceType::Cpu => 1,
            _ => LANES,
        };
        let items = usize::try_from(blocks.count()).unwrap_or(usize::MAX).saturating_mul(lanes);
        let launched = create_kernel(program.0, c"forebay_lz4_decode_at")
            .made("clCreateKernel")
            .map(Kernel)
            .and_then(|kernel| kernel.set(&arguments).map(|()| kernel))
            .and_then(|kernel| {
                let mut submission = queue.begin();
                let (items, lanes) = (&raw const items, &raw const lanes);
                // SAFETY: all arguments are set, and the memory is kept by the caller.
                let event = unsafe {
                    submission.push_beside("clEnqueueNDRangeKernel", &mut |queue, count, events| {
                        let (kernel, start) = (kernel.0, ptr::null());
                        enqueue_nd_range_kernel(
                            queue, kernel, 1, start, items, lanes, count, events,
                        )
                    })
                }?;
                submission.advance(event);
                Ok(())
            });
        launched.map_err(|refusal| {
            let given = format!("{} blocks to {}", blocks.count(), blocks.to());
            self.refused(call, refusal, &Asked::of("blocks", given, "blocks in device memory"))
        })
    }
}
