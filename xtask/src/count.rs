//! The runners' own words, turned into numbers.
//!
//! nextest prints one summary; libtest (and harnesses that speak like it) one `test result:` line
//! a binary; pytest one line at its end. Neither of the first two tells all: nextest calls a test passed that found out at run time that it
//! cannot run here, since its process ended well. Such a test says `... ignored (reason)`, and is
//! counted as skipped.

use crate::step::{Skip, Tally};

/// What stands for a reason where the test gives none.
const NO_REASON: &str = "marked as ignored, without a reason";

/// What nextest counted, and the tests that said themselves that they cannot run here. `None`
/// where it came to no summary.
pub(crate) fn nextest(output: &str) -> Option<(Tally, Vec<Skip>)> {
    let summary = output
        .lines()
        .rfind(|line| line.trim_start().starts_with("Summary [") && line.contains(" run: "))?;
    let mut tally = Tally::default();
    for part in without_parentheses(summary.split_once(" run: ")?.1).split(',') {
        let (count, kind) = part.trim().split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match kind.trim() {
            "passed" => tally.passed += count,
            "skipped" => tally.skipped += count,
            // "failed", "exec failed", "timed out", and whatever other mishap it learns to name.
            _ => tally.failed += count,
        }
    }
    let skips = withdrawn(output);
    let withdrawn = u64::try_from(skips.len()).ok()?;
    tally.passed = tally.passed.checked_sub(withdrawn)?;
    tally.skipped = tally.skipped.checked_add(withdrawn)?;
    Some((tally, skips))
}

/// The tests nextest calls passed that said of themselves that they were ignored.
fn withdrawn(output: &str) -> Vec<Skip> {
    let mut skips = Vec::new();
    let mut running = None;
    for line in output.lines() {
        if let Some((status, test)) = status_line(line) {
            running = has_passed(status).then_some(test);
        } else if let (Some(test), Some((name, reason))) = (running, ignored_line(line)) {
            // "binary name": only this test may speak for itself; others are quoted in outputs.
            if test.split_once(' ').is_some_and(|(_, known)| known == name) {
                skips.push(Skip { what: test.to_owned(), reason });
                running = None;
            }
        }
    }
    skips
}

/// The tests nextest did not start, as "binary name".
pub(crate) fn nextest_not_started(output: &str) -> Vec<&str> {
    let not_started = |line| status_line(line).filter(|(status, _)| *status == "SKIP");
    output.lines().filter_map(not_started).map(|(_, test)| test).collect()
}

/// nextest's output without what passing tests printed.
pub(crate) fn without_passed(output: &str) -> String {
    let mut kept = String::new();
    let mut keep = true;
    for line in output.lines() {
        if let Some((status, _)) = status_line(line) {
            keep = !has_passed(status) && status != "SKIP";
        } else if line.starts_with("───") {
            keep = true;
        }
        if keep {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// How far a run is, from the latest line of `output` that tells: a test that ended, or a crate
/// being built. `None` where none does.
pub(crate) fn progress(output: &str) -> Option<String> {
    output.lines().rev().find_map(|line| {
        if let Some((_, test)) = status_line(line) {
            let binary = test.split_whitespace().next()?;
            let (done, all) = line.split_once('(')?.1.split_once(')')?.0.split_once('/')?;
            return Some(format!("{} of {} tests, in {binary}", done.trim(), all.trim()));
        }
        let (verb, rest) = line.trim_start().split_once(' ')?;
        let building = matches!(verb, "Compiling" | "Checking" | "Documenting");
        // "Compiling name v1.0": a sentence of a test's is no such line.
        let (name, version) = rest.split_once(' ')?;
        let is_crate = building && version.starts_with('v');
        is_crate.then(|| format!("{} {name}", verb.to_ascii_lowercase()))
    })
}

/// Whether nextest counts a test with this word as passed.
fn has_passed(status: &str) -> bool {
    matches!(status, "PASS" | "LEAK" | "FLAKY")
}

/// A line such as `PASS [   0.010s] (1/6) crate::binary module::test`: the word, and the test.
fn status_line(line: &str) -> Option<(&str, &str)> {
    let (status, rest) = line.trim_start().split_once(" [")?;
    // "PASS", "SIGSEGV", "TRY 1 FAIL".
    let shouted = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' ';
    if !status.starts_with(|first: char| first.is_ascii_uppercase()) || !status.bytes().all(shouted)
    {
        return None;
    }
    let rest = rest.split_once(']')?.1.trim_start();
    let test = match rest.strip_prefix('(') {
        Some(counted) => counted.split_once(')')?.1,
        None => rest,
    };
    Some((status, test.trim()))
}

/// The sum of all `test result:` lines, and the tests that were ignored. `None` without any.
pub(crate) fn libtest(output: &str) -> Option<(Tally, Vec<Skip>)> {
    let mut sum = None;
    for line in output.lines() {
        let Some((_, counts)) =
            line.strip_prefix("test result: ").and_then(|result| result.split_once(". "))
        else {
            continue;
        };
        let mut tally: Tally = sum.unwrap_or_default();
        for part in counts.split(';') {
            let Some((count, kind)) = part.trim().split_once(' ') else { continue };
            let Ok(count) = count.parse::<u64>() else { continue };
            match kind {
                "passed" => tally.passed += count,
                "failed" => tally.failed += count,
                "ignored" => tally.skipped += count,
                // Filtered out: not asked for. Measured: benchmarks.
                _ => {}
            }
        }
        sum = Some(tally);
    }
    let skips = output.lines().filter_map(ignored_line);
    Some((sum?, skips.map(|(name, reason)| Skip { what: name.to_owned(), reason }).collect()))
}

/// What pytest counted in its last line, and what it skipped, with `-ra`: a row for each place and reason.
/// `None` where it came to no such line.
pub(crate) fn pytest(output: &str) -> Option<(Tally, Vec<Skip>)> {
    let summary = output.lines().rfind(|line| {
        let counts = line.trim_matches(['=', ' ']);
        counts.starts_with(|first: char| first.is_ascii_digit()) && counts.contains(" in ")
    })?;
    let (counts, _) = summary.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    let mut tally = Tally::default();
    for part in counts.split(", ") {
        let (count, kind) = part.split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match kind {
            "passed" | "xfailed" => tally.passed += count,
            "skipped" => tally.skipped += count,
            "warning" | "warnings" | "deselected" => {}
            // "failed", "error", "errors", "xpassed".
            _ => tally.failed += count,
        }
    }
    let skips = output.lines().filter_map(|line| {
        let (count, told) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
        // "file.py:12: reason"; of a whole file the line is missing.
        let (place, reason) = told.split_once(": ")?;
        let skip = Skip { what: place.to_owned(), reason: reason.to_owned() };
        Some(core::iter::repeat_n(skip, count.parse().ok()?))
    });
    Some((tally, skips.flatten().collect()))
}

/// A line such as `test NAME ... ignored, REASON` (libtest) or `... ignored (REASON)`
/// (libtest-mimic): the name and the reason.
pub(crate) fn ignored_line(line: &str) -> Option<(&str, String)> {
    let (name, outcome) = line.trim().strip_prefix("test ")?.split_once(" ... ignored")?;
    let outcome = outcome.trim();
    let bracketed = || outcome.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let reason = outcome.strip_prefix(", ").or_else(bracketed).unwrap_or(outcome);
    let reason = if reason.is_empty() { NO_REASON } else { reason };
    Some((name.trim(), reason.to_owned()))
}

/// "3 passed (1 slow, 1 leaky), 2 failed" as "3 passed , 2 failed".
fn without_parentheses(text: &str) -> String {
    text.split('(').map(|part| part.split_once(')').map_or(part, |(_, after)| after)).collect()
}

#[cfg(test)]
mod tests;
