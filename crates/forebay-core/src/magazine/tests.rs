use std::collections::BTreeMap;

use super::*;
use crate::Random;

fn drop_from(lists: &mut BTreeMap<u64, Vec<u64>>, block: u64, size: u64) {
    let list = lists.get_mut(&size).unwrap();
    let place = list.iter().position(|&other| other == block);
    list.remove(place.expect("it was kept, and not taken"));
}

/// The same calls on a magazine and on lists: what is taken was kept in that size, nothing is lost,
/// nothing is had twice, and no bound is passed. Without the reserve it is what was kept last.
#[test]
fn keeps_what_lists_keep() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let reserve = seed % 2 == 1;
        let bound = *random.pick(&[0, 4096, 1 << 20, u64::MAX]).unwrap();
        let small = 512 * 150;
        let mut magazine = Magazine::new(bound, small);
        let mut lists: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut next = 0;
        let (mut due, mut large_due) = (Tally::default(), Tally::default());
        for _ in 0..3000 {
            let size = 512 * (1 + random.below(200));
            if random.chance(1, 2) {
                next += 512;
                let room = magazine.keep(size, next)
                    || reserve && magazine.move_to_reserve(size) && magazine.keep(size, next);
                if !room {
                    magazine.evict_for(size, |block, size| drop_from(&mut lists, block, size));
                    let kept = magazine.keep(size, next);
                    assert_eq!(kept, bound > 0, "seed {seed}: no way was made");
                    if !kept {
                        continue;
                    }
                }
                lists.entry(size).or_default().push(next);
                due.add(Tally::of(size, 0, 1));
                large_due.add(Tally::of(size, 0, u64::from(size > small)));
            } else {
                let last = lists.get(&size).and_then(|list| list.last()).copied();
                if reserve {
                    magazine.refill(size);
                }
                let is_small = size <= small && random.chance(1, 2);
                let got =
                    if is_small { magazine.take_small::<true>(size) } else { magazine.take(size) };
                assert_eq!(got.is_some(), last.is_some(), "seed {seed}");
                assert!(reserve || got == last, "seed {seed}");
                if let Some(got) = got {
                    drop_from(&mut lists, got, size);
                    due.add(Tally::of(size, 1, 0));
                    large_due.add(Tally::of(size, u64::from(size > small), 0));
                }
            }
            let held: u64 = lists.iter().map(|(size, list)| size * list.len() as u64).sum();
            let blocks: usize = lists.values().map(Vec::len).sum();
            assert_eq!(magazine.held(), held);
            let bounded = lists.range(..=small);
            let held: u64 = bounded.map(|(size, list)| size * list.len() as u64).sum();
            assert!(held < bound.saturating_add(small) || blocks == 0, "seed {seed}: {held}");
            let large: usize = lists.range(small + 1..).map(|(_, list)| list.len()).sum();
            assert!(large <= 1, "seed {seed}: {large} large blocks");
        }
        let large = lists.range(small + 1..).flat_map(|(_, list)| list).next().copied();
        let mut drained = None;
        magazine.drain_large(|block, size| {
            drained = Some(block);
            lists.get_mut(&size).unwrap().clear();
        });
        assert_eq!(drained, large, "seed {seed}");
        let mut sum = Tally::default();
        magazine.tallies().into_iter().for_each(|tally| sum.add(tally));
        assert_eq!((sum, magazine.large_tally()), (due, large_due), "seed {seed}");
        magazine.drain(|size| size > 51_200, |block, size| drop_from(&mut lists, block, size));
        assert!(lists.range(51_201..).all(|(_, list)| list.is_empty()));
        let rest: u64 = lists.iter().map(|(size, list)| size * list.len() as u64).sum();
        assert_eq!(magazine.held(), rest);
    }
}

#[test]
fn one_block_is_kept_whatever_its_size() {
    let mut magazine = Magazine::new(1024, 4096);
    magazine.evict_for(1 << 40, |_, _| panic!("nothing is there"));
    assert!(magazine.keep(1 << 40, 'a'));
    assert!(!magazine.keep(1 << 41, 'z'), "there is one already");
    magazine.evict_for(1 << 41, |block, size| assert_eq!((block, size), ('a', 1 << 40)));
    assert_eq!(magazine.take(1 << 40), None, "it was put out");
    magazine.evict_for(512, |_, _| panic!("nothing is in its way"));
    assert!(magazine.keep(512, 'b'));
    assert_eq!(magazine.take(512), Some('b'));
    let mut none = Magazine::new(0, 4096);
    none.evict_for(512, |_, _| {});
    assert!(!none.keep(512, 'c'));
}
