//! Events.

use super::prelude::*;
use crate::{Call, Capabilities, EventHandle, EventKind, Progress};

cases! { Streams "streams":
    an_event_never_recorded_is_reached,
    waiting_for_an_event_never_recorded_is_no_wait needs DATA | HOST_TASKS,
    event_orders_two_streams needs DATA | HOST_TASKS,
    event_orders_two_streams_round_after_round needs DATA,
    event_orders_a_chain_of_three needs DATA | HOST_TASKS,
    events_order_a_diamond needs DATA | HOST_TASKS,
    events_order_a_diamond_round_after_round needs DATA,
    one_event_holds_several_streams needs DATA | HOST_TASKS,
    an_event_covers_only_what_came_before needs DATA | HOST_TASKS,
    a_wait_keeps_its_record_when_the_event_is_recorded_again needs DATA | HOST_TASKS,
    a_wait_ignores_records_made_later needs DATA | HOST_TASKS,
    query_event_follows_the_latest_record needs HOST_TASKS,
    synchronize_event_shows_what_was_written needs DATA,
    synchronize_event_waits_for_no_more_than_its_event needs DATA | HOST_TASKS,
    a_destroyed_event_still_holds needs DATA | HOST_TASKS,
    an_event_outlives_its_stream needs DATA | HOST_TASKS,
    a_wait_on_its_own_stream_passes needs DATA,
    a_destroyed_event_is_refused_everywhere,
}

fn an_event_never_recorded_is_reached(bench: &Bench) -> Verdict {
    let event = bench.event()?;
    let progress = bench.device().query_event(event)?;
    ensure_equal!("an event never recorded", progress, Progress::Done);
    bench.device().synchronize_event(event)?;
    Ok(())
}

fn waiting_for_an_event_never_recorded_is_no_wait(bench: &Bench) -> Verdict {
    let (held, free, relay) = (bench.stream()?, bench.stream()?, Relay::new(bench)?);
    let gate = Latch::close(bench, held)?;
    let event = bench.event()?;
    bench.device().wait_event(free, event)?;
    relay.pass(bench, 3, free)?;
    // A record made after the wait is none of its business.
    bench.device().record_event(event, held)?;
    bench.done_soon("work behind an event never recorded", free)?;
    relay.ensure_seen("what it wrote", 3)?;
    gate.open()
}

fn event_orders_two_streams(bench: &Bench) -> Verdict {
    let (first, second, relay) = (bench.stream()?, bench.stream()?, Relay::new(bench)?);
    let gate = Latch::close(bench, first)?;
    relay.write(bench, 1, first)?;
    bench.order(first, second)?;
    relay.look(bench, second)?;
    bench.stays_pending("work that waits for an event", second)?;
    relay.ensure_seen("what it may not have copied yet", 0)?;
    gate.open()?;
    bench.done_soon("work whose event was reached", second)?;
    relay.ensure_seen("what it saw", 1)
}

fn event_orders_two_streams_round_after_round(bench: &Bench) -> Verdict {
    // No gate: the streams race, and large blocks give a forgotten wait time to show.
    let (first, second) = (bench.stream()?, bench.stream()?);
    let (event, relay) = (bench.event()?, Relay::of(bench, 256 << 10)?);
    for round in 0..60 {
        relay.write(bench, round, first)?;
        bench.device().record_event(event, first)?;
        bench.device().wait_event(second, event)?;
        relay.look(bench, second)?;
        // The next write must not overtake this look.
        bench.device().record_event(event, second)?;
        bench.device().wait_event(first, event)?;
        if round % 3 == 0 {
            bench.synchronize(second)?;
            relay.ensure_seen(&format!("round {round}"), round)?;
        }
    }
    Ok(())
}

fn event_orders_a_chain_of_three(bench: &Bench) -> Verdict {
    let streams = [bench.stream()?, bench.stream()?, bench.stream()?];
    let relay = Relay::new(bench)?;
    for round in 1..8 {
        let gate = Latch::close(bench, streams[0])?;
        relay.write(bench, round, streams[0])?;
        bench.order(streams[0], streams[1])?;
        relay.write(bench, round + 100, streams[1])?;
        bench.order(streams[1], streams[2])?;
        relay.look(bench, streams[2])?;
        if round == 1 {
            bench.stays_pending("the middle of a chain", streams[1])?;
            bench.stays_pending("the end of a chain", streams[2])?;
        }
        gate.open()?;
        bench.done_soon("the end of a chain", streams[2])?;
        relay.ensure_seen(&format!("round {round}, at the end of the chain"), round + 100)?;
    }
    Ok(())
}

fn events_order_a_diamond(bench: &Bench) -> Verdict {
    let [top, left, right, bottom] =
        [bench.stream()?, bench.stream()?, bench.stream()?, bench.stream()?];
    let (one, two) = (Relay::new(bench)?, Relay::new(bench)?);
    let gate = Latch::close(bench, top)?;
    let second = Latch::close(bench, right)?;
    bench.order(top, left)?;
    bench.order(top, right)?;
    one.write(bench, 11, left)?;
    two.write(bench, 22, right)?;
    bench.order(left, bottom)?;
    bench.order(right, bottom)?;
    one.look(bench, bottom)?;
    two.look(bench, bottom)?;
    bench.stays_pending("the left of a diamond", left)?;
    gate.open()?;
    bench.done_soon("the left of a diamond", left)?;
    // One side of two is not enough.
    bench.stays_pending("the bottom of a diamond", bottom)?;
    second.open()?;
    bench.done_soon("the bottom of a diamond", bottom)?;
    one.ensure_seen("what came by the left", 11)?;
    two.ensure_seen("what came by the right", 22)
}

fn events_order_a_diamond_round_after_round(bench: &Bench) -> Verdict {
    let [top, left, right, bottom] =
        [bench.stream()?, bench.stream()?, bench.stream()?, bench.stream()?];
    let (one, two) = (Relay::of(bench, 64 << 10)?, Relay::of(bench, 128 << 10)?);
    for round in 0..40 {
        one.write(bench, 0xff, top)?;
        two.write(bench, 0xff, top)?;
        let mut events = vec![bench.order(top, left)?, bench.order(top, right)?];
        one.write(bench, round, left)?;
        two.write(bench, round + 50, right)?;
        events.extend([bench.order(left, bottom)?, bench.order(right, bottom)?]);
        one.look(bench, bottom)?;
        two.look(bench, bottom)?;
        events.push(bench.order(bottom, top)?);
        // They may go at once: what hangs on them holds.
        for event in events {
            bench.destroy_event(event)?;
        }
        bench.synchronize(bottom)?;
        one.ensure_seen(&format!("round {round}, left"), round)?;
        two.ensure_seen(&format!("round {round}, right"), round + 50)?;
    }
    Ok(())
}

fn one_event_holds_several_streams(bench: &Bench) -> Verdict {
    let (first, relay, event) = (bench.stream()?, Relay::new(bench)?, bench.event()?);
    let gate = Latch::close(bench, first)?;
    relay.write(bench, 6, first)?;
    bench.device().record_event(event, first)?;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let (stream, seen) = (bench.stream()?, bench.blank(Relay::SIZE, 0)?);
        bench.device().wait_event(stream, event)?;
        bench.copy(seen.location(), device(relay.memory, 0), Relay::SIZE, stream)?;
        waiting.push((stream, seen));
    }
    for (stream, _) in &waiting {
        bench.stays_pending("one of five that wait", *stream)?;
    }
    gate.open()?;
    for (stream, seen) in &waiting {
        bench.done_soon("one of five that waited", *stream)?;
        seen.ensure("what it saw", &[6; 4096])?;
    }
    Ok(())
}

fn an_event_covers_only_what_came_before(bench: &Bench) -> Verdict {
    let (first, second, relay) = (bench.stream()?, bench.stream()?, Relay::new(bench)?);
    relay.write(bench, 4, first)?;
    let event = bench.order(first, second)?;
    let gate = Latch::close(bench, first)?;
    relay.look(bench, second)?;
    bench.done_soon("work whose event came before the gate", second)?;
    relay.ensure_seen("what it saw", 4)?;
    let progress = bench.device().query_event(event)?;
    ensure_equal!("an event before the gate", progress, Progress::Done);
    bench.stays_pending("what came after the event", first)?;
    gate.open()
}

fn a_wait_keeps_its_record_when_the_event_is_recorded_again(bench: &Bench) -> Verdict {
    let [held, waiting, idle] = [bench.stream()?, bench.stream()?, bench.stream()?];
    let relay = Relay::new(bench)?;
    let gate = Latch::close(bench, held)?;
    relay.write(bench, 2, held)?;
    let event = bench.order(held, waiting)?;
    relay.look(bench, waiting)?;
    // The new record is reached at once; the wait was for the old one.
    bench.device().record_event(event, idle)?;
    bench.device().synchronize_event(event)?;
    bench.stays_pending("a wait for a record since replaced", waiting)?;
    gate.open()?;
    bench.done_soon("a wait whose record was reached", waiting)?;
    relay.ensure_seen("what it saw", 2)
}

fn a_wait_ignores_records_made_later(bench: &Bench) -> Verdict {
    let [held, waiting, idle] = [bench.stream()?, bench.stream()?, bench.stream()?];
    let relay = Relay::new(bench)?;
    let event = bench.event()?;
    bench.device().record_event(event, idle)?;
    bench.device().wait_event(waiting, event)?;
    let gate = Latch::close(bench, held)?;
    bench.device().record_event(event, held)?;
    relay.pass(bench, 5, waiting)?;
    bench.done_soon("a wait for a record that was reached", waiting)?;
    relay.ensure_seen("what it wrote", 5)?;
    gate.open()
}

fn query_event_follows_the_latest_record(bench: &Bench) -> Verdict {
    let (held, idle, event) = (bench.stream()?, bench.stream()?, bench.event()?);
    let query = |right: Progress, what: &str| -> Verdict {
        ensure_equal!(what, bench.device().query_event(event)?, right);
        Ok(())
    };
    bench.device().record_event(event, idle)?;
    bench.device().synchronize_event(event)?;
    query(Progress::Done, "recorded where nothing is to do")?;
    let gate = Latch::close(bench, held)?;
    bench.device().record_event(event, held)?;
    query(Progress::Pending, "recorded again behind a gate")?;
    bench.device().record_event(event, idle)?;
    bench.soon("recorded a third time where nothing is to do", || {
        Ok(bench.device().query_event(event)? == Progress::Done)
    })?;
    bench.device().record_event(event, held)?;
    query(Progress::Pending, "recorded behind the gate once more")?;
    gate.open()?;
    bench.device().synchronize_event(event)?;
    query(Progress::Done, "after the gate")
}

fn synchronize_event_shows_what_was_written(bench: &Bench) -> Verdict {
    let (stream, event) = (bench.stream()?, bench.event()?);
    let relay = Relay::of(bench, 128 << 10)?;
    for round in 0..40 {
        relay.pass(bench, round, stream)?;
        bench.device().record_event(event, stream)?;
        bench.device().synchronize_event(event)?;
        relay.ensure_seen(&format!("round {round}"), round)?;
    }
    Ok(())
}

fn synchronize_event_waits_for_no_more_than_its_event(bench: &Bench) -> Verdict {
    let (stream, event, relay) = (bench.stream()?, bench.event()?, Relay::new(bench)?);
    relay.pass(bench, 7, stream)?;
    bench.device().record_event(event, stream)?;
    let gate = Latch::close(bench, stream)?;
    bench.device().synchronize_event(event)?;
    relay.ensure_seen("what came before the event", 7)?;
    gate.open()
}

fn a_destroyed_event_still_holds(bench: &Bench) -> Verdict {
    let (first, second, relay) = (bench.stream()?, bench.stream()?, Relay::new(bench)?);
    let gate = Latch::close(bench, first)?;
    relay.write(bench, 9, first)?;
    let event = bench.order(first, second)?;
    relay.look(bench, second)?;
    bench.destroy_event(event)?;
    // A new event may get the old one's name: the wait is not its.
    let next = bench.event()?;
    bench.device().record_event(next, second)?;
    bench.stays_pending("work that waits for a destroyed event", second)?;
    gate.open()?;
    bench.done_soon("work that waited for a destroyed event", second)?;
    relay.ensure_seen("what it saw", 9)
}

fn an_event_outlives_its_stream(bench: &Bench) -> Verdict {
    let (first, second, relay) = (bench.stream()?, bench.stream()?, Relay::new(bench)?);
    let gate = Latch::close(bench, first)?;
    relay.write(bench, 8, first)?;
    let event = bench.event()?;
    bench.device().record_event(event, first)?;
    bench.destroy_stream(first)?;
    let progress = bench.device().query_event(event)?;
    ensure_equal!("an event of a destroyed, held stream", progress, Progress::Pending);
    bench.device().wait_event(second, event)?;
    relay.look(bench, second)?;
    bench.stays_pending("what waits for it", second)?;
    gate.open()?;
    bench.device().synchronize_event(event)?;
    bench.done_soon("what waited for it", second)?;
    relay.ensure_seen("what it saw", 8)
}

fn a_wait_on_its_own_stream_passes(bench: &Bench) -> Verdict {
    let (stream, relay) = (bench.stream()?, Relay::new(bench)?);
    relay.write(bench, 3, stream)?;
    bench.order(stream, stream)?;
    relay.look(bench, stream)?;
    bench.done_soon("a stream that waits for itself", stream)?;
    relay.ensure_seen("what it wrote", 3)
}

fn a_destroyed_event_is_refused_everywhere(bench: &Bench) -> Verdict {
    let device = bench.device();
    let stream = bench.stream()?;
    let keeps_time = device.descriptor().capabilities.contains(Capabilities::TIMED_EVENTS);
    let kind = if keeps_time { EventKind::Timed } else { EventKind::Order };
    let live = bench.event_of(kind)?;
    device.record_event(live, stream)?;
    bench.synchronize(stream)?;
    let dead = bench.event_of(kind)?;
    device.record_event(dead, stream)?;
    bench.synchronize(stream)?;
    bench.destroy_event(dead)?;
    for (what, event) in
        [("a destroyed event", dead), ("an event never made", EventHandle(u64::MAX - 7))]
    {
        invalid(Call::RecordEvent, what, device.record_event(event, stream))?;
        invalid(Call::WaitEvent, what, device.wait_event(stream, event))?;
        invalid(Call::QueryEvent, what, device.query_event(event))?;
        invalid(Call::SynchronizeEvent, what, device.synchronize_event(event))?;
        if keeps_time {
            invalid(Call::Elapsed, what, device.elapsed(event, live))?;
            invalid(Call::Elapsed, what, device.elapsed(live, event))?;
        }
        invalid(Call::DestroyEvent, what, device.destroy_event(event))?;
    }
    ensure_equal!("the stream", device.query_stream(stream)?, Progress::Done);
    Ok(())
}
