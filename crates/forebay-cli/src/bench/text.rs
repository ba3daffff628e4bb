//! The rows for people: a table a workload, with what to make of it.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use forebay::Settings;

use super::{Case, Row, hot};
use crate::replay::Place;
use crate::settings::in_words;

const TITLE: Style = Style::new().bold();
const QUIET: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const NOTE: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// What the figures are not those of a pool at its defaults for; nothing where they are.
pub(super) fn heading(settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    match in_words(settings) {
        Some(settings) => {
            writeln!(out, "{NOTE}forebay is not at its defaults: {settings}{NOTE:#}\n")
        }
        None => Ok(()),
    }
}

/// One line a part and allocator.
pub(super) fn workload(case: Case, rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let timed_each = rows.iter().any(|row| row.each.is_some());
    writeln!(out, "{TITLE}{case}{TITLE:#}  {}", case.about())?;
    write!(
        out,
        "  {QUIET}{:20}{:10}{:>3}{:>10}{:>10}",
        "case", "allocator", "thr", "ns/op", "driver ns"
    )?;
    if timed_each {
        write!(out, "{:>7}{:>7}{:>8}{:>8}", "min", "p50", "p99", "p99.9")?;
    }
    writeln!(out, "{QUIET:#}")?;
    for row in rows {
        line(row, rows, timed_each, out)?;
    }
    writeln!(out)
}

fn line(row: &Row, rows: &[Row], timed_each: bool, out: &mut impl Write) -> io::Result<()> {
    let ours = if row.allocator == "forebay" { Style::new() } else { QUIET };
    write!(
        out,
        "  {ours}{:20}{:10}{:>3}{:>10}{:>10}",
        row.case,
        row.allocator,
        row.threads,
        row.ns_per_op.map_or_else(|| "-".to_owned(), nanos),
        row.driver_ns_per_op.map_or_else(String::new, nanos),
    )?;
    if timed_each {
        let figures = row.each.map_or([None; 4], |each| {
            [each.min_ns, each.p50_ns, each.p99_ns, each.p99_9_ns].map(Some)
        });
        for (figure, width) in figures.into_iter().zip([7, 7, 8, 8]) {
            write!(
                out,
                "{:>width$}",
                figure.map_or_else(String::new, |figure| figure.to_string())
            )?;
        }
    }
    write!(out, "{ours:#}")?;
    if row.error.is_some() {
        write!(out, "  {BAD}failed{BAD:#}")?;
    } else if let Some((times, of_what)) = comparison(row, rows) {
        let style = if of_what == "faster" && times > 1.0 { GOOD } else { Style::new() };
        write!(out, "  {style}{}{style:#}", multiple(times, of_what))?;
    }
    writeln!(out)
}

/// What a row is set against, and how it stands to that.
fn comparison(row: &Row, rows: &[Row]) -> Option<(f64, &'static str)> {
    if matches!(row.allocator, "mimalloc" | "uncounted") && row.speed_up.is_none() {
        return None;
    }
    if let Some(quotient) = row.quotient {
        let counted = row.bench == hot::STATISTICS;
        return Some((quotient, if counted { "uncounted" } else { "mimalloc's 512 B" }));
    }
    if let Some(speed_up) = row.speed_up {
        return (row.threads > 1).then_some((speed_up, "one thread"));
    }
    if row.allocator != "forebay" {
        return None;
    }
    let driver = rows.iter().find(|other| other.allocator == "driver" && other.case == row.case)?;
    let (theirs, ours) = (driver.whole_ns()?, row.whole_ns()?);
    (ours > 0.0).then_some((theirs / ours, "faster"))
}

/// "3.2x faster", and "1.4x slower" rather than "0.7x faster".
fn multiple(times: f64, of_what: &str) -> String {
    match of_what {
        "faster" if times < 1.0 && times > 0.0 => format!("{}x slower", digits(1.0 / times)),
        _ => format!("{}x {of_what}", digits(times)),
    }
}

/// Two or three digits: more are noise.
fn digits(times: f64) -> String {
    if times < 10.0 { format!("{times:.2}") } else { format!("{times:.0}") }
}

fn nanos(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// What the figures mean.
pub(super) fn reading_aid(place: Place, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{QUIET}ns/op: an allocation and a free, the best round, by this machine's clock."
    )?;
    match place {
        Place::Sim => writeln!(
            out,
            "The device is simulated: its driver's calls are priced by the cost table of one H200. \
             They\nstand in the column \"driver ns\" for the pool, and in \"ns/op\" for the driver by \
             itself. What\nsimulating them took here is in the pool's ns/op. \"faster\": than the \
             driver, both columns together."
        )?,
        Place::Host => writeln!(
            out,
            "The driver is this machine's system, and its calls are in the figures. \"faster\": than \
             it. No\nmemory is touched, so what the system does at the first touch is in none of them."
        )?,
        Place::Cuda(_) => writeln!(
            out,
            "The driver is the GPU's, and its calls are in the figures. \"faster\": than cuMemAlloc and \
             cuMemFree."
        )?,
    }
    writeln!(
        out,
        "Several threads: from the first to the last, over the operations of all.{QUIET:#}"
    )
}

#[cfg(test)]
mod tests {
    use forebay_trace::workload::Workload;

    use super::*;
    use crate::bench::{Effort, Terms};

    fn row(allocator: &'static str, ns: f64) -> Row {
        let plain = Settings::default();
        let terms =
            Terms { place: Place::Sim, effort: Effort::Quick, settings: &plain, foreign: &[] };
        Row { ns_per_op: Some(ns), ..Row::of("MP-T", "1 MiB", terms, allocator) }
    }

    #[test]
    fn the_pool_is_set_against_the_driver_with_the_drivers_part_counted() {
        let rows = [
            Row { driver_ns_per_op: Some(50.0), ..row("forebay", 150.0) },
            Row { clock: "model", ..row("driver", 10_000.0) },
        ];
        assert_eq!(comparison(&rows[0], &rows), Some((50.0, "faster")));
        assert_eq!(comparison(&rows[1], &rows), None);
        let mut text = Vec::new();
        workload(Case::Played(Workload::MpT), &rows, &mut text).unwrap();
        let text = anstream::adapter::strip_bytes(&text).into_vec();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("150      50.0  50x faster"), "{text}");
    }

    #[test]
    fn multiples_are_said_the_way_round_people_say_them() {
        assert_eq!(multiple(0.5, "faster"), "2.00x slower");
        assert_eq!(multiple(512.3, "faster"), "512x faster");
        assert_eq!(multiple(0.98, "one thread"), "0.98x one thread");
        assert_eq!((nanos(7.26), nanos(109_000.4)), ("7.3".into(), "109000".into()));
    }
}
