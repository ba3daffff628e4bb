//! The wheel that is published: the Python package with adapters for every known PyTorch, so that users need
//! no compiler.
//!
//! ```text
//!   xtask/wheel/adapters.py build   PyTorch's headers, fetched once; an adapter for each interface
//!   maturin build --release         the package with its library
//!   xtask/wheel/adapters.py pack    both in one wheel, in dist/
//! ```
//!
//! The adapters are never in the source tree: there the package would prefer them to newer sources.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::python::{Environment, folder, interpreter, wheel_in};
use crate::run::{Ran, Task, last_line};
use crate::screen::{BAD, Screen, styled};
use crate::workplace::Workplace;

/// What builds the adapters and packs them.
const SCRIPT: &str = "xtask/wheel/adapters.py";

/// How long building the package may be silent, optimised, on two cores.
const BUILD: Duration = Duration::from_secs(2400);

/// How long fetching the headers and compiling the adapters may be silent: some 40 MB, and eight compilations. More where a
/// server refuses range requests: each PyTorch is up to 0.9 GB then.
const ADAPTERS: Duration = Duration::from_secs(3600);

/// How long packing may be silent.
const PACK: Duration = Duration::from_secs(120);

/// Where it goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Wheel {
    /// The folder that is to have the wheel.
    #[arg(long, value_name = "DIR", default_value = "dist")]
    out: PathBuf,
}

impl Wheel {
    /// Builds it. Whether it is there.
    pub(crate) fn make(&self, place: &Workplace, screen: &Screen) -> bool {
        let made = self.try_make(place, &mut |task| watched(task, screen));
        match made {
            Ok(said) => {
                screen.line(said);
                true
            }
            Err(reason) => {
                screen.line(styled(BAD, format_args!("no wheel was made: {reason}")));
                false
            }
        }
    }

    /// What the last step says of the wheel.
    fn try_make(
        &self,
        place: &Workplace,
        run: &mut dyn FnMut(&Task) -> Ran,
    ) -> Result<String, String> {
        let out = place.root().join(&self.out).display().to_string();
        let python = Environment::ensure("build", interpreter(place, run)?, place, run)?;
        python.fetch("python/requirements-build.txt", place, run)?;
        let cache = folder(place).join("adapters").display().to_string();
        // The adapters first: what cannot be fetched is known before the long build.
        succeed(&python.python([SCRIPT, "build", &cache], ADAPTERS, place), run)?;
        let plain = folder(place).join("plain");
        // A wheel of an earlier version must not be taken for this one; what cannot be cleared is told below.
        let _ = std::fs::remove_dir_all(&plain);
        let shown = plain.display().to_string();
        let words = ["-m", "maturin", "build", "--release", "--out", &shown];
        // The published wheel does not depend on the settings of the machine that builds it.
        let task = python.python(words, BUILD, place).variable("CARGO_INCREMENTAL", "0");
        succeed(&task, run)?;
        let wheel = wheel_in(&plain)?.display().to_string();
        let said =
            succeed(&python.python([SCRIPT, "pack", &cache, &wheel, &out], PACK, place), run)?;
        Ok(last_line(&said).to_owned())
    }
}

/// What a command says; where it fails, its words or the line that names the error.
fn succeed(task: &Task, run: &mut dyn FnMut(&Task) -> Ran) -> Result<String, String> {
    let ran = run(task);
    if ran.succeeded() {
        return Ok(ran.output);
    }
    match ran.output.lines().find_map(|line| line.strip_prefix("error: ")) {
        Some(reason) if ran.output.lines().count() < 40 => Err(reason.to_owned()),
        _ => Err(format!("\"{task}\" {}\n{}", ran.ending, ran.output)),
    }
}

/// Runs a command with its last line at the bottom of the screen, and shows which adapters it made.
fn watched(task: &Task, screen: &Screen) -> Ran {
    screen.begin("wheel", task);
    let ran = task.run(&mut |elapsed, tail| {
        let line = last_line(tail);
        screen.live("wheel", elapsed, line);
        screen.beat("wheel", elapsed, line);
    });
    for line in ran.output.lines().filter(|line| line.starts_with("adapter_")) {
        screen.line(line);
    }
    ran
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Ending;

    fn said(ending: Ending, output: &str) -> Ran {
        Ran { ending, output: output.to_owned(), cpu: Duration::ZERO }
    }

    fn failed() -> Ending {
        Ending::NotStarted(std::io::Error::other("it failed"))
    }

    #[test]
    fn the_script_is_there() {
        assert!(Workplace::here().root().join(SCRIPT).is_file());
    }

    #[test]
    fn the_package_is_not_built_where_an_adapter_is_missing() {
        let place = Workplace::of_a_person();
        let mut asked = Vec::new();
        let made = Wheel { out: "dist".into() }.try_make(&place, &mut |task| {
            asked.push(task.to_string());
            if task.to_string().contains(SCRIPT) {
                said(failed(), "error: torch==2.8.0 could not be had: no network\n")
            } else {
                said(Ending::Success, "3 12\n")
            }
        });
        assert_eq!(made, Err("torch==2.8.0 could not be had: no network".to_owned()));
        assert!(!asked.iter().any(|task| task.contains("maturin build")), "{asked:?}");
    }

    #[test]
    fn a_failure_without_a_reason_shows_all_that_was_said() {
        let task = Workplace::here().program("maturin", ["build"], PACK);
        let reason = succeed(&task, &mut |_| said(failed(), "one\ntwo\n")).unwrap_err();
        assert!(reason.contains("maturin build") && reason.contains("one\ntwo"), "{reason}");
    }
}
