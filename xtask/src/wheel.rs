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

use clap::Args;

use crate::dashboard::Dashboard;
use crate::python::{Environment, folder, wheel_in};
use crate::run::{Task, last_line};

/// What builds the adapters and packs them.
const SCRIPT: &str = "xtask/wheel/adapters.py";

/// Where it goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Wheel {
    /// The folder that is to have the wheel.
    #[arg(long, value_name = "DIR", default_value = "dist")]
    out: PathBuf,
}

impl Wheel {
    /// Builds it. What the last step says of the wheel.
    pub(crate) fn make(&self, dashboard: &mut Dashboard<'_>) -> Result<String, String> {
        let place = dashboard.place;
        let python = Environment::build(dashboard)?;
        let (cache, plain) = (folder(place).join("adapters"), folder(place).join("plain"));
        let script =
            |words: &str| python.python(&format!("{SCRIPT} {words}"), place).with([&cache]);
        // The adapters first: what cannot be fetched is known before the long build.
        let said = succeed(&script("build"), dashboard)?;
        for line in said.lines().filter(|line| line.starts_with("adapter_")) {
            dashboard.screen.line(line);
        }
        // A wheel of an earlier version must not be taken for this one; what cannot be cleared is told below.
        let _ = std::fs::remove_dir_all(&plain);
        // The published wheel does not depend on the settings of the machine that builds it.
        let build = python.python("-m maturin build --release --out", place).with([&plain]);
        succeed(&build.variable("CARGO_INCREMENTAL", "0"), dashboard)?;
        let paths = [wheel_in(&plain)?, place.root().join(&self.out)];
        Ok(last_line(&succeed(&script("pack").with(paths), dashboard)?).to_owned())
    }
}

/// What a command says; where it fails, its words or the line that names the error.
fn succeed(task: &Task, dashboard: &mut Dashboard<'_>) -> Result<String, String> {
    let said = dashboard.succeed(task).map_err(String::from);
    said.map_err(|said| match said.lines().find_map(|line| line.strip_prefix("error: ")) {
        Some(reason) if said.lines().count() < 40 => reason.to_owned(),
        _ => said,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::asked;
    use crate::run::Ran;
    use crate::workplace::Workplace;

    #[test]
    fn the_script_is_there() {
        assert!(Workplace::here().root().join(SCRIPT).is_file());
    }

    #[test]
    fn the_package_is_not_built_where_an_adapter_is_missing() {
        let answer = |words: &str, _| match words.contains(SCRIPT) {
            true => Ran::made_up(false, "error: torch==2.8.0 could not be had: no network\n"),
            false => Ran::made_up(true, "3 12\n"),
        };
        let wheel = Wheel { out: "dist".into() };
        let (made, asked) =
            asked(&Workplace::of_a_person(), answer, |dashboard| wheel.make(dashboard));
        assert_eq!(made, Err("torch==2.8.0 could not be had: no network".to_owned()));
        assert!(!asked.iter().any(|task| task.contains("maturin build")), "{asked:?}");
    }

    #[test]
    fn a_failure_without_a_reason_shows_all_that_was_said() {
        let place = Workplace::here();
        let task = place.program("maturin", "build");
        let answer = |_: &str, _| Ran::made_up(false, "one\ntwo\n");
        let reason = asked(&place, answer, |dashboard| succeed(&task, dashboard)).0.unwrap_err();
        assert!(reason.contains("maturin build") && reason.contains("one\ntwo"), "{reason}");
    }
}
