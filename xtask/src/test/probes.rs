//! Steps that look into the pool's machinery: every order of its threads, every instruction of its
//! hits.

use std::time::Duration;

use super::{Desk, broken};
use crate::count;
use crate::cpu;
use crate::edge;
use crate::instructions::{self, NotCounted};
use crate::screen::{BAD, Screen, styled};
use crate::step::Outcome;
use crate::workplace::Workplace;

/// The most percent of the processors' time that others may take while something is timed.
const MOST_STOLEN: u64 = 5;

/// How long building with the model checker and running it may be silent.
const LOOM: Duration = Duration::from_secs(900);

/// What the threads of the pool share, in every order that the memory model allows. One check.
///
/// In a target directory of its own: the flag that swaps the atomics would have everything built anew
/// each time. Not optimised: the models take two seconds, building them faster many.
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

/// The time of a hot pair through C over that of Rust's. One check, to be made while nothing else runs. Where other
/// machines took processor time meanwhile, a ratio that is too high says nothing, and is said to.
pub(super) fn edge_time(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let before = cpu::machine_ticks();
    let timed = edge::time(place, &mut |task| desk.run(task));
    let stolen =
        before.zip(cpu::machine_ticks()).map_or(0, |(before, after)| after.stolen_since(before));
    match timed {
        Ok(Ok(ratio)) if ratio.holds() => Outcome::Holds { note: ratio.to_string() },
        Ok(Ok(ratio)) if stolen > MOST_STOLEN => Outcome::LeftOut {
            reason: format!("{ratio}; but others took {stolen} % of the processors meanwhile"),
        },
        Ok(Ok(ratio)) => Outcome::Broken { output: ratio.to_string() },
        Ok(Err(reason)) | Err(NotCounted::Without(reason)) => Outcome::LeftOut { reason },
        Err(NotCounted::Failed(failed)) => broken(&failed.0, &failed.1),
    }
}

/// Counts and times, and says what came of it. Whether it is within bounds.
pub(crate) fn show_instructions(place: &Workplace, screen: &Screen) -> bool {
    let counted = instructions(place, &mut Desk::new("instructions", screen));
    let timed = edge_time(place, &mut Desk::new("C edge time", screen));
    let (counted, timed) = (show(counted, screen), show(timed, screen));
    counted && timed
}

/// Says what came of a check. Whether it holds.
fn show(outcome: Outcome, screen: &Screen) -> bool {
    match outcome {
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
