use super::*;
use crate::Random;

/// Compared with a full history: never less than the true peak, and not older than twice the age.
#[test]
fn never_says_less_than_was_needed() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (mut decay, mut all, mut now) = (Decay::default(), Vec::new(), 0_u64);
        decay.note(Duration::ZERO, Bytes::new(u64::MAX));
        for _ in 0..400 {
            now += 1 + random.below(5);
            let most = random.below(1000);
            decay.note(Duration::from_secs(now), Bytes::new(most));
            all.push((now, most));
            let age = random.below(40);
            let said = decay.needed(Duration::from_secs(now), Duration::from_secs(age));
            let Some(since) = now.checked_sub(age) else {
                assert_eq!(said, None);
                continue;
            };
            let said = said.unwrap().get();
            let over =
                |from: u64| all.iter().filter(|&&(end, _)| end > from).map(|&(_, most)| most).max();
            assert!(said >= over(since).unwrap_or(0), "seed {seed}");
            assert!(said <= over(0).unwrap_or(0), "seed {seed}");
        }
    }
}

#[test]
fn a_peak_is_forgotten_when_it_is_old() {
    let mut decay = Decay::default();
    decay.note(Duration::ZERO, Bytes::ZERO);
    for second in 1..200 {
        let most = if second == 5 { 100 } else { 10 };
        decay.note(Duration::from_secs(second), Bytes::new(most));
    }
    let needed = decay.needed(Duration::from_secs(199), Duration::from_secs(60));
    assert_eq!(needed, Some(Bytes::new(10)));
}
