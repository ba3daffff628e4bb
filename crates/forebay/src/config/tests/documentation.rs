//! `docs/configuration.md` says what the code does, or these tests say where it does not.

use std::collections::BTreeSet;

use super::variables;
use crate::config::{Key, Preset, Settings, Sources};

const PAGE: &str = include_str!("../../../../../docs/configuration.md");

/// What stands on the page between two comments that name it.
fn part(name: &str) -> &'static str {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (_, rest) = PAGE.split_once(&begin).unwrap_or_else(|| panic!("{begin} is missing"));
    rest.split_once(&end).unwrap_or_else(|| panic!("{end} is missing")).0.trim()
}

/// What stands between the fences of a part.
fn code(name: &str) -> &'static str {
    part(name).split("```").nth(1).unwrap().split_once('\n').unwrap().1
}

fn key_table() -> String {
    let mut table = "| key | default | allowed | while running | what it does |\n\
                     |---|---|---|---|---|"
        .to_owned();
    for key in Key::ALL {
        let running = if key.is_changeable() { "can change" } else { "fixed" };
        let (default, allowed, help) = (key.default_text(), key.allowed(), key.help());
        table += &format!("\n| `{key}` | `{default}` | {allowed} | {running} | {help} |");
    }
    table
}

fn preset_table() -> String {
    let mut table = "| preset | sets | why |\n|---|---|---|".to_owned();
    for &preset in Preset::ALL {
        let settings = Settings::builder().preset(preset).build().unwrap();
        let set = settings.entries().filter(|entry| entry.source.name() == "preset");
        let set: Vec<String> =
            set.map(|entry| format!("`{}:{}`", entry.key, entry.value)).collect();
        let set = if set.is_empty() { "nothing".to_owned() } else { set.join(", ") };
        table += &format!("\n| `{preset}` | {set} | {} |", preset.reason());
    }
    table
}

#[test]
fn the_table_of_keys_is_that_of_the_code() {
    let expected = key_table();
    assert_eq!(part("keys"), expected, "put this between the comments:\n{expected}\n");
}

#[test]
fn the_table_of_presets_is_that_of_the_code() {
    let expected = preset_table();
    assert_eq!(part("presets"), expected, "put this between the comments:\n{expected}\n");
}

#[test]
fn the_examples_are_allowed() {
    let file = Sources::default().file("forebay.toml", Ok(code("file").as_bytes().to_vec()));
    let settings = file.resolve().unwrap();
    assert_eq!(settings.preset(), Preset::MemoryConstrained);
    assert!(settings.max_bytes().is_some());

    let conf = code("conf").trim().strip_prefix("export FOREBAY_CONF=").unwrap();
    let conf = conf.trim_matches('"');
    variables(&[("FOREBAY_CONF", conf)]).resolve().unwrap();
}

/// What the page says of messages is what the code says.
#[test]
fn the_messages_shown_are_those_of_the_code() {
    let said = code("messages");
    let given = [
        ("FOREBAY_MAX_BYTES", "8 apples"),
        ("FOREBAY_CONF", "max_byte:8GiB"),
        ("FOREBAY_PRESSURE_MODERATE", "0.95"),
    ];
    let messages: BTreeSet<String> =
        given.iter().map(|&one| variables(&[one]).resolve().unwrap_err().to_string()).collect();
    assert_eq!(said.lines().map(str::to_owned).collect::<BTreeSet<_>>(), messages);
}
