//! Random arguments: every call must answer them with an error, never with a panic, a crash or a change.

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Random, Span};

use super::prelude::*;
use crate::{
    Access, Advice, Call, Capabilities, Copy, EventHandle, Fill, Location, PageHandle, PageOptions,
    Pattern, PeerCopy, PeerLocation, PinnedFlags, StreamHandle,
};

cases! { Info "info":
    garbage_handles_are_refused_by_every_call,
    garbage_addresses_are_refused_by_every_call,
    garbage_addresses_are_refused_by_work wants AddressChecks,
    garbage_sizes_are_refused_by_every_call
}

/// How often the dice are thrown. Each round makes every call of its case once.
const ROUNDS: u64 = 200;

/// Handles a device may give out are counted or are addresses; these are neither.
fn handle(random: &mut Random) -> u64 {
    random.next_u64() | 0xffff << 48
}

/// An address that is no memory of any device here: odd or even, low or high.
fn address(random: &mut Random) -> Address {
    let bits = random.next_u64();
    Address::new(match bits % 4 {
        0 => 1 + bits % 4096,
        1 => bits | 1 << 63,
        2 => u64::MAX - bits % 4096,
        _ => (bits | 1 << 62) & !0x1f_ffff,
    })
}

fn span(random: &mut Random) -> Span {
    let start = address(random);
    let size = Bytes::new(random.between(1, u64::MAX - start.get()) & !0xfff);
    Span::new(start, size).unwrap_or_default()
}

/// Runs `round` many times, after which the device is as it was before.
fn unchanged(bench: &Bench, round: impl Fn(&mut Random) -> Verdict) -> Verdict {
    let before = bench.info()?.held;
    let mut random = Random::new(0x6761_7262);
    for _ in 0..ROUNDS {
        round(&mut random)?;
    }
    ensure_equal!("what is held after all that", bench.info()?.held, before);
    Ok(())
}

fn garbage_handles_are_refused_by_every_call(bench: &Bench) -> Verdict {
    let device = bench.device();
    let good_event = bench.event()?;
    unchanged(bench, |random| {
        let stream = StreamHandle(handle(random));
        let event = EventHandle(handle(random));
        let page = PageHandle(handle(random));
        let what = "garbage";
        refused(Call::DestroyStream, what, device.destroy_stream(stream))?;
        refused(Call::StreamId, what, device.stream_id(stream))?;
        refused(Call::QueryStream, what, device.query_stream(stream))?;
        refused(Call::SynchronizeStream, what, device.synchronize_stream(stream))?;
        if device.descriptor().capabilities.contains(Capabilities::HOST_TASKS) {
            refused(Call::EnqueueHost, what, device.enqueue_host(Box::new(|| {}), stream))?;
        }
        refused(Call::DestroyEvent, what, device.destroy_event(event))?;
        refused(Call::RecordEvent, what, device.record_event(event, StreamHandle::DEFAULT))?;
        refused(Call::RecordEvent, what, device.record_event(good_event, stream))?;
        refused(Call::WaitEvent, what, device.wait_event(StreamHandle::DEFAULT, event))?;
        refused(Call::WaitEvent, what, device.wait_event(stream, good_event))?;
        refused(Call::QueryEvent, what, device.query_event(event))?;
        refused(Call::SynchronizeEvent, what, device.synchronize_event(event))?;
        refused(Call::Elapsed, what, device.elapsed(event, good_event))?;
        if let Some(memory) = device.virtual_memory() {
            refused(Call::ReleasePage, what, memory.release_page(page))?;
            refused(Call::Map, what, memory.map(address(random), page))?;
        }
        #[cfg(unix)]
        if let Some(sharing) = device.sharing() {
            refused(Call::ExportPage, what, sharing.export_page(page))?;
        }
        if let Some(peers) = device.peers() {
            let nobody = DeviceOrdinal(u32::MAX - random.next_u64().to_le_bytes()[0] as u32);
            refused(Call::CanReach, what, peers.can_reach(nobody))?;
            refused(Call::EnablePeer, what, peers.enable_peer(nobody))?;
            refused(Call::DisablePeer, what, peers.disable_peer(nobody))?;
            let [to, from] =
                [0, 1].map(|_| PeerLocation { device: nobody, address: Address::new(4096) });
            let copy = PeerCopy::new(to, from, Bytes::new(64))?;
            // SAFETY: it names no device, so there is no memory to keep.
            let copied = unsafe { peers.copy_peer(&copy, StreamHandle::DEFAULT) };
            refused(Call::CopyPeer, what, copied)?;
        }
        Ok(())
    })
}

fn garbage_addresses_are_refused_by_every_call(bench: &Bench) -> Verdict {
    let device = bench.device();
    unchanged(bench, |random| {
        let at = address(random);
        let spread = span(random);
        let what = format!("{at} or {spread}");
        ensure_equal!(format!("what lies at {at}"), device.classify(at)?, None);
        // SAFETY: the address is nobody's, so nobody uses what is there.
        refused(Call::Free, &what, unsafe { device.free(at) })?;
        if let Some(memory) = device.virtual_memory() {
            // SAFETY: as above.
            refused(Call::ReleaseRegion, &what, unsafe { memory.release_region(at) })?;
            // SAFETY: as above.
            refused(Call::Unmap, &what, unsafe { memory.unmap(spread) })?;
            let own = bench.ordinal();
            // SAFETY: as above.
            let set = unsafe { memory.set_access(spread, Access::ReadWrite, own) };
            refused(Call::SetAccess, &what, set)?;
        }
        if let Some(memory) = device.pinned_memory() {
            // SAFETY: as above.
            refused(Call::FreePinned, &what, unsafe { memory.free_pinned(at) })?;
            // SAFETY: as above.
            refused(Call::Unregister, &what, unsafe { memory.unregister(at) })?;
            refused(Call::DeviceAddress, &what, memory.device_address(at))?;
        }
        if let Some(memory) = device.managed_memory() {
            // SAFETY: as above.
            refused(Call::FreeManaged, &what, unsafe { memory.free_managed(at) })?;
            let moved = memory.prefetch(spread, None, StreamHandle::DEFAULT);
            refused(Call::Prefetch, &what, moved)?;
            refused(Call::Advise, &what, memory.advise(spread, Advice::ReadMostly))?;
        }
        Ok(())
    })
}

fn garbage_addresses_are_refused_by_work(bench: &Bench) -> Verdict {
    let device = bench.device();
    let good = bench.allocate(4096)?;
    unchanged(bench, |random| {
        let bad = Address::new(address(random).get() & !0xffff);
        if bad.is_null() {
            return Ok(());
        }
        let size = Bytes::new(random.between(1, 4096));
        let what = format!("{} B at {bad}", size.get());
        for (to, from) in [(bad, good), (good, bad)] {
            let copy = Copy::linear(Location::Device(to), Location::Device(from), size)?;
            // SAFETY: the one is live memory, the other nobody's, which the device says it sees.
            let copied = unsafe { device.copy(&copy, StreamHandle::DEFAULT) };
            refused(Call::Copy, &what, copied)?;
        }
        let fill = Fill::linear(bad, size, Pattern::U8(1))?;
        // SAFETY: as above.
        refused(Call::Fill, &what, unsafe { device.fill(&fill, StreamHandle::DEFAULT) })
    })
}

fn garbage_sizes_are_refused_by_every_call(bench: &Bench) -> Verdict {
    let device = bench.device();
    unchanged(bench, |random| {
        // More than any machine has: from 2^60 to the end of all sizes.
        let huge = Bytes::new(random.between(1 << 60, u64::MAX));
        let what = format!("{} B", huge.get());
        let shift = random.below(13);
        let alignment = Alignment::new(1 << shift)?;
        refused(Call::Allocate, &what, device.allocate(huge, alignment))?;
        if let Some(memory) = device.virtual_memory() {
            refused(Call::Reserve, &what, memory.reserve(huge, alignment))?;
            let created = memory.create_page(huge, PageOptions::default());
            refused(Call::CreatePage, &what, created)?;
            let odd = Bytes::new(random.below(1 << 40) | 1);
            let what = format!("{} B", odd.get());
            refused(Call::Reserve, &what, memory.reserve(odd, alignment))?;
            let created = memory.create_page(odd, PageOptions::default());
            refused(Call::CreatePage, &what, created)?;
        }
        if let Some(memory) = device.pinned_memory() {
            let pinned = memory.allocate_pinned(huge, PinnedFlags::empty());
            refused(Call::AllocatePinned, &what, pinned)?;
        }
        if let Some(memory) = device.managed_memory() {
            refused(Call::AllocateManaged, &what, memory.allocate_managed(huge))?;
        }
        Ok(())
    })
}
