//! What the Python package is built and tested with: an interpreter, and environments of its own.
//!
//! ```text
//!   target/python/build   what builds the wheel: kept from run to run
//!   target/python/clean   where the wheel is installed and tested: made anew each time
//!   target/python/wheels  the wheel
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::run::Task;
use crate::setup::{Runner, install_package};
use crate::workplace::Workplace;

/// How long asking an interpreter something may be silent.
const LOOK: Duration = Duration::from_secs(20);

/// How long making an environment may be silent.
const MAKE: Duration = Duration::from_secs(120);

/// How long fetching packages may be silent: some 30 MiB.
const FETCH: Duration = Duration::from_secs(240);

/// The oldest version the package is for.
const OLDEST: (u32, u32) = (3, 10);

/// Interpreters, the usual one first.
const INTERPRETERS: [&str; 6] =
    ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"];

/// The interpreter the environments are made with; else why there is none.
pub(crate) fn interpreter(place: &Workplace, run: &mut Runner<'_>) -> Result<&'static str, String> {
    let mut too_old = None;
    for name in INTERPRETERS {
        let ask = ["-c", "import sys; print(*sys.version_info[:2])"];
        let ran = run(&place.program(name, ask, LOOK));
        match version(&ran.output).filter(|_| ran.succeeded()) {
            Some(version) if version >= OLDEST => return Ok(name),
            Some((major, minor)) => too_old = Some(format!("{name} is {major}.{minor}")),
            None => {}
        }
    }
    let found = too_old.unwrap_or_else(|| "there is none".to_owned());
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
    pub(crate) fn ensure(
        name: &str,
        interpreter: &str,
        place: &Workplace,
        run: &mut Runner<'_>,
    ) -> Result<Self, String> {
        let environment = Self { folder: folder(place).join(name) };
        if run(&environment.python(["-m", "pip", "--version"], LOOK, place)).succeeded() {
            return Ok(environment);
        }
        let path = environment.folder.display().to_string();
        let make = place.program(interpreter, ["-m", "venv", "--clear", &path], MAKE);
        let mut made = run(&make);
        if !made.succeeded() {
            // Debian has the module in a package of its own.
            let failed = made.reason();
            install_package("python3-venv", place, run)
                .map_err(|reason| format!("\"{interpreter} -m venv\" {failed}; {reason}"))?;
            made = run(&make);
        }
        if made.succeeded() {
            return Ok(environment);
        }
        Err(format!("\"{interpreter} -m venv\" {}", made.reason()))
    }

    /// The same, made anew: nothing of an earlier run is in it.
    pub(crate) fn fresh(
        name: &str,
        interpreter: &str,
        place: &Workplace,
        run: &mut Runner<'_>,
    ) -> Result<Self, String> {
        let folder = folder(place).join(name);
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("{} cannot be cleared: {error}", folder.display()))
            }
            _ => Self::ensure(name, interpreter, place, run),
        }
    }

    /// A call of its interpreter.
    pub(crate) fn python<'a>(
        &self,
        words: impl IntoIterator<Item = &'a str>,
        patience: Duration,
        place: &Workplace,
    ) -> Task {
        let python = self.folder.join("bin").join("python");
        place.program(&python.display().to_string(), words, patience)
    }

    /// Fetches the packages of a file of requirements, of which those that are there are left; else why not.
    pub(crate) fn fetch(
        &self,
        requirements: &str,
        place: &Workplace,
        run: &mut Runner<'_>,
    ) -> Result<(), String> {
        let words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        let words = words.into_iter().chain(["--requirement", requirements]);
        let ran = run(&self.python(words, FETCH, place));
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
    let unreadable = |error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let wheels: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "whl")).collect();
    match &wheels[..] {
        [wheel] => Ok(wheel.clone()),
        wheels => Err(format!("{} has {} wheels; one is expected", folder.display(), wheels.len())),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::run::{Ending, Ran};

    fn said(good: bool, output: &str) -> Ran {
        let ending =
            if good { Ending::Success } else { Ending::NotStarted(io::Error::other("not found")) };
        Ran { ending, output: output.to_owned(), cpu: Duration::ZERO }
    }

    #[test]
    fn the_first_interpreter_that_is_new_enough_is_taken() {
        let place = Workplace::here();
        let answers = |task: &Task| match task.to_string().split(' ').next() {
            Some("python3") => said(true, "3 9\n"),
            Some("python3.12") => said(true, "3 12\n"),
            _ => said(false, ""),
        };
        assert_eq!(interpreter(&place, &mut |task| answers(task)), Ok("python3.12"));
        let reason = interpreter(&place, &mut |_| said(true, "3 9\n")).unwrap_err();
        assert!(
            reason.starts_with("Python 3.10 or newer is needed, and python3.10 is 3.9"),
            "{reason}"
        );
        let reason = interpreter(&place, &mut |_| said(false, "")).unwrap_err();
        assert!(reason.ends_with("there is none"), "{reason}");
        assert_eq!(interpreter(&place, &mut |_| said(true, "4 0\n")), Ok("python3"));
    }

    #[test]
    fn a_missing_module_is_installed_and_a_missing_network_told() {
        let place = Workplace::here().installing(true);
        let mut asked = Vec::new();
        let made = Environment::ensure("none", "python3", &place, &mut |task| {
            asked.push(task.to_string());
            said(asked.len() > 2, "")
        });
        assert!(made.is_ok());
        assert!(
            asked.iter().any(|words| words.contains("install") && words.contains("python3-venv"))
        );
        let made =
            Environment::ensure("none", "python3", &place, &mut |_| said(false, "no ensurepip"));
        assert!(made.is_err_and(|reason| reason.contains("python3-venv")));
        let environment = Environment { folder: "nowhere".into() };
        let reason = environment.fetch("list.txt", &place, &mut |_| {
            said(false, "WARNING: retrying\nERROR: No matching distribution found\n")
        });
        assert!(reason.unwrap_err().contains("No matching distribution"));
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
