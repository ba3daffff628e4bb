//! What another thread does while a call holds no lock: streams that go, slots that are taken over, captures
//! that begin. The test does it on the same thread, at a moment that is named.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_hal::{Capabilities, Stream};
use forebay_sim::HandleReuse;

use super::*;
use crate::pool::common::step::{Step, stepping};

/// Stream handles that were never created, to fill the slots with.
fn strangers() -> impl Iterator<Item = StreamHandle> {
    (0..u64::from(forebay_core::address_space::Streams::MAX))
        .map(|number| StreamHandle(1 << 40 | number))
}

/// A request grows the pool while other streams take over every slot there is: what comes is in its own
/// order all the same, and it gets it.
#[test]
fn a_request_that_grows_keeps_its_slot() {
    let paged = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(1));
    let segments = paged.clone().without(Capabilities::VIRTUAL_MEMORY);
    for options in [paged, segments] {
        let (_, device, shared) = open(options);
        let pool = PoolOptions::new().build(&shared).unwrap();
        let stream = device.create_stream(Priority::Normal).unwrap();
        let others = pool.clone();
        let hook = move |step| {
            if step == Step::Growing {
                strangers().for_each(|stranger| _ = others.shared.heap().slot_for(stranger));
            }
        };
        let block = stepping(hook, || pool.allocate(Bytes::mib(100), stream).unwrap());
        assert!(pool.held() < Bytes::mib(200), "{} held for {}", pool.held(), block.size());
    }
}

/// A device whose next stream gets the handle of the last that went.
fn reusing() -> (SimMachine, Arc<SimDevice>, Arc<dyn Device>) {
    open(SimMachine::builder().capacity(Bytes::gib(1)).handles(HandleReuse::AtOnce))
}

/// A stream that is destroyed at a step, and the next one, which gets its handle.
struct Goes {
    device: Arc<dyn Device>,
    stream: Option<Stream>,
    next: Option<Stream>,
}

impl Goes {
    fn new(device: &Arc<dyn Device>) -> Rc<RefCell<Self>> {
        let stream = Some(Stream::new(device, Priority::Normal).unwrap());
        Rc::new(RefCell::new(Self { device: Arc::clone(device), stream, next: None }))
    }

    fn handle(this: &RefCell<Self>) -> StreamHandle {
        let this = this.borrow();
        this.stream.as_ref().or(this.next.as_ref()).unwrap().handle()
    }

    /// A hook that has it go at `at`.
    fn at(this: &Rc<RefCell<Self>>, at: Step) -> impl FnMut(Step) + 'static {
        let this = Rc::clone(this);
        move |step| {
            if step == at {
                this.borrow_mut().go();
            }
        }
    }

    fn go(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let handle = stream.handle();
        drop(stream);
        let next = Stream::new(&self.device, Priority::Normal).unwrap();
        assert_eq!(next.handle(), handle);
        self.next = Some(next);
    }
}

/// Much work on a block, so that it is not over when someone asks.
fn keep_busy(device: &SimDevice, block: Block, stream: StreamHandle) {
    (0..100).for_each(|_| write(device, block, 9, stream));
}

fn nothing_was_found(machine: &SimMachine, device: &SimDevice, pool: &Pool) {
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    assert_eq!(pool.findings(), []);
}

/// A stream that a block was used on goes while the block is freed: what the debugging aids do with the
/// block comes after its use there, not after the work of the stream that has the handle by then.
#[test]
fn a_user_that_goes_while_the_block_is_freed_is_waited_for() {
    let (machine, device, shared) = reusing();
    let options = PoolOptions::new().set(|settings| settings.poison(true));
    let pool = options.build(&shared).unwrap();
    let own = device.create_stream(Priority::Normal).unwrap();
    let user = Goes::new(&shared);
    let block = pool.allocate(Bytes::mib(1), own).unwrap();
    pool.record_use(block.address(), Goes::handle(&user)).unwrap();
    // The block is written on the other stream after the fill that it came with.
    shared.synchronize_device().unwrap();
    keep_busy(&device, block, Goes::handle(&user));
    let hook = Goes::at(&user, Step::JoiningUsers);
    stepping(hook, || pool.free_block(block, own).unwrap());
    assert!(user.borrow().next.is_some());
    nothing_was_found(&machine, &device, &pool);
}

/// A stream is destroyed while a block that was freed on it leaves the quarantine.
#[test]
fn what_leaves_the_quarantine_is_in_the_order_of_the_stream_that_freed_it() {
    for poison in [false, true] {
        let (machine, device, shared) = reusing();
        let options = PoolOptions::new()
            .set(|settings| settings.quarantine(Bytes::mib(1)))
            .set(|settings| settings.poison(poison));
        let pool = options.build(&shared).unwrap();
        let stream = Goes::new(&shared);
        let first = pool.allocate(Bytes::mib(1), Goes::handle(&stream)).unwrap();
        let other = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
        keep_busy(&device, first, Goes::handle(&stream));
        pool.free_block(first, Goes::handle(&stream)).unwrap();
        let hook = Goes::at(&stream, Step::LeavingQuarantine);
        stepping(hook, || pool.free_block(other, DEFAULT).unwrap());
        let next = Goes::handle(&stream);
        assert!(stream.borrow().next.is_some());
        for _ in 0..3 {
            let block = pool.allocate(Bytes::mib(1), next).unwrap();
            write(&device, block, 2, next);
        }
        nothing_was_found(&machine, &device, &pool);
    }
}

/// The device refuses to fill what a request could not be given, and goes on refusing until the stream is
/// gone: what is filled later comes after the stream's work, and is not lost.
#[test]
fn what_could_not_be_filled_outlives_its_stream() {
    let (machine, device, shared) = reusing();
    let options = PoolOptions::new()
        .max_bytes(Bytes::mib(4))
        .set(|settings| settings.poison(true).canaries(true));
    let pool = options.build(&shared).unwrap();
    let stream = Goes::new(&shared);
    let first = pool.allocate(Bytes::mib(1), Goes::handle(&stream)).unwrap();
    pool.free_block(first, Goes::handle(&stream)).unwrap();
    let busy = pool.allocate(Bytes::mib(1), Goes::handle(&stream)).unwrap();
    // The new page and the block are filled, its canary is not.
    for number in 3..20 {
        let when = When::Kind(Call::Fill, machine.calls().of(Call::Fill) + number);
        machine.plan(Fault::new(when, FaultKind::Transient));
    }
    pool.allocate(Bytes::mib(1), Goes::handle(&stream)).unwrap_err();
    keep_busy(&device, busy, Goes::handle(&stream));
    stream.borrow_mut().go();
    machine.clear_faults();
    // What was not filled is filled now, or when the work of the stream that went is over.
    pool.trim(Bytes::ZERO).unwrap();
    let next = Goes::handle(&stream);
    let block = pool.allocate(Bytes::mib(1), next).unwrap();
    write(&device, block, 3, next);
    pool.free_block(block, next).unwrap();
    shared.synchronize_device().unwrap();
    pool.free_block(busy, DEFAULT).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
    nothing_was_found(&machine, &device, &pool);
}

/// A capture begins while a thread gives memory back: nothing is asked for or waited for from then on, and
/// it all goes when the capture is over.
#[test]
fn a_capture_that_begins_during_a_trim_is_left_alone() {
    let paged = SimMachine::builder().capacity(Bytes::gib(1));
    let segments = paged.clone().without(Capabilities::VIRTUAL_MEMORY);
    for (number, options) in [paged.clone(), segments, paged].into_iter().enumerate() {
        let (machine, device, shared) = open(options);
        let pool = PoolOptions::new().build(&shared).unwrap();
        let [own, user] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
        let block = pool.allocate(Bytes::mib(3), own).unwrap();
        keep_busy(&device, block, user);
        pool.record_use(block.address(), user).unwrap();
        pool.free_block(block, own).unwrap();
        let seen = Rc::new(RefCell::new(None));
        let (hook_pool, hook_machine, hook_seen) =
            (pool.clone(), machine.clone(), Rc::clone(&seen));
        let hook = move |step| {
            if step == Step::Settling && hook_seen.borrow().is_none() {
                let capture = hook_pool.capture().unwrap();
                *hook_seen.borrow_mut() = Some((capture, capture::seen(&hook_machine)));
            }
        };
        if number < 2 {
            stepping(hook, || pool.trim(Bytes::ZERO).unwrap());
        } else {
            // The same for a request that has to wait.
            pool.set("max_bytes", "4 MiB").unwrap();
            stepping(hook, || pool.allocate(Bytes::mib(4), own).unwrap_err());
        }
        let (capture, before) = seen.borrow_mut().take().unwrap();
        assert_eq!(capture::seen(&machine), before);
        drop(capture);
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!((pool.held(), machine.finding_count()), (Bytes::ZERO, 0));
    }
}

/// A block is freed into a thread cache while a request is estimated: the request is served from it, not refused.
#[test]
fn a_block_that_is_freed_during_an_estimate_serves_the_request() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(2)).build(&shared).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let size = Bytes::kib(4);
    let first = pool.allocate(size, stream).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let block = pool.allocate(size, stream).unwrap();
            pool.free_block(block, stream).unwrap();
        });
    });
    let blocks = [(); 511].map(|()| pool.allocate(size, stream).unwrap());
    let (others, mut first) = (pool.clone(), Some(first));
    let hook = move |step| {
        if step == Step::Estimating
            && let Some(block) = first.take()
        {
            others.free_block(block, stream).unwrap();
        }
    };
    let block = stepping(hook, || pool.allocate(size, stream).unwrap());
    let refused = pool.allocate(size, stream).unwrap_err();
    assert!(matches!(refused, crate::Error::OutOfMemory(_)), "{refused}");
    for block in blocks.into_iter().chain([block]) {
        pool.free_block(block, stream).unwrap();
    }
    nothing_was_found(&machine, &device, &pool);
}

/// A graph is captured, launched on a stream that the pool does not know, and destroyed while the memory of earlier ones is
/// released: what its launch uses stays.
#[test]
fn a_graph_that_comes_and_goes_during_a_trim_keeps_its_memory() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let options = PoolOptions::new().class(MemoryClass::STABLE).set(|set| set.magazines(false));
    let pool = options.build(&shared).unwrap();
    let [own, unknown] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let result = pool.allocate(Bytes::mib(1), own).unwrap();
    let (hook_pool, hook_device, mut was_there) = (pool.clone(), device.clone(), false);
    let hook = move |step| {
        if step == Step::Settling && !core::mem::replace(&mut was_there, true) {
            let capture = hook_pool.capture().unwrap();
            let block = hook_pool.allocate(Bytes::mib(64), own).unwrap();
            hook_pool.free_block(block, own).unwrap();
            keep_busy(&hook_device, block, unknown);
            drop(capture);
        }
    };
    stepping(hook, || pool.trim_stable().unwrap());
    assert!(pool.held() >= Bytes::mib(65), "{} held", pool.held());
    nothing_was_found(&machine, &device, &pool);
    pool.free_block(result, own).unwrap();
    pool.trim_stable().unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
}
