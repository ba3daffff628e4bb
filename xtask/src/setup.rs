//! What a step needs that a fresh machine may lack.
//!
//! Each tool is looked for; where it is missing and can be had in bounded time, it is fetched;
//! where it cannot, the reason comes back in words, and the step is left out with it.

use std::time::Duration;

use crate::run::{Ran, Task};
use crate::workplace::Workplace;

/// How long looking for a tool may be silent. rustup's stand-ins answer in a few milliseconds.
const LOOK: Duration = Duration::from_secs(20);

/// How long fetching a component may be silent: a few MiB.
const FETCH_COMPONENT: Duration = Duration::from_secs(60);

/// How long fetching a whole toolchain may be silent: about 100 MiB.
const FETCH_TOOLCHAIN: Duration = Duration::from_secs(180);

/// How commands are run: on the screen, or by a test that makes up what they say.
pub(crate) type Runner<'a> = dyn FnMut(&Task) -> Ran + 'a;

/// A component of the toolchain this workspace is built with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Component {
    /// `cargo fmt`.
    Rustfmt,
    /// `cargo clippy`.
    Clippy,
}

impl Component {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Rustfmt => ("rustfmt", "fmt"),
            Self::Clippy => ("clippy", "clippy"),
        }
    }

    /// Sees that the component is there, fetching it if need be; else the reason.
    pub(crate) fn ensure(self, place: &Workplace, run: &mut Runner<'_>) -> Result<(), String> {
        let (component, subcommand) = self.names();
        let look = place.cargo([subcommand, "--version"], LOOK);
        if run(&look).succeeded() {
            return Ok(());
        }
        let added = run(&place.rustup(["component", "add", component], FETCH_COMPONENT));
        if added.succeeded() && run(&look).succeeded() {
            return Ok(());
        }
        Err(format!(
            "{component} is not installed, and \"rustup component add {component}\" {}",
            added.reason()
        ))
    }
}

/// Sees that the standard library is there for a target, fetching it if need be; else the reason.
pub(crate) fn ensure_target(
    target: &str,
    place: &Workplace,
    run: &mut Runner<'_>,
) -> Result<(), String> {
    let look = place.rustup(["target", "list", "--installed"], LOOK);
    let has = |ran: &Ran| ran.succeeded() && ran.output.lines().any(|line| line.trim() == target);
    if has(&run(&look)) {
        return Ok(());
    }
    let added = run(&place.rustup(["target", "add", target], FETCH_COMPONENT));
    if added.succeeded() && has(&run(&look)) {
        return Ok(());
    }
    Err(format!("{target} is not installed, and \"rustup target add {target}\" {}", added.reason()))
}

/// Sees that Miri is there for the nightly toolchain, fetching it if need be; else the reason.
pub(crate) fn ensure_miri(place: &Workplace, run: &mut Runner<'_>) -> Result<(), String> {
    let look = place.rustup(["run", "nightly", "cargo", "miri", "--version"], LOOK);
    if run(&look).succeeded() {
        return Ok(());
    }
    // An existing nightly is left at its date: adding to it does not move it.
    let toolchains = run(&place.rustup(["toolchain", "list"], LOOK));
    if !toolchains.succeeded() {
        return Err(format!("Miri needs a nightly toolchain, and rustup {}", toolchains.reason()));
    }
    let has_nightly = toolchains.output.lines().any(|line| line.starts_with("nightly"));
    let (words, limit): (&[&str], _) = if has_nightly {
        (&["component", "add", "miri", "rust-src", "--toolchain", "nightly"], FETCH_COMPONENT)
    } else {
        let install =
            &["toolchain", "install", "nightly", "--profile", "minimal", "--no-self-update"];
        (
            &[&install[..], &["--component", "miri", "--component", "rust-src"]].concat(),
            FETCH_TOOLCHAIN,
        )
    };
    let fetched = run(&place.rustup(words.iter().copied(), limit));
    if fetched.succeeded() && run(&look).succeeded() {
        return Ok(());
    }
    Err(format!("Miri is not installed, and \"rustup {}\" {}", words.join(" "), fetched.reason()))
}

/// How long installing a package of the system may be silent.
const FETCH_PACKAGE: Duration = Duration::from_secs(180);

/// Sees that valgrind is there, installing it where that is allowed; else the reason.
pub(crate) fn ensure_valgrind(place: &Workplace, run: &mut Runner<'_>) -> Result<(), String> {
    ensure_program("valgrind", "--version", place, run)
}

/// Sees that tmux is there for the test of the monitor's live view, installing it where that is allowed: half a megabyte.
/// Without it the test says that it was left out. Of `promtool`, which is 22 MB with what it brings, the test says the same.
pub(crate) fn ensure_tmux(place: &Workplace, run: &mut Runner<'_>) -> Result<(), String> {
    ensure_program("tmux", "-V", place, run)
}

/// Sees that a program is there, installing the package of its name where that is allowed; else the reason.
fn ensure_program(
    program: &str,
    version: &str,
    place: &Workplace,
    run: &mut Runner<'_>,
) -> Result<(), String> {
    let look = place.program(program, [version], LOOK);
    if run(&look).succeeded() {
        return Ok(());
    }
    install_package(program, place, run)
        .map_err(|reason| format!("{program} is not installed; {reason}"))?;
    let found = run(&look);
    if found.succeeded() { Ok(()) } else { Err(format!("{program} {}", found.reason())) }
}

/// Sees that AMD's HIP runtime is there for the test that loads it, installing Debian's where that is allowed: 18 MB, which
/// take 80 MB. Without it the test says that it was left out, and why.
pub(crate) fn ensure_hip(place: &Workplace, run: &mut Runner<'_>) {
    let known = run(&place.program("ldconfig", ["--print-cache"], LOOK));
    if !(known.succeeded() && known.output.contains("libamdhip64.so")) {
        let _ = install_package("libamdhip64-5", place, run);
    }
}

/// Sees that OpenCL has a platform, by installing PoCL, which runs on the processor, where that is allowed; else the
/// reason.
pub(crate) fn ensure_opencl(place: &Workplace, run: &mut Runner<'_>) -> Result<(), String> {
    let look = place.program("sh", ["-c", "ls /etc/OpenCL/vendors/*.icd"], LOOK);
    if run(&look).succeeded() {
        return Ok(());
    }
    for package in ["ocl-icd-libopencl1", "pocl-opencl-icd"] {
        install_package(package, place, run)
            .map_err(|reason| format!("OpenCL has no platform; {reason}"))?;
    }
    let found = run(&look);
    if found.succeeded() { Ok(()) } else { Err(format!("OpenCL's vendors: {}", found.reason())) }
}

/// Installs a package of the system with apt-get, where that is allowed; else the reason, which names the
/// package and what would install it.
pub(crate) fn install_package(
    package: &str,
    place: &Workplace,
    run: &mut Runner<'_>,
) -> Result<(), String> {
    if !place.may_install() {
        return Err(format!(
            "the package {package} helps, and \"cargo xtask test --install\" installs it"
        ));
    }
    // The lists of packages may be missing on a fresh machine; where they cannot be had, what is
    // there may do.
    let _ = run(&place.program("apt-get", ["update", "--quiet"], FETCH_PACKAGE));
    // Another step may be installing too.
    let wait = "--option=DPkg::Lock::Timeout=120";
    let words = ["install", "--yes", "--quiet", wait, "--no-install-recommends", package];
    let installed = run(&place.program("apt-get", words, FETCH_PACKAGE));
    if installed.succeeded() {
        return Ok(());
    }
    Err(format!("\"apt-get install {package}\" {}", installed.reason()))
}

/// Whether a subcommand of cargo that is not part of the toolchain is there. Such a tool is not
/// fetched: building one takes longer than everything it would check.
pub(crate) fn has_subcommand(place: &Workplace, name: &str, run: &mut Runner<'_>) -> bool {
    run(&place.cargo([name, "--version"], LOOK)).succeeded()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::run::Ending;

    fn said(good: bool, output: &str) -> Ran {
        let ending =
            if good { Ending::Success } else { Ending::NotStarted(io::Error::other("not found")) };
        Ran { ending, output: output.to_owned(), cpu: Duration::ZERO }
    }

    /// Runs `act` with a runner that answers each command by its words, and returns the commands.
    fn asked(
        answer: impl Fn(&str, usize) -> Ran,
        act: impl FnOnce(&Workplace, &mut Runner<'_>) -> Result<(), String>,
    ) -> (Result<(), String>, Vec<String>) {
        asked_at(&Workplace::here(), answer, act)
    }

    fn asked_at(
        place: &Workplace,
        answer: impl Fn(&str, usize) -> Ran,
        act: impl FnOnce(&Workplace, &mut Runner<'_>) -> Result<(), String>,
    ) -> (Result<(), String>, Vec<String>) {
        let mut commands = Vec::new();
        let result = act(place, &mut |task| {
            commands.push(task.to_string());
            answer(&task.to_string(), commands.len())
        });
        (result, commands)
    }

    #[test]
    fn what_is_there_is_not_fetched() {
        let (result, commands) =
            asked(|_, _| said(true, ""), |place, run| Component::Clippy.ensure(place, run));
        assert_eq!(result, Ok(()));
        assert_eq!(commands.len(), 1);
        let (result, commands) = asked(|_, _| said(true, ""), ensure_miri);
        assert_eq!((result, commands.len()), (Ok(()), 1));
    }

    #[test]
    fn a_missing_component_is_fetched() {
        let (result, commands) = asked(
            |_, number| said(number > 1, ""),
            |place, run| Component::Rustfmt.ensure(place, run),
        );
        assert_eq!(result, Ok(()));
        assert_eq!(commands[1], "rustup component add rustfmt");
    }

    #[test]
    fn what_cannot_be_had_is_told_with_the_systems_own_words() {
        let (result, _) = asked(
            |_, _| said(false, "info: downloading\nerror: could not reach the server\n"),
            |place, run| Component::Rustfmt.ensure(place, run),
        );
        let reason = result.unwrap_err();
        assert!(reason.contains("rustup component add rustfmt"), "{reason}");
        assert!(reason.contains("could not reach the server"), "{reason}");
        assert!(!has_subcommand(&Workplace::here(), "deny", &mut |_| said(false, "")));
    }

    #[test]
    fn a_target_is_fetched_where_it_is_missing() {
        let look = |place: &Workplace, run: &mut Runner<'_>| ensure_target("mac", place, run);
        let (result, commands) = asked(|_, _| said(true, "linux\nmac\n"), look);
        assert_eq!((result, commands.len()), (Ok(()), 1));
        let added =
            |_: &str, number: usize| said(true, if number > 2 { "mac\n" } else { "linux\n" });
        let (result, commands) = asked(added, look);
        assert_eq!((result, commands[1].as_str()), (Ok(()), "rustup target add mac"));
        let (result, _) = asked(|_, number| said(number == 1, "macro\n"), look);
        let reason = result.unwrap_err();
        assert!(
            reason.starts_with("mac is not installed, and \"rustup target add mac\""),
            "{reason}"
        );
    }

    #[test]
    fn a_nightly_is_fetched_only_where_there_is_none() {
        let list = |text: &'static str| {
            move |words: &str, _: usize| said(words == "rustup toolchain list", text)
        };
        let (result, commands) =
            asked(list("stable-x86_64\nnightly-x86_64 (default)\n"), ensure_miri);
        assert!(commands[2].starts_with("rustup component add miri"), "{commands:?}");
        assert!(result.unwrap_err().starts_with("Miri is not installed"));
        let (_, commands) = asked(list("stable-x86_64 (default)\n"), ensure_miri);
        assert!(commands[2].starts_with("rustup toolchain install nightly"), "{commands:?}");
        let (result, commands) = asked(|_, _| said(false, ""), ensure_miri);
        assert!(result.unwrap_err().contains("could not be started"));
        assert_eq!(commands.len(), 2);
    }

    #[test]
    fn opencl_is_installed_with_its_loader_where_no_platform_is() {
        let missing = |words: &str, number: usize| {
            said(words.starts_with("apt-get") || (words.starts_with("sh") && number > 1), "")
        };
        let ours = Workplace::here().installing(true);
        let (result, commands) = asked_at(&ours, missing, ensure_opencl);
        assert_eq!(result, Ok(()));
        assert!(commands[2].ends_with("ocl-icd-libopencl1"), "{commands:?}");
        assert!(commands[4].ends_with("pocl-opencl-icd"), "{commands:?}");
        let (result, commands) = asked_at(&Workplace::of_a_person(), missing, ensure_opencl);
        assert!(result.unwrap_err().starts_with("OpenCL has no platform; the package"));
        assert_eq!(commands.len(), 1, "nothing but a look: {commands:?}");
    }

    #[test]
    fn a_package_of_the_system_is_installed_only_where_that_is_allowed() {
        let missing = |words: &str, number: usize| {
            said(words.starts_with("apt-get") || (words.starts_with("valgrind") && number > 1), "")
        };
        let ours = Workplace::here().installing(true);
        let (result, commands) = asked_at(&ours, missing, ensure_valgrind);
        assert_eq!(result, Ok(()));
        assert!(commands[2].ends_with("--no-install-recommends valgrind"), "{commands:?}");
        let theirs = Workplace::of_a_person();
        let (result, commands) = asked_at(&theirs, missing, ensure_valgrind);
        let reason = result.unwrap_err();
        assert!(reason.starts_with("valgrind is not installed; the package valgrind"), "{reason}");
        assert!(reason.contains("--install"), "{reason}");
        assert_eq!(commands.len(), 1, "nothing but a look: {commands:?}");
    }

    #[test]
    fn amds_library_is_installed_where_there_is_none() {
        let ours = Workplace::here().installing(true);
        let ensure = |place: &Workplace, run: &mut Runner<'_>| {
            ensure_hip(place, run);
            Ok(())
        };
        let (_, commands) = asked_at(&ours, |_, _| said(true, "libc.so.6"), ensure);
        assert!(commands[2].ends_with("libamdhip64-5"), "{commands:?}");
        let (_, commands) = asked_at(&ours, |_, _| said(true, "libamdhip64.so.6 => ..."), ensure);
        assert_eq!(commands.len(), 1, "nothing but a look: {commands:?}");
    }
}
