//! Host functions in stream order.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::prelude::*;
use crate::{Call, StreamHandle};

cases! { Streams "streams":
    tasks_run_once_and_in_order needs HOST_TASKS,
    tasks_run_between_the_work_around_them needs DATA | HOST_TASKS,
    tasks_of_a_destroyed_stream_run_once needs HOST_TASKS,
    a_panicking_task_harms_nothing needs DATA | HOST_TASKS,
    a_task_is_dropped_with_what_it_owns needs HOST_TASKS,
    a_task_waits_for_events needs HOST_TASKS,
    a_held_task_holds_no_other_streams_task needs HOST_TASKS,
    a_refused_task_never_runs needs HOST_TASKS,
}

/// A list that tasks append to.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u32>>>);

impl Log {
    fn push(&self, entry: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    fn entries(&self) -> Vec<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn enqueue(&self, bench: &Bench, entry: u32, stream: StreamHandle) -> Verdict {
        let log = self.clone();
        Ok(bench.device().enqueue_host(Box::new(move || log.push(entry)), stream)?)
    }
}

fn tasks_run_once_and_in_order(bench: &Bench) -> Verdict {
    for stream in [bench.stream()?, StreamHandle::DEFAULT] {
        let log = Log::default();
        for entry in 0..300 {
            log.enqueue(bench, entry, stream)?;
        }
        bench.synchronize(stream)?;
        ensure_equal!("tasks that ran", log.entries(), (0..300).collect::<Vec<_>>());
    }
    // Nothing runs again later.
    bench.device().synchronize_device()?;
    Ok(())
}

fn tasks_run_between_the_work_around_them(bench: &Bench) -> Verdict {
    // The task sees what the copy before it brought, and the copy after it what the task left.
    let (stream, memory) = (bench.stream()?, bench.allocate(1024)?);
    let (passing, last) = (bench.blank(1024, 0)?, bench.blank(1024, 0)?);
    for round in 1..50_u8 {
        bench.fill(memory, 1024, round, stream)?;
        bench.copy(passing.location(), device(memory, 0), 1024, stream)?;
        let (bytes, wrong) = (passing.clone(), Arc::new(AtomicU32::new(0)));
        let theirs = Arc::clone(&wrong);
        let task = move || {
            let late = bytes.read().iter().filter(|&&byte| byte != round).count();
            theirs.store(u32::try_from(late).unwrap_or(u32::MAX), Ordering::SeqCst);
            bytes.clear(round + 100);
        };
        bench.device().enqueue_host(Box::new(task), stream)?;
        bench.copy(device(memory, 0), passing.location(), 1024, stream)?;
        bench.copy(last.location(), device(memory, 0), 1024, stream)?;
        bench.synchronize(stream)?;
        let wrong = wrong.load(Ordering::SeqCst);
        ensure_equal!(format!("round {round}: bytes the task saw too early"), wrong, 0);
        let what = format!("round {round}: what came after the task");
        last.ensure(&what, &[round + 100; 1024])?;
    }
    Ok(())
}

fn tasks_of_a_destroyed_stream_run_once(bench: &Bench) -> Verdict {
    let log = Log::default();
    for entry in 0..50 {
        let stream = bench.stream()?;
        log.enqueue(bench, entry, stream)?;
        bench.destroy_stream(stream)?;
    }
    bench.device().synchronize_device()?;
    let mut ran = log.entries();
    ran.sort_unstable();
    ensure_equal!("tasks that ran", ran, (0..50).collect::<Vec<_>>());
    Ok(())
}

struct UnwindsWhenDropped;

impl Drop for UnwindsWhenDropped {
    fn drop(&mut self) {
        // Twice at once would end the process, and be the suite's fault.
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("a value that unwinds on purpose"));
        }
    }
}

fn a_panicking_task_harms_nothing(bench: &Bench) -> Verdict {
    let (stream, other, relay) = (bench.stream()?, bench.stream()?, Relay::new(bench)?);
    let log = Log::default();
    for round in 0..3 {
        log.enqueue(bench, 2 * round, stream)?;
        // `resume_unwind` unwinds as a panic does, and leaves the hook's words out of the output.
        let panics = || std::panic::resume_unwind(Box::new("a task that panics on purpose"));
        bench.device().enqueue_host(Box::new(panics), stream)?;
        // What it throws may itself unwind where it is dropped.
        let throws = || std::panic::resume_unwind(Box::new(UnwindsWhenDropped));
        bench.device().enqueue_host(Box::new(throws), stream)?;
        log.enqueue(bench, 2 * round + 1, stream)?;
    }
    relay.write(bench, 4, stream)?;
    bench.order(stream, other)?;
    relay.look(bench, other)?;
    bench.done_soon("a stream behind a task that panics", other)?;
    ensure_equal!("tasks that ran", log.entries(), (0..6).collect::<Vec<_>>());
    relay.ensure_seen("work behind them", 4)?;
    // And the device takes new work.
    log.enqueue(bench, 6, stream)?;
    bench.synchronize(stream)?;
    ensure_equal!("tasks that ran in all", log.entries().len(), 7);
    Ok(())
}

fn a_task_is_dropped_with_what_it_owns(bench: &Bench) -> Verdict {
    let (stream, owned) = (bench.stream()?, Arc::new(()));
    for _ in 0..20 {
        let theirs = Arc::clone(&owned);
        bench.device().enqueue_host(Box::new(move || drop(theirs)), stream)?;
    }
    bench.synchronize(stream)?;
    ensure_equal!("owners of what 20 tasks owned", Arc::strong_count(&owned), 1);
    Ok(())
}

fn a_task_waits_for_events(bench: &Bench) -> Verdict {
    let (first, second, log) = (bench.stream()?, bench.stream()?, Log::default());
    let gate = Latch::close(bench, first)?;
    log.enqueue(bench, 1, first)?;
    bench.order(first, second)?;
    log.enqueue(bench, 2, second)?;
    bench.stays_pending("a task that waits for an event", second)?;
    ensure_equal!("tasks that ran behind the gate", log.entries(), Vec::<u32>::new());
    gate.open()?;
    bench.done_soon("a task whose event was reached", second)?;
    ensure_equal!("tasks that ran, in order", log.entries(), vec![1, 2]);
    Ok(())
}

fn a_held_task_holds_no_other_streams_task(bench: &Bench) -> Verdict {
    let held = [bench.stream()?, bench.stream()?, bench.stream()?];
    let (free, log) = (bench.stream()?, Log::default());
    let gates = [
        Latch::close(bench, held[0])?,
        Latch::close(bench, held[1])?,
        Latch::close(bench, held[2])?,
    ];
    log.enqueue(bench, 1, free)?;
    bench.done_soon("a task beside three that block", free)?;
    ensure_equal!("tasks that ran", log.entries(), vec![1]);
    gates.iter().try_for_each(Latch::open)
}

fn a_refused_task_never_runs(bench: &Bench) -> Verdict {
    let (stream, log) = (bench.stream()?, Log::default());
    bench.destroy_stream(stream)?;
    let theirs = log.clone();
    let result = bench.device().enqueue_host(Box::new(move || theirs.push(1)), stream);
    invalid(Call::EnqueueHost, "a task on a destroyed stream", result)?;
    bench.device().synchronize_device()?;
    ensure_equal!("refused tasks that ran", log.entries(), Vec::<u32>::new());
    Ok(())
}
