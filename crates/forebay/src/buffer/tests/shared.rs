//! Reads that share a buffer.

use std::sync::{Barrier, OnceLock, Weak};

use super::*;

/// Ten views and kernels of one buffer, whose parts are on different replicas: none disturbs another.
#[test]
fn views_and_kernels_of_one_buffer_go_on_while_others_read_it() {
    for options in
        [SimMachine::builder(), SimMachine::builder().without(Capabilities::HOST_VISIBLE)]
    {
        let (machine, device, memory) = open_any(options);
        let streams = [(); 3].map(|()| device.create_stream(Priority::Normal).unwrap());
        let wrong = Arc::new(AtomicU64::new(0));
        for round in 0..20_u8 {
            let mut buffer = memory.buffer::<u8>(3000).unwrap();
            buffer.slice_mut(..1000).unwrap().host_mut().unwrap().fill(round + 1);
            let mut middle = buffer.slice_mut(1000..2000).unwrap();
            launch_write(&device, &middle.on_device_overwrite(streams[0]).unwrap(), 77).unwrap();
            let parts = [0..1000, 1000..2000, 2000..3000];
            let due = [vec![round + 1; 1000], vec![77; 1000], vec![0; 1000]];
            let shared = &buffer;
            let mut views = Vec::new();
            let mut on_device = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                let slice = shared.slice(part.clone()).unwrap();
                on_device.push(slice.on_device(streams[(index + 1) % 3]).unwrap());
                views.push(slice.host().unwrap());
                // The kernels of earlier parts begin only now.
                for (on_device, due) in on_device.iter().zip(&due) {
                    launch_check(&device, on_device, due.clone(), &wrong).unwrap();
                }
            }
            for (view, due) in views.iter().zip(&due) {
                assert_eq!(view, due);
            }
            // The memory is another's as soon as the kernels are done, and not before.
            drop(buffer);
            let mut next = memory.buffer::<u8>(3000).unwrap();
            launch_write(&device, &next.on_device_overwrite(streams[2]).unwrap(), 5).unwrap();
        }
        device.synchronize_device().unwrap();
        assert_eq!(wrong.load(Ordering::Relaxed), 0);
        assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
    }
}

#[test]
fn threads_read_one_buffer_at_once_and_it_is_copied_once() {
    let (machine, device, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<u8>(100_000).unwrap();
    for value in 1..20 {
        launch_write(&device, &buffer.on_device_overwrite(DEFAULT).unwrap(), value).unwrap();
        let (shared, barrier) = (&buffer, Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    assert!(shared.host().unwrap().iter().all(|&byte| byte == value));
                    let _ = shared.on_device(StreamHandle::PER_THREAD).unwrap();
                });
            }
        });
        assert_eq!(buffer.statistics().to_host.copies, u64::from(value));
    }
    drop(buffer);
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
}

/// Each thread's own stream is another, and none says when it ends.
#[test]
fn any_number_of_threads_read_one_buffer_on_their_own_streams() {
    let (machine, device, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<u8>(4096).unwrap();
    launch_write(&device, &buffer.on_device_overwrite(DEFAULT).unwrap(), 1).unwrap();
    let shared = &buffer;
    let read = || {
        let before = machine.calls().of(Call::SynchronizeDevice);
        let _ = shared.on_device(StreamHandle::PER_THREAD).unwrap();
        machine.calls().of(Call::SynchronizeDevice) - before
    };
    for _ in 0..200 {
        let waits = std::thread::scope(|scope| scope.spawn(read).join().unwrap());
        assert_eq!(waits, 0, "a read waits for no other");
    }
    let before = machine.calls().of(Call::SynchronizeDevice);
    launch_write(&device, &buffer.on_device_overwrite(DEFAULT).unwrap(), 2).unwrap();
    assert!(machine.calls().of(Call::SynchronizeDevice) - before <= 1, "one wait for all");
    assert_eq!(buffer.to_vec().unwrap(), [2; 4096]);
    drop(buffer);
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
}

/// Two fetches of the same elements, and a read that comes before either is done.
#[test]
fn fetches_of_the_same_elements_do_not_undo_each_other() {
    let (machine, device, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<u8>(4096).unwrap();
    for value in 1..10 {
        launch_write(&device, &buffer.on_device_overwrite(DEFAULT).unwrap(), value).unwrap();
        let [mut one, mut two] = [(); 2].map(|()| buffer.fetch());
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = |fetch: &mut Fetch<'_, u8>| {
            core::pin::Pin::new(fetch).poll(&mut context).map(|view| view.unwrap().to_vec())
        };
        let _ = (poll(&mut one), poll(&mut two));
        let view = buffer.host().unwrap();
        assert_eq!(view, [value; 4096]);
        drop(one);
        assert!(crate::handle::tests::task::block_on(two).is_ok());
        let copies = buffer.statistics().to_host.copies;
        assert_eq!(buffer.to_vec().unwrap(), view);
        assert_eq!(buffer.statistics().to_host.copies, copies, "everything is there");
    }
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
}

/// A fetch that was given up says nothing about what was written since.
#[test]
fn a_write_forgets_fetches_that_were_given_up() {
    let (_machine, device, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer::<u8>(4096).unwrap();
    launch_write(&device, &buffer.on_device_overwrite(DEFAULT).unwrap(), 1).unwrap();
    let _ = core::pin::pin!(buffer.fetch()).poll(&mut Context::from_waker(Waker::noop()));
    launch_write(&device, &buffer.on_device_mut(DEFAULT).unwrap(), 2).unwrap();
    assert_eq!(buffer.host().unwrap(), [2; 4096]);
}

/// Code that runs within a call on a buffer, here a pool's callback, reads what is there; anything else is refused.
#[test]
fn a_callback_within_a_call_cannot_wait_for_that_call() {
    let (_machine, device, _) = open(SimMachine::builder());
    let shared: Arc<dyn Device> = device;
    let made = Arc::new(OnceLock::<Weak<Buffer<u8>>>::new());
    let seen = Arc::new(AtomicU64::new(0));
    let (inner, noted) = (Arc::clone(&made), Arc::clone(&seen));
    let pool = crate::PoolOptions::new()
        .max_bytes(Bytes::mib(4))
        .on_shortage(move |_| {
            let buffer = inner.get().and_then(Weak::upgrade).unwrap();
            let refused = buffer.on_device(DEFAULT).unwrap_err();
            noted.store(1 + u64::from(refused.to_string().contains("busy")), Ordering::SeqCst);
            false
        })
        .build(&shared)
        .unwrap();
    let buffer = Arc::new(BufferManager::over(&pool).buffer::<u8>(8 << 20).unwrap());
    made.set(Arc::downgrade(&buffer)).unwrap();
    assert!(buffer.on_device(DEFAULT).is_err());
    assert_eq!(seen.load(Ordering::SeqCst), 2);
}

/// Two threads are short of memory, and what frees some uses the buffer of the other.
#[test]
fn callbacks_that_use_each_others_buffers_do_not_wait_for_each_other() {
    let (machine, device, _) = open(SimMachine::builder());
    let buffers: Arc<std::sync::OnceLock<[Buffer<u8>; 2]>> = Arc::default();
    let (both, refused) = (std::sync::Barrier::new(2), Arc::new(AtomicU64::new(0)));
    let (inside, counted) = (Arc::clone(&buffers), Arc::clone(&refused));
    let on_shortage = move |_: &crate::report::Shortage| {
        both.wait();
        for buffer in inside.get().into_iter().flatten() {
            let busy = buffer.host().is_err();
            counted.fetch_add(u64::from(busy), Ordering::Relaxed);
        }
        both.wait();
        false
    };
    let options = crate::PoolOptions::new().max_bytes(Bytes::mib(8)).on_shortage(on_shortage);
    let pool = options.build(&device).unwrap();
    let _plain = pool.default_stream().owned(Bytes::mib(6)).unwrap();
    let manager = BufferManager::over(&pool);
    let _ = buffers.set([0, 1].map(|_| manager.buffer(6 << 20).unwrap()));
    std::thread::scope(|scope| {
        for buffer in buffers.get().unwrap() {
            scope
                .spawn(|| assert!(matches!(buffer.on_device(DEFAULT), Err(Error::OutOfMemory(_)))));
        }
    });
    assert_eq!(refused.load(Ordering::Relaxed), 4, "its own and the other's");
    drop(buffers);
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
}
