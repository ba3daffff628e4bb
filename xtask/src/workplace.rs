//! Where the repository is and which cargo to call.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

    /// A call of the cargo this workspace is built with.
    pub(crate) fn cargo<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
        patience: Duration,
    ) -> Task {
        Task::new(&self.cargo, arguments, &self.root, patience)
    }

    /// A call of a program of the system, which may not be there.
    pub(crate) fn program<'a>(
        &self,
        name: &str,
        arguments: impl IntoIterator<Item = &'a str>,
        patience: Duration,
    ) -> Task {
        Task::new(name, arguments, &self.root, patience)
    }

    /// A call of rustup, which may not be there.
    pub(crate) fn rustup<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
        patience: Duration,
    ) -> Task {
        Task::new("rustup", arguments, &self.root, patience)
    }
}
