use super::*;

#[test]
fn the_numbers_of_a_seed_are_fixed() {
    // Reference values of SplitMix64 for seed 1234567, as published with the algorithm.
    let mut random = Random::new(1_234_567);
    for expected in
        [6_457_827_717_110_365_317_u64, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
    {
        assert_eq!(random.next_u64(), expected);
    }
}

#[test]
fn bounds_hold_and_every_value_comes() {
    let mut random = Random::new(1);
    let mut seen = [0_u32; 7];
    for _ in 0..7000 {
        seen[usize::try_from(random.below(7)).unwrap()] += 1;
    }
    assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    assert_eq!(random.below(0), 0);
    assert_eq!(random.between(9, 3), 9);
    assert_eq!(random.pick::<u8>(&[]), None);
    for _ in 0..100 {
        assert!((3..=9).contains(&random.between(3, 9)));
    }
    let _ = random.between(0, u64::MAX);
}
