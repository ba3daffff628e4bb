use proptest::prelude::*;

use super::*;
use crate::{Bytes, Random};

/// The bytes of a shape as pairs of addresses, written and read.
fn pairs_of(to: CopyEnd, from: CopyEnd, (width, rows, slices): (u64, u64, u64)) -> Vec<(u64, u64)> {
    let mut pairs = Vec::new();
    for slice in 0..slices {
        for row in 0..rows {
            let at = |end: CopyEnd| end.start + slice * end.slice + row * end.row;
            pairs.extend((0..width).map(|byte| (at(to) + byte, at(from) + byte)));
        }
    }
    pairs.sort_unstable();
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_have_every_byte_of_the_shape_once(
        (width, rows, slices) in (0_u64..40, 0_u64..8, 0_u64..5),
        gaps in [0_u64..3, 0..3, 0..3, 0..3],
        room in 1_u64..200,
        max_pitch in prop_oneof![Just(4_u64), Just(1 << 30)],
        (least, threads) in (0_u64..50, 0_u64..5),
    ) {
        let end = |start, row_gap, slice_gap: u64| {
            let row = width + row_gap;
            CopyEnd { start, row, slice: row * (rows + slice_gap) }
        };
        let (to, from) = (end(1 << 40, gaps[0], gaps[1]), end(1 << 30, gaps[2], gaps[3]));
        let shape = CopyShape::new(to, from, (width, rows, slices));
        prop_assert_eq!(shape.bytes().get(), width * rows * slices);
        let mut found = Vec::new();
        let pieces = shape.pieces(Bytes::new(room), max_pitch).paced(Pace { least, threads });
        for piece in pieces {
            prop_assert!(piece.bytes().get() <= room && piece.bytes().get() > 0, "{piece:?}");
            prop_assert!(piece.rows == 1 || piece.to.row.max(piece.from.row) <= max_pitch);
            let end = |end: CopyEnd| CopyEnd { slice: 0, ..end };
            found.extend(pairs_of(end(piece.to), end(piece.from), (piece.width, piece.rows, 1)));
        }
        found.sort_unstable();
        prop_assert_eq!(found, pairs_of(to, from, (width, rows, slices)));
    }

    #[test]
    fn pieces_are_few_and_within_bounds(
        total in 1_u64..1 << 40,
        least in 1_u64..1 << 20,
        (times, threads) in (1_u64..64, 1_u64..64),
    ) {
        let (pace, most) = (Pace { least, threads }, least * times);
        let (mut done, mut count) = (0, 0);
        // Not all pieces of a terabyte: those at both ends.
        let skip = total.saturating_sub(4 * most * threads);
        while done < total {
            let size = pace.size(done, total, most);
            prop_assert!(size >= least && size <= most && size.is_multiple_of(least), "{size}");
            done += size;
            count += 1;
            if done > 2 * most * threads && done < skip {
                done = skip;
            }
        }
        // Each doubling of the pieces takes a round of all threads, and so does each halving of the rest.
        let rounds = 8 + 4 * u64::from(times.ilog2() + 1);
        prop_assert!(count <= 2 * threads * rounds, "{count} pieces for {threads} threads");
    }

    #[test]
    fn loads_have_every_byte_of_the_items_once_and_in_order(
        sizes in proptest::collection::vec((0_u64..30, any::<bool>()), 0..40),
        room in 1_u64..64,
    ) {
        let (mut host, mut device, mut items) = (1000, 5000, Vec::new());
        for (size, adjacent) in sizes {
            items.push(Item { host, device, size });
            host += size + 7;
            device += size + if adjacent { 0 } else { 3 };
        }
        let expected: Vec<(u64, u64)> = items
            .iter()
            .flat_map(|item| (0..item.size).map(|byte| (item.host + byte, item.device + byte)))
            .collect();
        let (mut packing, mut found) = (Packing::new(room), Vec::new());
        while let Some(load) = packing.load(&items) {
            prop_assert!(load.size <= room && load.size > 0, "{load:?}");
            // What the staging memory holds, byte by byte.
            let mut staged = Vec::new();
            for (number, item) in items[load.items.clone()].iter().enumerate() {
                let skip = if number == 0 { load.skip } else { 0 };
                staged.extend((skip..item.size).map(|byte| item.host + byte));
            }
            let index = |at: u64| usize::try_from(at).unwrap();
            staged.truncate(index(load.size));
            for run in &load.runs {
                let bytes = &staged[index(run.offset)..index(run.offset + run.size)];
                found.extend(bytes.iter().copied().zip(run.device..));
            }
        }
        prop_assert_eq!(found, expected);
    }

    /// Whatever comes and goes: no turn while a higher priority wants one, turns for the first few of a priority alone,
    /// and each of these has one before any has two.
    #[test]
    fn turns_are_by_priority_and_fair(
        steps in proptest::collection::vec((0_u8..4, 0_u8..3), 0..200),
        at_once in 1_usize..4,
    ) {
        let (mut queue, mut wanted, mut next) = (TransferQueue::new(at_once), Vec::<(u8, u32)>::new(), 0_u32);
        let mut since = Vec::<u32>::new();
        for (step, priority) in steps {
            let first: Vec<u32> =
                wanted.iter().filter(|one| one.0 == priority).take(at_once).map(|one| one.1).collect();
            match step {
                0 => {
                    queue.push(priority, next);
                    wanted.push((priority, next));
                    next += 1;
                    since.clear();
                }
                1 => {
                    let Some(&one) = first.first() else { continue };
                    prop_assert!(queue.retire(priority, &one));
                    prop_assert!(!queue.retire(priority, &one));
                    wanted.retain(|other| other.1 != one);
                    since.clear();
                }
                _ => {
                    let turn = queue.turn().copied();
                    let highest = wanted.iter().map(|one| one.0).max();
                    let first: Vec<u32> = wanted
                        .iter()
                        .filter(|one| Some(one.0) == highest)
                        .take(at_once)
                        .map(|one| one.1)
                        .collect();
                    let Some(turn) = turn else {
                        prop_assert_eq!(highest, None);
                        continue;
                    };
                    prop_assert!(first.contains(&turn), "{turn} is not among {first:?}");
                    prop_assert!(!since.contains(&turn), "a second turn of {turn} before {first:?} had one");
                    since.push(turn);
                    if since.len() == first.len() {
                        since.clear();
                    }
                }
            }
        }
        prop_assert_eq!(queue.is_empty(), wanted.is_empty());
    }

    #[test]
    fn delays_grow_within_bounds(seed: u64, retry in 0_u32..80) {
        let backoff = Backoff { retries: 64, ..Backoff::default() };
        let delay = backoff.delay(retry, &mut Random::new(seed));
        prop_assert_eq!(delay.is_none(), retry >= 64);
        if let Some(delay) = delay {
            prop_assert!(delay >= backoff.first / 2 && delay <= backoff.longest, "{delay:?}");
        }
    }
}

#[test]
fn what_lies_side_by_side_is_one() {
    let end = |start, slice| CopyEnd { start, row: 16, slice };
    let whole = CopyShape::new(end(0, 112), end(1 << 20, 112), (16, 7, 3));
    assert_eq!((whole.width, whole.rows, whole.slices), (336, 1, 1));
    let slices = CopyShape::new(end(0, 112), end(1 << 20, 160), (16, 7, 3));
    assert_eq!((slices.width, slices.rows, slices.slices), (112, 3, 1));
    assert_eq!((slices.to.row, slices.from.row), (112, 160));
}
