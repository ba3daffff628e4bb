//! Calls of the device that fail.

use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_hal::Call;
use forebay_sim::{Fault, FaultKind, When};

use super::*;

static SLEPT: AtomicU64 = AtomicU64::new(0);

fn count_sleep(delay: Duration) {
    SLEPT.fetch_add(u64::try_from(delay.as_micros()).unwrap(), Ordering::SeqCst);
}

/// One thread, so that calls come in the same order, and delays that are counted and not slept.
fn options(retries: u32) -> TransferOptions {
    let mut options = small().threads(1).slots(2);
    options.backoff.retries = retries;
    options.sleep = |_| {};
    options
}

/// Uploads and downloads. What succeeds must be true, and what fails comes back. Returns the calls that the device got.
fn program(retries: u32, faults: &[Fault]) -> (u64, u32) {
    let machine = own_memory().seed(1).build().unwrap();
    let device = machine.device(0).unwrap();
    let pool = Pool::new(&device).unwrap();
    let mut array = Some(pool.on(DEFAULT).uninit::<u8>(20_000).unwrap());
    let before = machine.calls().total();
    for fault in faults {
        machine.plan(*fault);
    }
    let mut failed = 0;
    if let Ok(engine) = options(retries).build(&device) {
        for seed in 0..2 {
            let from = data(20_000, seed);
            let Some(own) = array.take() else { break };
            let sent = match engine.upload(from.clone(), own).submit().map(Ticket::wait) {
                Ok(Ok((_, own))) => (own, true),
                Ok(Err(refused)) | Err(refused) => (refused.into_handle().1, false),
            };
            let (own, arrived) = sent;
            let came = match engine.download(own, vec![0; 20_000]).submit().map(Ticket::wait) {
                Ok(Ok((own, back))) => {
                    assert!(!arrived || back == from, "wrong bytes after {faults:?}");
                    (own, true)
                }
                Ok(Err(refused)) | Err(refused) => (refused.into_handle().0, false),
            };
            failed += u32::from(!arrived) + u32::from(!came.1);
            array = Some(came.0);
        }
    } else {
        failed += 1;
    }
    machine.clear_faults();
    drop((array, pool));
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{:?} after {faults:?}", machine.findings().first());
    (machine.calls().total() - before, failed)
}

#[test]
fn any_call_may_fail_and_no_wrong_byte_is_taken_for_right() {
    let (calls, failed) = program(5, &[]);
    assert!(calls > 60 && failed == 0, "{calls} calls, {failed} failed");
    for first in 1..=calls {
        for kind in [FaultKind::Transient, FaultKind::OutOfMemory] {
            let fault = Fault::new(When::Call(first), kind);
            // Once, with and without retries, and three times in a row.
            program(5, &[fault]);
            program(0, &[fault]);
            let more = [1, 2].map(|more| Fault::new(When::Call(first + more), kind));
            program(1, &[fault, more[0], more[1]]);
        }
    }
}

#[test]
fn what_passes_is_tried_again_after_growing_delays() {
    let bench = Bench::with(own_memory(), TransferOptions { sleep: count_sleep, ..options(5) });
    let copies = bench.machine.calls().of(Call::Copy);
    for number in 1..=3 {
        let when = When::Kind(Call::Copy, copies + number);
        bench.machine.plan(Fault::new(when, FaultKind::Transient));
    }
    // One part, so one thread tries again.
    let ticket = bench.engine.upload(data(100, 1), bench.array(100)).submit().unwrap();
    let (from, array) = ticket.wait().unwrap();
    assert_eq!(array.to_vec().unwrap(), from);
    // 100, 200 and 400 us, each by a half at most less.
    let slept = SLEPT.load(Ordering::SeqCst);
    assert!((350..=700).contains(&slept), "{slept} us");
    assert_eq!(bench.engine.statistics().uploads.retries, 3);
    let every = Fault::new(When::Every(Call::Copy), FaultKind::Transient);
    assert_eq!(program(2, &[every]).1, 4);
}

/// A device that is lost in the middle: all transfers end, and memory comes back.
#[test]
fn a_lost_device_hangs_nobody() {
    let calls = program(0, &[]).0;
    for at in (1..calls).step_by(7) {
        let machine = own_memory().seed(1).build().unwrap();
        let device = machine.device(0).unwrap();
        let pool = Pool::new(&device).unwrap();
        let array = pool.on(DEFAULT).uninit::<u8>(20_000).unwrap();
        let now = machine.calls().total();
        machine.plan(Fault::new(When::Call(now + at), FaultKind::Lost));
        let Ok(engine) = options(2).build(&device) else { continue };
        let array = match engine.upload(data(20_000, 1), array).submit().map(Ticket::wait) {
            Ok(Ok((_, array))) => array,
            Ok(Err(refused)) | Err(refused) => refused.into_handle().1,
        };
        drop(engine.download(array, vec![0; 20_000]).submit());
        assert!(engine.statistics().pinned <= engine.options().max_pinned());
    }
}
