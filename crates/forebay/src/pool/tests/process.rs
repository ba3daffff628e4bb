//! Pools of the whole process, and blocks found by address alone.

use super::*;
use crate::{PoolId, Settings};

/// What the process has is one thing: tests that change it take turns.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    crate::sync::lock(&TURN)
}

#[test]
fn a_device_has_one_pool_in_the_process() {
    let _turn = turn();
    let (machine, _, device) = open(SimMachine::builder().devices(2));
    let second: Arc<dyn Device> = machine.device(1).unwrap();
    // The first call makes the pool, and all get the same.
    let ids: Vec<PoolId> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| Pool::of(&device).unwrap().id())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|&id| id == ids[0]), "{ids:?}");
    let pool = Pool::of(&Arc::clone(&device)).unwrap();
    let other = Pool::of(&second).unwrap();
    assert_ne!(pool.id(), other.id());
    assert_eq!(Pool::find(ids[0]).unwrap().id(), ids[0]);

    // A forgotten pool lives as long as its clones; the next call makes another.
    assert!(Pool::forget(&device));
    assert!(!Pool::forget(&device));
    let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let next = Pool::of(&device).unwrap();
    assert_ne!(next.id(), pool.id());
    pool.free(block.address(), DEFAULT).unwrap();
    drop(pool);
    assert_eq!(Pool::find(ids[0]).unwrap_err(), Error::PoolGone { pool: ids[0] });
    assert_eq!(Pool::forget_process_pools(), 2);
    assert!(Pool::find(other.id()).is_ok());
    drop((next, other));
    nothing_is_left(&machine);
}

#[test]
fn the_program_says_what_the_process_pools_are_and_finds_them() {
    let _turn = turn();
    let (_, _, device) = open(SimMachine::builder());
    let wanted = crate::Settings::builder().max_bytes(Bytes::mib(64)).build().unwrap();
    Pool::set_process_settings(Some(wanted));
    let pool = Pool::of(&device).unwrap();
    assert_eq!(pool.limit(), Bytes::mib(64));
    assert!(Pool::process_pools().iter().any(|found| found.id() == pool.id()));
    Pool::set_process_settings(None);
    assert_eq!(Pool::of(&device).unwrap().limit(), Bytes::mib(64), "what is there stays");
    assert!(Pool::forget(&device));
    assert!(Pool::process_pools().iter().all(|found| found.id() != pool.id()));
    assert!(Pool::of(&device).unwrap().limit() > Bytes::mib(64), "the environment again");
    assert!(Pool::forget(&device));
}

/// A device that cannot have a pool at the moment may have one later.
#[test]
fn a_pool_that_could_not_be_made_is_tried_again() {
    let _turn = turn();
    let (machine, _, device) = open(SimMachine::builder());
    machine.plan(Fault::new(When::Every(Call::Reserve), FaultKind::Transient));
    assert!(matches!(Pool::of(&device), Err(Error::Device(_))));
    machine.clear_faults();
    let pool = Pool::of(&device).unwrap();
    assert_eq!(pool.id(), Pool::of(&device).unwrap().id());
    assert!(Pool::forget(&device));
}

#[test]
fn a_block_is_freed_by_its_address_alone() {
    // Real memory, so that no other test's device has the same addresses.
    let (_, _, device) = open(SimMachine::builder());
    let pools = [(); 3].map(|()| Pool::new(&device).unwrap());
    let blocks = [0, 1, 2].map(|index| pools[index].allocate(Bytes::mib(1), DEFAULT).unwrap());
    assert_eq!(Pool::owning(blocks[1].address()).unwrap().id(), pools[1].id());
    crate::process::free(blocks[1].address(), DEFAULT).unwrap();
    assert!(Pool::owning(blocks[1].address()).is_none());
    let live = [0, 1, 2].map(|index| pools[index].statistics().blocks);
    assert_eq!(live, [1, 0, 1]);
    let error = crate::process::free(blocks[1].address(), DEFAULT).unwrap_err();
    assert_eq!(error, Error::DoubleFree { address: blocks[1].address(), size: Bytes::mib(1) });
    let inside = Address::new(blocks[0].address().get() + 512);
    for address in [inside, Address::new(4096), Address::new(u64::MAX)] {
        assert_eq!(
            crate::process::free(address, DEFAULT).unwrap_err(),
            Error::NotABlock { address }
        );
    }
    crate::process::free(Address::NULL, DEFAULT).unwrap();
    crate::process::free(blocks[0].address(), DEFAULT).unwrap();
    crate::process::free(blocks[2].address(), DEFAULT).unwrap();
    assert!(pools.iter().all(|pool| pool.statistics().live.is_zero()));
    let address = blocks[2].address();
    drop(pools);
    assert_eq!(crate::process::free(address, DEFAULT).unwrap_err(), Error::NotABlock { address });
}

#[test]
fn a_pool_is_found_by_its_number_as_long_as_it_lives() {
    let (_, _, device) = open(SimMachine::builder());
    let pool = Pool::new(&device).unwrap();
    let id = pool.id();
    let found = Pool::find(id).unwrap();
    drop(pool);
    let block = found.allocate(Bytes::mib(1), DEFAULT).unwrap();
    assert_eq!(block.pool(), id);
    drop(found);
    let gone = Pool::find(id).unwrap_err();
    assert_eq!(gone, Error::PoolGone { pool: id });
    assert!(gone.to_string().contains("was dropped"), "{gone}");
}

/// A free that asks all pools whose an address is does not come to end one of them: that is done by
/// whoever lets its last handle go.
#[test]
fn a_free_does_not_end_another_pool() {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    let (_, _, device) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let asking = Pool::new(&device).unwrap();
    let over = AtomicBool::new(false);
    let elsewhere = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let address = Address::new(512);
                asking.free(address, DEFAULT).unwrap_err();
                crate::process::free(address, DEFAULT).unwrap_err();
            }
        });
        let here = thread::current().id();
        for _ in 0..300 {
            let elsewhere = Arc::clone(&elsewhere);
            let told = PoolOptions::new().on_drop(move |_| {
                let there = u64::from(thread::current().id() != here);
                elsewhere.fetch_add(there, Ordering::Relaxed);
            });
            let pool = told.build(&device).unwrap();
            pool.allocate(Bytes::new(512), DEFAULT).unwrap();
            drop(pool);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(elsewhere.load(Ordering::Relaxed), 0, "pools were ended inside a free");
}

/// What a child process finds wrong with a pool of its own on `device`, by number: 0 is nothing.
#[cfg(unix)]
fn in_a_child(inherited: &Pool, device: &Arc<dyn Device>) -> i32 {
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};
    use core::time::Duration;

    use forebay_hal::Stream;

    let refused = inherited.allocate(Bytes::mib(3), DEFAULT);
    if !matches!(refused, Err(Error::Forked)) {
        return 1;
    }
    let options = PoolOptions::new().set(|set| {
        let set = set.upkeep(true).upkeep_interval(Duration::from_millis(1));
        set.collect_after(Duration::from_millis(5))
    });
    let Ok(pool) = options.build(device) else { return 2 };
    // The child's own pools are notified when a stream is destroyed.
    let Ok(stream) = Stream::new(device, Priority::Normal) else { return 3 };
    let handle = stream.handle();
    let Ok(block) = pool.allocate(Bytes::mib(3), handle) else { return 4 };
    if pool.free_block(block, handle).is_err() {
        return 5;
    }
    drop(stream);
    if pool.shared.heap().slots.knows(handle) {
        return 6;
    }
    // Threads of the library are started here as anywhere.
    let request = crate::Request::new(Bytes::mib(1), DEFAULT);
    let mut later = pin!(crate::handle::allocate_async(&pool, request, core::time::Duration::ZERO));
    let mut served = false;
    for _ in 0..5000 {
        match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(_)) => served = true,
            Poll::Ready(Err(_)) => return 7,
            Poll::Pending => {}
        }
        if served {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if !served {
        return 8;
    }
    for _ in 0..5000 {
        if pool.held().is_zero() {
            return 0;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    9
}

/// A pool that a child process makes is as good as any; one that it inherited is refused.
#[cfg(unix)]
#[test]
fn a_child_process_has_pools_of_its_own() {
    let (_, _, device) = open(SimMachine::builder());
    let with_upkeep = PoolOptions::new().set(|set| set.upkeep(true));
    let pool = with_upkeep.build(&device).unwrap();
    drop(crate::handle::allocate_async(
        &pool,
        crate::Request::new(Bytes::mib(1), DEFAULT),
        core::time::Duration::ZERO,
    ));
    // SAFETY: the child ends by `_exit`, or by an alarm if it waits for a lock that nobody will release.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::alarm(30) };
        let (machine, _, simulated) = open(SimMachine::builder().capacity(Bytes::gib(1)));
        let host: Arc<dyn Device> = forebay_host::HostDevice::open().unwrap();
        let mut wrong = in_a_child(&pool, &simulated);
        if wrong == 0 {
            wrong = match in_a_child(&pool, &host) {
                0 => i32::from(machine.finding_count() > 0) * 10,
                wrong => 20 + wrong,
            };
        }
        // SAFETY: as above.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: the child is this test's own, and the status can be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child hung");
    assert_eq!(libc::WEXITSTATUS(status), 0, "what is wrong in the child");
    pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
}

#[test]
fn a_pool_is_shown_with_its_name_while_it_lives() {
    let settings = Settings::builder().name("kv cache").build().unwrap();
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = PoolOptions::with(settings).build(&device).unwrap();
    let id = pool.id();
    assert_eq!(id.to_string(), format!("pool {} (kv cache)", id.get()));
    assert_eq!(pool.settings().name().get(), Some("kv cache"));
    assert!(pool.set("name", "other").is_err(), "the name is fixed");
    drop(pool);
    assert_eq!(id.to_string(), format!("pool {}", id.get()));
    let unnamed = Settings::builder().name("None").build().unwrap();
    assert_eq!(unnamed.name().get(), None);
    for wrong in ["", "a, b", " a", "a\nb", &"a".repeat(65)] {
        Settings::builder().name(wrong).build().unwrap_err();
    }
}
