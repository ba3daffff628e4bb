//! A kernel that cudarc launches, on memory of a forebay pool.
//!
//! `cargo run -p forebay-cudarc --example 10_cudarc`
//!
//! It needs an NVIDIA GPU and its driver, and nothing of CUDA to build. Where there is none, it says so and ends.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use forebay::{Bytes, CudaDevice, Pool};
use forebay_cudarc::{AdoptedStream, Slice};

/// `to[i] = factor * from[i] + to[i]`, for `i` below `count`. PTX of an old version, which every driver takes.
const KERNEL: &str = r"
.version 6.0
.target sm_50
.address_size 64

.visible .entry scale_and_add(
    .param .u64 to,
    .param .u64 from,
    .param .f32 factor,
    .param .u32 count
)
{
    .reg .pred %past_end;
    .reg .u32 %thread, %block, %size, %index, %end;
    .reg .u64 %to, %from, %offset;
    .reg .f32 %factor, %x, %y;

    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %size, %thread;
    ld.param.u32 %end, [count];
    setp.ge.u32 %past_end, %index, %end;
    @%past_end bra DONE;

    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.f32 %factor, [factor];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %to, %to, %offset;
    add.u64 %from, %from, %offset;
    ld.global.f32 %x, [%from];
    ld.global.f32 %y, [%to];
    fma.rn.f32 %y, %factor, %x, %y;
    st.global.f32 [%to], %y;
DONE:
    ret;
}
";

const LENGTH: u32 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    // cudarc panics where there is no driver; forebay says what is missing.
    if let Err(error) = CudaDevice::open(0) {
        say(format_args!("this example needs an NVIDIA GPU: {error}"));
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    let device = forebay_cudarc::device(&context)?;
    let pool = Pool::new(&device)?;
    let kernel = context.load_module(Ptx::from_src(KERNEL))?.load_function("scale_and_add")?;

    // Two streams of cudarc's, which forebay may use as long as these values live.
    let [compute, copies] = [context.new_stream()?, context.new_stream()?]
        .map(|stream| AdoptedStream::new(&device, &stream));
    let (compute, copies) = (compute?, copies?);

    let length = LENGTH as usize;
    let from = filled(&compute, &pool, 2.0)?;
    for round in 0..3 {
        // After the first round this is the memory of the round before: nothing is allocated.
        let mut to = filled(&compute, &pool, 1.0)?;
        let factor = 3.0_f32;
        let mut launch = compute.cuda().launch_builder(&kernel);
        launch.arg(&mut to).arg(&from).arg(&factor).arg(&LENGTH);
        // SAFETY: the arguments are those of the kernel, which reads and writes `LENGTH` floats of each slice.
        unsafe { launch.launch(LaunchConfig::for_num_elems(LENGTH)) }?;

        // Another stream reads the result. It waits for the kernel, and the memory is used again after the copy.
        let mut copy = copies.slice::<f32, _>(&pool, length)?;
        copies.cuda().memcpy_dtod(&to, &mut copy)?;
        drop(to);

        let values = copies.cuda().clone_dtoh(&copy)?;
        let wrong = values.iter().filter(|&&value| value != 7.0).count();
        say(format_args!("round {round}: {} values, {wrong} wrong", values.len()));
        if wrong > 0 {
            return Err("the kernel or the order of the streams is wrong".into());
        }
    }

    // A slice of cudarc's, taken in and given back without a copy.
    let theirs = Slice::<f32>::from_cuda(compute.cuda().clone_htod(&[0.5_f32; 4])?)?;
    say(format_args!("cudarc's memory at {}", theirs.address()));
    let theirs = theirs.into_cuda()?;
    say(format_args!("given back: {:?}", compute.cuda().clone_dtoh(&theirs)?));

    let figures = pool.statistics();
    say(format_args!("live {}, held {}", figures.live, figures.held));
    drop(from);
    if pool.statistics().live != Bytes::ZERO {
        return Err("a slice was not freed".into());
    }
    Ok(())
}

/// A slice with one value everywhere.
fn filled(
    stream: &Arc<AdoptedStream>,
    pool: &Pool,
    value: f32,
) -> Result<Slice<f32>, Box<dyn Error>> {
    let mut slice = stream.slice(pool, LENGTH as usize)?;
    stream.cuda().memcpy_htod(&vec![value; LENGTH as usize], &mut slice)?;
    Ok(slice)
}

#[allow(clippy::print_stdout, reason = "an example shows what it does")]
fn say(text: std::fmt::Arguments<'_>) {
    println!("{text}");
}
