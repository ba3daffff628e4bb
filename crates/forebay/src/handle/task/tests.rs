//! The queues of requests, and their threads.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;

static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
static SERVED: AtomicUsize = AtomicUsize::new(0);

fn waiting(patience: Duration, attempt: impl FnMut(bool) -> bool + Send + 'static) -> Waiting {
    let deadline = Instant::now().checked_add(patience);
    Waiting { deadline, pause: SHORTEST_PAUSE, attempt: Box::new(attempt) }
}

fn wait_at_the_gate(_: bool) -> bool {
    let open = GATE.1.wait_while(lock(&GATE.0), |open| !*open);
    drop(open.unwrap_or_else(PoisonError::into_inner));
    SERVED.fetch_add(1, Ordering::SeqCst);
    true
}

fn wait_until(workers: &'static Workers, what: &str, holds: impl Fn(&WorkQueues) -> bool) {
    let begun = Instant::now();
    while !holds(&workers.queues()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// More pools wait than there are threads: no more are started, all are served in the end, and then
/// nothing is left, neither a thread nor a queue.
#[test]
fn threads_are_bounded_and_end_when_idle() {
    let workers: &'static Workers = Box::leak(Box::new(Workers::new()));
    let count = MAX_THREADS + 5;
    for number in 0..count {
        for _ in 0..2 {
            let queue = Queue::Device(number);
            workers.submit(queue, waiting(Duration::MAX, wait_at_the_gate)).unwrap();
        }
    }
    wait_until(workers, "all are at the gate", |queues| {
        queues.threads == MAX_THREADS && queues.idle == 0 && queues.due.len() == 5
    });
    *lock(&GATE.0) = true;
    GATE.1.notify_all();
    wait_until(workers, "the threads have ended", |queues| queues.threads == 0);
    assert_eq!(SERVED.load(Ordering::SeqCst), 2 * count);
    let queues = workers.queues();
    assert!(queues.lines.is_empty() && queues.due.is_empty() && queues.idle == 0);
}

/// More queues wait for memory than there may be threads, each behind one that is never served: all are tried at
/// their deadline, and one with memory is served meanwhile.
#[test]
fn queues_that_wait_occupy_no_thread() {
    let workers: &'static Workers = Box::leak(Box::new(Workers::new()));
    let refused = Arc::new(AtomicUsize::new(0));
    let mut first = Vec::new();
    for number in 0..4 * MAX_THREADS {
        let queue = Queue::Device(number);
        first.push((queue, workers.submit(queue, waiting(Duration::MAX, |_| false)).unwrap()));
        let refused = Arc::clone(&refused);
        let attempt = move |is_last| {
            refused.fetch_add(usize::from(is_last), Ordering::SeqCst);
            is_last
        };
        workers.submit(queue, waiting(Duration::from_millis(50), attempt)).unwrap();
    }
    let (served, is_served) = std::sync::mpsc::channel();
    let attempt = move |_| served.send(()).is_ok();
    let queue = Queue::Device(usize::MAX);
    workers.submit(queue, waiting(Duration::MAX, attempt)).unwrap();
    is_served.recv_timeout(Duration::from_secs(60)).unwrap();
    let begun = Instant::now();
    while refused.load(Ordering::SeqCst) < 4 * MAX_THREADS {
        assert!(begun.elapsed() < Duration::from_secs(60), "{refused:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    for (queue, number) in first {
        // One that is being tried cannot be removed.
        while workers.remove(queue, number).is_none() {
            std::thread::yield_now();
        }
    }
    wait_until(workers, "the threads have ended", |queues| queues.threads == 0);
    assert!(workers.queues().lines.is_empty() && workers.queues().due.is_empty());
}
