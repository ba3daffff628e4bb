//! Order, events across devices, tasks that misbehave, and ends.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;

use super::*;

const LONG: Duration = Duration::from_secs(20);

fn device() -> Arc<HostDevice> {
    HostDevice::open().unwrap()
}

/// A task that waits until the sender is dropped or sends.
fn gate() -> (std::sync::mpsc::Sender<()>, HostTask) {
    let (open, wait) = channel::<()>();
    (
        open,
        Box::new(move || {
            let _ = wait.recv();
        }),
    )
}

#[test]
fn an_event_of_one_device_orders_work_of_another() {
    let (first, second) = (device(), device());
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = |word: &'static str| -> HostTask {
        let log = Arc::clone(&log);
        Box::new(move || log.lock().unwrap().push(word))
    };
    let (open, closed) = gate();
    let event = first.create_event(EventKind::Order).unwrap();
    first.enqueue_host(closed, StreamHandle::DEFAULT).unwrap();
    first.enqueue_host(note("first"), StreamHandle::DEFAULT).unwrap();
    first.record_event(event, StreamHandle::DEFAULT).unwrap();
    second.wait_event(StreamHandle::DEFAULT, event).unwrap();
    second.enqueue_host(note("second"), StreamHandle::DEFAULT).unwrap();
    assert!(second.record_event(event, StreamHandle::DEFAULT).is_err(), "not its own to record");
    assert!(second.destroy_event(event).is_err(), "not its own to destroy");
    assert_eq!(second.query_event(event).unwrap(), Progress::Pending);
    first.destroy_event(event).unwrap();
    assert_eq!(second.query_stream(StreamHandle::DEFAULT).unwrap(), Progress::Pending);
    drop(open);
    second.synchronize_device().unwrap();
    assert_eq!(*log.lock().unwrap(), ["first", "second"]);
    assert!(second.wait_event(StreamHandle::DEFAULT, event).is_err(), "destroyed");
}

#[test]
fn a_wait_is_for_the_record_it_found_and_not_a_later_one() {
    let device = device();
    let [a, b] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let event = device.create_event(EventKind::Order).unwrap();
    device.wait_event(b, event).unwrap();
    assert_eq!(device.query_stream(b).unwrap(), Progress::Done, "never recorded: no wait");
    let (open_first, first) = gate();
    let (open_second, second) = gate();
    device.enqueue_host(first, a).unwrap();
    device.record_event(event, a).unwrap();
    device.wait_event(b, event).unwrap();
    device.enqueue_host(second, a).unwrap();
    device.record_event(event, a).unwrap();
    drop(open_first);
    device.synchronize_stream(b).unwrap();
    assert_eq!(device.query_event(event).unwrap(), Progress::Pending, "the second is to come");
    drop(open_second);
    device.synchronize_event(event).unwrap();
    assert_eq!(device.query_event(event).unwrap(), Progress::Done);
}

/// Something that panics when it is dropped, thrown by a task that panics.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        // A second panic while the first unwinds would end the process, as it does anywhere.
        if !thread::panicking() {
            std::panic::resume_unwind(Box::new("second"));
        }
    }
}

#[test]
fn a_task_that_panics_harms_nothing() {
    let device = device();
    let (send, receive) = channel();
    // resume_unwind: a panic without the message, which would only frighten readers of the log.
    let panics: HostTask = Box::new(|| std::panic::resume_unwind(Box::new("task")));
    let throws: HostTask = Box::new(|| std::panic::resume_unwind(Box::new(PanicsOnDrop)));
    device.enqueue_host(panics, StreamHandle::DEFAULT).unwrap();
    device.enqueue_host(throws, StreamHandle::DEFAULT).unwrap();
    device.enqueue_host(Box::new(move || send.send(1).unwrap()), StreamHandle::DEFAULT).unwrap();
    device.synchronize_stream(StreamHandle::DEFAULT).unwrap();
    assert_eq!(receive.try_recv(), Ok(1));
    assert_eq!(device.census().queued, 0);
}

#[test]
fn work_runs_though_its_stream_and_device_are_gone() {
    let device = device();
    let stream = device.create_stream(Priority::High).unwrap();
    let (open, closed) = gate();
    let (send, receive) = channel();
    device.enqueue_host(closed, stream).unwrap();
    for number in 0..100 {
        let send = send.clone();
        device.enqueue_host(Box::new(move || send.send(number).unwrap()), stream).unwrap();
    }
    device.destroy_stream(stream).unwrap();
    assert!(device.destroy_stream(stream).is_err() && device.query_stream(stream).is_err());
    let census = device.census();
    assert_eq!((census.streams, census.draining, census.queued), (0, 1, 101));
    drop((device, send));
    assert!(receive.try_recv().is_err(), "neither end waited");
    drop(open);
    let numbers: Vec<i32> = receive.iter().collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "each once, in order");
}

#[test]
fn the_device_waits_for_destroyed_streams_too() {
    let device = device();
    let stream = device.create_stream(Priority::Low).unwrap();
    let (open, closed) = gate();
    let (send, receive) = channel();
    device.enqueue_host(closed, stream).unwrap();
    device.enqueue_host(Box::new(move || send.send(()).unwrap()), stream).unwrap();
    device.destroy_stream(stream).unwrap();
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        drop(open);
    });
    device.synchronize_device().unwrap();
    assert!(receive.try_recv().is_ok());
    assert_eq!(device.census().draining, 0);
    opener.join().unwrap();
}

#[test]
fn the_last_hold_on_a_device_may_be_a_task_of_its_own() {
    let (send, receive) = channel();
    let (open, closed) = gate();
    let device = device();
    let held = Arc::clone(&device);
    device.enqueue_host(closed, StreamHandle::DEFAULT).unwrap();
    let last: HostTask = Box::new(move || {
        assert_eq!(Arc::strong_count(&held), 1);
        drop(held);
        send.send(()).unwrap();
    });
    device.enqueue_host(last, StreamHandle::DEFAULT).unwrap();
    drop(device);
    drop(open);
    receive.recv_timeout(LONG).unwrap();
}

#[test]
fn time_is_taken_where_the_event_is_reached() {
    let device = device();
    let [start, end] = [(); 2].map(|()| device.create_event(EventKind::Timed).unwrap());
    let untimed = device.create_event(EventKind::Order).unwrap();
    let stream = StreamHandle::DEFAULT;
    device.record_event(untimed, stream).unwrap();
    device.record_event(start, stream).unwrap();
    let never = device.elapsed(start, end).unwrap_err();
    assert!(never.to_string().contains("never recorded"), "{never}");
    let nap = Duration::from_millis(20);
    let (open, closed) = gate();
    device.enqueue_host(Box::new(move || thread::sleep(nap)), stream).unwrap();
    device.enqueue_host(closed, stream).unwrap();
    device.record_event(end, stream).unwrap();
    let busy = device.elapsed(start, end).unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    drop(open);
    device.synchronize_event(end).unwrap();
    let elapsed = device.elapsed(start, end).unwrap();
    assert!((nap..LONG).contains(&elapsed), "{elapsed:?}");
    assert!(matches!(device.elapsed(untimed, end).unwrap_err(), Error::Invalid { .. }));
}

#[test]
fn handles_and_identities_are_never_given_out_twice() {
    let (one, two) = (device(), device());
    let mut seen = BTreeSet::new();
    for device in [&one, &two] {
        assert!(seen.insert(device.stream_id(StreamHandle::DEFAULT).unwrap().0));
        for _ in 0..20 {
            let stream = device.create_stream(Priority::Normal).unwrap();
            assert!(seen.insert(device.stream_id(stream).unwrap().0));
            device.destroy_stream(stream).unwrap();
        }
    }
    let stream = one.create_stream(Priority::Normal).unwrap();
    assert!(two.query_stream(stream).is_err(), "another device's stream is not taken for one");
    assert!(one.destroy_stream(StreamHandle::DEFAULT).is_err());
    assert!(!format!("{:?}", *one).is_empty());
}

#[test]
fn many_threads_on_many_streams_lose_nothing() {
    let device = device();
    let count = Arc::new(core::sync::atomic::AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let stream = device.create_stream(Priority::Normal).unwrap();
                    let event = device.create_event(EventKind::Order).unwrap();
                    for _ in 0..10 {
                        let count = Arc::clone(&count);
                        let task: HostTask = Box::new(move || {
                            count.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
                        });
                        device.enqueue_host(task, stream).unwrap();
                    }
                    device.record_event(event, stream).unwrap();
                    device.wait_event(StreamHandle::DEFAULT, event).unwrap();
                    device.destroy_event(event).unwrap();
                    device.destroy_stream(stream).unwrap();
                }
            });
        }
    });
    device.synchronize_stream(StreamHandle::DEFAULT).unwrap();
    assert_eq!(count.load(core::sync::atomic::Ordering::Relaxed), 800);
    device.synchronize_device().unwrap();
    assert_eq!(device.census(), crate::Census::default());
}
