//! The pool settings of this command, and how the output shows them.

use std::collections::BTreeMap;

use forebay::Settings;

/// Settings by name, each as it can be written.
pub type Named = BTreeMap<&'static str, String>;

/// Those that are not what they are by default, for rows that programs read.
pub(crate) fn changed(settings: &Settings) -> Named {
    let entries = settings.entries().filter(|entry| entry.value != entry.key.default_text());
    entries.map(|entry| (entry.key.name(), entry.value)).collect()
}

/// The same for people, with where each came from; `None` where all are the defaults.
pub(crate) fn in_words(settings: &Settings) -> Option<String> {
    let entries = settings.entries().filter(|entry| entry.value != entry.key.default_text());
    let said: Vec<String> =
        entries.map(|entry| format!("{}:{} ({})", entry.key, entry.value, entry.source)).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_default_is_told_with_its_source() {
        assert_eq!(changed(&Settings::default()), Named::new());
        assert_eq!(in_words(&Settings::default()), None);
        // Set, but to what it is anyway.
        let same = Settings::parse_conf("upkeep:off").unwrap();
        assert_eq!((changed(&same), in_words(&same)), (Named::new(), None));
        let some = Settings::parse_conf("history:7,max_bytes:8GiB").unwrap();
        let named = [("history", "7".to_owned()), ("max_bytes", "8GiB".to_owned())];
        assert_eq!(changed(&some), Named::from(named));
        let said = in_words(&some).unwrap();
        assert!(said.starts_with("max_bytes:8GiB (entry 2 of the text given), hist"), "{said}");
        // What a preset sets counts too.
        let preset = Settings::parse_conf("preset:debug").unwrap();
        assert!(changed(&preset).len() > 1, "{:?}", changed(&preset));
    }
}
