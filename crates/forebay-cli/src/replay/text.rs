//! The rows for people: a table for each run, with its interpretation.

use std::io::{self, Write};
use std::time::Duration;

use anstyle::Style;
use forebay::Settings;
use forebay_core::{Bytes, counted};
use forebay_trace::Trace;

use super::{DeviceName, Row};
use crate::layout::{
    BAD, Cell, Column, GOOD, NOTE, QUIET, TITLE, Table, WhenNarrow, paragraph, titled,
};
use crate::output::Width;
use crate::settings::in_words;

/// Peak and ratio are what runs are compared by; the rest goes where the terminal is narrow.
const COLUMNS: [Column; 11] = [
    Column::words("policy", WhenNarrow::Break),
    Column::figures("pass", WhenNarrow::Keep),
    Column::figures("peak", WhenNarrow::Keep),
    Column::figures("ratio", WhenNarrow::Keep),
    Column::figures("calls", WhenNarrow::Drop(3)),
    Column::figures("driver", WhenNarrow::Drop(1)),
    Column::figures("maps", WhenNarrow::Drop(5)),
    Column::figures("ns/op", WhenNarrow::Drop(2)),
    Column::figures("p99 ns", WhenNarrow::Drop(4)),
    Column::figures("OOMs", WhenNarrow::Keep),
    Column::words("", WhenNarrow::Keep),
];

/// What the run is.
pub(crate) fn heading(
    trace: &Trace,
    settings: &Settings,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    let sums = trace.statistics();
    let about = format!(
        "{} on {}, {} requested at the peak",
        counted(sums.allocations, "allocation"),
        counted(sums.streams, "stream"),
        sums.peak_requested
    );
    titled((trace.name(), TITLE), &about, width, out)?;
    let remarks = trace.remarks();
    if remarks.live_at_start > 0 {
        let blocks = counted(remarks.live_at_start, "block");
        paragraph(QUIET, &format!("{blocks} live before the recording began"), 2, width, out)?;
    }
    if remarks.failed_allocations > 0 {
        let failed = counted(remarks.failed_allocations, "allocation");
        let text = format!("{failed} failed when it was recorded, and left out here");
        paragraph(QUIET, &text, 2, width, out)?;
    }
    match in_words(settings) {
        Some(settings) => {
            let text = format!("forebay is not at its defaults: {settings}");
            paragraph(NOTE, &text, 2, width, out)
        }
        None => Ok(()),
    }
}

/// One line a pass; the least memory of each pass stands out. Gives the headings that found no room.
pub(super) fn table(
    rows: &[Row],
    width: Width,
    out: &mut dyn Write,
) -> io::Result<Vec<&'static str>> {
    let mut table = Table::new(COLUMNS);
    let any_short = rows.iter().any(|row| row.ooms > 0);
    for row in rows {
        let least = rows
            .iter()
            .filter(|other| other.pass == row.pass && other.ooms == 0)
            .map(|other| other.peak_reserved_bytes)
            .min();
        let ratio = match row.ooms {
            0 if least == Some(row.peak_reserved_bytes) => GOOD,
            _ => Style::new(),
        };
        let ooms = match row.ooms {
            // A column of zeros says nothing: the exit status and standard error tell of others.
            0 if !any_short => Cell::default(),
            0 => Cell::styled("0", QUIET),
            count => Cell::styled(count.to_string(), BAD),
        };
        let verdict = match row.verified {
            Some(true) => Cell::styled("verified", GOOD),
            Some(false) => Cell::styled("wrong", BAD),
            None => Cell::default(),
        };
        table.row([
            row.policy.into(),
            row.pass.to_string().into(),
            Bytes::new(row.peak_reserved_bytes).to_string().into(),
            Cell::styled(format!("{:.4}", row.ratio), ratio),
            row.driver_calls.to_string().into(),
            time(row.driver_ns).into(),
            row.maps.to_string().into(),
            format!("{:.0}", row.mean_ns).into(),
            row.p99_ns.to_string().into(),
            ooms,
            verdict,
        ]);
    }
    table.write(width, out)
}

/// What the figures mean, and which of them found no room.
pub(super) fn reading_aid(
    place: DeviceName,
    left_out: &[&str],
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    let driver = match place {
        DeviceName::SIM => "by the cost table of one H200",
        _ => "by this machine's clock",
    };
    let text = format!(
        "peak: the most memory taken from the driver. ratio: peak over the most memory requested; 1 is \
         the best possible. driver: time spent in driver calls, {driver}. ns/op, p99 ns: the mean time \
         of an operation on this machine, and the 99th percentile.{}",
        no_room_for(left_out)
    );
    writeln!(out)?;
    paragraph(QUIET, &text, 0, width, out)
}

/// The sentence that says which columns found no room; empty where all did.
pub(crate) fn no_room_for(left_out: &[&str]) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let names = left_out.join(", ");
    format!(" Left out to fit the width: {names}. Use a wider terminal or --json for every figure.")
}

/// A time in the unit people would say it in.
pub(crate) fn time(nanos: u64) -> String {
    let seconds = Duration::from_nanos(nanos).as_secs_f64();
    match nanos {
        0 => "0".to_owned(),
        1..1_000_000 => format!("{:.1} us", seconds * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use forebay_trace::{Model, ReplayOptions, replay, sample};

    use super::*;
    use crate::replay::open_device;
    use crate::replay::{Policy, patterns};

    #[test]
    fn times_are_said_as_people_say_them() {
        let said: Vec<String> =
            [0, 1500, 2_340_000, 12_345_678_900].into_iter().map(time).collect();
        assert_eq!(said, ["0", "1.5 us", "2.3 ms", "12.35 s"]);
    }

    /// Rows of a real run with the figures made as wide as they get.
    fn wide_rows(trace: &Trace) -> Vec<Row> {
        let settings = Settings::default();
        let policy = Policy::Model(Model::TorchExpandable);
        let device = open_device(DeviceName::SIM, None, false).unwrap();
        let mut player = policy.player(device, &settings).unwrap();
        let reports = replay(trace, &mut *player, ReplayOptions::new()).unwrap();
        let row = |report| Row {
            peak_reserved_bytes: 1_098_000_000_000,
            driver_calls: 28_751_000,
            driver_ns: 987_654_321_000,
            maps: 9_876_543,
            mean_ns: 1_234_567.0,
            p99_ns: 123_456_789,
            ..Row::new(trace.name(), DeviceName::cuda(12), (policy, &settings), report)
        };
        reports.iter().map(row).collect()
    }

    #[test]
    fn every_table_fits_80_columns() {
        let trace = sample::gpt2_train().unwrap();
        let settings = Settings::parse_conf("max_bytes:13GiB,history:7,preset:debug").unwrap();
        let plain = wide_rows(&trace);
        let with = |change: fn(&mut Row)| {
            let mut rows = plain.clone();
            rows.iter_mut().for_each(change);
            rows
        };
        let verified = with(|row| row.verified = Some(true));
        let short = with(|row| (row.ooms, row.verified) = (14_377, Some(false)));
        for columns in [60, 80, 100, 200] {
            let width = Width::new(columns);
            let mut out = Vec::new();
            heading(&trace, &settings, width, &mut out).unwrap();
            patterns::tell(&forebay_trace::Analysis::of(&trace), width, &mut out).unwrap();
            let mut left_out = Vec::new();
            for rows in [&plain, &verified, &short] {
                left_out = table(rows, width, &mut out).unwrap();
            }
            for place in [DeviceName::SIM, DeviceName::HOST, DeviceName::cuda(0)] {
                reading_aid(place, &left_out, width, &mut out).unwrap();
            }
            let text = String::from_utf8(out).unwrap();
            let text = anstream::adapter::strip_str(&text).to_string();
            let wide = text.lines().find(|line| line.chars().count() > columns);
            assert_eq!(wide, None, "{columns} columns\n{text}");
            for figure in ["1022.59 GiB", "verified", "wrong", "14377"] {
                assert!(text.contains(figure), "{figure} at {columns} columns\n{text}");
            }
            // What is left out is named, and nothing is where all of it fits.
            assert_eq!(left_out.is_empty(), columns == 200, "{left_out:?}");
            assert_eq!(text.contains("Left out to fit"), columns < 200, "{text}");
        }
    }
}
