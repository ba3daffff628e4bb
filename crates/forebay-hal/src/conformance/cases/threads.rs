//! Any thread may make any call at any time.

use forebay_core::{Bytes, Random};

use super::prelude::*;
use crate::{Priority, Progress, StreamHandle};

cases! {
    Memory "memory":
        eight_threads_allocate_copy_and_verify needs DATA;
    Transfers "transfers":
        eight_threads_share_one_stream needs DATA;
    Streams "streams":
        threads_make_and_destroy_while_others_work needs DATA,
        eight_threads_wait_for_one_event needs DATA,
        eight_threads_synchronize_at_once needs DATA;
    Virtual "virtual":
        eight_threads_map_and_unmap needs VIRTUAL_MEMORY | DATA,
        threads_of_one_region_do_not_mix needs VIRTUAL_MEMORY | DATA;
    Info "info":
        figures_add_up_while_others_allocate
}

const THREADS: u64 = 8;

/// Runs `work` in eight threads at once; the first failure is the case's.
fn in_threads(work: impl Fn(u64) -> Verdict + Sync) -> Verdict {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let work = &work;
                scope.spawn(move || work(number))
            })
            .collect();
        let mut first = Ok(());
        for (number, thread) in threads.into_iter().enumerate() {
            let verdict = thread
                .join()
                .unwrap_or_else(|_| Err(Failure::new("it panicked")))
                .map_err(|failure| failure.during(format!("thread {number} of {THREADS}")));
            first = first.and(verdict);
        }
        first
    })
}

fn eight_threads_allocate_copy_and_verify(bench: &Bench) -> Verdict {
    in_threads(|number| {
        let (stream, mut random) = (bench.stream()?, Random::new(number));
        for round in 0..25 {
            let size = random.between(1, 40_000);
            let (one, two) = (bench.allocate(size)?, bench.allocate(size)?);
            let bytes = picture(number * 1000 + round, size);
            let (from, to) = (bench.host(&bytes), bench.blank(size, 0)?);
            bench.copy(device(one, 0), from.location(), size, stream)?;
            bench.copy(device(two, 0), device(one, 0), size, stream)?;
            bench.fill(one, size, 0, stream)?;
            bench.copy(to.location(), device(two, 0), size, stream)?;
            bench.synchronize(stream)?;
            to.ensure(&format!("round {round}, {size} B"), &bytes)?;
            bench.free(one)?;
            bench.free(two)?;
        }
        bench.destroy_stream(stream)
    })?;
    ensure_equal!("bytes held when all threads are done", bench.held()?, Bytes::ZERO);
    Ok(())
}

fn eight_threads_share_one_stream(bench: &Bench) -> Verdict {
    let (stream, slice) = (bench.stream()?, 4097);
    let memory = bench.allocate(THREADS * slice)?;
    in_threads(|number| {
        let mine = at(memory, number * slice);
        for round in 0..25 {
            let bytes = picture(number * 100 + round, slice);
            let (from, to) = (bench.host(&bytes), bench.blank(slice, 0)?);
            bench.copy(device(mine, 0), from.location(), slice, stream)?;
            bench.copy(to.location(), device(mine, 0), slice, stream)?;
            bench.synchronize(stream)?;
            to.ensure(&format!("round {round}"), &bytes)?;
        }
        Ok(())
    })
}

fn threads_make_and_destroy_while_others_work(bench: &Bench) -> Verdict {
    in_threads(|number| {
        if number.is_multiple_of(2) {
            // These come and go.
            for _ in 0..60 {
                let stream = bench.device().create_stream(Priority::Normal)?;
                let event = bench.event()?;
                bench.device().record_event(event, stream)?;
                bench.device().wait_event(stream, event)?;
                bench.device().destroy_stream(stream)?;
                bench.destroy_event(event)?;
            }
            return Ok(());
        }
        // These stay, and their order must hold.
        let (one, two, relay) = (bench.stream()?, bench.stream()?, Relay::new(bench)?);
        for round in 0..30 {
            relay.write(bench, round, one)?;
            let there = bench.order(one, two)?;
            relay.look(bench, two)?;
            let back = bench.order(two, one)?;
            bench.synchronize(two)?;
            relay.ensure_seen(&format!("round {round}"), round)?;
            bench.destroy_event(there)?;
            bench.destroy_event(back)?;
        }
        Ok(())
    })
}

fn eight_threads_wait_for_one_event(bench: &Bench) -> Verdict {
    for round in 0..10 {
        let (stream, relay, event) = (bench.stream()?, Relay::new(bench)?, bench.event()?);
        relay.seen.clear(0xff);
        relay.pass(bench, round, stream)?;
        bench.device().record_event(event, stream)?;
        in_threads(|_| {
            bench.device().synchronize_event(event)?;
            relay.ensure_seen(&format!("round {round}"), round)?;
            ensure_equal!("the event", bench.device().query_event(event)?, Progress::Done);
            Ok(())
        })?;
    }
    Ok(())
}

fn eight_threads_synchronize_at_once(bench: &Bench) -> Verdict {
    let memory = bench.allocate(THREADS * 4096)?;
    in_threads(|number| {
        let (stream, mine) = (bench.stream()?, at(memory, number * 4096));
        for round in 0..20_u8 {
            let relay = Relay { memory: mine, seen: bench.blank(4096, 0xff)? };
            relay.pass(bench, round, stream)?;
            if u64::from(round).wrapping_add(number).is_multiple_of(2) {
                bench.device().synchronize_device()?;
            } else {
                bench.synchronize(stream)?;
            }
            relay.ensure_seen(&format!("round {round}"), round)?;
        }
        Ok(())
    })
}

fn eight_threads_map_and_unmap(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    // Enough of each page to tell whose it is; whole pages would only take time.
    let sample = grain.min(4096);
    in_threads(|number| {
        let stream = bench.stream()?;
        for round in 0..10 {
            let (region, page) = (bench.region(3 * grain)?, bench.page(grain)?);
            let one = bench.map_open(region.start(), page, grain)?;
            let two = bench.map_open(at(region.start(), 2 * grain), page, grain)?;
            let bytes = picture(number * 100 + round, sample);
            let (from, to) = (bench.host(&bytes), bench.blank(sample, 0)?);
            bench.copy(device(one.start(), 0), from.location(), sample, stream)?;
            bench.copy(to.location(), device(two.start(), 0), sample, stream)?;
            bench.synchronize(stream)?;
            to.ensure(&format!("round {round}"), &bytes)?;
            bench.unmap(one)?;
            bench.unmap(two)?;
            bench.release_page(page)?;
            bench.release_region(region)?;
        }
        Ok(())
    })?;
    ensure_equal!("bytes held when all threads are done", bench.held()?, Bytes::ZERO);
    Ok(())
}

fn threads_of_one_region_do_not_mix(bench: &Bench) -> Verdict {
    let grain = bench.grain()?;
    let (region, sample) = (bench.region(THREADS * grain)?, grain.min(4096));
    in_threads(|number| {
        let (stream, page) = (bench.stream()?, bench.page(grain)?);
        let place = at(region.start(), number * grain);
        for round in 0..15 {
            let mapping = bench.map_open(place, page, grain)?;
            let bytes = picture(number * 100 + round, sample);
            let (from, to) = (bench.host(&bytes), bench.blank(sample, 0)?);
            bench.copy(device(place, grain - sample), from.location(), sample, stream)?;
            bench.copy(to.location(), device(place, grain - sample), sample, stream)?;
            bench.synchronize(stream)?;
            to.ensure(&format!("round {round}"), &bytes)?;
            bench.unmap(mapping)?;
        }
        Ok(())
    })
}

fn figures_add_up_while_others_allocate(bench: &Bench) -> Verdict {
    in_threads(|number| {
        for _ in 0..40 {
            if number.is_multiple_of(2) {
                let memory = bench.allocate(2 << 20)?;
                bench.free(memory)?;
            } else {
                // The bench sees that the figures add up.
                let held = bench.held()?;
                let most = Bytes::mib(THREADS);
                ensure!(held <= most, "{held} held, {most} at most");
                bench.device().query_stream(StreamHandle::DEFAULT).map(drop)?;
            }
        }
        Ok(())
    })
}
