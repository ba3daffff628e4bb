//! Variables and texts: what is read, what is refused, what is let be.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use forebay_core::Bytes;

use super::{said, variables};
use crate::config::{ConfigError, Key, Settings, Source, Sources};

#[test]
fn a_text_is_read_as_people_write_it() {
    let settings = Settings::parse_conf(" max_bytes : 8 GiB , upkeep:True,,history:1,").unwrap();
    assert_eq!(settings.max_bytes(), Some(Bytes::gib(8)));
    assert!(settings.upkeep());
    // Entries with nothing in them count, so that the number is the one that a person counts.
    assert_eq!(settings.get("history").unwrap().source, Source::Text { entry: 4 });
    assert_eq!(Settings::parse_conf("").unwrap(), Settings::default());
    assert_eq!(Settings::parse_conf(" , ,").unwrap(), Settings::default());
    let appended = Settings::parse_conf("history:1,upkeep:on,history:2").unwrap();
    assert_eq!(appended.history(), 2, "of a key that comes twice the last counts");
}

#[test]
fn what_is_no_entry_is_refused_with_its_number() {
    for (conf, text) in [
        ("upkeep:on,history", "\"history\" is not key:value (entry 2 of the text given)"),
        (
            "upkeep=on",
            "\"upkeep=on\" is not key:value (entry 1 of the text given): write upkeep:on, with a \
             comma before the next",
        ),
        (
            "history:1, Max-Bytes = 8GiB",
            "\"Max-Bytes = 8GiB\" is not key:value (entry 2 of the text given): write \
             max_bytes:8GiB,",
        ),
        (
            "max_bytes=8GiB;upkeep=on",
            "\"max_bytes=8GiB;upkeep=on\" is not key:value (entry 1 of the text given): write \
             max_bytes:VALUE,",
        ),
        (
            "history 7",
            "\"history 7\" is not key:value (entry 1 of the text given): write history:7,",
        ),
        (
            "/etc/forebay.toml",
            "\"/etc/forebay.toml\" is not key:value (entry 1 of the text given); a file is named by \
             FOREBAY_CONFIG",
        ),
        (
            ":on",
            "unknown setting \"\" (entry 1 of the text given): the settings are preset, name, max_bytes, ",
        ),
    ] {
        let said = Settings::parse_conf(conf).unwrap_err().to_string();
        assert!(said.starts_with(text), "{said}");
    }
}

#[test]
fn a_mistyped_key_is_refused_with_the_one_that_was_meant() {
    for (given, meant) in [
        ("max_byte", Some("max_bytes")),
        ("maxbytes", Some("max_bytes")),
        ("max-bytes", Some("max_bytes")),
        ("MAX_BYTES", Some("max_bytes")),
        ("collect_atfer", Some("collect_after")),
        ("magazine", Some("magazines")),
        ("magazin_byte", Some("magazine_bytes")),
        ("quarentine", Some("quarantine")),
        ("presure_hihg", Some("pressure_high")),
        ("guard_page", Some("guard_pages")),
        ("expandable_segments", None),
        ("x", None),
        ("", None),
    ] {
        let error = Settings::parse_conf(&format!("{given}:1")).unwrap_err();
        let ConfigError::UnknownKey { name, suggestion, .. } = &error else { panic!("{error:?}") };
        assert_eq!((name.as_str(), suggestion.map(Key::name)), (given, meant));
        let text = error.to_string();
        match meant {
            Some(meant) => assert!(text.ends_with(&format!("did you mean {meant}?")), "{text}"),
            None => assert!(text.contains("the settings are preset, name, max_bytes, "), "{text}"),
        }
    }
    let error = Settings::default().get("max_byte").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown setting \"max_byte\" (set by the program): did you mean max_bytes?"
    );
}

#[test]
fn each_key_has_a_variable() {
    for &key in Key::ALL {
        let list = [(key.variable(), key.default_text())];
        let list = list.map(|(name, value)| (name.into(), value.into()));
        let settings = Sources::of(list).resolve().unwrap();
        assert_eq!(settings.entry(key).source.to_string(), key.variable());
    }
}

#[test]
fn a_variable_that_is_nearly_one_of_ours_is_refused_and_others_are_let_be() {
    let examined = variables(&[
        ("FOREBAY_MAX_BYTE", "8GiB"),
        ("FOREBAY_TRACES", "/data"),
        ("FOREBAY_PRESSURE", "1"),
        ("FOREBAY_TEST", "1"),
        ("FOREBAY_TEST_FILE_LIMIT", "1"),
        ("FOREBAY_", "1"),
        ("forebay_max_bytes", "1"),
        ("MAX_BYTES", "1"),
        ("FOREBAY_UPKEEP", ""),
        ("FOREBAY_UPKEP", ""),
        ("FOREBAY_CONF", ""),
        ("FOREBAY_CONFIG", ""),
    ])
    .examine();
    let refused: Vec<String> = examined.refused.iter().map(ToString::to_string).collect();
    assert_eq!(
        refused,
        [r#"unknown variable "FOREBAY_MAX_BYTE": did you mean FOREBAY_MAX_BYTES?"#]
    );
    assert_eq!(
        examined.ignored,
        [
            "FOREBAY_",
            "FOREBAY_PRESSURE",
            "FOREBAY_TEST",
            "FOREBAY_TEST_FILE_LIMIT",
            "FOREBAY_TRACES"
        ]
    );
    assert_eq!(examined.settings, Settings::default(), "what is set to nothing is not set");
}

#[test]
fn everything_that_is_wrong_is_found_and_the_rest_is_read() {
    let sources = variables(&[
        ("FOREBAY_CONF", "max_bytes:much,upkeep:on,nonsense"),
        ("FOREBAY_HISTORY", "-1"),
        ("FOREBAY_ZERO", "pages"),
    ])
    .file("a.toml", Ok(b"poison = 3\ncanaries = true\n".to_vec()));
    let examined = sources.examine();
    let whence = examined.refused.iter().map(|error| error.origin().unwrap().to_string());
    assert_eq!(
        whence.collect::<Vec<_>>(),
        ["a.toml, line 1", "FOREBAY_CONF, entry 1", "FOREBAY_CONF, entry 3", "FOREBAY_HISTORY"]
    );
    assert_eq!(sources.resolve().unwrap_err(), examined.refused[0]);
    let settings = examined.settings;
    assert!(settings.upkeep() && settings.canaries());
    assert_eq!(said(&settings, "zero").1, "FOREBAY_ZERO");
    assert_eq!(settings.max_bytes(), None);
}

#[test]
fn bytes_that_are_no_text_are_refused_where_they_matter() {
    let value = OsString::from_vec(b"8\xffGiB".to_vec());
    for name in ["FOREBAY_MAX_BYTES", "FOREBAY_CONF"] {
        let error = Sources::of([(name.into(), value.clone())]).resolve().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{name} holds bytes that are not UTF-8: \"8\u{fffd}GiB\"")
        );
    }
    let name = OsString::from_vec(b"FOREBAY_\xff\xff\xff\xff\xff\xff".to_vec());
    let others = [(name, value.clone()), ("HOME".into(), value)];
    assert_eq!(Sources::of(others).examine().ignored.len(), 1);
}

#[test]
fn what_is_shown_of_a_value_is_short_and_steers_no_terminal() {
    let conf = format!("max_bytes:\x1b[2J{}", "long ".repeat(10_000));
    let text = Settings::parse_conf(&conf).unwrap_err().to_string();
    assert!(text.len() < 300 && !text.contains('\x1b') && text.contains("..."), "{text}");
}
