//! What the Python package is built and tested with: an interpreter, and environments of its own.
//!
//! ```text
//!   target/python/build   what builds the wheel: kept from run to run
//!   target/python/clean   where the wheel is installed and tested: made anew each time
//!   target/python/wheels  the wheel
//! ```

use std::path::{Path, PathBuf};

use crate::dashboard::Dashboard;
use crate::files;
use crate::run::Task;
use crate::setup::install_package;
use crate::workplace::Workplace;

/// The oldest version the package is for.
const OLDEST: (u32, u32) = (3, 10);

/// Interpreters, the usual one first.
const INTERPRETERS: [&str; 6] =
    ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"];

/// The interpreter the environments are made with; else why there is none.
pub(crate) fn interpreter(dashboard: &mut Dashboard<'_>) -> Result<&'static str, String> {
    let mut found = "there is none".to_owned();
    for name in INTERPRETERS {
        let ask = ["-c", "import sys; print(*sys.version_info[:2])"];
        let ran = dashboard.run_aside(&dashboard.place.program(name, "").with(ask));
        match version(&ran.output).filter(|_| ran.succeeded()) {
            Some(version) if version >= OLDEST => return Ok(name),
            Some((major, minor)) => found = format!("{name} is {major}.{minor}"),
            None => {}
        }
    }
    Err(format!("Python {}.{} or newer is needed, and {found}", OLDEST.0, OLDEST.1))
}

fn version(said: &str) -> Option<(u32, u32)> {
    let (major, minor) = said.lines().last()?.trim().split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// An environment of Python's, with its own packages.
pub(crate) struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// The one in that folder under `target/python`, made where it is not there; else why it cannot be.
    pub(crate) fn ensure(name: &str, dashboard: &mut Dashboard<'_>) -> Result<Self, String> {
        let place = dashboard.place;
        let interpreter = interpreter(dashboard)?;
        let environment = Self { folder: folder(place).join(name) };
        if dashboard.works(&environment.python("-m pip --version", place)) {
            return Ok(environment);
        }
        let make = place.program(interpreter, "-m venv --clear").with([&environment.folder]);
        let mut made = dashboard.run_aside(&make);
        if !made.succeeded() {
            // Debian has the module in a package of its own.
            let failed = made.reason();
            install_package("python3-venv", dashboard)
                .map_err(|reason| format!("\"{interpreter} -m venv\" {failed}; {reason}"))?;
            made = dashboard.run_aside(&make);
        }
        if made.succeeded() {
            return Ok(environment);
        }
        Err(format!("\"{interpreter} -m venv\" {}", made.reason()))
    }

    /// The one that builds wheels.
    pub(crate) fn build(dashboard: &mut Dashboard<'_>) -> Result<Self, String> {
        let build = Self::ensure("build", dashboard)?;
        build.fetch("python/requirements-build.txt", dashboard)?;
        Ok(build)
    }

    /// An empty one: nothing of an earlier run is in it.
    pub(crate) fn fresh(name: &str, dashboard: &mut Dashboard<'_>) -> Result<Self, String> {
        let folder = folder(dashboard.place).join(name);
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("{} cannot be cleared: {error}", folder.display()))
            }
            _ => Self::ensure(name, dashboard),
        }
    }

    /// A call of its interpreter.
    pub(crate) fn python(&self, words: &str, place: &Workplace) -> Task {
        place.program(self.folder.join("bin/python"), words)
    }

    /// Fetches the packages of a file of requirements, of which those that are there are left; else why not.
    pub(crate) fn fetch(
        &self,
        requirements: &str,
        dashboard: &mut Dashboard<'_>,
    ) -> Result<(), String> {
        let words = "-m pip install --quiet --disable-pip-version-check --requirement";
        let ran = dashboard.run_aside(&self.python(words, dashboard.place).with([requirements]));
        if ran.succeeded() {
            return Ok(());
        }
        Err(format!("the packages of {requirements} could not be fetched: pip {}", ran.reason()))
    }
}

/// Where all of it is.
pub(crate) fn folder(place: &Workplace) -> PathBuf {
    place.root().join("target").join("python")
}

/// The wheel in a folder that has one and no other.
pub(crate) fn wheel_in(folder: &Path) -> Result<PathBuf, String> {
    let mut wheels = files::entries(folder)?;
    wheels.retain(|path| path.extension().is_some_and(|ending| ending == "whl"));
    match &wheels[..] {
        [wheel] => Ok(wheel.clone()),
        wheels => Err(format!("{} has {} wheels; one is expected", folder.display(), wheels.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::asked;
    use crate::run::Ran;

    #[test]
    fn the_first_interpreter_that_is_new_enough_is_taken() {
        let found = |answer: fn(&str) -> Ran| {
            asked(&Workplace::here(), |words, _| answer(words), interpreter).0
        };
        let taken = found(|words| match words.split(' ').next() {
            Some("python3") => Ran::made_up(true, "3 9\n"),
            Some("python3.12") => Ran::made_up(true, "3 12\n"),
            _ => Ran::made_up(false, ""),
        });
        assert_eq!(taken, Ok("python3.12"));
        let reason = found(|_| Ran::made_up(true, "3 9\n")).unwrap_err();
        assert!(
            reason.starts_with("Python 3.10 or newer is needed, and python3.10 is 3.9"),
            "{reason}"
        );
        let reason = found(|_| Ran::made_up(false, "")).unwrap_err();
        assert!(reason.ends_with("there is none"), "{reason}");
        assert_eq!(found(|_| Ran::made_up(true, "4 0\n")), Ok("python3"));
    }

    #[test]
    fn a_missing_module_is_installed_and_a_missing_network_told() {
        let place = Workplace::here().installing(true);
        let ensure =
            |dashboard: &mut Dashboard<'_>| Environment::ensure("none", dashboard).map(drop);
        let later = |_: &str, number| Ran::made_up(number == 1 || number > 3, "3 12\n");
        let (made, commands) = asked(&place, later, ensure);
        assert_eq!(made, Ok(()));
        assert!(commands.iter().any(|words| words.ends_with("python3-venv")), "{commands:?}");
        let never = |_: &str, number| Ran::made_up(number == 1, "3 12\n");
        let (made, _) = asked(&place, never, ensure);
        assert!(made.is_err_and(|reason| reason.contains("python3-venv")));
        let environment = Environment { folder: "nowhere".into() };
        let said = "WARNING: retrying\nERROR: No matching distribution found\n";
        let (fetched, _) = asked(
            &place,
            |_, _| Ran::made_up(false, said),
            |dashboard| environment.fetch("list.txt", dashboard),
        );
        assert!(fetched.unwrap_err().contains("No matching distribution"));
    }

    #[test]
    fn a_folder_has_one_wheel() {
        let folder = tempfile::tempdir().unwrap();
        assert!(wheel_in(folder.path()).unwrap_err().contains("0 wheels"));
        let wheel = folder.path().join("forebay.whl");
        std::fs::write(&wheel, "").unwrap();
        std::fs::write(folder.path().join("other.txt"), "").unwrap();
        assert_eq!(wheel_in(folder.path()), Ok(wheel));
    }
}
