//! Where the repository is and which cargo to call.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::run::Task;

/// Which crates are built and tested together, as words for cargo: all but this program. With it, crates that
/// both use would get more features than this program or the Python package needs, and be built twice.
/// Each command that shares what the tests have built names the same ones.
pub(crate) const TESTED: &str = "--workspace --exclude xtask --all-features";

/// The repository and the tools of this run.
#[derive(Debug)]
pub(crate) struct Workplace {
    root: PathBuf,
    cargo: OsString,
    /// Whether packages of the system may be installed.
    may_install: bool,
}

impl Workplace {
    /// The repository cargo runs this program for.
    pub(crate) fn here() -> Self {
        // Asked at run time first: two checkouts may share one target directory, and the program
        // built for the one is then run for the other.
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().unwrap_or(&manifest).to_owned();
        // Set by the cargo that started us: the same one, not whichever comes first in PATH.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // A machine of a hosted service is there for this run alone; a person's is not ours to change.
        let may_install = std::env::var_os("CI").is_some_and(|value| value == "true");
        Self { root, cargo, may_install }
    }

    /// The same where packages of the system may be installed if `asked`, whatever the environment says.
    #[must_use]
    pub(crate) fn installing(self, asked: bool) -> Self {
        Self { may_install: self.may_install || asked, ..self }
    }

    /// One where nothing is installed, whatever the environment says.
    #[cfg(test)]
    pub(crate) fn of_a_person() -> Self {
        Self { may_install: false, ..Self::here() }
    }

    /// Whether packages of the system may be installed.
    pub(crate) fn may_install(&self) -> bool {
        self.may_install
    }

    /// The directory with the workspace's Cargo.toml.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where cargo builds.
    pub(crate) fn target(&self) -> PathBuf {
        let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        self.root.join(folder)
    }

    /// The cargo this workspace is built with.
    pub(crate) fn cargo_program(&self) -> &OsStr {
        &self.cargo
    }

    /// A call of it.
    pub(crate) fn cargo(&self, words: &str) -> Task {
        Task::new(&self.cargo, words, &self.root)
    }

    /// A call of a program of the system, which may not be there.
    pub(crate) fn program(&self, name: impl AsRef<OsStr>, words: &str) -> Task {
        Task::new(name, words, &self.root)
    }
}
