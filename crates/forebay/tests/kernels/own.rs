//! Threads on their own default streams, which have one value with the driver: what one thread frees
//! there while its work still runs is another stream's memory for every other thread.
//!
//! ```text
//!   one thread     |---------- wait ----------| writes OLD |     freed here, on its own stream
//!   another thread     asks, on its own stream, or trims         what it writes must stay
//! ```

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::scope;
use std::time::{Duration, Instant};

use forebay::hal::{Call, Event, EventKind, Progress};
use forebay::{Bytes, Pool, Stream};
use libtest_mimic::Failed;

use crate::hands::Hands;
use crate::order::{NEW, OLD, SIZE, delay, pool, span, written};
use crate::{Step, ensure};

/// Writes to a block late, frees it at once on the thread's own stream, and says so; ends when it is
/// told to and its work is done.
fn write_and_free(
    hands: &Hands,
    pool: &Pool,
    own: &Stream,
    end: &Event,
    (freed, finish): (&Sender<()>, &Receiver<()>),
) -> Step {
    let block = written(hands, pool, SIZE, own)?;
    hands.write(own, span(block), OLD, delay(hands))?;
    pool.free_block(block, own.handle())?;
    end.record(own)?;
    freed.send(())?;
    // The thread lives on, and its stream with it. Where the other one failed, it ends at once.
    let _ = finish.recv();
    Ok(own.synchronize()?)
}

/// Does something while another thread's work on memory that it freed still runs; `meanwhile` gets the
/// point after that work.
fn beside(hands: &Hands, meanwhile: impl FnOnce(&Pool, &Stream, &Event) -> Step) -> Step {
    let device = hands.pool_device();
    let (pool, own) = (pool(&device)?, hands.own_stream()?);
    let end = Event::new(&device, EventKind::Order)?;
    let ((freed, told), (finish, finished)) = (channel(), channel());
    scope(|scope| {
        let (pool, own, end) = (&pool, &own, &end);
        let worker = scope.spawn(move || {
            write_and_free(hands, pool, own, end, (&freed, &finished))
                .map_err(|failed| failed.message().unwrap_or("it failed").to_owned())
        });
        let seen = match told.recv() {
            Ok(()) => meanwhile(pool, own, end),
            // The reason is the worker's.
            Err(_) => Ok(()),
        };
        drop(finish);
        let ended = worker.join().map_err(|_| "the other thread panicked")?;
        ended.map_err(|reason| format!("the other thread: {reason}"))?;
        seen
    })
}

/// Waits until the other thread's work is over.
fn over(end: &Event) -> Step {
    let begun = Instant::now();
    while end.query()? == Progress::Pending {
        ensure!(begun.elapsed() < Duration::from_secs(20), "the other thread's work never ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub(crate) fn freed(hands: &Hands) -> Step {
    beside(hands, |pool, own, end| {
        // There is no room for a second block: this is the other thread's memory.
        let again = pool.allocate(SIZE, own.handle())?;
        let early = end.query()? == Progress::Pending;
        hands.write(own, span(again), NEW, Duration::ZERO)?;
        own.synchronize()?;
        over(end)?;
        let wrong = hands.others(own, span(again), NEW)?;
        pool.free_block(again, own.handle())?;
        ensure!(wrong == 0, "{wrong} words were written over by another thread's work");
        println!(
            "record: {{\"case\":\"a thread's own stream\",\"work\":\"{}\",\
             \"given_while_work_ran\":{early}}}",
            hands.work
        );
        Ok(())
    })
}

/// The thread ends while its work runs: it has recorded the last event of its stream, so another gets the
/// memory in order, and nobody waits for the whole device.
pub(crate) fn ended(hands: &Hands) -> Step {
    let device = hands.pool_device();
    let (pool, own) = (pool(&device)?, hands.own_stream()?);
    let end = Event::new(&device, EventKind::Order)?;
    let worker = || -> Step {
        let block = written(hands, &pool, SIZE, &own)?;
        hands.write(&own, span(block), OLD, delay(hands))?;
        pool.free_block(block, own.handle())?;
        Ok(end.record(&own)?)
    };
    let failed = |failed: Failed| failed.message().unwrap_or("it failed").to_owned();
    let ended = scope(|scope| scope.spawn(|| worker().map_err(failed)).join());
    ended.map_err(|_| "the other thread panicked")??;
    let early = end.query()? == Progress::Pending;
    let again = pool.allocate(SIZE, own.handle())?;
    let waits = pool.statistics().driver.of(Call::SynchronizeDevice);
    hands.write(&own, span(again), NEW, Duration::ZERO)?;
    own.synchronize()?;
    over(&end)?;
    let wrong = hands.others(&own, span(again), NEW)?;
    pool.free_block(again, own.handle())?;
    ensure!(early, "the work was over before the thread had ended, and nothing was tested");
    ensure!(wrong == 0, "{wrong} words were written over by an ended thread's work");
    ensure!(waits == 0, "the whole device was waited for {waits} times");
    Ok(())
}

pub(crate) fn trimmed(hands: &Hands) -> Step {
    beside(hands, |pool, _, end| {
        let before = pool.held();
        let trimmed = pool.trim(Bytes::ZERO);
        // It may wait for the work or leave the pages; it must not take them before the work is over.
        let (after, running) = (pool.held(), end.query()? == Progress::Pending);
        trimmed?;
        ensure!(
            !running || after >= SIZE,
            "{before} were held, {after} are, and work still writes to {SIZE} of them"
        );
        over(end)
    })
}
