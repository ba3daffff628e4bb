//! The second part of `forebay.trace.v2`: what the source recorded besides the events.
//!
//! ```text
//!   a section each, in any order:  kind    length in bytes    content
//!     1  times       an event each: nanoseconds since the one before, signed
//!     2  threads     runs of events: number of the thread, length
//!     3  tags        texts: count, then length and UTF-8 each; runs of blocks: 0 or number plus 1, length
//!     4  stacks      as tags
//!     5  transfers   a transfer each: begin since the begin before, signed; duration; bytes; 0 up or 1 down
//!     6  addresses   a block each: its address since the one before, signed
//!     7  origin      when it began, in nanoseconds since 1970, 0 if unknown; 1 if a pool of forebay was recorded, else 0
//! ```
//!
//! Readers skip sections of unknown kinds. Signed numbers are `2 * n`, or `-2 * n - 1` below zero.

use core::time::Duration;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_core::Bytes;

use super::FormatError;
use super::binary::{Cursor, put};
use crate::trace::Labels;
use crate::{BlockIndex, SourceNotes, Trace, TraceBuilder, Transfer, TransferDirection};

const TIMES: u64 = 1;
const THREADS: u64 = 2;
const TAGS: u64 = 3;
const STACKS: u64 = 4;
const TRANSFERS: u64 = 5;
const ADDRESSES: u64 = 6;
const ORIGIN: u64 = 7;

/// Writes the sections that are not empty.
pub(super) fn write(trace: &Trace, out: &mut Vec<u8>) {
    let (details, blocks) = (trace.details(), trace.blocks());
    let sections = [
        (TIMES, steps(&details.times)),
        (THREADS, runs(details.threads.iter().map(|&thread| u64::from(thread)))),
        (TAGS, labels(&details.tags, blocks)),
        (STACKS, labels(&details.stacks, blocks)),
        (TRANSFERS, transfers(&details.transfers)),
        (ADDRESSES, steps(&details.addresses)),
        (ORIGIN, origin(trace.remarks())),
    ];
    for (kind, content) in sections {
        if !content.is_empty() {
            put(out, kind);
            put(out, content.len() as u64);
            out.extend_from_slice(&content);
        }
    }
}

/// Reads all sections up to the end of the file into a recording that has its events.
pub(super) fn read(cursor: &mut Cursor<'_>, builder: &mut TraceBuilder) -> Result<(), FormatError> {
    let (events, blocks) = (builder.len(), builder.blocks());
    while !cursor.is_at_end() {
        let kind = cursor.number("the kind of a section")?;
        let length = cursor.number("the length of a section")?;
        let mut content = cursor.part(length, "the content of a section")?;
        let details = builder.details();
        match kind {
            TIMES => details.times = read_steps(&mut content, events, "the time of an event")?,
            ADDRESSES => {
                details.addresses = read_steps(&mut content, blocks, "the address of a block")?;
            }
            THREADS => details.threads = read_threads(&mut content, events)?,
            TAGS => details.tags = read_labels(&mut content, blocks)?,
            STACKS => details.stacks = read_labels(&mut content, blocks)?,
            TRANSFERS => details.transfers = read_transfers(&mut content)?,
            ORIGIN => read_origin(&mut content, builder.remarks())?,
            _ => content.skip(),
        }
        if !content.is_at_end() {
            return Err(content.broken("more bytes", "the end of the section"));
        }
    }
    Ok(())
}

/// Where the recording comes from; nothing if that is unknown.
fn origin(notes: SourceNotes) -> Vec<u8> {
    let mut out = Vec::new();
    if notes.began.is_some() || notes.of_forebay {
        put(&mut out, since_1970(notes.began));
        put(&mut out, u64::from(notes.of_forebay));
    }
    out
}

fn read_origin(cursor: &mut Cursor<'_>, notes: &mut SourceNotes) -> Result<(), FormatError> {
    notes.began = date(cursor.number("when the recording began")?);
    notes.of_forebay = cursor.number("what was recorded")? == 1;
    Ok(())
}

/// A date in nanoseconds since 1970; 0 if it is unknown.
pub(super) fn since_1970(date: Option<SystemTime>) -> u64 {
    date.and_then(|date| date.duration_since(UNIX_EPOCH).ok()).map_or(0, nanos)
}

/// The date of so many nanoseconds since 1970; none for 0.
pub(super) fn date(nanoseconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_nanos(nanoseconds)).filter(|_| nanoseconds > 0)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How far it is from `last` to `next`, as a number of which the lowest bit is the sign.
fn put_step(out: &mut Vec<u8>, last: u64, next: u64) {
    let step = next.wrapping_sub(last).cast_signed();
    put(out, (step << 1 ^ step >> 63).cast_unsigned());
}

fn step(cursor: &mut Cursor<'_>, last: u64, what: &str) -> Result<u64, FormatError> {
    let code = cursor.number(what)?;
    Ok(last.wrapping_add(code >> 1 ^ (code & 1).wrapping_neg()))
}

fn steps(numbers: &[u64]) -> Vec<u8> {
    let (mut out, mut last) = (Vec::new(), 0);
    for &number in numbers {
        put_step(&mut out, last, number);
        last = number;
    }
    out
}

fn read_steps(cursor: &mut Cursor<'_>, count: usize, what: &str) -> Result<Vec<u64>, FormatError> {
    let mut last = 0;
    let numbers = (0..count).map(|_| {
        last = step(cursor, last, what)?;
        Ok(last)
    });
    numbers.collect()
}

/// Equal numbers in a row as one of them and how many.
fn runs(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut run: Option<(u64, u64)> = None;
    let mut end = |run: Option<(u64, u64)>| {
        if let Some((number, length)) = run {
            put(&mut out, number);
            put(&mut out, length);
        }
    };
    for number in numbers {
        run = match run {
            Some((same, length)) if same == number => Some((same, length + 1)),
            other => {
                end(other);
                Some((number, 1))
            }
        };
    }
    end(run);
    out
}

/// Calls `each` with the number of each place, of exactly `count`.
fn read_runs(
    cursor: &mut Cursor<'_>,
    count: usize,
    mut each: impl FnMut(&Cursor<'_>, usize, u64) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let mut at = 0;
    while at < count {
        let number = cursor.number("the number of a run")?;
        let length = cursor.number("the length of a run")?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length == 0 || length > count - at {
            let expected = format!("1 to {}, what is left", count - at);
            return Err(cursor.broken(&format!("a run of {length}"), expected));
        }
        for place in at..at + length {
            each(cursor, place, number)?;
        }
        at += length;
    }
    Ok(())
}

fn read_threads(cursor: &mut Cursor<'_>, events: usize) -> Result<Vec<u32>, FormatError> {
    let mut threads = Vec::with_capacity(events);
    read_runs(cursor, events, |cursor, _, thread| {
        let thread = u32::try_from(thread);
        threads.push(thread.map_err(|_| cursor.broken("a thread above 32 bits", "a smaller one"))?);
        Ok(())
    })?;
    Ok(threads)
}

fn labels(labels: &Labels, blocks: usize) -> Vec<u8> {
    if labels.texts().is_empty() {
        return Vec::new();
    }
    let mut out = Vec::new();
    put(&mut out, labels.texts().len() as u64);
    for text in labels.texts() {
        put(&mut out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    }
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    let number = |block| labels.number(BlockIndex(block)).map_or(0, |number| u64::from(number) + 1);
    out.extend(runs((0..blocks).map(number)));
    out
}

fn read_labels(cursor: &mut Cursor<'_>, blocks: usize) -> Result<Labels, FormatError> {
    let count = cursor.number("the number of texts")?;
    let mut texts = Vec::new();
    for _ in 0..count {
        texts.push(cursor.text("a text")?);
    }
    let mut labels = Labels::default();
    read_runs(cursor, blocks, |cursor, block, number| {
        let Some(number) = number.checked_sub(1) else { return Ok(()) };
        let text = usize::try_from(number).ok().and_then(|number| texts.get(number));
        let text = text.ok_or_else(|| {
            cursor.broken("a number past the texts", format!("one below {}", texts.len()))
        })?;
        labels.set(BlockIndex(u32::try_from(block).unwrap_or(u32::MAX)), text);
        Ok(())
    })?;
    Ok(labels)
}

fn transfers(transfers: &[Transfer]) -> Vec<u8> {
    let (mut out, mut last) = (Vec::new(), 0);
    for transfer in transfers {
        put_step(&mut out, last, nanos(transfer.begin));
        last = nanos(transfer.begin);
        put(&mut out, nanos(transfer.end.saturating_sub(transfer.begin)));
        put(&mut out, transfer.bytes.get());
        put(&mut out, u64::from(transfer.direction == TransferDirection::Download));
    }
    out
}

fn read_transfers(cursor: &mut Cursor<'_>) -> Result<Vec<Transfer>, FormatError> {
    let (mut transfers, mut last) = (Vec::new(), 0);
    while !cursor.is_at_end() {
        last = step(cursor, last, "the begin of a transfer")?;
        let end = last.saturating_add(cursor.number("the duration of a transfer")?);
        let bytes = Bytes::new(cursor.number("the bytes of a transfer")?);
        let direction = match cursor.number("the direction of a transfer")? {
            0 => TransferDirection::Upload,
            1 => TransferDirection::Download,
            _ => return Err(cursor.broken("another direction", "0 or 1")),
        };
        let [begin, end] = [last, end].map(Duration::from_nanos);
        transfers.push(Transfer { begin, end, bytes, direction });
    }
    Ok(transfers)
}
