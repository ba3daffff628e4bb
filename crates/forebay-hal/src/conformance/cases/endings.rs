//! The end of a device.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_core::{Alignment, Bytes};

use super::prelude::*;
use crate::{
    Access, Copy, Device, EventKind, Fill, Location, PageOptions, Pattern, PinnedFlags, Priority,
    StreamHandle,
};

cases! {
    Info "info":
        a_device_goes_with_things_alive,
        a_device_goes_with_work_enqueued needs DATA,
        devices_come_and_go,
        devices_of_one_machine_hold_their_own;
    Streams "streams":
        tasks_run_once_where_the_device_goes_first needs HOST_TASKS
}

/// What a device may take to go with a little work left.
const GOING: Duration = Duration::from_secs(5);

/// Drops the device in a thread, within the time it may take.
fn ensure_goes(device: Arc<dyn Device>) -> Verdict {
    let owners = Arc::strong_count(&device);
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        drop(device);
        // Nobody listens where the time is over.
        let _ = sender.send(());
    });
    if receiver.recv_timeout(GOING).is_err() {
        // The thread is over where it panicked; where it blocks, it is left behind.
        let how = if thread.is_finished() { "panicked" } else { "did not return" };
        return Err(Failure::new(format!(
            "dropping the device, with {owners} owners, {how} in {} s",
            GOING.as_secs()
        )));
    }
    Ok(())
}

/// Takes one of everything the device gives, and gives none of it back.
fn take_everything(device: &dyn Device) -> Step<StreamHandle> {
    device.allocate(Bytes::mib(2), Alignment::BLOCK)?;
    let stream = device.create_stream(Priority::Normal)?;
    let event = device.create_event(EventKind::Order)?;
    device.record_event(event, stream)?;
    if let Some(memory) = device.virtual_memory() {
        let size = memory.granularity().minimum.bytes();
        let region = memory.reserve(size, Alignment::ONE)?;
        let page = memory.create_page(size, PageOptions::default())?;
        memory.map(region.start(), page)?;
        // SAFETY: nobody uses the region yet.
        unsafe { memory.set_access(region, Access::ReadWrite, device.descriptor().ordinal) }?;
    }
    if let Some(memory) = device.pinned_memory() {
        memory.allocate_pinned(Bytes::new(4096), PinnedFlags::empty())?;
    }
    if let Some(memory) = device.managed_memory() {
        memory.allocate_managed(Bytes::new(4096))?;
    }
    Ok(stream)
}

fn a_device_goes_with_things_alive(bench: &Bench) -> Verdict {
    let device = bench.another()?;
    take_everything(&*device)?;
    ensure_goes(device)
}

fn a_device_goes_with_work_enqueued(bench: &Bench) -> Verdict {
    let device = bench.another()?;
    let stream = take_everything(&*device)?;
    let (size, seen) = (Bytes::mib(1), bench.blank(1 << 20, 0)?);
    let memory = device.allocate(size, Alignment::BLOCK)?;
    // Nothing will tell when the last copy is done, so the bytes are left to it for good.
    core::mem::forget(seen.clone());
    for round in 0..20 {
        let fill = Fill::linear(memory, size, Pattern::U8(round))?;
        let copy = Copy::linear(seen.location(), Location::Device(memory), size)?;
        // SAFETY: nobody frees the memory, and the host's side is never given back.
        unsafe { device.fill(&fill, stream) }?;
        // SAFETY: as above.
        unsafe { device.copy(&copy, stream) }?;
    }
    ensure_goes(device)?;
    // Dropping need not wait: the work runs on, or not, but no copy stops half way.
    bench.soon("host memory is as one of the copies left it", || {
        let found = seen.read();
        Ok(found.iter().all(|byte| Some(byte) == found.first()))
    })
}

fn devices_come_and_go(bench: &Bench) -> Verdict {
    for round in 0..8 {
        let device = bench.another()?;
        let memory = device.allocate(Bytes::mib(16), Alignment::BLOCK)?;
        ensure!(!memory.is_null(), "round {round}: 16 MiB are at null");
        ensure_equal!("bytes held", device.memory_info()?.held, Bytes::mib(16));
        ensure_goes(device)?;
    }
    ensure_equal!("bytes the first device holds", bench.held()?, Bytes::ZERO);
    Ok(())
}

fn devices_of_one_machine_hold_their_own(bench: &Bench) -> Verdict {
    let other = bench.another()?;
    let memory = other.allocate(Bytes::mib(4), Alignment::BLOCK)?;
    ensure_equal!("bytes the first device holds", bench.held()?, Bytes::ZERO);
    ensure_equal!("bytes the second holds", other.memory_info()?.held, Bytes::mib(4));
    // SAFETY: no work uses the memory.
    unsafe { other.free(memory) }?;
    Ok(())
}

fn tasks_run_once_where_the_device_goes_first(bench: &Bench) -> Verdict {
    let ran = Arc::new(AtomicU32::new(0));
    let device = bench.another()?;
    for number in 0..60 {
        let stream = match number % 3 {
            0 => StreamHandle::DEFAULT,
            _ => device.create_stream(Priority::Normal)?,
        };
        let theirs = Arc::clone(&ran);
        let task = move || {
            theirs.fetch_add(1, Ordering::SeqCst);
        };
        device.enqueue_host(Box::new(task), stream)?;
        if number % 3 == 1 {
            device.destroy_stream(stream)?;
        }
    }
    ensure_goes(device)?;
    bench.soon("all 60 tasks have run", || Ok(ran.load(Ordering::SeqCst) >= 60))?;
    std::thread::sleep(Duration::from_millis(10));
    ensure_equal!("tasks that ran", ran.load(Ordering::SeqCst), 60);
    Ok(())
}
