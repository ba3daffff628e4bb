//! The driver's own pool: tuned, asked, and refused without a change.

use crate::fake_driver::FakeDriver;
use forebay_core::Bytes;
use forebay_cuda::sys::Code;
use forebay_cuda::{
    CudaDevice, PoolTuning, default_pool, reset_default_pool_peaks, trim_default_pool,
    tune_default_pool,
};
use forebay_hal::Error;

#[test]
fn what_is_said_is_changed_and_nothing_else() {
    let fake = FakeDriver::load("pool").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let fresh = default_pool(&device).unwrap();
    assert_eq!(fresh.release_threshold, Bytes::ZERO);
    assert!(fresh.follow_events && fresh.opportunistic && fresh.internal_dependencies);
    assert_eq!(tune_default_pool(&device, PoolTuning::new()).unwrap(), fresh);

    let tuning = PoolTuning::new().release_threshold(Bytes::gib(5)).opportunistic(false);
    let tuned = tune_default_pool(&device, tuning).unwrap();
    assert_eq!(tuned.release_threshold, Bytes::gib(5), "wider than 32 bits");
    assert!(tuned.follow_events && !tuned.opportunistic && tuned.internal_dependencies);
    assert_eq!(tuned.used, fresh.used);
    assert_eq!(default_pool(&device).unwrap(), tuned);

    let tuning = PoolTuning::new().opportunistic(true).follow_events(false);
    let tuned = tune_default_pool(&device, tuning.internal_dependencies(false)).unwrap();
    assert!(!tuned.follow_events && tuned.opportunistic && !tuned.internal_dependencies);
    assert_eq!(tuned.release_threshold, Bytes::gib(5));

    // The other device has its own.
    let other = CudaDevice::open_with(fake.driver, 1).unwrap();
    assert_eq!(default_pool(&other).unwrap(), fresh);
}

#[test]
fn its_figures_are_the_drivers() {
    let fake = FakeDriver::load("pool-figures").unwrap();
    let device = CudaDevice::open_with(fake.driver, 1).unwrap();
    fake.use_pool(1, 6 << 30, 5 << 30);
    fake.use_pool(1, 4 << 30, 1 << 30);
    let stand = default_pool(&device).unwrap();
    let figures = [stand.reserved, stand.reserved_high, stand.used, stand.used_high];
    assert_eq!(figures, [4, 6, 1, 5].map(Bytes::gib));
    reset_default_pool_peaks(&device).unwrap();
    let stand = default_pool(&device).unwrap();
    assert_eq!((stand.reserved_high, stand.used_high), (Bytes::gib(4), Bytes::gib(1)));
    trim_default_pool(&device, Bytes::gib(2)).unwrap();
    assert_eq!(default_pool(&device).unwrap().reserved, Bytes::gib(2));
    trim_default_pool(&device, Bytes::ZERO).unwrap();
    assert_eq!(default_pool(&device).unwrap().reserved, Bytes::gib(1), "what is used stays");
}

#[test]
fn a_tuning_that_fails_has_changed_nothing() {
    let fake = FakeDriver::load("pool-faults").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let before = default_pool(&device).unwrap();
    let tuning = PoolTuning::new()
        .release_threshold(Bytes::gib(1))
        .follow_events(false)
        .opportunistic(false)
        .internal_dependencies(false);
    for name in ["cuMemPoolSetAttribute", "cuMemPoolGetAttribute"] {
        for after in 0..4 {
            fake.fail(Some(name), after, Code::ERROR_INVALID_VALUE);
            let error = tune_default_pool(&device, tuning).unwrap_err();
            assert_eq!(fake.clear(), 0, "{name} was called");
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(default_pool(&device).unwrap(), before, "{name}, {after}");
        }
    }
    tune_default_pool(&device, tuning).unwrap();
}

#[test]
fn a_driver_without_pools_says_so() {
    let lacks = ["cuDeviceGetDefaultMemPool"];
    let fake = FakeDriver::load_with("pool-none", 13_000, 1, &lacks).unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let error = tune_default_pool(&device, PoolTuning::new()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("which CUDA 11.2 introduced"), "{error}");
}
