//! The RIM rows for people: a line of times, and below it counts, targets and what was cut off.

use std::io::{self, Write};

use forebay_core::Bytes;

use crate::bench::case::Case;
use crate::bench::row::{Each, Figures, Row, Target};
use crate::bench::text::threads;
use crate::layout::{
    BAD, Cell, Column, GOOD, NOTE, QUIET, TITLE, Table, WhenNarrow, paragraph, titled,
};
use crate::output::Width;
use crate::replay::no_room_for;

const COLUMNS: [Column; 7] = [
    Column::words("case", WhenNarrow::Break),
    Column::words("allocator", WhenNarrow::Break),
    Column::figures("threads", WhenNarrow::Keep),
    Column::figures("ns/op", WhenNarrow::Keep),
    Column::figures("p50", WhenNarrow::Drop(2)),
    Column::figures("p99", WhenNarrow::Drop(3)),
    Column::figures("max", WhenNarrow::Drop(1)),
];

/// A table of one workload. Gives the headings that found no room.
pub(crate) fn workload(
    case: Case,
    rows: &[Row],
    width: Width,
    out: &mut dyn Write,
) -> io::Result<Vec<&'static str>> {
    titled((case.name(), TITLE), case.about(), width, out)?;
    let mut table = Table::new(COLUMNS);
    for row in rows {
        enter(row, rows, &mut table);
    }
    let left_out = table.write(width, out)?;
    writeln!(out)?;
    Ok(left_out)
}

/// What the figures mean, and which of them found no room.
pub(crate) fn reading_aid(left_out: &[&str], width: Width, out: &mut dyn Write) -> io::Result<()> {
    let text = format!(
        "ns/op, p50, p99, max: the time of one operation, as the workload defines it, by this machine's \
         clock. Targets are ratios within this run, or counts. A missed target does not change the exit \
         status.{}",
        no_room_for(left_out)
    );
    paragraph(QUIET, &text, 0, width, out)
}

/// Enters a row, and below it what else it tells.
fn enter(row: &Row, rows: &[Row], table: &mut Table) {
    let each = |pick: fn(&Each) -> u64| {
        row.each.as_ref().map_or_else(String::new, |each| pick(each).to_string())
    };
    // Where all rows are the pool's, the title says enough.
    let is_alone = rows.iter().all(|row| row.allocator == "forebay");
    table.row([
        row.case.clone().into(),
        if is_alone { Cell::default() } else { row.allocator.into() },
        threads(row, rows).into(),
        row.ns_per_op.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}")).into(),
        each(|each| each.p50_ns).into(),
        each(|each| each.p99_ns).into(),
        each(|each| each.max_ns).into(),
    ]);
    let Some(figures) = &row.figures else { return };
    let counts = counts(figures);
    if !counts.is_empty() {
        table.below([counts.into()]);
    }
    for target in &figures.targets {
        let style = if met(target) == Some(false) { BAD } else { GOOD };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ground::{BenchSetup, Effort};
    use crate::bench::rim::workload::Rim;
    use crate::replay::DeviceName;

    #[test]
    fn amounts_have_no_more_digits_than_they_mean() {
        assert_eq!(
            (amount(3.0), amount(1.234), amount(1234.5)),
            ("3".into(), "1.23".into(), "1234".into())
        );
    }

    #[test]
    fn every_table_fits_80_columns() {
        let settings = forebay::Settings::default();
        let setup = BenchSetup {
            place: DeviceName::SIM,
            effort: Effort::Quick,
            settings: &settings,
            foreign: &[],
        };
        let row = |allocator, threads| {
            let mut row = Rim::Snapshot.row_of(setup, "stitched, growing meanwhile", allocator);
            row.threads = threads;
            row.ns_per_op = Some(5_267_925_123.8);
            row.each = Each::of(vec![24_110_286_123], 0);
            row.figures = Some(Figures {
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
            });
            row
        };
        let rows = [row("forebay", 1), row("control", 10_000)];
        for columns in [60, 80, 100, 200] {
            let width = Width::new(columns);
            let mut out = Vec::new();
            let mut left_out = Vec::new();
            for rim in Rim::ALL {
                left_out = workload(Case::Rim(rim), &rows, width, &mut out).unwrap();
                workload(Case::Rim(rim), &rows[..1], width, &mut out).unwrap();
            }
            reading_aid(&left_out, width, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let text = anstream::adapter::strip_str(&text).to_string();
            let wide = text.lines().find(|line| line.chars().count() > columns);
            assert_eq!(wide, None, "{columns} columns\n{text}");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in
                ["5267925123.8", "10000", "23.29 (at most 10)", "device free 16777216.00 TiB"]
            {
                assert!(words.contains(part), "{part} at {columns} columns\n{text}");
            }
        }
    }
}
