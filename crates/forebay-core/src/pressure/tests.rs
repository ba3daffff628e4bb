use super::*;

fn thresholds() -> Thresholds {
    let at = Bytes::new;
    Thresholds { low: at(30), moderate: at(80), high: at(90), critical: at(95) }
}

#[test]
fn levels_begin_where_they_are_set() {
    let levels = [0, 29, 30, 79, 80, 89, 90, 94, 95, 100, u64::MAX];
    let levels = levels.map(|held| thresholds().level(Bytes::new(held)));
    use Level::*;
    let expected =
        [Low, Low, Normal, Normal, Moderate, Moderate, High, High, Critical, Critical, Critical];
    assert_eq!(levels, expected);
}

#[test]
fn a_rise_is_answered_once_and_a_fall_expands_only_at_low() {
    let mut gauge = Gauge::default();
    let mut read = |held| gauge.read(&thresholds(), Bytes::new(held));
    assert_eq!(read(40), None);
    assert_eq!(read(85), Some((Level::Moderate, Response::Clean)));
    assert_eq!(read(86), None);
    assert_eq!(read(92), Some((Level::High, Response::Clean)));
    assert_eq!(read(99), Some((Level::Critical, Response::ReleaseIdle)));
    assert_eq!(read(91), Some((Level::High, Response::Nothing)));
    assert_eq!(read(50), Some((Level::Normal, Response::Nothing)));
    assert_eq!(read(10), Some((Level::Low, Response::Expand)));
    assert_eq!(read(50), None);
    assert_eq!(read(10), None, "nothing was cleaned since");
}
