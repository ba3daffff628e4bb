//! Counted buffers: what a live view refuses, and what it does not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use forebay_core::{Address, BufferState, Replica};
use forebay_hal::{Capabilities, StreamHandle};
use forebay_sim::{SimMachine, SimOptions};

use super::counted::CountedBuffer;
use super::object::{Counted, CountedError};
use crate::HostDevice;
use crate::buffer::{Access, BufferManager, ReentryLock};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// A manager of a device with memory of its own, and one whose memory is the host's.
fn managers() -> [BufferManager; 2] {
    let options: SimOptions = SimMachine::builder().without(Capabilities::HOST_VISIBLE);
    let device = options.build().unwrap().device(0).unwrap();
    [
        BufferManager::new(&device).unwrap(),
        BufferManager::new(&HostDevice::open().unwrap()).unwrap(),
    ]
}

fn buffer(memory: &BufferManager, size: usize) -> CountedBuffer {
    CountedBuffer::new(memory.buffer::<u8>(size).unwrap())
}

fn is_in_use<T>(result: Result<T, CountedError>) -> bool {
    matches!(result, Err(CountedError::InUse(_)))
}

fn read(buffer: &CountedBuffer, offset: u64) -> u8 {
    let mut byte = [0];
    buffer.read(offset, 1, |from| byte.copy_from_slice(from)).unwrap();
    byte[0]
}

/// Writes through a view, as C does.
fn poke(address: Address, value: u8) {
    let place: *mut u8 =
        core::ptr::with_exposed_provenance_mut(usize::try_from(address.get()).unwrap());
    // SAFETY: a byte of a live view for writing.
    unsafe { place.write(value) };
}

#[test]
fn a_live_view_refuses_what_conflicts_and_nothing_else() {
    use Access::{Overwrite, Read, Update};
    for memory in managers() {
        // The view, whether on the device; then what is refused beside it: reading and writing on the host, reading and
        // writing on the device.
        for (access, device, refused) in [
            (Read, false, [false, true, false, true]),
            (Update, false, [true; 4]),
            (Overwrite, false, [true; 4]),
            (Read, true, [false, true, false, false]),
            (Update, true, [true, true, false, false]),
        ] {
            let buffer = buffer(&memory, 100);
            let view = if device {
                buffer.export(10, 20, access, DEFAULT).unwrap()
            } else {
                buffer.map(10, 20, access).unwrap()
            };
            let tries = |offset| {
                let other = buffer.map(offset, 1, Read);
                let reads = other.map(|other| buffer.end_view(other.number).unwrap());
                let other = buffer.map(offset, 1, Update);
                let writes = other.map(|other| buffer.end_view(other.number).unwrap());
                [
                    is_in_use(reads),
                    is_in_use(writes),
                    is_in_use(buffer.on_device(offset, 1, Read, DEFAULT)),
                    is_in_use(buffer.on_device(offset, 1, Update, DEFAULT)),
                ]
            };
            for inside in [10, 29] {
                assert_eq!(tries(inside), refused, "{access:?}, on the device: {device}");
            }
            for outside in [9, 30] {
                assert_eq!(tries(outside), [false; 4], "{access:?}, on the device: {device}");
            }
            let host = [is_in_use(buffer.read(29, 1, |_| {})), is_in_use(buffer.write(29, &[1]))];
            assert_eq!(host, refused[..2]);
            assert!(is_in_use(buffer.fill(0, 100, 1, 1)) && is_in_use(buffer.resize(50, || ())));
            assert!(is_in_use(buffer.compact(Replica::Host, DEFAULT)));
            assert!(is_in_use(buffer.invalidate(Replica::Host)) && is_in_use(buffer.close()));
            assert_eq!(is_in_use(buffer.synchronize(DEFAULT)), refused[0]);
            let other = self::buffer(&memory, 100);
            assert!(is_in_use(buffer.copy_from(&other, DEFAULT)));
            assert_eq!(is_in_use(other.copy_from(&buffer, DEFAULT)), refused[0]);
            assert_eq!(buffer.statistics().unwrap().views, 1);

            buffer.end_view(view.number).unwrap();
            assert!(matches!(buffer.end_view(view.number), Err(CountedError::NoView)));
            assert!(matches!(other.end_view(view.number), Err(CountedError::NoView)));
            buffer.resize(50, || ()).unwrap();
            buffer.close().unwrap();
            assert!(matches!(buffer.statistics(), Err(CountedError::Closed(_))));
            assert!(matches!(buffer.close(), Err(CountedError::Closed(_))));
        }
    }
}

#[test]
fn what_is_written_through_a_view_reaches_the_device_and_back() {
    for memory in managers() {
        let (one, two) = (buffer(&memory, 1000), buffer(&memory, 1000));
        let view = one.map(500, 10, Access::Update).unwrap();
        poke(view.address, 7);
        // Another view neither copies over it nor moves it.
        let other = one.map(0, 500, Access::Read).unwrap();
        assert_eq!(other.address.get() + 500, view.address.get());
        one.end_view(view.number).unwrap();
        one.end_view(other.number).unwrap();
        one.on_device(0, 1000, Access::Update, DEFAULT).unwrap();
        two.copy_from(&one, DEFAULT).unwrap();
        assert_eq!((read(&two, 500), read(&two, 501), read(&one, 500)), (7, 0, 7));
        one.fill(8, 16, 0x0102, 2).unwrap();
        assert_eq!((read(&one, 7), read(&one, 8), read(&one, 9), read(&one, 24)), (0, 2, 1, 0));
        assert_ne!(one.statistics().unwrap().state, BufferState::Uninitialized);
    }
}

#[test]
fn ranges_that_are_not_there_are_refused() {
    let [memory, _] = managers();
    let (one, other) = (buffer(&memory, 10), buffer(&memory, 11));
    for (offset, size) in [(0, 11), (11, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        assert!(matches!(one.map(offset, size, Access::Read), Err(CountedError::Library(_))));
        assert!(one.on_device(offset, size, Access::Read, DEFAULT).is_err());
        assert!(one.fill(offset, size, 1, 1).is_err());
    }
    assert!(one.write(10, &[1]).is_err() && one.read(u64::MAX, 1, |_| {}).is_err());
    assert!(one.fill(1, 4, 1, 4).is_err() && one.fill(0, 4, 1, 3).is_err());
    assert!(one.resize(u64::MAX, || ()).is_err() && one.copy_from(&one, DEFAULT).is_err());
    assert!(one.copy_from(&other, DEFAULT).is_err());
    let empty = one.map(10, 0, Access::Update).unwrap();
    assert!(one.map(9, 1, Access::Update).is_ok());
    one.end_view(empty.number).unwrap();
}

#[test]
fn threads_take_turns_and_never_write_the_same_bytes() {
    const ROUNDS: u64 = 200;
    for memory in managers() {
        let (one, two) = (buffer(&memory, 64), buffer(&memory, 64));
        let written = AtomicU64::new(0);
        thread::scope(|scope| {
            for number in 0..3_u8 {
                let (one, two, written) = (&one, &two, &written);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        match one.map(0, 1, Access::Update) {
                            Ok(view) => {
                                poke(view.address, number);
                                written.fetch_add(1, Ordering::Relaxed);
                                one.end_view(view.number).unwrap();
                            }
                            Err(error) => assert!(matches!(error, CountedError::InUse(_))),
                        }
                        let (to, from) = if number == 0 { (one, two) } else { (two, one) };
                        let copied = to.copy_from(from, DEFAULT);
                        assert!(matches!(copied, Ok(()) | Err(CountedError::InUse(_))));
                    }
                });
            }
        });
        assert!(written.load(Ordering::Relaxed) > 0);
        assert_eq!(one.statistics().unwrap().views, 0);
    }
}

#[test]
fn a_thread_that_has_the_value_is_refused_and_a_panic_gives_it_back() {
    let turns = ReentryLock::new(5);
    let turn = turns.take().unwrap();
    assert!(turns.take().is_none());
    drop(turn);
    let panic = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _turn = turns.take().unwrap();
            panic!("on purpose")
        });
        thread.join().is_err()
    });
    assert!(panic);
    assert_eq!(*turns.take().unwrap(), 5);
}

#[test]
fn a_pinned_value_is_not_closed() {
    let value = Counted::new("number", 5);
    value.pin(|_| Ok::<_, CountedError>(())).unwrap();
    assert!(value.pin(|_| Err::<(), _>(CountedError::NoView)).is_err());
    let refused = value.close().unwrap_err().to_string();
    assert_eq!(refused, "1 view of the number still lives: release it first");
    value
        .with(|number| {
            *number += 1;
            Ok::<_, CountedError>(())
        })
        .unwrap();
    value.unpin();
    assert!(!value.is_closed());
    assert_eq!(value.close().unwrap(), 6);
    assert!(value.is_closed());
    assert!(matches!(value.take().unwrap().value(), Err(CountedError::Closed("number"))));
}
