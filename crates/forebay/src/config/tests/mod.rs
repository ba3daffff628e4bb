//! What users of settings rely on: every key with good and bad values, every source against every
//! other, and nothing that any bytes could bring down.

mod documentation;
mod files;
mod keys;
mod precedence;
mod properties;
mod sources;

use std::ffi::OsString;

use super::{Settings, Sources};

/// Variables by name and value.
fn variables(list: &[(&str, &str)]) -> Sources {
    Sources::of(list.iter().map(|&(name, value)| (OsString::from(name), OsString::from(value))))
}

/// What the settings say of a key, and where it came from, as people read it.
fn said(settings: &Settings, key: &str) -> (String, String) {
    let entry = settings.get(key).unwrap();
    (entry.value, entry.source.to_string())
}
