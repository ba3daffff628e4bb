//! Streams.

use std::collections::BTreeSet;

use forebay_core::{Bytes, MIB};

use super::prelude::*;
use crate::{
    Call, Capabilities, Copy, EventKind, Fill, Location, Pattern, Priority, Progress, StreamHandle,
};

cases! { Streams "streams":
    the_default_stream_is_there_and_stays,
    ids_are_never_given_twice,
    an_id_is_constant,
    priorities_are_taken_or_ignored,
    a_fresh_stream_is_done,
    work_of_one_stream_runs_in_order needs DATA,
    query_is_pending_while_held_then_done needs DATA | HOST_TASKS,
    synchronize_shows_what_was_written needs DATA,
    synchronize_device_covers_every_stream needs DATA,
    no_stream_waits_for_another needs DATA | HOST_TASKS,
    the_default_stream_waits_for_no_other needs DATA | HOST_TASKS,
    no_stream_waits_for_the_default needs DATA | HOST_TASKS,
    only_synchronize_waits needs DATA | HOST_TASKS,
    giving_memory_back_does_not_wait_where_that_is_promised needs HOST_TASKS | PROMPT_FREE,
    work_of_a_destroyed_stream_still_runs needs DATA,
    destroying_a_busy_stream_does_not_wait needs DATA | HOST_TASKS,
    a_destroyed_stream_is_refused_everywhere,
    a_stream_never_made_is_refused_everywhere,
    destroying_one_stream_leaves_the_others needs DATA,
    hundreds_of_streams_at_once needs DATA,
}

fn the_default_stream_is_there_and_stays(bench: &Bench) -> Verdict {
    let device = bench.device();
    let id = device.stream_id(StreamHandle::DEFAULT)?;
    let destroyed = device.destroy_stream(StreamHandle::DEFAULT);
    invalid(Call::DestroyStream, "the default stream", destroyed)?;
    ensure_equal!("its id afterwards", device.stream_id(StreamHandle::DEFAULT)?, id);
    bench.synchronize(StreamHandle::DEFAULT)?;
    bench.done_soon("the idle default stream", StreamHandle::DEFAULT)
}

fn ids_are_never_given_twice(bench: &Bench) -> Verdict {
    let device = bench.device();
    let mut seen = BTreeSet::from([device.stream_id(StreamHandle::DEFAULT)?]);
    for round in 0..100 {
        let (one, two) = (bench.stream()?, bench.stream()?);
        ensure!(one != two, "two live streams have the handle {one}");
        ensure!(one != StreamHandle::DEFAULT, "a new stream has the default's handle");
        for stream in [one, two] {
            let id = device.stream_id(stream)?;
            ensure!(seen.insert(id), "round {round}: {id} was given before");
            bench.destroy_stream(stream)?;
        }
    }
    Ok(())
}

fn an_id_is_constant(bench: &Bench) -> Verdict {
    let (stream, memory) = (bench.stream()?, bench.allocate(4096)?);
    let id = bench.device().stream_id(stream)?;
    bench.fill(memory, 4096, 1, stream)?;
    ensure_equal!("the id with work enqueued", bench.device().stream_id(stream)?, id);
    bench.synchronize(stream)?;
    ensure_equal!("the id with work done", bench.device().stream_id(stream)?, id);
    Ok(())
}

fn priorities_are_taken_or_ignored(bench: &Bench) -> Verdict {
    let memory = bench.allocate(3)?;
    for (offset, priority) in [Priority::Low, Priority::Normal, Priority::High].iter().enumerate() {
        let stream = bench.stream_of(*priority)?;
        bench.fill(at(memory, offset as u64), 1, 1, stream)?;
        bench.synchronize(stream)?;
    }
    Ok(())
}

fn a_fresh_stream_is_done(bench: &Bench) -> Verdict {
    let stream = bench.stream()?;
    ensure_equal!("a stream without work", bench.device().query_stream(stream)?, Progress::Done);
    bench.synchronize(stream)?;
    bench.device().synchronize_device()?;
    Ok(())
}

fn work_of_one_stream_runs_in_order(bench: &Bench) -> Verdict {
    let (stream, size) = (bench.stream()?, 64 << 10);
    let memory = bench.allocate(size)?;
    let mut copies = Vec::new();
    for round in 0..100 {
        let relay = Relay { memory, seen: bench.blank(size, 0xff)? };
        relay.pass(bench, round, stream)?;
        copies.push(relay);
    }
    bench.synchronize(stream)?;
    for (round, relay) in (0..).zip(copies) {
        relay.ensure_seen(&format!("what round {round} of 100 saw"), round)?;
    }
    Ok(())
}

fn query_is_pending_while_held_then_done(bench: &Bench) -> Verdict {
    let (stream, relay) = (bench.stream()?, Relay::new(bench)?);
    let gate = Latch::close(bench, stream)?;
    relay.pass(bench, 7, stream)?;
    bench.stays_pending("a held stream", stream)?;
    relay.ensure_seen("host memory while the copy is held", 0)?;
    gate.open()?;
    bench.done_soon("a stream let go", stream)?;
    relay.ensure_seen("host memory once a query said done", 7)
}

fn synchronize_shows_what_was_written(bench: &Bench) -> Verdict {
    let (stream, relay) = (bench.stream()?, Relay::of(bench, 256 << 10)?);
    for round in 0..50 {
        relay.pass(bench, round, stream)?;
        bench.synchronize(stream)?;
        relay.ensure_seen(&format!("round {round}"), round)?;
    }
    Ok(())
}

fn synchronize_device_covers_every_stream(bench: &Bench) -> Verdict {
    let mut lanes = Vec::new();
    for lane in 0..6_u8 {
        let stream = if lane == 0 { StreamHandle::DEFAULT } else { bench.stream()? };
        lanes.push((lane, stream, Relay::of(bench, 64 << 10)?));
    }
    for round in 0..10_u8 {
        for (lane, stream, relay) in &lanes {
            relay.pass(bench, lane * 16 + round, *stream)?;
        }
        bench.device().synchronize_device()?;
        for (lane, stream, relay) in &lanes {
            let what = format!("round {round}, lane {lane}");
            relay.ensure_seen(&what, lane * 16 + round)?;
            ensure_equal!(what, bench.device().query_stream(*stream)?, Progress::Done);
        }
    }
    Ok(())
}

/// Work on `free` is done while `held` is held back.
fn ensure_independent(bench: &Bench, held: StreamHandle, free: StreamHandle) -> Verdict {
    let relay = Relay::new(bench)?;
    let gate = Latch::close(bench, held)?;
    relay.pass(bench, 9, free)?;
    bench.done_soon("a stream that nothing holds", free)?;
    bench.synchronize(free)?;
    relay.ensure_seen("what it wrote", 9)?;
    bench.stays_pending("the held stream", held)?;
    gate.open()?;
    bench.done_soon("the stream that was held", held)
}

fn no_stream_waits_for_another(bench: &Bench) -> Verdict {
    let streams = [bench.stream()?, bench.stream()?, bench.stream()?];
    ensure_independent(bench, streams[0], streams[1])?;
    ensure_independent(bench, streams[2], streams[0])?;
    ensure_independent(bench, streams[1], streams[2])
}

fn the_default_stream_waits_for_no_other(bench: &Bench) -> Verdict {
    ensure_independent(bench, bench.stream()?, StreamHandle::DEFAULT)
}

fn no_stream_waits_for_the_default(bench: &Bench) -> Verdict {
    ensure_independent(bench, StreamHandle::DEFAULT, bench.stream()?)
}

fn only_synchronize_waits(bench: &Bench) -> Verdict {
    let (held, memory) = (bench.stream()?, bench.allocate(MIB)?);
    let spare = bench.allocate(MIB)?;
    let gate = Latch::close(bench, held)?;
    // Everything else there is, while the stream is held; the gate tells if something waited.
    let device_under_test = bench.device();
    bench.fill(memory, MIB, 1, held)?;
    bench.copy(device(spare, 0), device(memory, 0), MIB, held)?;
    bench.allocate(MIB)?;
    bench.info()?;
    device_under_test.classify(memory)?;
    let stream = bench.stream()?;
    device_under_test.stream_id(held)?;
    let event = bench.order(held, stream)?;
    let pending = device_under_test.query_event(event)?;
    ensure_equal!("the event behind the gate", pending, Progress::Pending);
    device_under_test.enqueue_host(Box::new(|| ()), stream)?;
    bench.destroy_event(event)?;
    bench.destroy_stream(stream)?;
    if device_under_test.virtual_memory().is_some() {
        let grain = bench.grain()?;
        let (region, page) = (bench.region(2 * grain)?, bench.page(grain)?);
        let mapping = bench.map_open(region.start(), page, grain)?;
        bench.unmap(mapping)?;
        bench.release_page(page)?;
        bench.release_region(region)?;
    }
    if device_under_test.pinned_memory().is_some() {
        bench.allocate_pinned(MIB, crate::PinnedFlags::empty())?;
    }
    bench.stays_pending("the held stream", held)?;
    gate.open()?;
    bench.synchronize(held)
}

fn giving_memory_back_does_not_wait_where_that_is_promised(bench: &Bench) -> Verdict {
    let held = bench.stream()?;
    let memory = bench.allocate(MIB)?;
    let gate = Latch::close(bench, held)?;
    bench.free(memory)?;
    if bench.device().pinned_memory().is_some() {
        let pinned = bench.allocate_pinned(MIB, crate::PinnedFlags::empty())?;
        bench.free_pinned(pinned)?;
    }
    if bench.device().managed_memory().is_some() {
        let managed = bench.allocate_managed(MIB)?;
        bench.free_managed(managed)?;
    }
    bench.stays_pending("the held stream", held)?;
    gate.open()?;
    bench.synchronize(held)
}

fn work_of_a_destroyed_stream_still_runs(bench: &Bench) -> Verdict {
    for round in 0..20 {
        let (stream, memory) = (bench.stream()?, bench.allocate(4096)?);
        let (from, seen) = (bench.host(&picture(round, 4096)), bench.blank(4096, 0)?);
        bench.copy(device(memory, 0), from.location(), 4096, stream)?;
        bench.copy(seen.location(), device(memory, 0), 4096, stream)?;
        bench.destroy_stream(stream)?;
        bench.device().synchronize_device()?;
        seen.ensure("what a destroyed stream wrote", &picture(round, 4096))?;
    }
    Ok(())
}

fn destroying_a_busy_stream_does_not_wait(bench: &Bench) -> Verdict {
    let (stream, after, relay) = (bench.stream()?, bench.stream()?, Relay::new(bench)?);
    let gate = Latch::close(bench, stream)?;
    relay.pass(bench, 5, stream)?;
    bench.order(stream, after)?;
    bench.destroy_stream(stream)?;
    bench.stays_pending("what waits for a destroyed, held stream", after)?;
    relay.ensure_seen("what the held stream has yet to write", 0)?;
    gate.open()?;
    bench.done_soon("what waits for a destroyed stream", after)?;
    relay.ensure_seen("what the destroyed stream wrote", 5)
}

/// Every call that takes a stream refuses this one.
pub(super) fn ensure_refused_everywhere(
    bench: &Bench,
    what: &str,
    stream: StreamHandle,
) -> Verdict {
    let device = bench.device();
    let event = bench.event()?;
    invalid(Call::StreamId, what, device.stream_id(stream))?;
    invalid(Call::QueryStream, what, device.query_stream(stream))?;
    invalid(Call::SynchronizeStream, what, device.synchronize_stream(stream))?;
    invalid(Call::RecordEvent, what, device.record_event(event, stream))?;
    invalid(Call::WaitEvent, what, device.wait_event(stream, event))?;
    invalid(Call::DestroyStream, what, device.destroy_stream(stream))?;
    if device.descriptor().capabilities.contains(Capabilities::HOST_TASKS) {
        invalid(Call::EnqueueHost, what, device.enqueue_host(Box::new(|| ()), stream))?;
    }
    let (memory, host) = (bench.allocate(16)?, bench.blank(16, 0)?);
    let size = Bytes::new(16);
    let copy = Copy::linear(host.location(), Location::Device(memory), size)?;
    // SAFETY: both sides are memory of the case's own, kept to its end.
    invalid(Call::Copy, what, unsafe { device.copy(&copy, stream) })?;
    let fill = Fill::linear(memory, size, Pattern::U8(1))?;
    // SAFETY: as above.
    invalid(Call::Fill, what, unsafe { device.fill(&fill, stream) })?;
    device.synchronize_device()?;
    ensure_equal!("an event not recorded after all", device.query_event(event)?, Progress::Done);
    Ok(())
}

fn a_destroyed_stream_is_refused_everywhere(bench: &Bench) -> Verdict {
    let stream = bench.stream()?;
    bench.destroy_stream(stream)?;
    ensure_refused_everywhere(bench, "a destroyed stream", stream)
}

fn a_stream_never_made_is_refused_everywhere(bench: &Bench) -> Verdict {
    let own = bench.device().descriptor().capabilities.contains(Capabilities::PER_THREAD_STREAMS);
    for handle in [u64::MAX, u64::MAX - 15, 0xdead_beef_0000] {
        // The largest value is the calling thread's default stream where there is one.
        if own && StreamHandle(handle) == StreamHandle::PER_THREAD {
            continue;
        }
        ensure_refused_everywhere(bench, "a stream never made", StreamHandle(handle))?;
    }
    Ok(())
}

fn destroying_one_stream_leaves_the_others(bench: &Bench) -> Verdict {
    let (kept, gone) = (bench.stream()?, bench.stream()?);
    let id = bench.device().stream_id(kept)?;
    let event = bench.event_of(EventKind::Order)?;
    bench.device().record_event(event, gone)?;
    bench.destroy_stream(gone)?;
    ensure_equal!("the other stream's id", bench.device().stream_id(kept)?, id);
    let relay = Relay::new(bench)?;
    bench.device().wait_event(kept, event)?;
    relay.pass(bench, 8, kept)?;
    bench.synchronize(kept)?;
    relay.ensure_seen("what the other stream wrote", 8)
}

fn hundreds_of_streams_at_once(bench: &Bench) -> Verdict {
    let mut lanes = Vec::new();
    let memory = bench.allocate(200 * 512)?;
    for lane in 0..200_u8 {
        let stream = bench.stream()?;
        let offset = u64::from(lane) * 512;
        bench.fill(at(memory, offset), 512, lane, stream)?;
        lanes.push(stream);
    }
    for stream in lanes {
        bench.synchronize(stream)?;
    }
    let right: Vec<u8> = (0..200).flat_map(|lane| [lane; 512]).collect();
    bench.ensure_holds("what 200 streams wrote", memory, &right)
}
