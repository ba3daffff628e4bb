//! The rows for people: a table a run, with what to make of it.

use std::io::{self, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use forebay::Settings;
use forebay_core::Bytes;
use forebay_trace::Trace;

use super::{Place, Row};
use crate::settings::in_words;

pub(super) const TITLE: Style = Style::new().bold();
pub(super) const QUIET: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const NOTE: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// How wide the columns are, by their widest sensible content.
const POLICY: usize = 18;

/// What the run is.
pub(super) fn heading(trace: &Trace, settings: &Settings, out: &mut impl Write) -> io::Result<()> {
    let sums = trace.statistics();
    writeln!(
        out,
        "{TITLE}{}{TITLE:#}  {} allocations on {}, {} asked for at the peak",
        trace.name(),
        sums.allocations,
        counted(sums.streams, "stream"),
        sums.peak_requested
    )?;
    let remarks = trace.remarks();
    if remarks.live_at_start > 0 {
        let blocks = counted(remarks.live_at_start, "block");
        writeln!(out, "  {QUIET}{blocks} live before the recording began{QUIET:#}")?;
    }
    if remarks.failed_allocations > 0 {
        let failed = counted(remarks.failed_allocations, "allocation");
        writeln!(out, "  {QUIET}{failed} failed when it was recorded, left out{QUIET:#}")?;
    }
    if let Some(settings) = in_words(settings) {
        writeln!(out, "  {NOTE}forebay is not at its defaults: {settings}{NOTE:#}")?;
    }
    Ok(())
}

/// One line a pass; the least memory of each pass stands out.
pub(super) fn table(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "  {QUIET}{:POLICY$}{:>4}  {:>10}  {:>7}  {:>8}  {:>11}  {:>6}  {:>8}  {:>8}  {:>5}{QUIET:#}",
        "policy",
        "pass",
        "peak",
        "ratio",
        "calls",
        "driver time",
        "maps",
        "mean ns",
        "p99 ns",
        "ooms"
    )?;
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
        let ooms = if row.ooms > 0 { BAD } else { QUIET };
        write!(
            out,
            "  {:POLICY$}{:>4}  {:>10}  {ratio}{:>7.4}{ratio:#}  {:>8}  {:>11}  {:>6}  {:>8.0}  \
             {:>8}  {ooms}{:>5}{ooms:#}",
            row.policy,
            row.pass,
            Bytes::new(row.peak_reserved_bytes).to_string(),
            row.ratio,
            row.driver_calls,
            time(row.driver_ns),
            row.maps,
            row.mean_ns,
            row.p99_ns,
            row.ooms
        )?;
        match row.verified {
            Some(true) => writeln!(out, "  {GOOD}verified{GOOD:#}")?,
            Some(false) => writeln!(out, "  {BAD}wrong{BAD:#}")?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// What the figures mean.
pub(super) fn reading_aid(place: Place, out: &mut dyn Write) -> io::Result<()> {
    let driver = match place {
        Place::Sim => "driver time by the cost table of one H200",
        Place::Host | Place::Cuda(_) => "driver time by this machine's clock",
    };
    writeln!(
        out,
        "\n{QUIET}ratio: taken from the driver over asked for, 1 is the limit; {driver}; ns: an \
         operation's, here{QUIET:#}"
    )
}

pub(super) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
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
    use super::*;

    #[test]
    fn times_are_said_as_people_say_them() {
        let said: Vec<String> =
            [0, 1500, 2_340_000, 12_345_678_900].into_iter().map(time).collect();
        assert_eq!(said, ["0", "1.5 us", "2.3 ms", "12.35 s"]);
        assert_eq!(
            (counted(1, "stream"), counted(3, "block")),
            ("1 stream".into(), "3 blocks".into())
        );
    }
}
