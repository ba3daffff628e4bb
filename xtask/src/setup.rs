//! What a step needs that a fresh machine may lack.
//!
//! Each tool is looked for; where it is missing and can be had in bounded time, it is fetched;
//! where it cannot, the reason comes back in words, and the step is left out with it.

use crate::dashboard::Dashboard;
use crate::run::Task;

/// Sees that `look` succeeds, running `get` if need be; else why `what` cannot be had.
fn ensure(
    what: &str,
    look: &Task,
    get: &Task,
    dashboard: &mut Dashboard<'_>,
) -> Result<(), String> {
    if dashboard.works(look) {
        return Ok(());
    }
    let got = dashboard.run_aside(get);
    if got.succeeded() && dashboard.works(look) {
        return Ok(());
    }
    Err(format!("{what} is not installed, and \"{get}\" {}", got.reason()))
}

/// Sees that `cargo fmt` is there.
pub(crate) fn ensure_rustfmt(dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    let place = dashboard.place;
    let get = place.program("rustup", "component add rustfmt");
    ensure("rustfmt", &place.cargo("fmt --version"), &get, dashboard)
}

/// Sees that `cargo clippy` is there.
pub(crate) fn ensure_clippy(dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    let place = dashboard.place;
    let get = place.program("rustup", "component add clippy");
    ensure("clippy", &place.cargo("clippy --version"), &get, dashboard)
}

/// Sees that the standard library is there for a target.
pub(crate) fn ensure_target(target: &str, dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    let place = dashboard.place;
    let script = format!("rustup target list --installed | grep -qx {target}");
    let get = place.program("rustup", &format!("target add {target}"));
    ensure(target, &place.program("sh", "-c").with([script]), &get, dashboard)
}

/// Sees that Miri is there for the nightly toolchain.
pub(crate) fn ensure_miri(dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    let place = dashboard.place;
    let look = place.program("rustup", "run nightly cargo miri --version");
    // An existing nightly is left at its date: adding to it does not move it.
    let has_nightly = dashboard.works(&place.program("rustup", "run nightly rustc --version"));
    let words = if has_nightly {
        "component add miri rust-src --toolchain nightly"
    } else {
        "toolchain install nightly --profile minimal --no-self-update --component miri --component rust-src"
    };
    ensure("Miri", &look, &place.program("rustup", words), dashboard)
}

/// Sees that valgrind is there, installing it where that is allowed.
pub(crate) fn ensure_valgrind(dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    ensure_package("valgrind", "valgrind --version", &["valgrind"], dashboard)
}

/// Sees that tmux is there for the test of the monitor's live view, which says itself that it was left out without it.
pub(crate) fn ensure_tmux(dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    ensure_package("tmux", "tmux -V", &["tmux"], dashboard)
}

/// Sees that AMD's HIP runtime is there for the test that loads it, which says itself that it was left out without it.
pub(crate) fn ensure_hip(dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    let look = "ldconfig --print-cache | grep -q libamdhip64.so";
    ensure_package("AMD's HIP runtime", look, &["libamdhip64-5"], dashboard)
}

/// Sees that OpenCL has a platform, by installing PoCL, which runs on the processor.
pub(crate) fn ensure_opencl(dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    let packages = ["ocl-icd-libopencl1", "pocl-opencl-icd"];
    ensure_package("a platform of OpenCL", "ls /etc/OpenCL/vendors/*.icd", &packages, dashboard)
}

/// Sees that a script succeeds, installing packages of the system where that is allowed.
fn ensure_package(
    what: &str,
    look: &str,
    packages: &[&str],
    dashboard: &mut Dashboard<'_>,
) -> Result<(), String> {
    let look = dashboard.place.program("sh", "-c").with([look]);
    if dashboard.works(&look) {
        return Ok(());
    }
    for package in packages {
        install_package(package, dashboard)
            .map_err(|reason| format!("{what} is not installed; {reason}"))?;
    }
    let found = dashboard.run_aside(&look);
    if found.succeeded() { Ok(()) } else { Err(format!("{what}: \"{look}\" {}", found.reason())) }
}

/// Installs a package of the system with apt-get, where that is allowed; else the reason, which names the
/// package and what would install it.
pub(crate) fn install_package(package: &str, dashboard: &mut Dashboard<'_>) -> Result<(), String> {
    let place = dashboard.place;
    if !place.may_install() {
        return Err(format!(
            "the package {package} helps, and \"cargo xtask test --install\" installs it"
        ));
    }
    // The lists of packages may be missing on a fresh machine; where they cannot be had, what is
    // there may do.
    dashboard.works(&place.program("apt-get", "update --quiet"));
    // Another step may be installing too.
    let words = "install --yes --quiet --option=DPkg::Lock::Timeout=120 --no-install-recommends";
    let installed = dashboard.run_aside(&place.program("apt-get", words).with([package]));
    if installed.succeeded() {
        return Ok(());
    }
    Err(format!("\"apt-get install {package}\" {}", installed.reason()))
}

/// Whether a subcommand of cargo that is not part of the toolchain is there. Such a tool is not
/// fetched: building one takes longer than everything it would check.
pub(crate) fn has_subcommand(name: &str, dashboard: &mut Dashboard<'_>) -> bool {
    let look = dashboard.place.cargo(&format!("{name} --version"));
    dashboard.works(&look)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::asked;
    use crate::run::Ran;
    use crate::workplace::Workplace;

    #[test]
    fn what_is_there_is_not_fetched_and_what_is_missing_is() {
        let here = Workplace::here();
        let (result, commands) = asked(&here, |_, _| Ran::made_up(true, ""), ensure_clippy);
        assert_eq!((result, commands.len()), (Ok(()), 1));
        let later = |_: &str, number| Ran::made_up(number > 1, "");
        let (result, commands) = asked(&here, later, ensure_rustfmt);
        assert_eq!((result, commands[1].as_str()), (Ok(()), "rustup component add rustfmt"));
        let (result, commands) = asked(&here, later, |dashboard| ensure_target("mac", dashboard));
        assert_eq!((result, commands[1].as_str()), (Ok(()), "rustup target add mac"));
    }

    #[test]
    fn what_cannot_be_had_is_told_with_the_systems_own_words() {
        let said = "info: downloading\nerror: could not reach the server\n";
        let (result, _) =
            asked(&Workplace::here(), |_, _| Ran::made_up(false, said), ensure_rustfmt);
        let reason = result.unwrap_err();
        assert!(reason.contains("rustup component add rustfmt"), "{reason}");
        assert!(reason.contains("could not reach the server"), "{reason}");
    }

    #[test]
    fn a_nightly_is_fetched_only_where_there_is_none() {
        for (has_nightly, get) in
            [(true, "component add miri"), (false, "toolchain install nightly")]
        {
            let answer = |words: &str, _| {
                Ran::made_up(has_nightly && words.ends_with("rustc --version"), "")
            };
            let (result, commands) = asked(&Workplace::here(), answer, ensure_miri);
            assert!(commands[2].starts_with(&format!("rustup {get}")), "{commands:?}");
            assert!(result.unwrap_err().starts_with("Miri is not installed"));
        }
    }

    #[test]
    fn packages_of_the_system_are_installed_only_where_that_is_allowed() {
        let missing = |words: &str, number: usize| {
            Ran::made_up(
                words.starts_with("apt-get") || (words.starts_with("sh") && number > 1),
                "",
            )
        };
        let ours = Workplace::here().installing(true);
        let (result, commands) = asked(&ours, missing, ensure_opencl);
        assert_eq!(result, Ok(()));
        assert!(commands[2].ends_with("ocl-icd-libopencl1"), "{commands:?}");
        assert!(commands[4].ends_with("pocl-opencl-icd"), "{commands:?}");
        let (result, commands) = asked(&Workplace::of_a_person(), missing, ensure_valgrind);
        let reason = result.unwrap_err();
        assert!(reason.starts_with("valgrind is not installed; the package valgrind"), "{reason}");
        assert!(reason.contains("--install"), "{reason}");
        assert_eq!(commands.len(), 1, "nothing but a look: {commands:?}");
    }
}
