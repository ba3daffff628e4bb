//! The time between events.

use core::time::Duration;

use forebay_core::MIB;

use super::prelude::*;
use crate::{Call, EventHandle, EventKind, StreamHandle};

cases! { Streams "streams":
    elapsed_is_monotone needs DATA | TIMED_EVENTS,
    elapsed_refuses_events_that_keep_no_time needs TIMED_EVENTS,
    elapsed_refuses_events_not_recorded needs TIMED_EVENTS,
    elapsed_is_busy_before_both_are_reached needs TIMED_EVENTS | HOST_TASKS,
}

/// A timed event, recorded on `stream`.
fn timed(bench: &Bench, stream: StreamHandle) -> Step<EventHandle> {
    let event = bench.event_of(EventKind::Timed)?;
    bench.device().record_event(event, stream)?;
    Ok(event)
}

fn elapsed_is_monotone(bench: &Bench) -> Verdict {
    let (stream, memory) = (bench.stream()?, bench.allocate(MIB)?);
    let mut points = vec![timed(bench, stream)?];
    for round in 0..5 {
        bench.fill(memory, MIB, round, stream)?;
        points.push(timed(bench, stream)?);
    }
    bench.synchronize(stream)?;
    let device = bench.device();
    let mut last = Duration::ZERO;
    for (round, &point) in points.iter().enumerate() {
        let since = device.elapsed(points[0], point)?;
        ensure!(since >= last, "event {round} came {since:?} in, the one before it {last:?} in");
        last = since;
        let to_itself = device.elapsed(point, point)?;
        ensure_equal!("the time from an event to itself", to_itself, Duration::ZERO);
    }
    // Whole and parts agree, but for the rounding of each: drivers tell half a microsecond.
    let mut sum = Duration::ZERO;
    for pair in points.windows(2) {
        sum += device.elapsed(pair[0], pair[1])?;
    }
    let apart = sum.abs_diff(last);
    ensure!(apart.as_micros() <= 10, "the parts come to {sum:?}, the whole is {last:?}");
    Ok(())
}

fn elapsed_refuses_events_that_keep_no_time(bench: &Bench) -> Verdict {
    let (stream, order) = (bench.stream()?, bench.event()?);
    let timed = timed(bench, stream)?;
    bench.device().record_event(order, stream)?;
    bench.synchronize(stream)?;
    let device = bench.device();
    invalid(Call::Elapsed, "an event without time", device.elapsed(order, timed))?;
    invalid(Call::Elapsed, "an event without time", device.elapsed(timed, order))
}

fn elapsed_refuses_events_not_recorded(bench: &Bench) -> Verdict {
    let stream = bench.stream()?;
    let (recorded, bare) = (timed(bench, stream)?, bench.event_of(EventKind::Timed)?);
    bench.synchronize(stream)?;
    let device = bench.device();
    invalid(Call::Elapsed, "an event not recorded", device.elapsed(recorded, bare))?;
    invalid(Call::Elapsed, "an event not recorded", device.elapsed(bare, recorded))
}

fn elapsed_is_busy_before_both_are_reached(bench: &Bench) -> Verdict {
    let stream = bench.stream()?;
    let start = timed(bench, stream)?;
    bench.synchronize(stream)?;
    let gate = Latch::close(bench, stream)?;
    let end = timed(bench, stream)?;
    busy(Call::Elapsed, "an event not reached", bench.device().elapsed(start, end))?;
    gate.open()?;
    bench.device().synchronize_event(end)?;
    bench.device().elapsed(start, end)?;
    Ok(())
}
