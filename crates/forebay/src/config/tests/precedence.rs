//! Which source wins, what a preset is beneath, and what goes together.

use forebay_core::Bytes;

use super::{said, variables};
use crate::config::{ConfigError, Key, Preset, Settings, Sources};

/// The sources of one key, lowest first, each with a value of its own and how it is named.
const LADDER: [(&str, &str); 6] = [
    ("60s", "default"),
    ("5s", "preset memory_constrained"),
    ("1s", "a.toml, line 2"),
    ("2s", "FOREBAY_CONF, entry 1"),
    ("3s", "FOREBAY_COLLECT_AFTER"),
    ("4s", "set by the program"),
];

/// Settings from the sources whose bits are set.
fn from(bits: usize) -> Settings {
    let has = |index: usize| bits & (1 << index) != 0;
    let mut list = Vec::new();
    if has(1) {
        list.push(("FOREBAY_PRESET", "memory_constrained"));
    }
    if has(3) {
        list.push(("FOREBAY_CONF", "collect_after:2s"));
    }
    if has(4) {
        list.push(("FOREBAY_COLLECT_AFTER", "3s"));
    }
    let mut sources = variables(&list);
    if has(2) {
        sources = sources.file("a.toml", Ok(b"# ours\ncollect_after = '1s'\n".to_vec()));
    }
    let settings = sources.resolve().unwrap();
    if !has(5) {
        return settings;
    }
    settings.into_builder().set("collect_after", "4s").unwrap().build().unwrap()
}

#[test]
fn of_all_sources_the_highest_wins() {
    for bits in 0..1_usize << LADDER.len() {
        let highest = (0..LADDER.len()).rev().find(|&index| index == 0 || bits & (1 << index) != 0);
        let (value, whence) = LADDER[highest.unwrap()];
        let mut settings = from(bits);
        assert_eq!(
            said(&settings, "collect_after"),
            (value.to_owned(), whence.to_owned()),
            "{bits:06b}"
        );
        let before: Vec<_> = settings.entries().collect();
        settings.change("collect_after", "9s").unwrap();
        assert_eq!(
            said(&settings, "collect_after"),
            ("9s".to_owned(), "changed while running".to_owned())
        );
        for (was, is) in before.into_iter().zip(settings.entries()) {
            assert!(is.key == Key::CollectAfter || was == is, "{is:?} was {was:?}");
        }
    }
}

#[test]
fn setting_one_key_leaves_all_others() {
    let base = Settings::parse_conf("preset:debug,max_bytes:1GiB,upkeep:on,zero:pages").unwrap();
    for &key in Key::ALL.iter().filter(|&&key| key != Key::Preset) {
        let text = format!("{key}:{}", key.default_text());
        let layered = base.clone().overlay(Settings::parse_conf(&text).unwrap());
        for (was, is) in base.entries().zip(layered.entries()) {
            assert_eq!(was.key, is.key);
            assert!(was == is || is.key == key, "{key} changed {is:?} from {was:?}");
        }
        assert_eq!(layered.entry(key).value, key.default_text());
    }
}

/// Wherever a preset is named, and wherever a key is set, the key counts.
#[test]
fn a_preset_lies_beneath_every_key() {
    let named = |index: usize, value: &str, list: &mut Vec<(String, String)>, file: &mut String| {
        let (key, value) = value.split_once(':').unwrap();
        match index {
            0 => file.push_str(&format!("{key} = '{value}'\n")),
            1 => list.push(("FOREBAY_CONF".to_owned(), format!("{key}:{value}"))),
            _ => list.push((format!("FOREBAY_{}", key.to_uppercase()), value.to_owned())),
        }
    };
    for preset in 0..3 {
        for key in 0..3 {
            let (mut list, mut file) = (Vec::new(), String::new());
            named(key, "history:5", &mut list, &mut file);
            named(preset, "preset:debug", &mut list, &mut file);
            if preset == 1 && key == 1 {
                list = vec![("FOREBAY_CONF".to_owned(), "history:5,preset:debug".to_owned())];
            }
            let list = list.into_iter().map(|(name, value)| (name.into(), value.into()));
            let sources = Sources::of(list).file("a.toml", Ok(file.into_bytes()));
            let settings = sources.resolve().unwrap();
            assert_eq!(settings.history(), 5, "{preset} {key}");
            assert!(settings.poison() && settings.preset() == Preset::Debug, "{preset} {key}");
        }
    }
}

#[test]
fn the_highest_preset_takes_the_place_of_the_others() {
    let sources = variables(&[("FOREBAY_CONF", "preset:debug"), ("FOREBAY_PRESET", "default")]);
    let settings = sources.resolve().unwrap();
    assert_eq!(settings.preset(), Preset::Default);
    assert!(!settings.poison(), "of debug nothing is left");
    let settings = settings.into_builder().preset(Preset::HighFrequency).build().unwrap();
    assert_eq!(settings.magazine_bytes(), Bytes::mib(64));
    assert_eq!(said(&settings, "collect_after").1, "preset high_frequency");
}

#[test]
fn presets_set_what_they_are_for_and_are_allowed() {
    let set = |preset: Preset| {
        let settings = Settings::builder().preset(preset).build().unwrap();
        let entries = settings.entries().filter(|entry| entry.source.name() == "preset");
        entries.map(|entry| format!("{}={}", entry.key, entry.value)).collect::<Vec<_>>().join(" ")
    };
    let expected = [
        (Preset::Default, ""),
        (
            Preset::HighFrequency,
            "magazine_bytes=64MiB statistics=on upkeep=off collect_after=never",
        ),
        (
            Preset::MemoryConstrained,
            "min_bytes=0 magazine_bytes=1MiB upkeep=on collect_after=5s largest_page=8MiB",
        ),
        (
            Preset::Debug,
            "statistics=exact history=65536 zero=never poison=on canaries=on guard_pages=on \
             quarantine=64MiB strict_streams=on",
        ),
    ];
    assert_eq!(expected.map(|(preset, _)| preset).as_slice(), Preset::ALL);
    for (preset, values) in expected {
        assert_eq!(set(preset), values, "{preset}");
        assert!(preset.reason().ends_with('.'));
    }
}

#[test]
fn what_does_not_go_together_is_refused_with_both_and_whence() {
    for (conf, text) in [
        (
            "pressure_moderate:0.95",
            "pressure_moderate must be less than pressure_high: they are 0.95 (FOREBAY_CONF, entry \
             1) and 0.9 (default)",
        ),
        (
            "pressure_low:80%",
            "pressure_low must be less than pressure_moderate: they are 0.8 (FOREBAY_CONF, entry 1) \
             and 0.8 (default)",
        ),
        (
            "pressure_critical:0.9",
            "pressure_high must be less than pressure_critical: they are 0.9 (default) and 0.9 \
             (FOREBAY_CONF, entry 1)",
        ),
        (
            "min_bytes:2GiB,max_bytes:1GiB",
            "min_bytes must not be more than max_bytes: they are 2GiB (FOREBAY_CONF, entry 1) and \
             1GiB (FOREBAY_CONF, entry 2)",
        ),
    ] {
        let error = variables(&[("FOREBAY_CONF", conf)]).resolve().unwrap_err();
        assert_eq!(error.to_string(), text);
        assert_eq!(error.origin().unwrap().name(), "conf", "{error}: not the default");
    }
    for conf in ["pressure_low:0,pressure_critical:1", "min_bytes:1GiB,max_bytes:1GiB"] {
        variables(&[("FOREBAY_CONF", conf)]).resolve().unwrap();
    }
    // Alone each is against a default; together they are not.
    let sources = [("FOREBAY_CONF", "pressure_high:0.98"), ("FOREBAY_PRESSURE_CRITICAL", "0.99")];
    variables(&sources).resolve().unwrap();
    assert!(variables(&sources[..1]).resolve().is_err());
}

#[test]
fn a_change_while_running_is_whole_or_not_at_all() {
    let mut settings = Settings::parse_conf("max_bytes:8GiB,size_classes:exact").unwrap();
    let before = settings.clone();
    let mut refused = |key: &str, value: &str| {
        let error = settings.change(key, value).unwrap_err();
        assert_eq!(settings, before, "{error}");
        error.to_string()
    };
    assert_eq!(
        refused("size_classes", "geometric"),
        "size_classes cannot change to \"geometric\" in a running pool: it is exact (entry 2 of the \
         text given); create another pool with it"
    );
    assert!(refused("max_bytes", "lots").contains("\"lots\" (changed while running)"));
    assert!(refused("min_bytes", "9GiB").contains("must not be more than max_bytes"));
    assert!(refused("pressure_low", "0.9").contains("must be less than pressure_moderate"));
    assert!(refused("max_byte", "1").contains("did you mean max_bytes?"));
    settings.change("max_bytes", "16GiB").unwrap();
    settings.change("min_bytes", "9GiB").unwrap();
    assert_eq!(settings.max_bytes(), Some(Bytes::gib(16)));
}

#[test]
fn each_key_changes_while_running_or_says_that_it_does_not() {
    for &key in Key::ALL {
        let mut settings = Settings::default();
        match settings.change(key.name(), &key.default_text()) {
            Ok(()) => assert!(key.is_changeable(), "{key}"),
            Err(ConfigError::Fixed { in_force, .. }) => {
                assert!(!key.is_changeable() && in_force.key == key);
            }
            Err(other) => panic!("{key}: {other}"),
        }
    }
    let fixed = Key::ALL.iter().filter(|key| !key.is_changeable());
    let fixed: Vec<&str> = fixed.map(|key| key.name()).collect();
    assert_eq!(
        fixed,
        [
            "preset",
            "name",
            "size_classes",
            "magazines",
            "statistics",
            "zero",
            "poison",
            "canaries",
            "guard_pages",
            "strict_streams",
            "transfer_threads",
            "transfer_chunk",
            "leak_report",
            "leak_stacks",
            "monitor"
        ]
    );
}
