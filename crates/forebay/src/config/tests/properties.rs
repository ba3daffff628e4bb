//! Nothing that any bytes could bring down, and nothing that is lost on the way.

use core::time::Duration;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use forebay_core::Bytes;
use proptest::prelude::*;

use crate::config::{Fraction, Key, Settings, Source, Sources, sources};

/// Texts that come near to what is read: pieces of it, and anything.
fn near_text() -> impl Strategy<Value = String> {
    let pieces = Key::ALL.iter().map(|key| key.name().to_owned());
    let pieces = pieces.chain(
        [":", ",", "=", "\n", "'", "\"", " ", "8GiB", "0.5", "80%", "on", "never", "10s", "-1"]
            .map(str::to_owned),
    );
    let piece = prop_oneof![
        prop::sample::select(pieces.collect::<Vec<_>>()),
        "\\PC{0,6}",
        any::<u64>().prop_map(|number| number.to_string()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// Bytes of any kind, or a text that comes near.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![prop::collection::vec(any::<u8>(), 0..60), near_text().prop_map(String::into_bytes),]
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in near_text()) {
        let read = Settings::parse_conf(&text);
        if let Err(error) = &read {
            prop_assert!(!error.to_string().chars().any(char::is_control), "{error}");
        }
        for &key in Key::ALL {
            if let Ok(builder) = Settings::builder().set(key.name(), &text) {
                // What is read is written so that it reads as the same.
                let Ok(settings) = builder.build() else { continue };
                let written = settings.entry(key).value;
                let again = Settings::builder().set(key.name(), &written).unwrap().build().unwrap();
                prop_assert_eq!(again, settings, "{} {}", key, text);
            }
        }
    }

    #[test]
    fn any_environment_and_file_are_read_or_refused(
        list in prop::collection::vec((any::<prop::sample::Index>(), any_bytes(), any_bytes()), 0..8),
        content in any_bytes(),
    ) {
        let names: Vec<String> = Key::ALL.iter().map(|key| key.variable())
            .chain(["FOREBAY_CONF".to_owned(), "FOREBAY_CONFIG".to_owned()]).collect();
        let variables = list.into_iter().map(|(index, name, value)| {
            // Mostly names that are read; else anything behind the prefix.
            let name = match index.index(names.len() * 2) {
                known if known < names.len() => names[known].clone().into_bytes(),
                _ => [b"FOREBAY_".to_vec(), name].concat(),
            };
            (OsString::from_vec(name), OsString::from_vec(value))
        });
        let sources = Sources::of(variables).file("a.toml", Ok(content));
        let examined = sources.examine();
        let resolved = sources.resolve();
        prop_assert_eq!(resolved.is_ok(), examined.refused.is_empty());
        if let Ok(settings) = resolved {
            settings.check().unwrap();
            prop_assert_eq!(settings, examined.settings);
        }
        for error in &examined.refused {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn layers_may_be_put_together_in_any_grouping(
        one in near_text(),
        two in near_text(),
        three in near_text(),
    ) {
        let read = |text: &str| sources::parse_conf(text, |entry| Source::Conf { entry }).0;
        let (one, two, three) = (read(&one), read(&two), read(&three));
        let left = one.clone().overlay(two.clone()).overlay(three.clone());
        let right = one.clone().overlay(two.overlay(three));
        prop_assert_eq!(&left, &right);
        prop_assert_eq!(one.clone().overlay(Settings::default()), one.clone());
        prop_assert_eq!(Settings::default().overlay(one.clone()), one);
    }

    #[test]
    fn numbers_are_written_without_loss(bytes: u64, nanos: u64, millionths in 0_u32..=1_000_000) {
        for (key, settings) in [
            ("min_bytes", Settings::builder().min_bytes(Bytes::new(bytes)).build().unwrap()),
            (
                "collect_after",
                Settings::builder().collect_after(Duration::from_nanos(nanos)).build().unwrap(),
            ),
        ] {
            let written = settings.get(key).unwrap().value;
            let read = Settings::builder().set(key, &written).unwrap().build().unwrap();
            prop_assert_eq!(read, settings, "{}", written);
        }
        let fraction = Fraction::millionths(millionths);
        prop_assert_eq!(Fraction::read(&fraction.to_string()), Some(fraction));
        prop_assert_eq!(Fraction::nearest(fraction.as_f64()), Some(fraction));
        prop_assert!(fraction.of(Bytes::new(bytes)).get() <= bytes);
    }
}
