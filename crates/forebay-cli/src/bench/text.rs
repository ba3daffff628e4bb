//! The rows for people: a table for each workload, with its interpretation.

use std::io::{self, Write};

use anstyle::Style;
use forebay::Settings;
use forebay_core::Bytes;

use super::case::Case;
use super::hot;
use super::row::{Each, Figures, Row};
use crate::layout::{
    BAD, Cell, Column, GOOD, NOTE, QUIET, TITLE, Table, WhenNarrow, paragraph, titled,
};
use crate::output::Width;
use crate::replay::{DeviceName, no_room_for};
use crate::settings::in_words;

/// The mean and how it compares stay; the rest goes where the terminal is narrow. Stress workloads have the longest
/// operation in place of the shortest and the 99.9th percentile.
const COLUMNS: [Column; 11] = [
    Column::words("case", WhenNarrow::Break),
    Column::words("allocator", WhenNarrow::Break),
    Column::figures("threads", WhenNarrow::Keep),
    Column::figures("ns/op", WhenNarrow::Keep),
    Column::figures("driver ns", WhenNarrow::Drop(1)),
    Column::figures("min", WhenNarrow::Drop(5)),
    Column::figures("p50", WhenNarrow::Drop(3)),
    Column::figures("p99", WhenNarrow::Drop(2)),
    Column::figures("p99.9", WhenNarrow::Drop(4)),
    Column::figures("max", WhenNarrow::Drop(1)),
    Column::words("", WhenNarrow::Break),
];

/// Says which settings are not the defaults; nothing where all are.
pub(super) fn heading(settings: &Settings, width: Width, out: &mut dyn Write) -> io::Result<()> {
    match in_words(settings) {
        Some(settings) => {
            let text = format!("forebay is not at its defaults: {settings}");
            paragraph(NOTE, &text, 0, width, out)?;
            writeln!(out)
        }
        None => Ok(()),
    }
}

/// One line a part and allocator, and of a stress workload what else it tells below it. Gives the headings that found no
/// room.
pub(super) fn workload(
    case: Case,
    rows: &[Row],
    width: Width,
    out: &mut dyn Write,
) -> io::Result<Vec<&'static str>> {
    titled((case.name(), TITLE), case.about(), width, out)?;
    let mut table = Table::new(COLUMNS);
    for row in rows {
        table.row(cells(row, rows));
        row.figures.iter().for_each(|figures| below(figures, &mut table));
    }
    let left_out = table.write(width, out)?;
    writeln!(out)?;
    Ok(left_out)
}

fn cells(row: &Row, rows: &[Row]) -> Vec<Cell> {
    let is_stress = row.figures.is_some();
    let style = if is_stress || row.allocator == "forebay" { Style::new() } else { QUIET };
    let each = |is_shown: bool, pick: fn(&Each) -> u64| {
        let each = row.each.as_ref().filter(|_| is_shown);
        each.map_or_else(String::new, |each| pick(each).to_string())
    };
    // A column that says the same in all rows says nothing: that of one thread, and of stress workloads that of the pool.
    let is_alone = is_stress && rows.iter().all(|row| row.allocator == "forebay");
    let has_threads = rows.iter().any(|row| row.threads != 1);
    let figure = if is_stress { |ns| format!("{ns:.1}") } else { nanos };
    let figures = [
        row.case.clone(),
        if is_alone { String::new() } else { row.allocator.to_owned() },
        if has_threads { row.threads.to_string() } else { String::new() },
        row.ns_per_op.map_or_else(|| "-".to_owned(), figure),
        row.driver_ns_per_op.filter(|_| !is_stress).map_or_else(String::new, nanos),
        each(!is_stress, |each| each.min_ns),
        each(true, |each| each.p50_ns),
        each(true, |each| each.p99_ns),
        each(!is_stress, |each| each.p99_9_ns),
        each(is_stress, |each| each.max_ns),
    ];
    let verdict = match comparison(row, rows) {
        _ if row.error.is_some() => Cell::styled("failed", BAD),
        Some((times, of_what)) => {
            let style = if of_what == "faster" && times > 1.0 { GOOD } else { Style::new() };
            Cell::styled(multiple(times, of_what), style)
        }
        None => Cell::default(),
    };
    figures.into_iter().map(|text| Cell::styled(text, style)).chain([verdict]).collect()
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

/// Counts, targets and what was cut off.
fn below(figures: &Figures, table: &mut Table) {
    let counts = counts(figures);
    if !counts.is_empty() {
        table.below([counts.into()]);
    }
    for target in &figures.targets {
        let style = if target.is_met() == Some(false) { BAD } else { GOOD };
        let value = target.value.map_or_else(|| "not measured".to_owned(), amount);
        let (what, most) = (&target.what, amount(target.at_most));
        table.below([
            format!("{what}:").into(),
            Cell::styled(value, style),
            format!("(at most {most})").into(),
        ]);
    }
    if let Some(why) = &figures.cut_off {
        table.below([Cell::styled(why, NOTE)]);
    }
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

/// What the figures mean, and which of them found no room.
pub(super) fn reading_aid(
    place: DeviceName,
    left_out: &[&str],
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    let place = match place {
        DeviceName::SIM => {
            "The device is simulated, so driver calls are priced by the cost table of one H200: in the \
             column \"driver ns\" for the pool, and in \"ns/op\" for the driver itself. The pool's ns/op \
             also includes the time that simulating the calls took here. \"faster\" compares the sum of \
             both columns with the driver."
        }
        DeviceName::HOST => {
            "The driver is this machine's operating system, and its calls are included in the figures. \
             \"faster\" compares with it. No memory is touched, so the cost of the first touch of a page \
             is not included."
        }
        _ => {
            "The driver is the device's, and its calls are included in the figures. \"faster\" compares with \
             the driver's own allocation and free (of CUDA, cuMemAlloc and cuMemFree)."
        }
    };
    let text = format!(
        "ns/op: an allocation and its free, in the best round, by this machine's clock. {place} With \
         several threads, the time runs from the first start to the last end, and is divided by the \
         operations of all threads.{}",
        no_room_for(left_out)
    );
    paragraph(QUIET, &text, 0, width, out)
}

/// The same where stress workloads alone were measured.
pub(super) fn stress_reading_aid(
    left_out: &[&str],
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    let text = format!(
        "ns/op, p50, p99, max: the time of one operation, as the workload defines it, by this machine's \
         clock. Targets are ratios within this run, or counts. A missed target does not change the exit \
         status.{}",
        no_room_for(left_out)
    );
    paragraph(QUIET, &text, 0, width, out)
}

#[cfg(test)]
mod tests {
    use forebay_trace::workload::Workload;

    use super::*;
    use crate::bench::row::Target;
    use crate::bench::setup::{BenchSetup, Effort};
    use crate::bench::stress::Stress;

    fn stripped(text: &[u8]) -> String {
        anstream::adapter::strip_str(std::str::from_utf8(text).unwrap()).to_string()
    }

    fn row(allocator: &'static str, ns: f64) -> Row {
        let plain = Settings::default();
        let setup = BenchSetup {
            place: DeviceName::SIM,
            effort: Effort::Quick,
            settings: &plain,
            foreign: &[],
        };
        Row { ns_per_op: Some(ns), ..Row::of("MP-T", "1 MiB", setup, allocator) }
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
        let case = Case::Played(Workload::MpT);
        workload(case, &rows, Width::new(80), &mut text).unwrap();
        let text = stripped(&text);
        assert!(text.contains("150       50.0  50x faster"), "{text}");
        assert!(!text.contains("threads") && !text.contains("p99"), "nothing to tell\n{text}");
    }

    #[test]
    fn multiples_are_said_the_way_round_people_say_them() {
        assert_eq!(multiple(0.5, "faster"), "2.00x slower");
        assert_eq!(multiple(512.3, "faster"), "512x faster");
        assert_eq!(multiple(0.98, "one thread"), "0.98x one thread");
        assert_eq!((nanos(7.26), nanos(109_000.4)), ("7.3".into(), "109000".into()));
    }

    #[test]
    fn every_table_fits_80_columns() {
        let each = Each::of(vec![109_000, 987_654_321], 20);
        let timed = |case: &str, allocator, threads| Row {
            case: case.to_owned(),
            threads,
            each,
            driver_ns_per_op: Some(1_234_567.0),
            ..row(allocator, 109_000_000.0)
        };
        let long = "an allocator whose user gave it a long name, and_then_one_long_word".repeat(2);
        let long: &'static str = Box::leak(long.into_boxed_str());
        let rows = [
            Row { quotient: Some(0.14), ..timed("1000 x 1 MiB, cold", "forebay", 4) },
            timed("1000 x 1 MiB, cold", "driver", 128),
            timed("64 KiB to 16 MiB", long, 1),
            Row { error: Some("no".to_owned()), ..row("forebay", 1.0) },
        ];
        let settings = Settings::parse_conf("max_bytes:13GiB,history:7,preset:debug").unwrap();
        for columns in [60, 80, 100, 200] {
            let width = Width::new(columns);
            let mut out = Vec::new();
            heading(&settings, width, &mut out).unwrap();
            let mut left_out = Vec::new();
            for case in Case::chosen(&[]) {
                left_out = workload(case, &rows, width, &mut out).unwrap();
                workload(case, &rows[..1], width, &mut out).unwrap();
            }
            for place in [DeviceName::SIM, DeviceName::HOST, DeviceName::cuda(0)] {
                reading_aid(place, &left_out, width, &mut out).unwrap();
            }
            let text = stripped(&out);
            let wide = text.lines().find(|line| line.chars().count() > columns);
            assert_eq!(wide, None, "{columns} columns\n{text}");
            for figure in ["109000000", "0.14x", "failed", "128"] {
                assert!(text.contains(figure), "{figure} at {columns} columns\n{text}");
            }
            assert_eq!(text.contains("Left out to fit"), !left_out.is_empty(), "{text}");
        }
    }

    #[test]
    fn every_table_of_extreme_load_fits_80_columns() {
        let row = |allocator, threads| Row {
            threads,
            case: "stitched, growing meanwhile".to_owned(),
            each: Each::of(vec![24_110_286_123], 0),
            figures: Some(Figures {
                driver_calls_per_op: Some(4.0),
                held_before_bytes: Some(1 << 21),
                held_after_bytes: Some(1 << 41),
                device_free_before_bytes: Some(u64::MAX),
                device_free_after_bytes: Some(u64::MAX),
                reserved_bytes_per_pool: Some(u64::MAX),
                targets: vec![Target {
                    what: "longest stall, with snapshots / without ".repeat(4),
                    value: Some(23.29),
                    at_most: 10.0,
                }],
                cut_off: Some("cut off: the system refused ".repeat(6)),
                ..Figures::default()
            }),
            ..row(allocator, 5_267_925_123.8)
        };
        let rows = [row("forebay", 1), row("control", 10_000)];
        for columns in [60, 80, 100, 200] {
            let width = Width::new(columns);
            let mut out = Vec::new();
            let mut left_out = Vec::new();
            for stress in Stress::ALL {
                left_out = workload(Case::Stress(stress), &rows, width, &mut out).unwrap();
                workload(Case::Stress(stress), &rows[..1], width, &mut out).unwrap();
            }
            stress_reading_aid(&left_out, width, &mut out).unwrap();
            let text = stripped(&out);
            let wide = text.lines().find(|line| line.chars().count() > columns);
            assert_eq!(wide, None, "{columns} columns\n{text}");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in
                ["5267925123.8", "10000", "23.29 (at most 10)", "device free 16777216.00 TiB"]
            {
                assert!(words.contains(part), "{part} at {columns} columns\n{text}");
            }
        }
        assert_eq!([3.0, 1.234, 1234.5].map(amount), ["3", "1.23", "1234"]);
    }
}
