//! The kernels of `kernels.metal`, compiled by Metal when the first is needed.

use core::ffi::c_void;
use core::ptr::NonNull;

use forebay_hal::{Call, Error, Extent, Pitch, Result};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCommandBuffer, MTLCommandEncoder, MTLComputeCommandEncoder, MTLComputePipelineState,
    MTLDevice, MTLLibrary, MTLSize,
};

use crate::buffer::BufferRef;
use crate::space::BufferOffset;
use crate::stream::Commands;

/// How many bytes a thread moves, as in the source.
const BYTES_PER_THREAD: u64 = 16;

/// Threads of a group: every GPU of the family takes so many.
const GROUP: usize = 64;

/// Buffers are bound at multiples of this, which every GPU takes; the rest of an offset goes into the shape.
const BINDING: u64 = 256;

/// What the kernels are told, as in the source.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Shape {
    to: OperandLayout,
    from: OperandLayout,
    width: u64,
}

/// One side of a copy: from the bound address to the first byte, and the pitches.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OperandLayout {
    start: u64,
    row: u64,
    slice: u64,
}

type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct Kernels {
    copy: Pipeline,
    fill: Pipeline,
}

/// A place with the pitches of rows and slices there.
pub(crate) type Rows<'a> = (&'a BufferOffset<BufferRef>, Pitch);

impl Kernels {
    /// Compiles them; the error says why Metal could not.
    pub(crate) fn compile(
        device: &ProtocolObject<dyn MTLDevice>,
    ) -> core::result::Result<Self, String> {
        let source = NSString::from_str(include_str!("kernels.metal"));
        let library = device
            .newLibraryWithSource_options_error(&source, None)
            .map_err(|error| error.localizedDescription().to_string())?;
        let pipeline = |name: &str| -> core::result::Result<Pipeline, String> {
            let function = library.newFunctionWithName(&NSString::from_str(name));
            let function = function.ok_or_else(|| format!("the library has no kernel {name}"))?;
            device
                .newComputePipelineStateWithFunction_error(&function)
                .map_err(|error| error.localizedDescription().to_string())
        };
        Ok(Self { copy: pipeline("forebay_copy")?, fill: pipeline("forebay_fill")? })
    }

    /// Encodes a copy.
    pub(crate) fn copy(
        &self,
        commands: &Commands,
        to: Rows<'_>,
        from: Rows<'_>,
        extent: Extent,
    ) -> Result<()> {
        let ((to, to_pitch), (from, from_pitch)) = (to, from);
        let shape = Shape {
            to: layout(to.offset, to_pitch),
            from: layout(from.offset, from_pitch),
            width: extent.width.get(),
        };
        let source = Source::Buffer(from);
        run(Call::Copy, commands, &self.copy, to, source, shape, extent)
    }

    /// Encodes a fill.
    pub(crate) fn fill(
        &self,
        commands: &Commands,
        to: Rows<'_>,
        pattern: [u8; 4],
        extent: Extent,
    ) -> Result<()> {
        let (to, pitch) = to;
        let (to_layout, from) = (layout(to.offset, pitch), OperandLayout::default());
        let shape = Shape { to: to_layout, from, width: extent.width.get() };
        run(Call::Fill, commands, &self.fill, to, Source::Pattern(pattern), shape, extent)
    }
}

/// What a kernel reads.
enum Source<'a> {
    Buffer(&'a BufferOffset<BufferRef>),
    Pattern([u8; 4]),
}

fn layout(offset: u64, pitch: Pitch) -> OperandLayout {
    OperandLayout { start: offset % BINDING, row: pitch.row.get(), slice: pitch.slice.get() }
}

/// A number as Metal takes it; every one here was checked to fit when memory was allocated.
fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn run(
    call: Call,
    commands: &Commands,
    pipeline: &Pipeline,
    to: &BufferOffset<BufferRef>,
    source: Source<'_>,
    shape: Shape,
    extent: Extent,
) -> Result<()> {
    // The kernels count threads in 32 bits.
    let columns = extent.width.get().div_ceil(BYTES_PER_THREAD);
    let grid = [columns, extent.rows, extent.slices];
    if grid.iter().any(|&threads| threads > u64::from(u32::MAX)) {
        let missing = format!("{} rows in {} slices by one call", extent.rows, extent.slices);
        return Err(Error::Unsupported { call, missing: missing.into() });
    }
    let Some(encoder) = commands.computeCommandEncoder() else {
        return Err(no_encoder(call));
    };
    encoder.setComputePipelineState(pipeline);
    let bind = |location: &BufferOffset<BufferRef>, index| {
        let offset = count(location.offset - location.offset % BINDING);
        // SAFETY: the location lies in the buffer, which the command buffer keeps.
        unsafe { encoder.setBuffer_offset_atIndex(Some(location.buffer.raw()), offset, index) };
    };
    let set = |bytes: NonNull<c_void>, length, index| {
        // SAFETY: Metal copies so many bytes of a value of ours before this returns.
        unsafe { encoder.setBytes_length_atIndex(bytes, length, index) };
    };
    bind(to, 0);
    match source {
        Source::Buffer(from) => bind(from, 1),
        Source::Pattern(pattern) => set(NonNull::from(&pattern).cast(), size_of_val(&pattern), 1),
    }
    set(NonNull::from(&shape).cast(), size_of_val(&shape), 2);
    let [width, height, depth] = grid.map(count);
    encoder.dispatchThreads_threadsPerThreadgroup(
        MTLSize { width, height, depth },
        MTLSize { width: GROUP, height: 1, depth: 1 },
    );
    encoder.endEncoding();
    Ok(())
}

pub(crate) fn no_encoder(call: Call) -> Error {
    Error::Transient { call, reason: "Metal created no encoder".into() }
}
