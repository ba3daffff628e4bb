//! The Python package: built as a wheel, installed where there is nothing else, used, tested.

use std::time::Duration;

use super::{Desk, broken, suites, told};
use crate::count;
use crate::python::{Environment, folder, interpreter, wheel_in};
use crate::step::Outcome;
use crate::workplace::{TESTED, Workplace};

/// How long building the wheel and the fake driver may be silent, on two cores.
const BUILD: Duration = Duration::from_secs(900);

/// How long installing the wheel and trying it may be silent.
const TRY: Duration = Duration::from_secs(120);

/// How long the tests may be silent.
const TESTS: Duration = Duration::from_secs(600);

/// A program that uses what was installed, before anything else is installed beside it.
const TRIAL: &str = "examples/python/01_first_buffer.py";

/// The wheel and its tests. Where there is no Python, or its packages cannot be fetched, the step is left out.
pub(super) fn python(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let left_out = |reason| Outcome::LeftOut { reason };
    let interpreter = match interpreter(place, &mut |task| desk.run_aside(task)) {
        Ok(interpreter) => interpreter,
        Err(reason) => return left_out(reason),
    };
    let run = &mut |task: &_| desk.run_aside(task);
    let build = Environment::ensure("build", interpreter, place, run).and_then(|build| {
        build.fetch("python/requirements-build.txt", place, run)?;
        Ok(build)
    });
    let build = match build {
        Ok(build) => build,
        Err(reason) => return left_out(reason),
    };

    // As the tests are built, not as a release: it is for trying, and shares what is built already. The
    // fake driver and HIP over it come with any example of the library: as a package alone it would be built with fewer
    // features, and all that it uses once more.
    let words = format!("build {TESTED} --example 01_first_block");
    let fake = place.cargo(words.split(' '), BUILD);
    let ran = desk.run(&fake);
    if !ran.succeeded() {
        return Outcome::Untested { output: told(&fake, &ran, &ran.output) };
    }
    let wheels = folder(place).join("wheels");
    // A wheel of an earlier version must not be taken for this one; what cannot be cleared is told below.
    let _ = std::fs::remove_dir_all(&wheels);
    let out = wheels.display().to_string();
    // With the features of the workspace's tests, or all that the package depends on would be built anew.
    let words = "-m maturin build --profile dev --features as-tested --quiet --out";
    let task = build.python(words.split(' ').chain([&*out]), BUILD, place);
    let ran = desk.run(&task);
    if !ran.succeeded() {
        return Outcome::Untested { output: told(&task, &ran, &ran.output) };
    }
    let wheel = match wheel_in(&wheels) {
        Ok(wheel) => wheel.display().to_string(),
        Err(output) => return Outcome::Untested { output },
    };

    let run = &mut |task: &_| desk.run_aside(task);
    let clean = match Environment::fresh("clean", interpreter, place, run) {
        Ok(clean) => clean,
        Err(reason) => return left_out(reason),
    };
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    let install = install.into_iter().chain(["--no-index", &wheel]);
    let tries = ["host", "sim"].map(|device| clean.python([TRIAL, device], TRY, place));
    for task in [clean.python(install, TRY, place)].into_iter().chain(tries) {
        let ran = desk.run(&task);
        if !ran.succeeded() {
            return broken(&task, &ran);
        }
    }
    if let Err(reason) =
        clean.fetch("python/requirements-test.txt", place, &mut |task| desk.run_aside(task))
    {
        return left_out(reason);
    }
    let built = |file: &str| place.root().join("target/debug/deps").join(file);
    let words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests"];
    let task = clean
        .python(words, TESTS, place)
        .variable("PYTHONDONTWRITEBYTECODE", "1")
        .variable("FOREBAY_CUDA_DRIVER", built("libforebay_cuda_fake_driver.so"))
        .variable("FOREBAY_HIP_DRIVER", built("libforebay_hip_bridge.so"));
    let ran = desk.run(&task);
    suites::tested(&task, &ran, count::pytest(&ran.output), &ran.output)
}
