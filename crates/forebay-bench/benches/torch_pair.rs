//! One hot pair again and again, for an instruction counter to look at: through what PyTorch calls, and
//! by the pool's own functions.
//!
//! `torch_pair PAIRS WAY`: WAY is `torch` (the functions of a pluggable allocator), `adapter` (what the adapter calls,
//! on the default stream), `adapter-stream` (likewise on another stream), `pool`, or `none` (the loop without the
//! pair). Runs on the driver made of the simulated device. What a pair takes is the difference of two runs, over the
//! pairs between them.
#![allow(clippy::unwrap_used, reason = "a probe that cannot go on has nothing to say")]

use std::hint::black_box;
use std::path::PathBuf;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use forebay::{Bytes, CudaDevice, Device, Pool, StreamHandle};
use forebay_capi::torch::{
    forebay_torch_alloc, forebay_torch_allocate, forebay_torch_deallocate, forebay_torch_free,
};

const SIZE: isize = 64 << 10;

/// Where cargo has put the driver: beside the probe, or a folder up.
fn fake_driver() -> PathBuf {
    let probe = std::env::current_exe().unwrap();
    let folders = probe.ancestors().skip(1).take(2);
    let mut paths = folders.map(|folder| folder.join("libforebay_cuda_fake_driver.so"));
    paths.find(|path| path.exists()).unwrap()
}

fn main() {
    // SAFETY: no other thread runs yet that reads the environment.
    unsafe { std::env::set_var("FOREBAY_CUDA_DRIVER", fake_driver()) };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let pairs: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(1000);
    let way = words.next().unwrap_or_else(|| "torch".to_owned());
    let device: Arc<dyn Device> = CudaDevice::open(0).unwrap();
    let pool = Pool::new(&device).unwrap();
    // The first two make the shelf and the bin.
    let run: &dyn Fn(u64) = match way.as_str() {
        "torch" => &through_torch,
        "adapter" => &|pairs| by_adapter(pairs, 0),
        // The default stream of the calling thread, which the driver knows without anyone creating it.
        "adapter-stream" => &|pairs| by_adapter(pairs, 2),
        "pool" => &|pairs| by_pool(&pool, pairs),
        _ => &nothing,
    };
    run(2);
    run(pairs);
}

#[inline(never)]
fn through_torch(pairs: u64) {
    for _ in 0..pairs {
        // SAFETY: the default stream is there as long as the device, and nothing is enqueued.
        unsafe {
            let block = forebay_torch_alloc(black_box(SIZE), black_box(0), black_box(null_mut()));
            forebay_torch_free(black_box(block), SIZE, black_box(0), black_box(null_mut()));
        }
    }
}

#[inline(never)]
fn by_adapter(pairs: u64, stream: usize) {
    for _ in 0..pairs {
        // SAFETY: both default streams are there as long as the device and the thread, and nothing is enqueued.
        unsafe {
            let stream = black_box(without_provenance_mut(stream));
            let block =
                forebay_torch_allocate(black_box(SIZE.unsigned_abs()), black_box(0), stream);
            forebay_torch_deallocate(black_box(block));
        }
    }
}

#[inline(never)]
fn by_pool(pool: &Pool, pairs: u64) {
    let (size, stream) = (Bytes::kib(64), StreamHandle::DEFAULT);
    for _ in 0..pairs {
        let block = pool.allocate(black_box(size), black_box(stream)).unwrap();
        pool.free(black_box(block.address()), black_box(stream)).unwrap();
    }
}

/// What the loop itself costs.
#[inline(never)]
fn nothing(pairs: u64) {
    for _ in 0..pairs {
        black_box(black_box(SIZE));
    }
}
