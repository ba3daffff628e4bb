//! Every key: what it takes, as what, and what it refuses.

use core::time::Duration;

use forebay_core::{Bytes, GIB, MIB, PageSize, SizeClasses};

use crate::config::{ConfigError, Counting, Fraction, Key, Preset, Settings, Source, Zeroing};

/// A key, values that it takes with how they are written back, and values that it refuses.
type Case = (Key, &'static [(&'static str, &'static str)], &'static [&'static str]);

const CASES: [Case; 33] = [
    (
        Key::Preset,
        &[("default", "default"), ("HIGH_FREQUENCY", "high_frequency"), ("debug", "debug")],
        &["", "high-frequency", "fast", "0"],
    ),
    (Key::Name, &[("None", "none"), (" kv cache ", "kv cache")], &[""]),
    (
        Key::MaxBytes,
        &[
            ("8GiB", "8GiB"),
            ("512 MiB", "512MiB"),
            ("1024", "1KiB"),
            ("1", "1"),
            ("1.5gib", "1536MiB"),
            ("2GB", "2000000000"),
            ("none", "none"),
            ("NONE", "none"),
            ("18446744073709551615", "18446744073709551615"),
        ],
        &["", "0", "0GiB", "-1", "8 apples", "1.5", "unlimited", "99999999TiB", "0x10", "8GiBs"],
    ),
    (
        Key::MaxFraction,
        &[("1", "1"), ("1.0", "1"), ("0.5", "0.5"), ("50%", "0.5"), ("0.01", "0.01"), ("0", "0")],
        &["1.01", "101%", "80", "-0.5", ".5", "1.", "1e-1", "nan", "inf"],
    ),
    (Key::MinBytes, &[("0", "0"), ("64MiB", "64MiB")], &["none", "", "-1", "much"]),
    (
        Key::SizeClasses,
        &[("exact", "exact"), ("geometric", "geometric"), ("Powers_Of_Two", "powers_of_two")],
        &["", "power_of_two", "0", "on"],
    ),
    (Key::Magazines, &[("on", "on"), ("off", "off")], &["yes", "", "2", "tru"]),
    (Key::MagazineBytes, &[("0", "0"), ("1MiB", "1MiB")], &["none", "-1", "1 mibi"]),
    (
        Key::Statistics,
        &[("on", "on"), ("exact", "exact"), ("True", "on"), ("1", "on")],
        &["", "2", "some", "off", "0"],
    ),
    (
        Key::History,
        &[("0", "0"), ("65536", "65536"), ("16777216", "16777216")],
        &["16777217", "-1", "+1", "1.5", "", "1K", "99999999999999999999"],
    ),
    (Key::Stacks, &[("on", "on"), ("off", "off")], &["", "2", "yes"]),
    (
        Key::Upkeep,
        &[("on", "on"), ("True", "on"), ("1", "on"), ("FALSE", "off"), ("0", "off")],
        &["yes", ""],
    ),
    (
        Key::UpkeepInterval,
        &[
            ("1ms", "1ms"),
            ("250ms", "250ms"),
            ("1.5s", "1500ms"),
            ("1d", "86400s"),
            ("2 h", "7200s"),
        ],
        &["0s", "999us", "1", "never", "", "s", "1 week", "86401s", "-1s", ".5s", "1.s", "1ss"],
    ),
    (Key::GrowAhead, &[("0", "0"), ("64 MiB", "64MiB")], &["none", "", "-1"]),
    (
        Key::CollectAfter,
        &[("60s", "60s"), ("5min", "300s"), ("never", "never"), ("0s", "0s"), ("1ns", "1ns")],
        &["60", "none", "-1s", "", "99999999999h"],
    ),
    (
        Key::MaxWait,
        &[("10s", "10s"), ("0s", "0s"), ("1min", "60s"), ("1d", "86400s")],
        &["10", "never", "86401s", "-1s", ""],
    ),
    (Key::PressureLow, &[("0", "0"), ("0.30", "0.3"), ("12.5 %", "0.125")], &["30", "-1", ""]),
    (Key::PressureModerate, &[("80%", "0.8"), ("0.333333333", "0.333333")], &["80", "%", "0.8.1"]),
    (Key::PressureHigh, &[("0.9", "0.9"), ("0.899999", "0.899999")], &["90 percent", "1.000001"]),
    (Key::PressureCritical, &[("1", "1"), ("100%", "1")], &["100", "101%", "99999999999"]),
    (
        Key::LargestPage,
        &[("32MiB", "32MiB"), ("2097152", "2MiB"), ("1GiB", "1GiB")],
        &["0", "3MiB", "none", "2MB", ""],
    ),
    (
        Key::Zero,
        &[("never", "never"), ("pages", "pages"), ("blocks", "blocks")],
        &["on", "off", "page", ""],
    ),
    (Key::Poison, &[("on", "on"), ("false", "off")], &["0xcd", ""]),
    (Key::Canaries, &[("on", "on"), ("false", "off")], &["8", ""]),
    (Key::GuardPages, &[("on", "on"), ("false", "off")], &["4KiB", ""]),
    (Key::Quarantine, &[("0", "0"), ("64MiB", "64MiB")], &["on", "none", ""]),
    (Key::StrictStreams, &[("on", "on"), ("false", "off")], &["strict", ""]),
    (Key::TransferThreads, &[("0", "0"), ("8", "8"), ("256", "256")], &["257", "-1", "all", ""]),
    (Key::TransferChunk, &[("0", "0"), ("4MiB", "4MiB"), ("1 GiB", "1GiB")], &["2GiB", "-1", ""]),
    (Key::LeakReport, &[("on", "on"), ("0", "off")], &["exit", ""]),
    (Key::LeakStacks, &[("true", "on"), ("off", "off")], &["8", ""]),
    (Key::Monitor, &[("on", "on"), ("0", "off")], &["127.0.0.1", ""]),
    (Key::OomReport, &[("None", "none"), (" /tmp/a b.txt", "/tmp/a b.txt")], &[""]),
];

#[test]
fn every_key_takes_what_it_says_and_writes_it_back() {
    assert_eq!(CASES.map(|(key, ..)| key).as_slice(), Key::ALL, "no key is left out");
    for (key, good, _) in CASES {
        for (given, written) in good {
            let settings = Settings::parse_conf(&format!("{key}:{given}"))
                .unwrap_or_else(|error| panic!("{key} {given}: {error}"));
            let entry = settings.entry(key);
            assert_eq!((entry.key, entry.value.as_str()), (key, *written), "{key} {given}");
            assert_eq!(entry.source, Source::Text { entry: 1 });
            let again = Settings::parse_conf(&format!("{key}:{written}")).unwrap();
            assert_eq!(again, settings, "{key}: what is written reads as the same");
        }
    }
}

#[test]
fn every_key_refuses_the_rest_and_says_what_is_allowed() {
    for (key, _, bad) in CASES {
        for given in bad {
            let error = Settings::parse_conf(&format!("{key}:{given}")).unwrap_err();
            let refusal = ConfigError::BadValue {
                key,
                value: (*given).to_owned(),
                source: Source::Text { entry: 1 },
            };
            assert_eq!(error, refusal, "{key} {given}");
            let text = error.to_string();
            for part in [key.name(), &format!("\"{given}\""), &key.allowed(), "entry 1"] {
                assert!(text.contains(part), "{part} is missing in: {text}");
            }
        }
    }
}

#[test]
fn every_key_is_named_once_and_explained() {
    for &key in Key::ALL {
        assert_eq!(Key::named(key.name()), Some(key));
        assert_eq!(key.variable(), format!("FOREBAY_{}", key.name().to_uppercase()));
        assert_eq!(key.to_string(), key.name());
        let help = key.help();
        assert!(help.ends_with('.') && help.len() > 20 && !help.contains('|'), "{key}: {help}");
        assert!(!key.kind().is_empty() && !key.allowed().is_empty());
        let settings = Settings::parse_conf(&format!("{key}:{}", key.default_text())).unwrap();
        assert_eq!(settings.entry(key).value, key.default_text(), "the default is allowed");
        settings.check().unwrap();
    }
}

#[test]
fn the_defaults_are_as_promised() {
    let settings = Settings::default();
    settings.check().unwrap();
    assert!(settings.entries().all(|entry| entry.source == Source::Default));
    assert_eq!(settings.preset(), Preset::Default);
    assert_eq!((settings.max_bytes(), settings.max_fraction()), (None, Fraction::ONE));
    assert_eq!((settings.min_bytes(), settings.size_classes()), (Bytes::ZERO, SizeClasses::Exact));
    assert_eq!((settings.magazines(), settings.magazine_bytes()), (true, Bytes::mib(16)));
    assert_eq!((settings.statistics(), settings.history()), (Counting::On, 0));
    assert_eq!((settings.upkeep(), settings.upkeep_interval()), (false, Duration::from_secs(1)));
    assert_eq!(settings.collect_after(), Some(Duration::from_secs(60)));
    let pressure = [
        settings.pressure_low(),
        settings.pressure_moderate(),
        settings.pressure_high(),
        settings.pressure_critical(),
    ];
    assert_eq!(pressure, [30, 80, 90, 95].map(Fraction::percent));
    assert_eq!(settings.largest_page(), PageSize::new(32 * MIB).unwrap());
    assert_eq!((settings.zero(), settings.poison()), (Zeroing::Never, false));
    assert_eq!((settings.canaries(), settings.guard_pages()), (false, false));
    assert_eq!((settings.quarantine(), settings.strict_streams()), (Bytes::ZERO, false));
    assert_eq!((settings.transfer_threads(), settings.transfer_chunk()), (0, Bytes::ZERO));
    assert_eq!((settings.leak_report(), settings.leak_stacks()), (false, false));
    assert!(!settings.monitor());
}

#[test]
fn the_program_sets_by_type_and_is_held_to_the_same_bounds() {
    let settings = Settings::builder()
        .max_bytes(Bytes::gib(8))
        .size_classes(SizeClasses::Geometric)
        .collect_after(None)
        .history(7_u64)
        .build()
        .unwrap();
    assert_eq!(settings.max_bytes(), Some(Bytes::gib(8)));
    assert_eq!(settings.size_classes(), SizeClasses::Geometric);
    assert_eq!((settings.collect_after(), settings.history()), (None, 7));
    assert_eq!(settings.entry(Key::History).source, Source::Code);
    assert_eq!(settings.entry(Key::Upkeep).source, Source::Default);

    let text = |builder: crate::config::SettingsBuilder| builder.build().unwrap_err().to_string();
    assert_eq!(
        text(Settings::builder().history(1_u64 << 25)),
        "history cannot be \"33554432\" (set by the program): expected a whole number, such as 0 or \
         65536; at most 16777216"
    );
    assert!(text(Settings::builder().max_bytes(Bytes::ZERO)).contains("at least 1"));
    assert!(text(Settings::builder().upkeep_interval(Duration::ZERO)).contains("from 1ms to"));
    let by_name = Settings::builder().set("upkeep_interval", "0s").unwrap_err().to_string();
    assert_eq!(by_name, text(Settings::builder().upkeep_interval(Duration::ZERO)));
    assert!(Settings::builder().set("upkep", "on").unwrap_err().to_string().contains("upkeep?"));
}

#[test]
fn the_lesser_of_both_limits_holds() {
    let limit = |conf: &str| Settings::parse_conf(conf).unwrap().limit_of(Bytes::gib(100)).get();
    assert_eq!(limit(""), 100 * GIB);
    assert_eq!(limit("max_bytes:8GiB"), 8 * GIB);
    assert_eq!(limit("max_fraction:50%"), 50 * GIB);
    assert_eq!(limit("max_fraction:50%,max_bytes:8GiB"), 8 * GIB);
    assert_eq!(limit("max_fraction:50%,max_bytes:80GiB"), 50 * GIB);
    assert_eq!(Fraction::ONE.of(Bytes::MAX), Bytes::MAX);
    assert_eq!(Fraction::percent(250), Fraction::ONE);
    let odd = [f64::NAN, f64::INFINITY, -0.1, 1.000_001, -f64::INFINITY];
    assert!(odd.iter().all(|&value| Fraction::nearest(value).is_none()));
    assert_eq!(Fraction::nearest(-0.0), Some(Fraction::ZERO));
}
