//! Ends that are not as they should be: pools that go with blocks in use, and frees that are wrong.

use core::time::Duration;
use std::sync::Mutex;

use super::*;
use crate::Tag;
use crate::adaptor::{Aligned, Counted, FailWhen, Failing, Limited, Logged, Tracked};
use crate::report::DropReport;

/// The last report of a pool, if it made one.
type Told = Arc<Mutex<Vec<DropReport>>>;

fn telling(told: &Told) -> PoolOptions {
    let told = Arc::clone(told);
    PoolOptions::new().on_drop(move |report| told.lock().unwrap().push(report.clone()))
}

#[test]
fn a_pool_that_goes_with_live_blocks_says_which() {
    let told = Told::default();
    let (machine, device, shared) = open(SimMachine::builder());
    let other = device.create_stream(Priority::Normal).unwrap();
    let pool = telling(&told).build(&shared).unwrap();
    let id = pool.id();
    let tag = Tag::named("tag of the report");
    let large = {
        let _tag = tag.enter();
        pool.allocate(Bytes::new(3_000_000), other).unwrap()
    };
    for _ in 0..20 {
        pool.allocate(Bytes::new(1000), DEFAULT).unwrap();
    }
    let gone = pool.allocate(Bytes::mib(64), DEFAULT).unwrap();
    pool.free(gone.address(), DEFAULT).unwrap();
    write(&device, large, 1, other);
    drop(pool);

    let told = told.lock().unwrap();
    let [report] = &told[..] else { panic!("{told:?}") };
    let bytes = large.size().saturating_add(Bytes::new(20 * 1024));
    assert_eq!((report.pool, report.blocks, report.bytes), (id, 21, bytes));
    let owners = [("tag of the report", large.size()), ("untagged", Bytes::new(20 * 1024))];
    assert_eq!(report.owners, owners.map(|(name, bytes)| (name.to_owned(), bytes)));
    let mut streams = report.streams.clone();
    streams.sort_unstable_by_key(|&(_, blocks)| blocks);
    assert_eq!(streams, [(other, 1), (DEFAULT, 20)]);
    assert_eq!(report.largest.len(), DropReport::MAX);
    assert_eq!(
        (report.largest[0].address, report.largest[0].size, report.largest[0].requested),
        (large.address(), large.size(), Bytes::new(3_000_000))
    );
    assert!(report.largest[1..].iter().all(|block| block.requested == Bytes::new(1000)));
    let said = report.to_string();
    assert!(said.contains("dropped with 21 live blocks") && said.contains("tag of the report"));
    nothing_is_left(&machine);
    assert_eq!(machine.findings(), []);
}

#[test]
fn a_pool_that_goes_with_nothing_in_use_says_nothing() {
    let told = Told::default();
    let (machine, _, shared) = open(SimMachine::builder());
    let pool = telling(&told).build(&shared).unwrap();
    let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let clone = pool.clone();
    drop(pool);
    clone.free(block.address(), DEFAULT).unwrap();
    assert!(told.lock().unwrap().is_empty(), "a clone is the same pool");
    drop(clone);
    assert_eq!(*told.lock().unwrap(), []);
    nothing_is_left(&machine);
}

/// On segments too, and whatever is on its way at that moment.
#[test]
fn a_pool_that_goes_leaves_nothing_on_the_device() {
    for without in [forebay_hal::Capabilities::empty(), forebay_hal::Capabilities::VIRTUAL_MEMORY] {
        let (machine, device, shared) = open(SimMachine::builder().without(without));
        let other = device.create_stream(Priority::Normal).unwrap();
        let pool = Pool::new(&shared).unwrap();
        let blocks: Vec<Block> =
            (1..20).map(|mib| pool.allocate(Bytes::mib(mib), DEFAULT).unwrap()).collect();
        for (index, block) in blocks.iter().enumerate() {
            write(&device, *block, 1, if index % 2 == 0 { DEFAULT } else { other });
            pool.record_use(block.address(), other).unwrap();
            if index % 3 == 0 {
                pool.free(block.address(), DEFAULT).unwrap();
            }
        }
        pool.forget_stream(other).unwrap();
        drop(pool);
        assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
        assert_eq!(machine.census().queued, 0);
        nothing_is_left(&machine);
    }
}

/// A copy through a handle is under way while another thread frees the block by its address, forgets the
/// stream it said and trims: the memory stays until the handle gives it back.
#[test]
fn no_safe_call_takes_memory_from_under_a_copy() {
    let device: Arc<dyn Device> = forebay_host::HostDevice::open().unwrap();
    let pool = Pool::new(&device).unwrap();
    let [one, two] = [(); 2].map(|()| forebay_hal::Stream::new(&device, Priority::Normal).unwrap());
    let mut array = pool.on(one.handle()).uninit::<u64>(1 << 18).unwrap();
    let address = array.address();
    let (go, flag) = std::sync::mpsc::channel::<()>();
    device.enqueue_host(Box::new(move || _ = flag.recv()), one.handle()).unwrap();
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| array.copy_from_slice(&vec![7; 1 << 18]));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(pool.free(address, two.handle()).unwrap_err(), Error::Owned { address });
        pool.forget_stream(two.handle()).unwrap();
        pool.process_deferred().unwrap();
        pool.collect(Duration::ZERO).unwrap();
        drop(go);
        pool.trim(Bytes::ZERO).unwrap();
        copy.join().unwrap().unwrap();
    });
    let mut back = vec![0; 1 << 18];
    array.copy_to_slice(&mut back).unwrap();
    assert!(back.iter().all(|&word| word == 7));
}

/// A block that was taken out of its handle and freed is not the handle's to lose twice.
#[test]
fn a_handle_whose_block_was_freed_is_refused() {
    let (_, _, shared) = open(SimMachine::builder());
    let pool = Pool::new(&shared).unwrap();
    let owned = pool.on(DEFAULT).owned(Bytes::mib(1)).unwrap();
    let address = owned.address();
    pool.free(address, DEFAULT).unwrap_err();
    // SAFETY: nothing reads or writes it from here on.
    unsafe { Allocate::disown(&pool, owned.block()) };
    pool.free(address, DEFAULT).unwrap();
    let refused = owned.free().unwrap_err();
    assert!(matches!(refused.error(), Error::DoubleFree { .. }), "{}", refused.error());
    let later = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    assert_eq!(later.address(), address);
    drop(refused);
    assert!(pool.block_at(address).is_some(), "the later block is another's");
    assert_eq!(pool.statistics().blocks, 1);
}

/// Adaptors say what the pool says, and count nothing for it.
#[test]
fn wrong_frees_pass_through_adaptors() {
    let (_, _, shared) = open(SimMachine::builder());
    let pool = Pool::new(&shared).unwrap();
    let other = Pool::new(&shared).unwrap();
    let foreign = other.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let wrong = |allocator: &dyn Allocate, name: &str| {
        let block = allocator.allocate_request(Request::new(Bytes::new(3000), DEFAULT)).unwrap();
        let before = pool.statistics();
        let inside = Address::new(block.address().get() + 1024);
        for address in [inside, Address::new(4096)] {
            let error = allocator.free(address, DEFAULT).unwrap_err();
            assert_eq!(error, Error::NotABlock { address }, "{name}");
        }
        let error = allocator.free(foreign.address(), DEFAULT).unwrap_err();
        assert!(matches!(error, Error::WrongPool { .. }), "{name}: {error}");
        assert_eq!(allocator.free_block(foreign, DEFAULT).unwrap_err(), error, "{name}");
        assert_eq!(pool.statistics(), before, "{name}");
        allocator.free(block.address(), DEFAULT).unwrap();
        let error = allocator.free(block.address(), DEFAULT).unwrap_err();
        assert!(matches!(error, Error::DoubleFree { .. }), "{name}: {error}");
        assert_eq!(allocator.free_block(block, DEFAULT).unwrap_err(), error, "{name}");
        allocator.free(Address::NULL, DEFAULT).unwrap();
        // The very block is freed, and the one that had its address before is not taken for it.
        let later = allocator.allocate_request(Request::new(Bytes::new(3000), DEFAULT)).unwrap();
        let again = later.address() == block.address();
        assert!(again || name == "aligned", "{name}: {} again", block.address());
        let error = allocator.free_block(block, DEFAULT).unwrap_err();
        assert_eq!(matches!(error, Error::StaleBlock { .. }), again, "{name}: {error}");
        allocator.free_block(later, DEFAULT).unwrap();
        assert_eq!(pool.block_at(later.address()), None, "{name}");
    };
    wrong(&pool, "pool");
    wrong(&&pool, "borrowed");
    wrong(&Arc::new(pool.clone()), "shared");
    let counted = Counted::new(pool.clone());
    wrong(&counted, "counted");
    let counts = counted.counts();
    assert_eq!((counts.allocations, counts.frees, counts.failed_frees), (2, 2, 7));
    let limited = Limited::new(pool.clone(), Bytes::mib(1));
    for _ in 0..2000 {
        wrong(&limited, "limited");
    }
    let tracked = Tracked::new(pool.clone());
    wrong(&tracked, "tracked");
    assert!(tracked.leaks().is_empty());
    wrong(&Failing::new(&pool, FailWhen::Never), "failing");
    let logged = Logged::new(&pool, Vec::new());
    wrong(&logged, "logged");
    let log = String::from_utf8(logged.into_parts().1).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains(",free,0x")).count(), 3, "{log}");
    wrong(&Aligned::new(pool.clone(), Alignment::of_log2(16).unwrap()), "aligned");
    assert_eq!((pool.statistics().blocks, other.statistics().blocks), (0, 1));
}

/// Two threads free the same block at once: one succeeds, and the other gets an error.
#[test]
fn of_two_frees_at_once_one_is_refused() {
    let (_, _, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let pool = Pool::new(&shared).unwrap();
    for size in [Bytes::new(512), Bytes::mib(40)] {
        for _ in 0..200 {
            let block = pool.allocate(size, DEFAULT).unwrap();
            let barrier = std::sync::Barrier::new(2);
            let freed = std::thread::scope(|scope| {
                let free = || {
                    barrier.wait();
                    pool.free_block(block, DEFAULT)
                };
                let threads = [scope.spawn(free), scope.spawn(free)];
                threads.map(|thread| thread.join().unwrap())
            });
            let refused: Vec<&Error> = freed.iter().filter_map(|one| one.as_ref().err()).collect();
            let [Error::DoubleFree { .. }] = refused[..] else { panic!("{freed:?}") };
        }
    }
    assert_eq!(pool.statistics().blocks, 0);
}

/// The memory is back when the drop of the last clone returns, whatever the upkeep thread does at that moment.
#[test]
fn the_last_drop_returns_the_memory_beside_upkeep() {
    let simulated = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(8));
    let (machine, _, shared) = open(simulated);
    for ahead in [Bytes::ZERO, Bytes::mib(64)] {
        for round in 0..60 {
            let options = PoolOptions::new().set(|set| {
                let set = set.upkeep(true).upkeep_interval(Duration::from_millis(1));
                set.grow_ahead(ahead)
            });
            let pool = options.build(&shared).unwrap();
            let block = pool.on(DEFAULT).owned(Bytes::gib(7)).unwrap();
            drop((block, pool));
            assert_eq!(machine.census().held, Bytes::ZERO, "round {round}, {ahead} ahead");
        }
    }
}

/// Nor does it matter that the last reference is a scope's, that others read the figures of all pools meanwhile, or that a
/// thread ends that used its own stream.
#[test]
fn the_last_drop_returns_the_memory_beside_scopes_and_readers() {
    let simulated = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(8));
    let (machine, _, shared) = open(simulated);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    crate::monitor::snapshot();
                    // Readers that never pause leave two processors no time for the pools.
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..40 {
                let upkeep = round % 2 == 0;
                let options = PoolOptions::new()
                    .set(|set| set.upkeep(upkeep).upkeep_interval(Duration::from_millis(1)));
                let pool = options.build(&shared).unwrap();
                let block = pool.on(DEFAULT).owned(Bytes::gib(7)).unwrap();
                let user = pool.clone();
                let (ends, ending) = std::sync::mpsc::channel();
                let thread = std::thread::spawn(move || {
                    drop(user.on(StreamHandle::PER_THREAD).owned(Bytes::mib(1)));
                    drop(user);
                    ends.send(()).unwrap();
                });
                let scope = pool.scope();
                ending.recv().unwrap();
                drop((block, pool));
                drop(scope);
                assert_eq!(machine.census().held, Bytes::ZERO, "round {round}");
                thread.join().unwrap();
            }
        }));
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        ended.unwrap();
    });
}

/// A callback on the upkeep thread may drop the last clone, and may wait for the thread that drops it.
#[test]
fn a_callback_of_upkeep_and_the_last_drop_do_not_wait_for_each_other() {
    let (machine, _, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    for _ in 0..30 {
        let kept: Arc<Mutex<Option<Pool>>> = Arc::default();
        let in_callback = Arc::clone(&kept);
        let options = PoolOptions::new().max_bytes(Bytes::mib(100)).set(|set| {
            let set = set.upkeep(true).upkeep_interval(Duration::from_millis(1));
            set.collect_after(Duration::from_millis(1))
        });
        let options = options.on_pressure(move |_, _| drop(in_callback.lock().unwrap().take()));
        let pool = options.build(&shared).unwrap();
        let block = pool.allocate(Bytes::mib(90), DEFAULT).unwrap();
        pool.free_block(block, DEFAULT).unwrap();
        let mut guard = kept.lock().unwrap();
        *guard = Some(pool);
        std::thread::sleep(Duration::from_millis(2));
        // With the lock held that the callback needs.
        if let Some(pool) = guard.take() {
            drop(pool);
        }
    }
    super::upkeep::eventually("all memory is back", || machine.census().held.is_zero());
}

/// What a callback owns is dropped with the pool, perhaps by a thread in its turn, and may wait for the thread that drops
/// the pool.
#[test]
fn what_a_callback_owns_and_the_last_drop_do_not_wait_for_each_other() {
    use std::sync::mpsc::channel;
    use std::thread::{self, ThreadId};

    struct Owned(Arc<Mutex<()>>, ThreadId);
    impl Drop for Owned {
        fn drop(&mut self) {
            // On the thread that has the lock it would be a mistake of the program's.
            if thread::current().id() != self.1 {
                drop(self.0.lock());
            }
        }
    }

    let (done, is_done) = channel();
    thread::spawn(move || {
        let (_machine, _, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
        for _ in 0..1000 {
            let lock = Arc::new(Mutex::new(()));
            let owned = Owned(Arc::clone(&lock), thread::current().id());
            let options = PoolOptions::new().on_shortage(move |_| {
                let _owned = &owned;
                false
            });
            let pool = options.build(&shared).unwrap();
            let (ends, ending) = channel();
            let user = pool.clone();
            let thread = thread::spawn(move || {
                drop(user.on(StreamHandle::PER_THREAD).owned(Bytes::mib(1)));
                drop(user);
                ends.send(()).unwrap();
            });
            ending.recv().unwrap();
            let held = lock.lock().unwrap();
            drop(pool);
            drop(held);
            thread.join().unwrap();
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(100)).expect("a drop waits for ever");
}
