//! The environment variables that this command reads, and those that the library reads.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use forebay::config::Sources;
use forebay::devices::VARIABLE;
use forebay::hip::HIP_DRIVER_VARIABLE;
use forebay::opencl::LIBRARY_VARIABLE;
use forebay_cuda::DRIVER_VARIABLE;

use crate::doctor::report::{Owner, Setting};
use crate::monitor::NVML_VARIABLE;

/// Every variable that this command reads, and what it does. The first six are read where output is written,
/// the others where driver libraries are looked for and devices chosen, and the last by the Python package alone.
const READ: [(&str, &str); 13] = [
    ("NO_COLOR", "not empty: no colours"),
    ("CLICOLOR_FORCE", "not empty: colours in files too"),
    ("CLICOLOR", "0: no colours"),
    ("TERM", "not set, or dumb: no colours"),
    ("CI", "set: colours whatever TERM says"),
    ("COLUMNS", "how wide lines are, 60 to 100"),
    (LIBRARY_PATH, "where drivers are looked for first"),
    (DRIVER_VARIABLE, "the CUDA driver's library by name"),
    (HIP_DRIVER_VARIABLE, "HIP's library by name"),
    (LIBRARY_VARIABLE, "OpenCL's library by name"),
    (NVML_VARIABLE, "NVIDIA's management library by name, for the monitor"),
    (VARIABLE, "the device of commands that name none, and of programs that ask for the best"),
    ("FOREBAY_TORCH", "1 or fallback: Python programs have forebay as PyTorch's allocator"),
];

/// Where the loader looks before all other places.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

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

    /// A variable that is set to something.
    pub(super) fn value(&self, name: &str) -> Option<&OsStr> {
        let value = self.variables.get(OsStr::new(name));
        value.map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// Those of `variables` that this command does not read either.
    pub(super) fn not_read(&self, mut variables: Vec<String>) -> Vec<String> {
        variables.retain(|variable| READ.iter().all(|(name, _)| name != variable));
        variables
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

    /// Every variable that this command reads, with its value.
    pub(super) fn settings(&self) -> impl Iterator<Item = Setting> {
        READ.iter().map(|&(name, effect)| {
            let value = self.variables.get(&OsString::from(name));
            Setting {
                name,
                of: Owner::Command,
                value: value.map(|value| value.to_string_lossy().into_owned()),
                source: if value.is_some() { "environment" } else { "default" },
                whence: if value.is_some() { name } else { "default" }.to_owned(),
                changeable: false,
                effect,
            }
        })
    }

    /// Where the library finds the settings of pools: these variables, and the file they name.
    pub(super) fn sources(&self) -> Sources {
        Sources::of(self.variables.clone()).read_file()
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(variables: I) -> Self {
        Self { variables: variables.into_iter().collect() }
    }
}
