//! The rows of the rim for people: a line of times, and below it counts, targets and what was cut off.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use forebay_core::Bytes;

use super::super::{Case, Row};
use super::tools::{Figures, Target};

const TITLE: Style = Style::new().bold();
const QUIET: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const NOTE: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// How wide a line of words gets.
const WIDTH: usize = 92;

/// A table of one workload.
pub(in super::super) fn workload(case: Case, rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{TITLE}{case}{TITLE:#}  {}", case.about())?;
    writeln!(
        out,
        "  {QUIET}{:30}{:9}{:>6}{:>13}{:>11}{:>11}{:>12}{QUIET:#}",
        "case", "allocator", "thr", "ns/op", "p50", "p99", "max"
    )?;
    for row in rows {
        line(row, out)?;
    }
    writeln!(out)
}

/// What the figures mean.
pub(in super::super) fn reading_aid(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{QUIET}ns/op, p50, p99, max: an operation as the workload says, by this machine's clock. Targets are\n\
         ratios within this run, or counts. A target that is missed does not change the exit status.{QUIET:#}"
    )
}

fn line(row: &Row, out: &mut impl Write) -> io::Result<()> {
    let time = row.ns_per_op.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}"));
    let each = |pick: fn(&super::super::Each) -> u64| {
        row.each.as_ref().map_or_else(String::new, |each| pick(each).to_string())
    };
    let (p50, p99, max) =
        (each(|each| each.p50_ns), each(|each| each.p99_ns), each(|each| each.max_ns));
    let (case, allocator, threads) = (&row.case, row.allocator, row.threads);
    writeln!(out, "  {case:30}{allocator:9}{threads:>6}{time:>13}{p50:>11}{p99:>11}{max:>12}")?;
    let Some(figures) = &row.figures else { return Ok(()) };
    let counts = counts(figures);
    if !counts.is_empty() {
        writeln!(out, "      {counts}")?;
    }
    for target in &figures.targets {
        let style = if met(target) == Some(false) { BAD } else { GOOD };
        let value = target.value.map_or_else(|| "not measured".to_owned(), amount);
        let (what, most) = (&target.what, amount(target.at_most));
        writeln!(out, "      {what}: {style}{value}{style:#} (at most {most})")?;
    }
    if let Some(why) = &figures.cut_off {
        let mut rest = why.as_str();
        while !rest.is_empty() {
            let (head, tail) = broken(rest);
            writeln!(out, "      {NOTE}{head}{NOTE:#}")?;
            rest = tail;
        }
    }
    Ok(())
}

fn met(target: &Target) -> Option<bool> {
    target.value.map(|value| value <= target.at_most)
}

/// Whole numbers as such, others with two decimals.
fn amount(value: f64) -> String {
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

/// The counts of a row in words.
fn counts(figures: &Figures) -> String {
    let change = |before: Option<u64>, after: Option<u64>| {
        let (before, after) = before.zip(after)?;
        Some(format!("{} to {}", Bytes::new(before), Bytes::new(after)))
    };
    let bytes = |count: Option<u64>| count.map(|count| Bytes::new(count).to_string());
    let parts = [
        ("event queries/op", figures.query_events_per_op.map(amount)),
        ("driver calls/op", figures.driver_calls_per_op.map(amount)),
        ("held", change(figures.held_before_bytes, figures.held_after_bytes)),
        ("device free", change(figures.device_free_before_bytes, figures.device_free_after_bytes)),
        ("resident", bytes(figures.resident_bytes)),
        ("pools", figures.pools.map(|count| count.to_string())),
        ("reserved each", bytes(figures.reserved_bytes_per_pool)),
        ("addresses each", bytes(figures.virtual_bytes_per_pool)),
    ];
    let said = parts.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    said.collect::<Vec<_>>().join(", ")
}

/// Breaks a line at its last space within the width.
fn broken(text: &str) -> (&str, &str) {
    let Some((end, _)) = text.char_indices().nth(WIDTH) else { return (text, "") };
    let (head, tail) = text.split_at(end);
    match head.rfind(' ') {
        Some(space) => (text.split_at(space).0, text.split_at(space).1.trim_start()),
        None => (head, tail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_broken_at_spaces_and_nothing_is_lost() {
        assert_eq!(broken("short"), ("short", ""));
        let long = "word ".repeat(40);
        let (head, tail) = broken(&long);
        assert!(head.len() <= WIDTH && head.ends_with("word") && tail.starts_with("word"));
        let one = "x".repeat(200);
        assert_eq!(broken(&one), one.split_at(WIDTH));
    }

    #[test]
    fn amounts_have_no_more_digits_than_they_mean() {
        assert_eq!(
            (amount(3.0), amount(1.234), amount(1234.5)),
            ("3".into(), "1.23".into(), "1234".into())
        );
    }
}
