//! Fetching without blocking.

use core::pin::Pin;
use std::sync::mpsc;
use std::task::Wake;

use super::*;
use crate::handle::tests::task::block_on;

/// Runs many futures on one thread, each polled only after it was woken.
fn run_all<'a>(futures: Vec<Pin<Box<dyn Future<Output = ()> + 'a>>>) {
    struct Queue(usize, mpsc::Sender<usize>);
    impl Wake for Queue {
        fn wake(self: Arc<Self>) {
            let _ = self.1.send(self.0);
        }
    }
    let (sender, woken) = mpsc::channel();
    let mut futures: Vec<_> = futures.into_iter().map(Some).collect();
    (0..futures.len()).for_each(|index| sender.send(index).unwrap());
    while futures.iter().any(Option::is_some) {
        let index = woken.recv_timeout(Duration::from_secs(20)).expect("a future was never woken");
        let waker = Waker::from(Arc::new(Queue(index, sender.clone())));
        if let Some(future) = &mut futures[index]
            && future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        {
            futures[index] = None;
        }
    }
}

#[test]
fn elements_are_fetched_without_blocking_on_any_executor() {
    let (machine, device, memory) = open(SimMachine::builder());
    let mut buffers: Vec<Buffer<u8>> = (0..8).map(|_| memory.buffer(3000).unwrap()).collect();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let fetch = async |buffer: &mut Buffer<u8>, value: u8| {
        assert_eq!(*buffer.fetch().await.unwrap(), [value; 3000]);
        buffer.host_mut().unwrap().fill(value + 1);
    };
    for round in 0..3 {
        for buffer in &mut buffers {
            launch_write(&device, &buffer.on_device_mut(stream).unwrap(), round * 10).unwrap();
        }
        let futures = buffers.iter_mut();
        run_all(futures.map(|buffer| Box::pin(fetch(buffer, round * 10)) as Pin<Box<_>>).collect());
        for buffer in &mut buffers {
            block_on(fetch(buffer, round * 10 + 1));
            // Dropped before it is ready: the next use finds everything.
            launch_write(&device, &buffer.on_device_mut(stream).unwrap(), 77).unwrap();
            let mut early = std::pin::pin!(buffer.fetch());
            let _ = early.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        for buffer in &mut buffers {
            launch_write(&device, &buffer.on_device_mut(DEFAULT).unwrap(), 78).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [78; 3000]);
        }
    }
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
    // Where the device runs no host functions, or has the host's memory, it is ready at once.
    for options in [SimMachine::builder().without(Capabilities::HOST_TASKS), SimMachine::builder()]
    {
        let (_machine, device, memory) = open_any(options);
        let mut buffer = memory.buffer::<u8>(100).unwrap();
        launch_write(&device, &buffer.on_device_mut(DEFAULT).unwrap(), 5).unwrap();
        assert_eq!(*block_on(buffer.fetch()).unwrap(), [5; 100]);
    }
}
