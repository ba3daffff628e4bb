use super::*;

const GE: Transformer = Transformer {
    batch: 4,
    sequence: 512,
    hidden: 512,
    heads: 8,
    layers: 6,
    vocabulary: 10_000,
    bytes_per_element: 4,
};

fn phantom(most: Bytes) -> Bench {
    let memory = forebay_sim::MemoryModel::Phantom;
    Bench::with(SimMachine::builder().memory(memory), PoolOptions::new().max_bytes(most))
}

#[test]
fn the_shapes_are_those_of_the_model() {
    let shapes = GE.shapes().unwrap();
    let mib = |size: Bytes| size.get() as f64 / 1048576.0;
    let seen: Vec<(f64, u64)> = shapes.iter().map(|&(size, count)| (mib(size), count)).collect();
    assert_eq!(seen, [(4.0, 48), (32.0, 6), (16.0, 6), (78.125, 1)]);
    assert_eq!(shapes.iter().map(|&(_, count)| count).sum::<u64>(), 61);
}

#[test]
fn figures_beyond_64_bits_are_refused() {
    for absurd in [
        Transformer { batch: u64::MAX, ..GE },
        Transformer { vocabulary: u64::MAX, ..GE },
        Transformer { layers: u64::MAX, ..GE },
        Transformer { sequence: 1 << 31, ..GE },
    ] {
        assert!(absurd.shapes().is_err(), "{absurd:?}");
    }
    assert!(Transformer { layers: 0, ..GE }.shapes().is_ok());
    let bench = phantom(Bytes::MAX);
    assert!(warm_up(&bench.pool, &[(Bytes::mib(1), u64::MAX)], DEFAULT).is_err());
    assert_eq!(bench.pool.statistics().allocations, 0);
}

/// After a warm-up the same step asks the driver for nothing.
#[test]
fn a_warm_pool_need_not_ask_the_driver() {
    let bench = phantom(Bytes::gib(2));
    let shapes = GE.shapes().unwrap();
    let warm = warm_up(&bench.pool, &shapes, DEFAULT).unwrap();
    assert!(warm.is_complete() && warm.refusal.is_none());
    assert_eq!((warm.asked_blocks, warm.had_blocks), (61, 61));
    assert_eq!(warm.asked_bytes, Bytes::new((48 * 4 + 6 * 32 + 6 * 16) * 1048576 + 81_920_000));
    assert_eq!(warm.had_bytes, warm.asked_bytes);
    assert_eq!(bench.live(), Bytes::ZERO);
    let calls = bench.machine.calls();
    let mut step = Vec::new();
    for &(size, count) in &shapes {
        for _ in 0..count {
            step.push(bench.pool.on(DEFAULT).owned(size).unwrap());
        }
    }
    while step.pop().is_some() {}
    let after = bench.machine.calls();
    assert_eq!(after.of(Call::CreatePage), calls.of(Call::CreatePage));
}

/// Where there is not room for all, what fits is taken, and the figures say so.
#[test]
fn a_limit_is_kept_and_told() {
    let bench = phantom(Bytes::mib(128));
    let shapes = [(Bytes::mib(1), 10), (Bytes::mib(50), 4), (Bytes::ZERO, u64::MAX)];
    let warm = warm_up(&bench.pool, &shapes, DEFAULT).unwrap();
    assert!(!warm.is_complete());
    assert_eq!((warm.asked_blocks, warm.asked_bytes), (14, Bytes::mib(210)));
    assert_eq!((warm.had_blocks, warm.had_bytes), (12, Bytes::mib(110)));
    assert!(matches!(&warm.refusal, Some(Error::OutOfMemory(shortage))
        if shortage.requested == Bytes::mib(50)));
    let statistics = bench.pool.statistics();
    assert_eq!(statistics.live, Bytes::ZERO);
    assert!(statistics.held >= Bytes::mib(110) && statistics.held <= Bytes::mib(128));
}

#[test]
fn any_call_may_fail_and_nothing_stays_taken() {
    let turn = counting_lost();
    sweep(|bench| {
        let before = lost_frees().count;
        let _ = warm_up(&bench.pool, &[(Bytes::new(1000), 3), (Bytes::mib(3), 3)], DEFAULT);
        assert_eq!((bench.live(), lost_frees().count), (Bytes::ZERO, before));
    });
    drop(turn);
}
