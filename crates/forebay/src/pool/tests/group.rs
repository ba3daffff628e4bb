//! Pools that share a limit stay below it together, and their peaks are those of the sum.

use super::*;

fn first(limit: Bytes) -> PoolOptions {
    PoolOptions::new().growth(small_pages()).max_bytes(limit)
}

fn beside(pool: &Pool, class: MemoryClass) -> Pool {
    let options = PoolOptions::new().growth(small_pages()).class(class);
    options.sharing_limit_with(pool).build(pool.device()).unwrap()
}

#[test]
fn pools_of_a_group_hold_no_more_than_the_limit_of_the_first() {
    for class in [MemoryClass::STITCHED, MemoryClass::STABLE, MemoryClass::PLAIN] {
        let (machine, _, device) = open(SimMachine::builder());
        let pool = first(Bytes::mib(64)).build(&device).unwrap();
        let other = beside(&pool, class);
        let alone = PoolOptions::new().build(&device).unwrap();
        let large = alone.allocate(Bytes::mib(100), DEFAULT).unwrap();
        assert_eq!((pool.limit(), other.limit()), (Bytes::mib(64), Bytes::mib(64)));
        let block = pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
        let Err(Error::OutOfMemory(shortage)) = other.allocate(Bytes::mib(40), DEFAULT) else {
            panic!("more than the limit")
        };
        assert_eq!((shortage.limit, shortage.held_by_group), (Bytes::mib(64), pool.held()));
        assert!(
            shortage.to_string().contains("pools that share the limit hold 40.00 MiB"),
            "{shortage}"
        );
        assert!(shortage.to_string().contains("raise the limit to 83886080 B"), "{shortage}");
        let small = other.allocate(Bytes::mib(20), DEFAULT).unwrap();
        assert!(pool.allocate(Bytes::mib(20), DEFAULT).is_err(), "neither does the first pool");
        // Free memory of another pool is not taken from it.
        pool.free_block(block, DEFAULT).unwrap();
        assert!(other.allocate(Bytes::mib(40), DEFAULT).is_err());
        pool.trim(Bytes::ZERO).unwrap();
        let block = other.allocate(Bytes::mib(40), DEFAULT).unwrap();
        // The settings of the first pool are those of all.
        other.set("max_bytes", "1GiB").unwrap();
        assert!(other.allocate(Bytes::mib(40), DEFAULT).is_err());
        pool.set("max_bytes", "128MiB").unwrap();
        assert_eq!(other.limit(), Bytes::mib(128));
        let more = other.allocate(Bytes::mib(40), DEFAULT).unwrap();
        for block in [small, block, more] {
            other.free_block(block, DEFAULT).unwrap();
        }
        // A pool that is gone holds nothing.
        drop(other);
        assert_eq!(pool.group_statistics().held.now, pool.held());
        let all = pool.allocate(Bytes::mib(128), DEFAULT).unwrap();
        pool.free_block(all, DEFAULT).unwrap();
        alone.free_block(large, DEFAULT).unwrap();
        drop((pool, alone));
        nothing_is_left(&machine);
    }
}

#[test]
fn the_pressure_is_that_of_the_group() {
    use forebay_core::pressure::Level;
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = first(Bytes::mib(100)).build(&device).unwrap();
    let other = beside(&pool, MemoryClass::STABLE);
    let _block = other.on(DEFAULT).owned(Bytes::mib(99)).unwrap();
    assert_eq!((pool.pressure(), other.pressure()), (Level::Critical, Level::Critical));
}

#[test]
fn the_peak_of_the_sum_is_not_the_sum_of_peaks() {
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = first(Bytes::mib(200)).build(&device).unwrap();
    let other = beside(&pool, MemoryClass::STITCHED);
    let size = Bytes::mib(40);
    for pool in [&pool, &other] {
        let block = pool.allocate(size, DEFAULT).unwrap();
        pool.free_block(block, DEFAULT).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
    }
    let statistics = pool.group_statistics();
    assert_eq!(statistics, other.group_statistics());
    assert_eq!((statistics.out.now, statistics.out.peak), (Bytes::ZERO, size));
    assert_eq!((statistics.held.now, statistics.held.peak), (Bytes::ZERO, size));
    assert_eq!((statistics.large_out.peak, statistics.large_held.peak), (size, size));
    assert_eq!((statistics.small_out.peak, statistics.small_held.peak), (Bytes::ZERO, Bytes::ZERO));
    let one = pool.allocate(size, DEFAULT).unwrap();
    let two = other.allocate(size, DEFAULT).unwrap();
    assert_eq!(pool.group_statistics().out.peak, Bytes::mib(80));
    other.free_block(two, DEFAULT).unwrap();
    other.trim(Bytes::ZERO).unwrap();
    pool.reset_group_peaks();
    let statistics = other.group_statistics();
    assert_eq!((statistics.out.now, statistics.out.peak), (size, size));
    assert_eq!((statistics.held.now, statistics.held.peak), (size, size));
    pool.free_block(one, DEFAULT).unwrap();
}

/// After every call the figures are the sums over the pools, and the peaks the highest there were.
#[test]
fn the_figures_of_a_group_are_exact() {
    for seed in 0..10 {
        let (_machine, device, shared) = open(SimMachine::builder().seed(seed));
        let pool = first(Bytes::mib(60)).build(&shared).unwrap();
        let classes = [MemoryClass::STABLE, MemoryClass::PLAIN];
        let [one, two] = classes.map(|class| beside(&pool, class));
        let pools = [pool, one, two];
        let mut random = Random::new(seed);
        let stream = device.create_stream(Priority::Normal).unwrap();
        let mut live: Vec<(usize, Block)> = Vec::new();
        let mut peaks = [Bytes::ZERO; 2];
        for _ in 0..400 {
            let index = random.index(pools.len()).unwrap();
            match random.below(20) {
                0..=10 => {
                    let size = Bytes::new(size_up_to(&mut random, 8, 23));
                    let order = *random.pick(&[DEFAULT, stream]).unwrap();
                    live.extend(pools[index].allocate(size, order).ok().map(|it| (index, it)));
                }
                11..=18 => {
                    let Some(place) = random.index(live.len()) else { continue };
                    let (index, block) = live.swap_remove(place);
                    pools[index].free_block(block, DEFAULT).unwrap();
                }
                _ => drop(pools[index].trim(Bytes::ZERO).unwrap()),
            }
            let sum =
                |of: fn(&Pool) -> Bytes| Bytes::new(pools.iter().map(|it| of(it).get()).sum());
            let (out, held) = (sum(|pool| pool.shared.heap().out()), sum(Pool::held));
            peaks = [peaks[0].max(out), peaks[1].max(held)];
            let statistics = pools[0].group_statistics();
            assert_eq!((statistics.out.now, statistics.held.now), (out, held));
            assert!(held <= Bytes::mib(60) && statistics.held.peak <= Bytes::mib(60));
            assert!(statistics.out.peak >= peaks[0] && statistics.held.peak >= peaks[1]);
            let parts = [statistics.small_out, statistics.large_out].map(|part| part.now.get());
            assert_eq!(parts.iter().sum::<u64>(), out.get());
            let parts = [statistics.small_held, statistics.large_held].map(|part| part.now.get());
            assert_eq!(parts.iter().sum::<u64>(), held.get());
        }
        assert_eq!(pools[0].group_statistics().out.peak, peaks[0]);
        for (index, block) in live {
            pools[index].free_block(block, DEFAULT).unwrap();
        }
    }
}

#[test]
fn a_growth_that_fails_leaves_nothing_reserved() {
    let (machine, _, device) = open(SimMachine::builder());
    let pool = first(Bytes::mib(64)).build(&device).unwrap();
    for class in [MemoryClass::STABLE, MemoryClass::PLAIN] {
        let other = beside(&pool, class);
        for call in [Call::CreatePage, Call::Map, Call::SetAccess, Call::Allocate] {
            for kind in [FaultKind::OutOfMemory, FaultKind::Transient] {
                machine.plan(Fault::new(When::Every(call), kind));
                let _ = other.allocate(Bytes::mib(40), DEFAULT).map(|block| {
                    other.free_block(block, DEFAULT).unwrap();
                });
                machine.clear_faults();
            }
        }
        drop(other);
        assert_eq!(pool.group_statistics().held.now, pool.held());
        let block = pool.allocate(Bytes::mib(64), DEFAULT).unwrap();
        pool.free_block(block, DEFAULT).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
    }
}

/// Threads that grow several pools at once: the device never has more in use than the limit.
#[test]
fn threads_that_grow_several_pools_stay_below_the_limit() {
    let (machine, _, device) = open(SimMachine::builder());
    let limit = Bytes::mib(12);
    let pool = first(limit).build(&device).unwrap();
    let kinds = [MemoryClass::STITCHED, MemoryClass::PLAIN, MemoryClass::STITCHED];
    let pools: Vec<Pool> = kinds.into_iter().map(|class| beside(&pool, class)).collect();
    let refusals = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (thread, pool) in (0..).zip(pools.iter().chain([&pool])) {
            let (machine, refusals) = (&machine, &refusals);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..60 {
                    let mut live = Vec::new();
                    for _ in 0..6 {
                        let size = Bytes::new(size_up_to(&mut random, 16, 22));
                        match pool.allocate(size, DEFAULT) {
                            Ok(block) => live.push(block),
                            Err(Error::OutOfMemory(_)) => {
                                refusals.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => panic!("{error}"),
                        }
                        let held = machine.census().held;
                        assert!(held <= limit, "{held} in use of the device");
                    }
                    for block in live {
                        pool.free_block(block, DEFAULT).unwrap();
                    }
                    pool.trim(Bytes::ZERO).unwrap();
                }
            });
        }
    });
    assert!(refusals.load(Ordering::Relaxed) > 0, "the limit was never reached");
    assert!(pool.group_statistics().held.peak <= limit);
    assert_eq!(pool.group_statistics().held.now, Bytes::ZERO);
    let all = pool.allocate(limit, DEFAULT).unwrap();
    pool.free_block(all, DEFAULT).unwrap();
}

/// Pages on their way to the device and back count as those of large blocks, small ones too: taken back, they change sides.
#[test]
fn bytes_that_change_sides_make_no_peak() {
    use crate::pool::common::group::{Group, PoolGauges};
    let group = Arc::<Group>::default();
    let mut gauges = PoolGauges::new(&group);
    let (none, some) = (Bytes::ZERO, Bytes::mib(3));
    for held in [[none, some], [some, none], [none, some]] {
        gauges.set_held(held);
        assert_eq!(group.statistics().held.peak, some);
    }
    drop(gauges);
    assert_eq!(group.held(), none);
}

#[test]
fn bytes_outside_are_replaced_once_whoever_does_it() {
    use crate::pool::common::group::Group;
    let (group, most) = (Group::default(), Bytes::mib(1));
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let group = &group;
            scope.spawn(move || {
                for round in 0..300_000 {
                    let is_one = (thread + round) % 2 == 0;
                    group.set_outside(if is_one { most } else { Bytes::ZERO });
                    let claimed = group.quota.claimed();
                    assert!(claimed <= most, "{claimed} of {most}");
                }
            });
        }
    });
    group.set_outside(Bytes::ZERO);
    assert_eq!(group.quota.claimed(), Bytes::ZERO);
}
