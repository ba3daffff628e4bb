//! Results, persistence and cleanup of a calibration.

use super::*;
use crate::Settings;

fn with_memory(memory: Bytes) -> (SimMachine, Arc<SimDevice>) {
    let machine = own_memory().capacity(memory).build().unwrap();
    let device = machine.device(0).unwrap();
    (machine, device)
}

#[test]
fn a_device_is_measured_once_and_everything_is_given_back() {
    let (machine, device) = with_memory(Bytes::gib(1));
    let found = Calibration::of(&device).unwrap();
    for bandwidth in [found.upload, found.download, found.upload_limit, found.download_limit] {
        assert!(bandwidth.is_finite() && bandwidth > 0.0, "{found:?}");
    }
    assert!(found.threads.is_power_of_two() && found.chunk >= Bytes::mib(1), "{found:?}");
    assert_eq!(Calibration::of(&device).unwrap(), found, "the time it took is the same");
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
    let fresh = with_memory(Bytes::gib(1)).0.census();
    // The threads of the engines that were tried end when they have been idle for a while.
    let began = std::time::Instant::now();
    while machine.census() != fresh && began.elapsed().as_secs() < 20 {
        std::thread::sleep(core::time::Duration::from_millis(10));
    }
    assert_eq!(machine.census(), fresh);
    let options = TransferOptions::new().calibrated(&found);
    assert_eq!((options.threads, options.chunk), (found.threads, found.chunk));
}

#[test]
fn a_device_without_room_for_the_measurement_says_so_and_loses_nothing() {
    let (machine, device) = with_memory(Bytes::mib(32));
    let refused = Calibration::of(&device).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
    assert_eq!(machine.census(), with_memory(Bytes::mib(32)).0.census());
}

#[test]
fn engines_go_by_what_was_found_and_by_the_settings_above_it() {
    let (_machine, device) = with_memory(Bytes::gib(1));
    let found = Calibration::of(&device).unwrap();
    let options = TransferOptions::for_device(&device).unwrap();
    assert_eq!((options.threads, options.chunk), (found.threads, found.chunk));
    let settings = Settings::parse_conf("transfer_threads:5, transfer_chunk:3MiB").unwrap();
    Pool::set_process_settings(Some(settings));
    let engine = TransferEngine::new(&device).unwrap();
    Pool::set_process_settings(None);
    assert_eq!((engine.options().threads, engine.options().chunk), (5, Bytes::mib(3)));
}
