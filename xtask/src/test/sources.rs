//! Steps that look at the sources and at the crates of others, without running anything of them.

use cargo_metadata::{Metadata, MetadataCommand};

use crate::dashboard::Dashboard;
use crate::header;
use crate::layers;
use crate::packages;
use crate::rooms::Rooms;
use crate::screen::{BAD, styled};
use crate::setup::{ensure_clippy, ensure_rustfmt, ensure_target, has_subcommand};
use crate::shape;
use crate::step::Outcome;

const NO_DENY: &str = "cargo-deny is not installed, and building it takes longer than all other steps together; \
     \"cargo install --locked cargo-deny\" gets it";

/// The system that the Metal device is for.
const APPLE: &str = "aarch64-apple-darwin";

/// Every file as rustfmt writes it.
pub(super) fn format(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    ensure_rustfmt(dashboard).map_err(Outcome::LeftOut)?;
    dashboard.check(&dashboard.place.cargo("fmt --all --check"), "")
}

/// No lint speaks up, in any target.
pub(super) fn clippy(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    clippy_on("--workspace --all-targets --all-features", "", dashboard)
}

/// No lint speaks up, in what is not test code.
pub(super) fn clippy_libraries(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    clippy_on("--workspace --all-features", "", dashboard)
}

/// No lint speaks up in the Metal device, as it is built for a Mac. It cannot be run here.
pub(super) fn metal(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    ensure_target(APPLE, dashboard).map_err(Outcome::LeftOut)?;
    let targets = format!("--package forebay-metal --all-targets --target {APPLE}");
    clippy_on(&targets, &format!("checked for {APPLE}, not run"), dashboard)
}

fn clippy_on(targets: &str, note: &str, dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    ensure_clippy(dashboard).map_err(Outcome::LeftOut)?;
    dashboard.check(&dashboard.place.cargo(&format!("clippy {targets} -- -D warnings")), note)
}

/// The documentation builds, and its links lead somewhere.
pub(super) fn documentation(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let task = dashboard.place.cargo("doc --workspace --no-deps --all-features");
    dashboard.check(&task.variable("RUSTDOCFLAGS", "-D warnings"), "")
}

/// Each crate uses only those above it; sources and manifests look as they must.
pub(super) fn layers(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let metadata = metadata(dashboard)?;
    let found = findings(dashboard, &metadata);
    if !found.is_empty() {
        return Err(Outcome::Broken(found.join("\n")));
    }
    Ok(Outcome::Holds(format!("{} crates in order", metadata.workspace_members.len())))
}

/// The crates that are to be published can be packed, and have what a registry asks for.
pub(super) fn packages(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let metadata = metadata(dashboard)?;
    let all = metadata.workspace_packages();
    let faults = packages::faults(&all);
    if !faults.is_empty() {
        return Err(Outcome::Broken(faults.join("\n")));
    }
    let names: Vec<&str> = all
        .into_iter()
        .filter(|package| packages::is_published(package))
        .flat_map(|package| ["--package", package.name.as_str()])
        .collect();
    // Without a lock file, for which the registry would be asked anew for each crate.
    let task =
        dashboard.place.cargo("package --quiet --no-verify --allow-dirty --exclude-lockfile");
    let note = format!("{} crates packed, without building them", names.len() / 2);
    dashboard.check(&task.with(names), note)
}

/// The C header is what the sources say.
pub(super) fn header(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    header::check(dashboard.place).map(Outcome::Holds).map_err(Outcome::Broken)
}

/// Licences, sources and versions are those `deny.toml` allows.
pub(super) fn licences(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    if !has_subcommand("deny", dashboard) {
        return Err(Outcome::LeftOut(NO_DENY.to_owned()));
    }
    dashboard.check(&dashboard.place.cargo("deny check licenses bans sources"), "")
}

/// No advisory is open against a dependency.
pub(super) fn advisories(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    if !has_subcommand("deny", dashboard) {
        return Err(Outcome::LeftOut(NO_DENY.to_owned()));
    }
    match dashboard.check(&dashboard.place.cargo("deny check advisories"), "") {
        Err(Outcome::Broken(output)) if has_no_database(&output) => {
            let reason =
                "the database of advisories could not be fetched, and there is no copy here";
            Err(Outcome::LeftOut(reason.to_owned()))
        }
        other => other,
    }
}

/// Whether cargo-deny could not get at its database, as opposed to having found something.
fn has_no_database(output: &str) -> bool {
    output.contains("failed to fetch advisory database")
        || output.contains("failed to load advisory database")
}

/// Shows the order, and every breach, which make it an error.
pub(crate) fn show_layers(dashboard: &mut Dashboard<'_>) -> Result<String, String> {
    let metadata = metadata(dashboard)?;
    dashboard.screen.line(format_args!("{}\n", layers::drawing(&metadata)));
    if let Ok(rooms) = Rooms::read(dashboard.place.root()) {
        dashboard.screen.line(format_args!("{}\n", rooms.drawing()));
    }
    let found = findings(dashboard, &metadata);
    for finding in &found {
        dashboard.screen.line(styled(BAD, finding));
    }
    let (crates, findings) = (metadata.workspace_members.len(), found.len());
    let count = |word| format!("{crates} crates, {findings} findings: the order is {word}");
    if found.is_empty() { Ok(count("kept")) } else { Err(count("broken")) }
}

/// All that is wrong with the crates.
fn findings(dashboard: &Dashboard<'_>, metadata: &Metadata) -> Vec<String> {
    let root = dashboard.place.root();
    let manifests = metadata.workspace_packages().into_iter();
    let manifests = manifests.map(|package| package.manifest_path.as_std_path());
    let mut found = layers::breaches(metadata);
    found.extend(shape::faults(root, manifests));
    found.extend(Rooms::read(root).map_or_else(|error| vec![error], |rooms| rooms.disorders()));
    found.extend(Rooms::circles_elsewhere(root));
    found
}

/// What cargo knows of the workspace. Without its dependencies: then no network is needed.
fn metadata(dashboard: &mut Dashboard<'_>) -> Result<Metadata, Outcome> {
    let task = dashboard.place.cargo("metadata --format-version 1 --no-deps");
    let ran = dashboard.run_aside(&task);
    // Warnings may stand before it; the answer itself is one line.
    let answer = ran.output.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    MetadataCommand::parse(answer)
        .map_err(|error| Outcome::Broken(format!("\"{task}\" {}: {error}", ran.reason())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Screen;
    use crate::workplace::Workplace;

    #[test]
    fn this_workspace_keeps_its_order() {
        let (place, screen) = (Workplace::here(), Screen::stdout());
        let shown = show_layers(&mut Dashboard::new("layers", &place, &screen));
        let text = screen.written();
        assert!(text.contains("forebay-core\n"), "{text}");
        assert!(shown.is_ok_and(|said| said.contains("0 findings: the order is kept")), "{text}");
    }

    #[test]
    fn a_missing_database_is_told_from_a_finding() {
        // As cargo-deny 0.20 says it.
        assert!(has_no_database(
            "[ERROR] failed to fetch advisory database with cli: failed to clone\nfatal: unable"
        ));
        assert!(!has_no_database("error[vulnerability]: buffer overflow\nadvisories FAILED"));
    }
}
