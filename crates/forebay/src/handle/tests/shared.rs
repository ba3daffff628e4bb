use forebay_core::Random;

use super::*;

fn share(bench: &Bench, stream: StreamHandle) -> SharedBlock {
    SharedBlock::from(bench.pool.on(stream).owned(Bytes::mib(1)).unwrap())
}

#[test]
fn the_last_owner_gives_it_back() {
    let bench = Bench::new();
    let shared = share(&bench, DEFAULT);
    let others: Vec<SharedBlock> = (0..5).map(|_| shared.clone()).collect();
    assert_eq!(shared.owners(), 6);
    assert!(others.iter().all(|other| other.block() == shared.block()));
    drop(shared);
    assert_eq!(bench.live(), Bytes::mib(1));
    drop(others);
    assert_eq!(bench.live(), Bytes::ZERO);
    assert_eq!(bench.pool.statistics().frees, 1);
}

#[test]
fn only_the_last_owner_has_it_alone() {
    let bench = Bench::new();
    let shared = share(&bench, DEFAULT);
    let other = shared.clone();
    let refused = shared.into_owned().unwrap_err();
    assert!(refused.error().to_string().contains("2 owners"), "{refused}");
    let shared = refused.into_handle();
    drop(other);
    let owned = shared.into_owned().unwrap();
    assert_eq!(bench.live(), owned.size());
    owned.free().unwrap();
    assert_eq!(bench.live(), Bytes::ZERO);
}

/// Readers on three streams; the writer that gets the memory next comes after all of them.
#[test]
fn reuse_waits_for_every_stream_that_was_noted() {
    let bench = Bench::new();
    let shared = share(&bench, DEFAULT);
    bench.write("fill", shared.block(), DEFAULT);
    for number in 0..3 {
        let (stream, reader) = (bench.stream(), shared.clone());
        bench.order(DEFAULT, stream);
        bench.read(&format!("read {number}"), reader.block(), stream);
        reader.used_on(stream);
    }
    let address = shared.address();
    drop(shared);
    let next = share(&bench, DEFAULT);
    assert_ne!(next.address(), address, "the readers are not done, and nothing waits for them");
    bench.write("again", next.block(), DEFAULT);
    bench.assert_no_race();
    bench.pool.process_deferred().unwrap();
    let last = share(&bench, DEFAULT);
    assert_eq!(last.address(), address, "now they are");
    bench.write("last", last.block(), DEFAULT);
    bench.assert_no_race();
}

/// What is enqueued after the stream was noted counts as well, up to the last drop.
#[test]
fn later_work_on_a_noted_stream_is_waited_for() {
    let bench = Bench::new();
    let side = bench.stream();
    let shared = share(&bench, DEFAULT);
    shared.used_on(side);
    bench.write("after noting", shared.block(), side);
    drop(shared);
    let next = share(&bench, DEFAULT);
    bench.write("again", next.block(), DEFAULT);
    bench.assert_no_race();
}

/// The order noted by sharing stays with the one owner that is left.
#[test]
fn what_was_noted_stays_with_the_block() {
    let bench = Bench::new();
    let side = bench.stream();
    let shared = share(&bench, DEFAULT);
    bench.write("side", shared.block(), side);
    shared.used_on(side);
    shared.into_owned().unwrap().free().unwrap();
    let next = share(&bench, DEFAULT);
    bench.write("again", next.block(), DEFAULT);
    bench.assert_no_race();
}

/// Random owners on random streams that go in random order; what is written next must not race.
#[test]
fn random_sharing_never_races() {
    for seed in 0..40 {
        let bench = Bench::with(SimMachine::builder().seed(seed), PoolOptions::new());
        let mut random = Random::new(seed);
        let streams: Vec<StreamHandle> = (0..4).map(|_| bench.stream()).collect();
        let mut owners: Vec<SharedBlock> = Vec::new();
        for step in 0..150 {
            if owners.is_empty() || random.chance(1, 4) {
                let home = *random.pick(&streams).unwrap();
                let size = Bytes::new(512 << random.below(12));
                let shared = SharedBlock::from(bench.pool.on(home).owned(size).unwrap());
                bench.write(&format!("write {step}"), shared.block(), home);
                owners.push(shared);
            } else if random.chance(1, 2) {
                let owner = random.pick(&owners).unwrap().clone();
                let stream = *random.pick(&streams).unwrap();
                bench.order(owner.stream(), stream);
                bench.read(&format!("read {step}"), owner.block(), stream);
                owner.used_on(stream);
                owners.push(owner);
            } else {
                drop(owners.swap_remove(random.index(owners.len()).unwrap()));
            }
        }
        drop(owners);
        bench.assert_no_race();
        assert_eq!(bench.live(), Bytes::ZERO, "seed {seed}");
    }
}

#[test]
fn threads_share_and_the_last_one_frees() {
    let bench = Bench::new();
    for _ in 0..50 {
        let shared = share(&bench, DEFAULT);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let owner = shared.clone();
                let bench = &bench;
                scope.spawn(move || {
                    let stream = bench.stream();
                    bench.order(DEFAULT, stream);
                    bench.read("read", owner.block(), stream);
                    owner.used_on(stream);
                });
            }
            drop(shared);
        });
        let next = share(&bench, DEFAULT);
        bench.write("again", next.block(), DEFAULT);
    }
    bench.assert_no_race();
    assert_eq!(bench.pool.statistics().live, Bytes::ZERO);
    assert_eq!(bench.pool.statistics().frees, 100);
}

#[test]
fn any_call_may_fail_and_the_block_goes_back() {
    let turn = counting_lost();
    sweep(|bench| {
        let streams: Vec<StreamHandle> =
            (0..3).filter_map(|_| bench.device.create_stream(Priority::Normal).ok()).collect();
        let before = lost_frees().count;
        for size in [1_u64 << 20, 8 << 20] {
            let Ok(owned) = bench.pool.on(DEFAULT).owned(Bytes::new(size)) else { continue };
            let shared = SharedBlock::from(owned);
            for &stream in &streams {
                shared.clone().used_on(stream);
            }
        }
        assert_eq!(lost_frees().count, before);
    });
    drop(turn);
}
