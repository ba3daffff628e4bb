use forebay_core::Alignment;

use super::*;
use crate::Request;

fn sizes() -> Vec<Bytes> {
    [3000, 0, 5 << 20, 1, 300_000, 5 << 20, 512].map(Bytes::new).to_vec()
}

#[test]
fn blocks_come_in_the_callers_order_and_go_one_by_one() {
    let bench = Bench::new();
    let mut blocks = allocate_batch(&bench.pool, &sizes(), DEFAULT).unwrap();
    assert!(blocks.iter().map(OwnedBlock::requested).eq(sizes()));
    assert!(blocks[1].address().is_null());
    while let Some(block) = blocks.pop() {
        let before = bench.live();
        let size = block.size();
        drop(block);
        assert_eq!(before.checked_sub(bench.live()), Some(size));
    }
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn the_largest_are_asked_for_first() {
    let bench = Bench::new();
    let recorder = Recorder::new(&bench.pool);
    let blocks = allocate_batch(&recorder, &sizes(), DEFAULT).unwrap();
    let asked: Vec<Bytes> = recorder.requests.lock().unwrap().iter().map(Request::size).collect();
    assert!(asked.is_sorted_by(|a, b| a >= b), "{asked:?}");
    assert_eq!(asked.len(), blocks.len());
}

/// At a limit: not one block is left of a batch that does not fit.
#[test]
fn a_batch_that_does_not_fit_leaves_nothing() {
    let turn = counting_lost();
    let bench = Bench::limited(Bytes::mib(64));
    let kept = bench.pool.on(DEFAULT).owned(Bytes::mib(10)).unwrap();
    let (before, lost) = (bench.pool.statistics(), lost_frees().count);
    let too_much = [Bytes::mib(20), Bytes::new(100), Bytes::mib(20), Bytes::mib(20)];
    let error = allocate_batch(&bench.pool, &too_much, DEFAULT).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(shortage) if shortage.requested == Bytes::mib(20)));
    let after = bench.pool.statistics();
    assert_eq!((after.live, after.requested), (before.live, before.requested));
    assert_eq!(lost_frees().count, lost);
    assert_eq!(after.allocations - before.allocations, after.frees - before.frees);
    // What was given back is there for one that fits.
    let fits = allocate_batch(&bench.pool, &too_much[..3], DEFAULT).unwrap();
    drop((fits, kept));
    assert!(Batch::new(&bench.pool, &[Bytes::mib(40), Bytes::mib(40)], DEFAULT).is_err());
    assert_eq!(bench.live(), Bytes::ZERO);
    drop(turn);
}

#[test]
fn parts_of_one_block_are_aligned_and_apart() {
    let bench = Bench::new();
    let batch = Batch::new(&bench.pool, &sizes(), DEFAULT).unwrap();
    let parts = batch.parts();
    assert!(parts.iter().map(|part| part.size()).eq(sizes()));
    assert!(parts[1].start().is_null());
    let whole = Span::new(batch.block().address(), batch.block().size()).unwrap();
    let real: Vec<Span> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    for (index, part) in real.iter().enumerate() {
        assert!(part.start().is_aligned_to(Alignment::BLOCK));
        assert!(whole.contains_span(*part));
        assert!(real.iter().skip(index + 1).all(|other| !part.overlaps(*other)));
    }
    assert_eq!(bench.pool.statistics().allocations, 1);
    drop(batch);
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn sizes_that_do_not_add_up_are_refused() {
    let bench = Bench::new();
    for absurd in
        [vec![Bytes::MAX], vec![Bytes::new(1 << 63); 2], vec![Bytes::new(u64::MAX - 511); 2]]
    {
        let error = Batch::new(&bench.pool, &absurd, DEFAULT).unwrap_err();
        assert!(error.to_string().contains("64 bits"), "{error}");
    }
    assert_eq!(bench.pool.statistics().allocations, 0);
    assert!(allocate_batch(&bench.pool, &[Bytes::MAX, Bytes::new(1)], DEFAULT).is_err());
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn nothing_is_a_batch_too() {
    let bench = Bench::new();
    assert!(allocate_batch(&bench.pool, &[], DEFAULT).unwrap().is_empty());
    let batch = Batch::new(&bench.pool, &[Bytes::ZERO; 3], DEFAULT).unwrap();
    assert_eq!(batch.parts(), [Span::default(); 3]);
    assert!(batch.into_block().address().is_null());
}

#[test]
fn any_call_may_fail_and_no_part_of_a_batch_stays() {
    let turn = counting_lost();
    sweep(|bench| {
        let before = lost_frees().count;
        let batch = allocate_batch(&bench.pool, &sizes(), DEFAULT);
        if batch.is_err() {
            assert_eq!(bench.live(), Bytes::ZERO);
        }
        assert_eq!(lost_frees().count, before);
    });
    drop(turn);
}
