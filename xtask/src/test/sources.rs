//! Steps that look at the sources without running them.

use std::time::Duration;

use cargo_metadata::{Metadata, MetadataCommand};

use super::{Desk, broken, told};
use crate::header;
use crate::layers::{breaches, drawing, members};
use crate::packages;
use crate::rooms::Rooms;
use crate::screen::{BAD, Screen, styled};
use crate::setup::{Component, ensure_target};
use crate::shape::faults;
use crate::step::Outcome;
use crate::workplace::Workplace;

/// How long a command may be silent that builds nothing.
const SHORT: Duration = Duration::from_secs(120);

/// How long a command may be silent that builds the workspace and all it depends on, on two cores.
const BUILD: Duration = Duration::from_secs(1200);

/// Every file as rustfmt writes it.
pub(super) fn format(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    match Component::Rustfmt.ensure(place, &mut |task| desk.run_aside(task)) {
        Err(reason) => Outcome::LeftOut { reason },
        Ok(()) => desk.check(&place.cargo(["fmt", "--all", "--check"], SHORT)),
    }
}

/// No lint speaks up, in any target.
pub(super) fn clippy(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    clippy_on(&["--all-targets", "--all-features"], place, desk)
}

/// No lint speaks up, in what is not test code.
pub(super) fn clippy_libraries(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    clippy_on(&["--all-features"], place, desk)
}

fn clippy_on(targets: &[&str], place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    if let Err(reason) = Component::Clippy.ensure(place, &mut |task| desk.run_aside(task)) {
        return Outcome::LeftOut { reason };
    }
    let words = [&["clippy", "--workspace"], targets, &["--", "-D", "warnings"]].concat();
    desk.check(&place.cargo(words, BUILD))
}

/// The system that the Metal device is for.
const APPLE: &str = "aarch64-apple-darwin";

/// No lint speaks up in the Metal device, as it is built for a Mac. It cannot be run here.
pub(super) fn metal(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let ready = Component::Clippy
        .ensure(place, &mut |task| desk.run_aside(task))
        .and_then(|()| ensure_target(APPLE, place, &mut |task| desk.run_aside(task)));
    if let Err(reason) = ready {
        return Outcome::LeftOut { reason };
    }
    let words = ["clippy", "--package", "forebay-metal", "--all-targets", "--target", APPLE];
    match desk.check(&place.cargo(words.into_iter().chain(["--", "-D", "warnings"]), BUILD)) {
        Outcome::Holds { .. } => Outcome::Holds { note: format!("checked for {APPLE}, not run") },
        other => other,
    }
}

/// The documentation builds, and its links lead somewhere.
pub(super) fn documentation(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let words = ["doc", "--workspace", "--no-deps", "--all-features"];
    desk.check(&place.cargo(words, BUILD).variable("RUSTDOCFLAGS", "-D warnings"))
}

/// Each crate uses only those above it; sources and manifests look as they must.
pub(super) fn layers(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let metadata = match metadata(place, desk) {
        Ok(metadata) => metadata,
        Err(broken) => return broken,
    };
    let (count, found) = findings(place, &metadata);
    if found.is_empty() {
        Outcome::Holds { note: format!("{count} crates in order") }
    } else {
        Outcome::Broken { output: found.join("\n") }
    }
}

/// The crates that are to be published can be packed, and have what a registry asks for.
pub(super) fn packages(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let metadata = match metadata(place, desk) {
        Ok(metadata) => metadata,
        Err(broken) => return broken,
    };
    let manifests = packages::manifests(&metadata);
    let faults = packages::faults(&manifests);
    if !faults.is_empty() {
        return Outcome::Broken { output: faults.join("\n") };
    }
    let names = manifests.iter().filter(|one| one.published).map(|one| one.name.as_str());
    let names: Vec<&str> = names.collect();
    // Without a lock file, for which the registry would be asked anew for each crate.
    let words = "package --quiet --no-verify --allow-dirty --exclude-lockfile".split(' ');
    let task = place.cargo(words.chain(names.iter().flat_map(|name| ["--package", name])), SHORT);
    match desk.check(&task) {
        Outcome::Holds { .. } => {
            Outcome::Holds { note: format!("{} crates packed, without building them", names.len()) }
        }
        other => other,
    }
}

/// The C header is what the sources say.
pub(super) fn header(place: &Workplace, _desk: &mut Desk<'_>) -> Outcome {
    match header::check(place) {
        Ok(note) => Outcome::Holds { note },
        Err(output) => Outcome::Broken { output },
    }
}

/// Shows the order, and every breach. Whether there is none.
pub(crate) fn show_layers(place: &Workplace, screen: &Screen) -> bool {
    let metadata = match metadata(place, &mut Desk::new("layers", screen)) {
        Ok(metadata) => metadata,
        Err(outcome) => {
            if let Outcome::Broken { output } = outcome {
                screen.line(output);
            }
            return false;
        }
    };
    screen.line(drawing(&members(&metadata)));
    screen.line("");
    if let Ok(rooms) = Rooms::read(place.root()) {
        screen.line(rooms.drawing());
        screen.line("");
    }
    let (count, found) = findings(place, &metadata);
    for finding in &found {
        screen.line(styled(BAD, finding));
    }
    let word = if found.is_empty() { "kept" } else { "broken" };
    let findings = if found.len() == 1 { "finding" } else { "findings" };
    screen.line(format_args!("{count} crates, {} {findings}: the order is {word}", found.len()));
    found.is_empty()
}

/// How many crates there are, and all that is wrong with them.
fn findings(place: &Workplace, metadata: &Metadata) -> (usize, Vec<String>) {
    let members = members(metadata);
    let packages = metadata.workspace_packages();
    let manifests = packages.iter().map(|package| package.manifest_path.as_std_path());
    let breaches = breaches(&members).into_iter().map(|breach| breach.to_string());
    let faults = faults(place.root(), manifests).into_iter().map(|fault| fault.to_string());
    let disorders =
        Rooms::read(place.root()).map_or_else(|error| vec![error], |rooms| rooms.disorders());
    let circles = Rooms::circles_elsewhere(place.root());
    let disorders = disorders.into_iter().chain(circles).map(|disorder| disorder.to_string());
    (members.len(), breaches.chain(faults).chain(disorders).collect())
}

/// What cargo knows of the workspace. Without its dependencies: then no network is needed.
fn metadata(place: &Workplace, desk: &mut Desk<'_>) -> Result<Metadata, Outcome> {
    let task = place.cargo(["metadata", "--format-version", "1", "--no-deps"], SHORT);
    let ran = desk.run_aside(&task);
    if !ran.succeeded() {
        return Err(broken(&task, &ran));
    }
    // Warnings may stand before it; the answer itself is one line.
    let answer = ran.output.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    MetadataCommand::parse(answer)
        .map_err(|error| Outcome::Broken { output: told(&task, &ran, &error.to_string()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_keeps_its_order() {
        let screen = Screen::nowhere();
        let well = show_layers(&Workplace::here(), &screen);
        let text = screen.written();
        assert!(well, "{text}");
        assert!(text.contains("forebay-core\n"), "{text}");
        assert!(text.contains("0 findings: the order is kept"), "{text}");
    }
}
