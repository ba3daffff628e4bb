//! Files of settings, given as text and read from a directory.

use std::fs;

use forebay_core::Bytes;

use super::variables;
use crate::config::{Key, Settings, Source, Sources};

fn parsed(text: &str) -> Result<Settings, String> {
    let sources = Sources::default().file("a.toml", Ok(text.as_bytes().to_vec()));
    sources.resolve().map_err(|error| error.to_string())
}

#[test]
fn values_may_be_written_as_toml_has_them() {
    let settings = parsed(
        "# a comment\n\
         max_bytes = 0x2_0000_0000\n\
         min_bytes = 1_048_576\n\
         upkeep = true\n\
         max_fraction = +0.5\n\
         pressure_low = 0\n\
         pressure_critical = 1\n\
         collect_after = \"never\"\n\
         \"history\" = 100\n\
         size_classes = '''geometric'''\n",
    )
    .unwrap();
    assert_eq!(settings.max_bytes(), Some(Bytes::gib(8)));
    assert_eq!(settings.min_bytes(), Bytes::mib(1));
    assert!(settings.upkeep());
    assert_eq!(settings.max_fraction().as_millionths(), 500_000);
    assert_eq!((settings.collect_after(), settings.history()), (None, 100));
    let history = settings.entry(Key::History).source;
    assert_eq!(history, Source::File { path: "a.toml".into(), line: 9 });
}

#[test]
fn every_key_can_be_set_in_a_file() {
    for &key in Key::ALL {
        let settings = parsed(&format!("\n\n{key} = '{}'", key.default_text())).unwrap();
        assert_eq!(settings.entry(key).source.to_string(), "a.toml, line 3");
    }
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_its_line() {
    for (text, expected) in [
        ("upkeep = on", "a.toml, line 1: not TOML: "),
        ("history = 1\nhistory = 2", "a.toml, line 2: not TOML: duplicate key"),
        (
            "history = 1\n\nmax_byte = 1",
            "unknown setting \"max_byte\" (a.toml, line 3): did you mean",
        ),
        ("[pool]\nhistory = 1", "unknown setting \"pool\" (a.toml, line 1): the settings are"),
        ("history = -1", "history cannot be \"-1\" (a.toml, line 1): expected a whole number"),
        ("history = 99999999999999999999", "history cannot be \"99999999999999999999\""),
        ("history = [1]", "history cannot be \"[...]\""),
        ("history.a = 1", "history cannot be \"{...}\""),
        ("upkeep_interval = 1", "upkeep_interval cannot be \"1\" (a.toml, line 1): expected a d"),
        ("max_fraction = nan", "max_fraction cannot be \"nan\""),
        ("max_fraction = 1e-1", "max_fraction cannot be \"1e-1\""),
        ("collect_after = 07:32:00", "collect_after cannot be \"07:32:00\""),
        ("zero = 'on'\nbad = 1", "zero cannot be \"on\" (a.toml, line 1)"),
        ("bad = 1\nzero = 'on'", "unknown setting \"bad\" (a.toml, line 1)"),
    ] {
        let said = parsed(text).unwrap_err();
        assert!(said.starts_with(expected), "{text:?} said: {said}");
    }
    let not_text = Sources::default().file("a.toml", Ok(b"zero = '\xff'".to_vec()));
    assert_eq!(
        not_text.resolve().unwrap_err().to_string(),
        "\"a.toml\": not UTF-8 text: byte 8 is wrong"
    );
}

#[test]
fn depth_and_length_are_bounded() {
    let deep = format!("history = {}", "[".repeat(500_000));
    assert!(parsed(&deep).unwrap_err().contains("not TOML"));
    let deep = format!("{}x = 1", "a.".repeat(200_000));
    assert!(parsed(&deep).is_err());
    let long = format!("# {}\nhistory = 1", "x".repeat(1 << 20));
    assert_eq!(
        parsed(&long).unwrap_err(),
        "\"a.toml\": longer than 1 MiB, which no file of settings is"
    );
}

#[test]
fn a_file_is_read_only_where_someone_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("forebay.toml");
    fs::write(&path, "history = 42\n").unwrap();
    let by_code = Settings::from_file(&path).unwrap();
    assert_eq!(by_code.history(), 42);

    let name = path.to_str().unwrap();
    let named = variables(&[("FOREBAY_CONFIG", name)]);
    assert_eq!(named.named_file(), Some(path.as_path()));
    assert_eq!(named.clone().read_file().resolve().unwrap(), by_code);
    assert!(named.resolve().unwrap_err().to_string().contains("was not read"), "not in silence");
    assert_eq!(variables(&[]).read_file().resolve().unwrap(), Settings::default());

    // The text of what is missing is the system's.
    let missing = format!("{name}.no");
    let error = variables(&[("FOREBAY_CONFIG", &missing)]).read_file().resolve().unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("\"{missing}\": ")), "{text}");
    assert!(text.ends_with("(named by FOREBAY_CONFIG)"), "{text}");
    assert_eq!(error.origin(), None);
    let text = Settings::from_file(&missing).unwrap_err().to_string();
    assert!(!text.contains("FOREBAY_CONFIG"), "{text}");
    assert!(Settings::from_file(folder.path()).is_err(), "a directory is no file");
    let mistaken = variables(&[("FOREBAY_CONFIG", "max_bytes:8GiB")]).read_file().resolve();
    let text = mistaken.unwrap_err().to_string();
    assert!(text.ends_with("(named by FOREBAY_CONFIG; keys are set by FOREBAY_CONF)"), "{text}");
}

#[cfg(target_os = "linux")]
#[cfg(unix)]
#[test]
fn a_pipe_is_refused_without_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name is a string that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let named = variables(&[("FOREBAY_CONFIG", path.to_str().unwrap())]);
    let text = named.read_file().resolve().unwrap_err().to_string();
    assert!(text.contains("a pipe"), "{text}");
}

#[test]
fn a_file_without_end_is_refused() {
    let text = Settings::from_file("/dev/zero").unwrap_err().to_string();
    assert!(text.contains("longer than 1 MiB"), "{text}");
}
