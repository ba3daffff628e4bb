//! Steps that look at the crates of others: under which terms they come, and what is known
//! against them.

use std::time::Duration;

use super::{Desk, broken};
use crate::setup::has_subcommand;
use crate::step::Outcome;
use crate::workplace::Workplace;

/// How long cargo-deny may be silent; it may fetch crates of other systems, to read their licences.
const LICENCES: Duration = Duration::from_secs(300);

/// How long fetching the database of advisories and comparing may be silent.
const ADVISORIES: Duration = Duration::from_secs(120);

const NO_DENY: &str = "cargo-deny is not installed, and building it takes longer than all other steps together; \
     \"cargo install --locked cargo-deny\" gets it";

/// Licences, sources and versions are those `deny.toml` allows.
pub(super) fn licences(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    if !has_subcommand(place, "deny", &mut |task| desk.run_aside(task)) {
        return Outcome::LeftOut { reason: NO_DENY.to_owned() };
    }
    desk.check(&place.cargo(["deny", "check", "licenses", "bans", "sources"], LICENCES))
}

/// No advisory is open against a dependency.
pub(super) fn advisories(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    if !has_subcommand(place, "deny", &mut |task| desk.run_aside(task)) {
        return Outcome::LeftOut { reason: NO_DENY.to_owned() };
    }
    let task = place.cargo(["deny", "check", "advisories"], ADVISORIES);
    let ran = desk.run(&task);
    if ran.succeeded() {
        return Outcome::Holds { note: String::new() };
    }
    if has_no_database(&ran.output) {
        let reason = "the database of advisories could not be fetched, and there is no copy here";
        return Outcome::LeftOut { reason: reason.to_owned() };
    }
    broken(&task, &ran)
}

/// Whether cargo-deny could not get at its database, as opposed to having found something.
fn has_no_database(output: &str) -> bool {
    output.contains("failed to fetch advisory database")
        || output.contains("failed to load advisory database")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_database_is_told_from_a_finding() {
        // As cargo-deny 0.20 says it.
        assert!(has_no_database(
            "[ERROR] failed to fetch advisory database with cli: failed to clone\nfatal: unable"
        ));
        assert!(!has_no_database("error[vulnerability]: buffer overflow\nadvisories FAILED"));
    }
}
