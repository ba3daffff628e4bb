//! Who frees what: each slice once, by the one that it belongs to. And what is refused.

use std::ops::Bound;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, DeviceSlice};
use forebay::{Bytes, CudaDevice, DeviceArray, Pool, StreamHandle};
use forebay_cudarc::{AdoptedStream, Error, Slice};

use crate::driver::{Bench, LENGTH, calls_of};
use crate::{Case, Needs};

pub(crate) const CASES: &[Case] = &[
    (
        "memory_of_a_pool_never_reaches_the_drivers_free",
        never_freed_by_the_driver,
        Needs::FakeDriverAlone,
    ),
    ("memory_of_cudarc_is_freed_once_by_the_driver", freed_once, Needs::FakeDriverAlone),
    ("an_array_comes_back_with_its_values", arrays_come_back, Needs::Any),
    ("a_slice_of_cudarc_comes_back_with_its_values", cuda_slices_come_back, Needs::Any),
    ("default_streams_are_adopted_by_their_names", default_streams, Needs::Any),
    ("slices_keep_their_stream", slices_keep_their_stream, Needs::Any),
    ("other_devices_contexts_and_threads_are_refused", refused, Needs::Any),
    ("parts_that_no_number_ends_are_refused", endless_parts, Needs::Any),
    ("slices_of_no_elements_work", empty, Needs::Any),
    ("an_error_that_was_left_in_the_context_is_returned", stale_errors, Needs::FakeDriverAlone),
];

fn frees() -> u64 {
    calls_of("cuMemFreeAsync") + calls_of("cuMemFree")
}

fn never_freed_by_the_driver() {
    let bench = Bench::new();
    let before = frees();
    for streams in [vec![bench.stream()], vec![bench.stream(), bench.stream()]] {
        for stream in &streams {
            drop(bench.filled(stream, 1));
            let block = bench.filled(stream, 2).into_block().unwrap();
            drop(block);
        }
    }
    assert_eq!(bench.pool.statistics().live, Bytes::ZERO);
    assert_eq!(frees(), before);
}

fn freed_once() {
    let bench = Bench::new();
    let stream = bench.stream();
    let before = frees();
    let cuda = || stream.cuda().clone_htod(&[3_u32; LENGTH]).unwrap();
    drop(wrapped(cuda()));
    assert_eq!(frees(), before + 1);
    let back = wrapped(cuda()).into_cuda().unwrap();
    assert_eq!(frees(), before + 1, "it was given back, not freed");
    drop(back);
    assert_eq!(frees(), before + 2);
    bench.context.check_err().unwrap();
}

fn endless_parts() {
    let bench = Bench::new();
    let mut slice = bench.filled(&bench.stream(), 1);
    assert!(slice.slice(0..=usize::MAX).is_none() && slice.slice_mut(0..=usize::MAX).is_none());
    assert!(slice.slice((Bound::Excluded(usize::MAX), Bound::Unbounded)).is_none());
    assert_eq!(slice.slice((Bound::Excluded(0), Bound::Unbounded)).unwrap().len(), LENGTH - 1);
}

fn wrapped(slice: CudaSlice<u32>) -> Slice<u32> {
    Slice::from_cuda(slice).unwrap()
}

fn arrays_come_back() {
    let bench = Bench::new();
    let [one, other] = [(); 2].map(|()| bench.stream());
    let array = bench.pool.on(one.handle()).from_slice(&[5_u32; LENGTH]).unwrap();
    let address = array.address();
    // To another stream than it was allocated for.
    let slice = Slice::from_array(array, &other).unwrap();
    assert_eq!((slice.address(), slice.len()), (address, LENGTH));
    let refused = slice.into_cuda().unwrap_err();
    assert_eq!(refused.error(), &Error::NotFromCudarc);
    let block = refused.into_value().into_block().unwrap();
    assert_eq!((block.address(), block.stream()), (address, other.handle()));
    let array = DeviceArray::<u32>::from_block(block, LENGTH).unwrap();
    assert_eq!(array.to_vec().unwrap(), [5; LENGTH]);
}

fn cuda_slices_come_back() {
    let bench = Bench::new();
    let stream = bench.stream();
    let slice = wrapped(stream.cuda().clone_htod(&[6_u32; LENGTH]).unwrap());
    assert!(!slice.address().is_null() && slice.block().is_none());
    let refused = slice.into_block().unwrap_err();
    assert_eq!(refused.error(), &Error::NotFromAPool);
    let slice = refused.into_value().into_cuda().unwrap();
    assert_eq!(stream.cuda().clone_dtoh(&slice).unwrap(), [6; LENGTH]);
}

fn default_streams() {
    let bench = Bench::new();
    let adopt = |stream| AdoptedStream::new(&bench.device, &stream).unwrap();
    let legacy = adopt(bench.context.default_stream());
    assert_eq!(legacy.handle(), StreamHandle::DEFAULT);
    let own = adopt(bench.context.per_thread_stream());
    assert_eq!(own.handle(), StreamHandle::PER_THREAD);
    drop(bench.pool.on(own.handle()).uninit::<u32>(LENGTH).unwrap());
    drop(bench.filled(&legacy, 1));
    assert_eq!(bench.pool.statistics().live, Bytes::ZERO);
}

fn slices_keep_their_stream() {
    let bench = Bench::new();
    let stream = bench.stream();
    let (weak, handle) = (Arc::downgrade(stream.cuda()), stream.handle());
    let slice = bench.filled(&stream, 1);
    drop(stream);
    assert!(weak.upgrade().is_some());
    let device: &dyn forebay::Device = &*bench.device;
    assert!(device.query_stream(handle).is_ok());
    drop(slice);
    assert!(weak.upgrade().is_none(), "nothing keeps the stream any more");
    // The device knows it no more, nor does the pool.
    device.query_stream(handle).unwrap_err();
    assert!(bench.pool.allocate(Bytes::kib(64), handle).is_err());
    drop(bench.filled(&bench.stream(), 1));
}

fn refused() {
    let bench = Bench::new();
    let stream = bench.stream();
    // A pool of the same GPU by another device object, which does not know the stream.
    let theirs = Pool::new(&CudaDevice::open(0).unwrap()).unwrap();
    let other = stream.slice::<u32, _>(&theirs, LENGTH).unwrap_err();
    assert!(matches!(other, Error::OtherDevice { .. }), "{other}");
    let array = theirs.default_stream().from_slice(&[1_u32; 8]).unwrap();
    let array = Slice::from_array(array, &stream).unwrap_err().into_value();
    assert_eq!(array.to_vec().unwrap(), [1; 8]);

    let own = AdoptedStream::new(&bench.device, &bench.context.per_thread_stream()).unwrap();
    let per_thread = own.slice::<u32, _>(&bench.pool, LENGTH).unwrap_err();
    assert_eq!(per_thread, Error::PerThreadStream);
    let slice = own.cuda().clone_htod(&[1_u32; 8]).unwrap();
    let slice = Slice::<u32>::from_cuda(slice).unwrap_err();
    assert_eq!(slice.error(), &Error::PerThreadStream);
    assert_eq!(slice.into_value().len(), 8);

    if CudaContext::device_count().unwrap() > 1 {
        let context = CudaContext::new(1).unwrap();
        let other = AdoptedStream::new(&bench.device, &context.default_stream()).unwrap_err();
        assert!(matches!(other, Error::OtherContext { .. }), "{other}");
    }
    assert!(bench.filled(&stream, 1).slice(0..=LENGTH).is_none());
    // SAFETY: it wraps the primary context, which is never destroyed: the wrapper is leaked.
    let wrapper = unsafe {
        let (device, raw) = (bench.context.cu_device(), bench.context.cu_ctx());
        CudaContext::from_raw_context(0, device, raw)
    };
    let wrapper = std::mem::ManuallyDrop::new(wrapper.unwrap());
    let other = forebay_cudarc::device(&wrapper).unwrap_err();
    assert_eq!(other, Error::NotPrimary { ordinal: 0 });
}

fn empty() {
    let bench = Bench::new();
    let stream = bench.stream();
    let slice = stream.slice::<u32, _>(&bench.pool, 0).unwrap();
    assert!(slice.is_empty() && slice.address().is_null());
    assert_eq!(slice.slice(..).unwrap().len(), 0);
    drop(slice.into_block().unwrap());
    drop(stream.slice::<u32, _>(&bench.pool, 0).unwrap());
    assert_eq!(bench.pool.statistics().live, Bytes::ZERO);
}

fn stale_errors() {
    let bench = Bench::new();
    let stream = bench.stream();
    let unknown = cudarc::driver::DriverError(cudarc::driver::sys::CUresult::CUDA_ERROR_UNKNOWN);
    bench.context.record_err::<()>(Err(unknown));
    let error = stream.slice::<u32, _>(&bench.pool, LENGTH).unwrap_err();
    assert_eq!(error, Error::Driver(unknown));
    assert_eq!(bench.pool.statistics().live, Bytes::ZERO, "the memory went back");
    // A drop in which all goes well leaves the error to the next who asks.
    let slice = bench.filled(&stream, 1);
    bench.context.record_err::<()>(Err(unknown));
    drop(slice);
    assert_eq!(bench.context.check_err(), Err(unknown));
}
