//! Steps that look into the pool's machinery: every order of its threads, every instruction of its
//! hits.

use std::time::Duration;

use super::{Desk, broken};
use crate::count;
use crate::instructions::{self, NotCounted};
use crate::screen::{BAD, Screen, styled};
use crate::step::Outcome;
use crate::workplace::Workplace;

/// How long building with the model checker and running it may take.
const LOOM: Duration = Duration::from_secs(900);

/// What the threads of the pool share, in every order that the memory model allows. One check.
///
/// In a target directory of its own: the flag that swaps the atomics would have everything built anew
/// each time. Not optimised: the models take less than a second, building them faster many.
pub(super) fn loom(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let words = "test -p forebay-sync --lib --target-dir target/loom loom_";
    let task = place
        .cargo(words.split_whitespace(), LOOM)
        .variable("RUSTFLAGS", "--cfg loom")
        .variable("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .variable("CARGO_PROFILE_DEV_DEBUG", "0");
    let ran = desk.run(&task);
    match count::libtest(&ran.output) {
        Some((tally, _)) if ran.succeeded() && tally.passed > 0 => {
            Outcome::Holds { note: format!("{} models under loom", tally.passed) }
        }
        _ => broken(&task, &ran),
    }
}

/// The instructions of a hot pair. One check: none of the ways to free passes the bound.
pub(super) fn instructions(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    match instructions::count(place, &mut |task| desk.run(task)) {
        Ok(counted) if counted.holds() => Outcome::Holds { note: counted.to_string() },
        Ok(counted) => Outcome::Broken { output: counted.to_string() },
        Err(NotCounted::Without(reason)) => Outcome::LeftOut { reason },
        Err(NotCounted::Failed(failed)) => broken(&failed.0, &failed.1),
    }
}

/// Counts, and says what was counted. Whether it is within bounds.
pub(crate) fn show_instructions(place: &Workplace, screen: &mut Screen) -> bool {
    match instructions(place, &mut Desk { name: "instructions", screen }) {
        Outcome::Holds { note } => {
            screen.line(note);
            true
        }
        Outcome::Broken { output } => {
            screen.line(styled(BAD, output));
            false
        }
        Outcome::LeftOut { reason } => {
            screen.line(reason);
            false
        }
        _ => false,
    }
}
