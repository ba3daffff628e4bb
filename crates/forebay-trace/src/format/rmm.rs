//! Logs of RMM: `Thread,Time,Action,Pointer,Size,Stream`.
//!
//! Blocks are named by their pointers, which are reused after a free. An `allocate failure` is not an event, but is
//! noted as a remark. Freeing the null pointer, which an allocation of no bytes may return, is ignored. Times are times
//! of the day: one far before the previous one belongs to the next day.

use std::io::{self, BufRead, Write};

use forebay_core::Bytes;

use super::lines::{Lines, fields, number};
use super::placement::Placement;
use super::{Format, FormatError, Intake, ReadOptions};
use crate::{Event, Trace};

/// The first line.
pub(super) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// What a line may be.
const EXPECTED: &str = "\"THREAD,TIME,ACTION,POINTER,SIZE,STREAM\" with the action \"allocate\", \
                        \"free\" or \"allocate failure\"";

/// A pointer as the log's formatter writes it; `None` where it is no number.
fn pointer(text: &str) -> Option<u64> {
    match text {
        "(nil)" => Some(0),
        other => number(other),
    }
}

/// The most failures that are written, as a recording has only their number.
const MAX_FAILURES: u64 = 1000;

const DAY: u64 = 24 * 3600 * 1_000_000;

/// Microseconds since midnight, of "02:10:09.412557" or "02:10:09:412557"; `None` for other clocks.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split([':', '.']);
    let mut part = |most: u64| parts.next()?.parse::<u64>().ok().filter(|&part| part <= most);
    let seconds = (part(23)? * 60 + part(59)?) * 60 + part(60)?;
    let fraction = text.get(9..15).and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(0);
    Some(seconds * 1_000_000 + fraction)
}

/// Times of the day as time that passed.
#[derive(Default)]
struct Clock {
    begun: Option<u64>,
    last: u64,
}

impl Clock {
    /// Nanoseconds since the first time.
    fn passed(&mut self, time: u64) -> u64 {
        let begun = *self.begun.get_or_insert(time);
        let mut passed = (time + DAY - begun) % DAY + self.last / DAY * DAY;
        // Lines of several threads may be a little out of order.
        if passed + DAY / 2 < self.last {
            passed += DAY;
        } else if passed > self.last + DAY / 2 {
            passed = self.last;
        }
        self.last = passed;
        passed.saturating_mul(1000)
    }
}

pub(super) fn read(
    input: &mut dyn BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<Trace, FormatError> {
    let format = Format::Rmm;
    let mut intake = Intake::new(name, format, options);
    let mut lines = Lines::new(input, format, options);
    lines.header(HEADER)?;
    let mut clock = Clock::default();
    while let Some((at, line)) = lines.next()? {
        // Logs of several runs in one file repeat the header.
        if line.is_empty() || line == HEADER {
            continue;
        }
        let malformed = || FormatError::malformed(format, at, format!("\"{line}\""), EXPECTED);
        let [thread, time, action, at_pointer, size, stream] =
            fields(line).ok_or_else(malformed)?;
        let known = intake.builder.len();
        let key = pointer(at_pointer).ok_or_else(malformed)?;
        let size = Bytes::new(number(size).ok_or_else(malformed)?);
        let stream = pointer(stream).ok_or_else(malformed)?;
        match action {
            "allocate" | "free" if key == 0 => {}
            "allocate" => intake.event(at, |builder| builder.allocate(key, size, stream))?,
            "free" => intake.event(at, |builder| builder.free(key, stream))?,
            "allocate failure" => intake.builder.remarks().failed_allocations += 1,
            _ => return Err(malformed()),
        }
        if intake.builder.len() > known {
            if let Some(time) = time_of_day(time) {
                intake.builder.time(clock.passed(time));
            }
            if let Ok(thread) = thread.parse() {
                intake.builder.thread(thread);
            }
        }
    }
    Ok(intake.builder.finish())
}

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let placement = Placement::of(trace)?;
    writeln!(out, "{HEADER}")?;
    let mut time = String::new();
    for (at, event) in trace.events().enumerate() {
        let (action, block, stream) = match event {
            Event::Allocate { block, stream, .. } => ("allocate", block, stream),
            Event::Free { block, stream } => ("free", block, stream),
        };
        // Without a clock, an event each microsecond: the order is all that is known.
        let micros = trace.time(at).map_or(at as u128, |time| time.as_micros()) % u128::from(DAY);
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        time = format!("{hour:02}:{minute:02}:{second:02}.{fraction:06}");
        let thread = trace.thread(at).unwrap_or(1);
        let stream = match trace.handle(stream) {
            0 => "0",
            handle => &format!("{handle:#x}"),
        };
        let (address, size) = (placement.address(block), trace.size(block).get());
        writeln!(out, "{thread},{time},{action},{address:#x},{size},{stream}")?;
    }
    for _ in 0..trace.remarks().failed_allocations.min(MAX_FAILURES) {
        writeln!(out, "1,{time},allocate failure,0x0,0,0")?;
    }
    out.flush()
}
