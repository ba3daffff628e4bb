//! The Python package: built as a wheel, installed where there is nothing else, used, tested.

use super::suites;
use crate::count;
use crate::dashboard::Dashboard;
use crate::python::{Environment, folder, wheel_in};
use crate::step::Outcome;
use crate::workplace::TESTED;

/// A program that uses what was installed, before anything else is installed beside it.
const TRIAL: &str = "examples/python/01_first_buffer.py";

/// The wheel and its tests. Where there is no Python, or its packages cannot be fetched, the step is left out.
pub(super) fn python(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let place = dashboard.place;
    let build = Environment::build(dashboard).map_err(Outcome::LeftOut)?;
    let wheels = folder(place).join("wheels");
    // A wheel of an earlier version must not be taken for this one; what cannot be cleared is told below.
    let _ = std::fs::remove_dir_all(&wheels);
    // As the tests are built, not as a release: it is for trying, and shares what is built already. The
    // fake driver and HIP over it come with any example of the library: as a package alone it would be built with fewer
    // features, and all that it uses once more.
    let fake = place.cargo(&format!("build {TESTED} --example 01_first_block"));
    // With the features of the workspace's tests, or all that the package depends on would be built anew.
    let words = "-m maturin build --profile dev --features as-tested --quiet --out";
    for task in [fake, build.python(words, place).with([&wheels])] {
        dashboard.succeed(&task).map_err(|broken| Outcome::Untested(broken.into()))?;
    }
    let wheel = wheel_in(&wheels).map_err(Outcome::Untested)?;

    let clean = Environment::fresh("clean", dashboard).map_err(Outcome::LeftOut)?;
    let install = "-m pip install --quiet --disable-pip-version-check --no-index";
    dashboard.succeed(&clean.python(install, place).with([wheel]))?;
    for device in ["host", "sim"] {
        dashboard.succeed(&clean.python(&format!("{TRIAL} {device}"), place))?;
    }
    clean.fetch("python/requirements-test.txt", dashboard).map_err(Outcome::LeftOut)?;
    let built = |file: &str| place.root().join("target/debug/deps").join(file);
    let task = clean
        .python("-m pytest -q -p no:cacheprovider python/tests", place)
        .variable("PYTHONDONTWRITEBYTECODE", "1")
        .variable("FOREBAY_CUDA_DRIVER", built("libforebay_cuda_fake_driver.so"))
        .variable("FOREBAY_HIP_DRIVER", built("libforebay_hip_bridge.so"));
    let ran = dashboard.run(&task);
    Ok(suites::tested(&task, &ran, count::pytest(&ran.output), &ran.output))
}
