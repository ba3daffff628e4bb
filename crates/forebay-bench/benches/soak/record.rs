//! What ran, in one line and as JSON.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::{Wanted, stress, stressed, worker};

/// What the rounds of both kinds did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) plain: worker::Figures,
    pub(crate) stress: stress::Figures,
}

impl Sums {
    /// In one line.
    pub(crate) fn line(&self, elapsed: Duration) -> String {
        let Self { plain, stress } = self;
        let operations = plain.operations + stress.operations;
        if stress.operations == 0 {
            return plain.line(elapsed);
        }
        if plain.operations == 0 {
            return stressed::line(stress, elapsed);
        }
        let each = elapsed.as_nanos() / u128::from(operations.max(1));
        format!(
            "{operations} operations in {:.1} s, {each} ns each, {} of them under the checker; {} \
             allocations, {} refused, {} failed by faults; {} streams ended, {} without a word; {} wrong \
             frees refused, {} visiting threads; no violation",
            elapsed.as_secs_f64(),
            stress.operations,
            plain.allocations + stress.allocations,
            plain.out_of_memory + stress.refusals,
            stress.failures,
            plain.announced
                + plain.unannounced
                + stress.streams_announced
                + stress.streams_unannounced,
            plain.unannounced + stress.streams_unannounced,
            plain.wrong,
            stress.visitors
        )
    }
}

/// Writes what ran to `path`. Nothing was found wrong: a violation ends a soak before.
pub(crate) fn write(
    path: &Path,
    wanted: &Wanted,
    sums: &Sums,
    elapsed: Duration,
) -> Result<(), String> {
    let Sums { plain, stress } = sums;
    let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?.to_owned();
        Some(line.split_once(": ")?.1.to_owned())
    });
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let ended = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let record = json!({
        "schema": "forebay.record.v1",
        "processor": processor,
        "processors": processors,
        "ended_unix": ended,
        "command": format!("cargo xtask soak --operations {} --seed {}", wanted.operations, wanted.seed),
        "rows": [{
            "row": "soak",
            "operations": plain.operations + stress.operations,
            "seconds": elapsed.as_secs_f64(),
            "operations_under_the_checker": stress.operations,
            "allocations": plain.allocations + stress.allocations,
            "refusals": plain.out_of_memory + stress.refusals,
            "calls_failed_by_faults": stress.failures,
            "streams_made_under_the_checker": stress.streams_made,
            "streams_ended_with_a_word": plain.announced + stress.streams_announced,
            "streams_died_without_a_word": plain.unannounced + stress.streams_unannounced,
            "frees_on_dead_streams": plain.freed_on_dead + stress.freed_on_dead,
            "uses_on_further_streams_under_the_checker": stress.uses,
            "blocks_handed_between_threads_under_the_checker": stress.handed,
            "visiting_threads": stress.visitors,
            "arrays_copied": stress.copies,
            "chores_under_the_checker": stress.chores,
            "wrong_frees_refused": plain.wrong,
            "findings": 0,
            "violations": 0,
        }],
    });
    let text = format!("{record:#}\n");
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
