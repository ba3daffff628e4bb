//! The environment variables that are read, and those that only look as if they were.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::doctor::report::Setting;

/// Every variable this version reads, and what it does. All but the last are read where output is
/// written, the last where the doctor looks for driver libraries.
const READ: [(&str, &str); 7] = [
    ("NO_COLOR", "not empty: no colours"),
    ("CLICOLOR_FORCE", "not empty: colours in files too"),
    ("CLICOLOR", "0: no colours"),
    ("TERM", "not set, or dumb: no colours"),
    ("CI", "set: colours whatever TERM says"),
    ("COLUMNS", "how wide lines are, 60 to 100"),
    (LIBRARY_PATH, "where drivers are looked for first"),
];

/// Where the loader looks before all other places.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The names that later versions keep for themselves.
const OURS: &str = "FOREBAY_";

/// The variables of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// This process's own.
    pub fn here() -> Self {
        std::env::vars_os().collect()
    }

    /// The directories of the loader's path.
    pub(super) fn library_path(&self) -> Vec<PathBuf> {
        let path = self.variables.get(&OsString::from(LIBRARY_PATH));
        // An empty entry means the current directory, which no driver is installed in.
        path.iter()
            .flat_map(std::env::split_paths)
            .filter(|directory| directory.is_absolute())
            .collect()
    }

    /// Every variable that is read, with its value.
    pub(super) fn settings(&self) -> Vec<Setting> {
        READ.iter()
            .map(|&(name, effect)| {
                let value = self.variables.get(&OsString::from(name));
                Setting {
                    name,
                    value: value.map(|value| value.to_string_lossy().into_owned()),
                    source: if value.is_some() { "environment" } else { "default" },
                    effect,
                }
            })
            .collect()
    }

    /// The variables that begin as forebay's own would. None of them is read.
    pub(super) fn ignored(&self) -> Vec<String> {
        let names = self.variables.keys().map(|name| name.to_string_lossy());
        names.filter(|name| name.starts_with(OURS)).map(|name| name.into_owned()).collect()
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(variables: I) -> Self {
        Self { variables: variables.into_iter().collect() }
    }
}
