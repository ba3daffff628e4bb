//! The default stream of each thread.
//!
//! While such a stream is held back these cases keep off [`StreamHandle::DEFAULT`]: drivers may tie
//! the two together.

use std::sync::mpsc;
use std::time::Duration;

use forebay_core::StreamId;

use super::prelude::*;
use super::streams::ensure_refused_everywhere;
use crate::{Call, StreamHandle};

cases! { Streams "streams":
    each_thread_has_a_default_stream_of_its_own needs PER_THREAD_STREAMS,
    work_on_a_threads_default_stream_runs_in_order needs PER_THREAD_STREAMS | DATA,
    threads_default_streams_do_not_wait_for_each_other
        needs PER_THREAD_STREAMS | DATA | HOST_TASKS,
    another_threads_default_stream_is_refused_everywhere needs PER_THREAD_STREAMS,
    a_threads_default_stream_is_not_destroyed needs PER_THREAD_STREAMS,
    synchronize_device_waits_for_every_threads_default_stream
        needs PER_THREAD_STREAMS | DATA | HOST_TASKS,
    an_event_orders_the_default_streams_of_two_threads
        needs PER_THREAD_STREAMS | DATA | HOST_TASKS
}

/// The calling thread's default stream, by its own name.
const OWN: StreamHandle = StreamHandle::PER_THREAD;

/// Long enough for a call that does not wait to return.
const MOMENT: Duration = Duration::from_millis(50);

/// Runs a case with the threads' default streams adopted, where streams are.
fn adopted(bench: &Bench, case: impl FnOnce() -> Verdict) -> Verdict {
    let Some(streams) = bench.device().foreign_streams() else { return case() };
    // SAFETY: the default stream of a thread is there as long as the thread.
    let stream = unsafe { streams.adopt_stream(OWN.0) }?;
    ensure_equal!("the handle of the threads' default streams", stream, OWN);
    let verdict = case();
    streams.forget_stream(stream)?;
    verdict
}

/// Does something on a new thread, and waits for it.
fn elsewhere<T: Send>(work: impl FnOnce() -> Step<T> + Send) -> Step<T> {
    let joined = std::thread::scope(|scope| scope.spawn(work).join());
    joined.unwrap_or_else(|_| Err(Failure::new("the other thread panicked")))
}

fn each_thread_has_a_default_stream_of_its_own(bench: &Bench) -> Verdict {
    let id = || -> Step<StreamId> {
        let id = bench.device().stream_id(OWN)?;
        let again = bench.device().stream_id(StreamHandle::of_this_thread())?;
        ensure_equal!("the stream's identity by its other name", again, id);
        Ok(id)
    };
    adopted(bench, || {
        let own = bench.stream()?;
        let mut ids = vec![id()?];
        ids.push(bench.device().stream_id(StreamHandle::DEFAULT)?);
        ids.push(bench.device().stream_id(own)?);
        // One after another: a thread that ended leaves its identity to nobody.
        for _ in 0..5 {
            ids.push(elsewhere(id)?);
        }
        ensure_equal!("the identity of this thread's stream afterwards", id()?, ids[0]);
        ids.sort_unstable();
        ids.dedup();
        ensure_equal!("identities of eight streams", ids.len(), 8);
        Ok(())
    })
}

fn work_on_a_threads_default_stream_runs_in_order(bench: &Bench) -> Verdict {
    let round = |seed: u64| -> Verdict {
        let (memory, size) = (bench.allocate(100_003)?, 100_003);
        let bytes = picture(seed, size);
        let (from, to) = (bench.host(&bytes), bench.blank(size, 0)?);
        for _ in 0..5 {
            bench.fill(memory, size, 0, OWN)?;
            bench.copy(device(memory, 0), from.location(), size, StreamHandle::of_this_thread())?;
            bench.copy(to.location(), device(memory, 0), size, OWN)?;
        }
        bench.synchronize(OWN)?;
        to.ensure("what went there and back", &bytes)
    };
    adopted(bench, || {
        round(0)?;
        (1..4).try_for_each(|seed| elsewhere(move || round(seed)))
    })
}

fn threads_default_streams_do_not_wait_for_each_other(bench: &Bench) -> Verdict {
    adopted(bench, || {
        let relay = Relay::new(bench)?;
        let gate = Latch::close(bench, OWN)?;
        elsewhere(|| {
            relay.pass(bench, 7, OWN)?;
            bench.done_soon("another thread's stream", OWN)
        })?;
        bench.stays_pending("the stream that is held", OWN)?;
        relay.ensure_seen("what the other thread's stream wrote", 7)?;
        gate.open()?;
        bench.synchronize(OWN)
    })
}

fn another_threads_default_stream_is_refused_everywhere(bench: &Bench) -> Verdict {
    adopted(bench, || {
        // One that is used, and one of a thread that is gone.
        let gone = elsewhere(|| {
            bench.synchronize(OWN)?;
            Ok(StreamHandle::of_this_thread())
        })?;
        ensure_refused_everywhere(bench, "the default stream of a thread that is gone", gone)?;
        let own = StreamHandle::of_this_thread();
        bench.synchronize(own)?;
        elsewhere(|| {
            ensure_refused_everywhere(bench, "another thread's default stream", own)?;
            bench.synchronize(OWN)
        })?;
        bench.synchronize(own)
    })
}

fn a_threads_default_stream_is_not_destroyed(bench: &Bench) -> Verdict {
    adopted(bench, || {
        for name in [OWN, StreamHandle::of_this_thread()] {
            let destroyed = bench.device().destroy_stream(name);
            invalid(Call::DestroyStream, "a thread's default stream", destroyed)?;
            bench.synchronize(name)?;
        }
        Ok(())
    })
}

fn synchronize_device_waits_for_every_threads_default_stream(bench: &Bench) -> Verdict {
    adopted(bench, || {
        let (memory, seen) = (bench.allocate(4096)?, bench.blank(4096, 0)?);
        // A thread that goes on and one that is gone leave work behind, each held by a gate.
        let work = |offset: u64| -> Step<Latch> {
            let gate = Latch::close(bench, OWN)?;
            bench.fill(at(memory, offset), 2048, 9, OWN)?;
            bench.copy(seen.place_at(offset), device(memory, offset), 2048, OWN)?;
            Ok(gate)
        };
        let first = elsewhere(|| work(0))?;
        std::thread::scope(|scope| {
            let (begun, told) = mpsc::channel();
            let (finish, end) = mpsc::channel::<()>();
            let other = scope.spawn(move || -> Verdict {
                let gate = work(2048)?;
                let _ = begun.send(());
                std::thread::sleep(MOMENT);
                first.open()?;
                gate.open()?;
                let _ = end.recv();
                Ok(())
            });
            ensure!(told.recv().is_ok(), "the other thread could not begin");
            let waited = bench.device().synchronize_device();
            let found = seen.read();
            let _ = finish.send(());
            other.join().unwrap_or_else(|_| Err(Failure::new("the other thread panicked")))?;
            waited?;
            ensure_bytes("what the threads' streams wrote", &found, &[9; 4096])
        })
    })
}

fn an_event_orders_the_default_streams_of_two_threads(bench: &Bench) -> Verdict {
    adopted(bench, || {
        let (relay, event) = (Relay::new(bench)?, bench.event()?);
        let gate = Latch::close(bench, OWN)?;
        relay.write(bench, 5, OWN)?;
        bench.device().record_event(event, OWN)?;
        elsewhere(|| {
            bench.device().wait_event(OWN, event)?;
            relay.look(bench, OWN)?;
            bench.stays_pending("what waits for the other thread's stream", OWN)?;
            gate.open()?;
            bench.synchronize(OWN)
        })?;
        relay.ensure_seen("what was written before the event", 5)?;
        bench.device().synchronize_event(event)?;
        bench.synchronize(OWN)
    })
}
