//! Our own form, `forebay.trace.v1` and `v2`: small files that can be checked.
//!
//! ```text
//!   "forebay.trace.v1\n", or "forebay.trace.v2\n"
//!   name: length, UTF-8          failed allocations      blocks live at the start
//!   streams: count, handles      events: count
//!   an event each:
//!     code & 1    0 allocate, 1 free
//!     code & 2    the stream is another than before: its index follows
//!     code >> 2   allocate: 0, and the size follows, new in this file; or which of the sizes so
//!                 far, counted back from the newest, from 1
//!                 free: how many blocks ago the block was allocated
//!   v2 alone: tags, stacks, times, threads, transfers, origin (details.rs)
//!   CRC-32 of everything above, 4 bytes, little end first
//! ```
//!
//! All numbers but the last are varints: seven bits per byte, low bits first, the top bit set if more follow. A program
//! requests few distinct sizes and mostly frees young blocks, so an event takes little more than a byte. A recording
//! without details is written as v1, which older versions read.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use forebay_core::Bytes;

use super::{Format, FormatError, Intake, Position, ReadOptions, details};
use crate::{Event, StreamIndex, Trace};

/// What a file begins with, and the id of the form.
pub(super) const SCHEMA: &str = "forebay.trace.v1";

/// The same with details. Of the same length.
const DETAILED: &str = "forebay.trace.v2";

/// What files of all versions begin with.
pub(super) const BEGINNING: &str = "forebay.trace.v";

/// The checksum's size.
const CHECKSUM: usize = 4;

pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(trace.len() * 2);
    let mut sections = Vec::new();
    details::write(trace, &mut sections);
    let schema = if sections.is_empty() { SCHEMA } else { DETAILED };
    bytes.extend_from_slice(schema.as_bytes());
    bytes.push(b'\n');
    put(&mut bytes, trace.name().len() as u64);
    bytes.extend_from_slice(trace.name().as_bytes());
    put(&mut bytes, trace.remarks().failed_allocations);
    put(&mut bytes, trace.remarks().live_at_start);
    put(&mut bytes, trace.streams().len() as u64);
    trace.streams().iter().for_each(|&handle| put(&mut bytes, handle));
    put(&mut bytes, trace.len() as u64);
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    let mut last = StreamIndex(0);
    let mut allocated = 0_u64;
    for event in trace.events() {
        let (what, stream, kind, size) = match event {
            Event::Allocate { size, stream, .. } => {
                allocated += 1;
                let count = sizes.len() as u64;
                let known = sizes.get(&size.get()).map(|&index| count - index);
                if known.is_none() {
                    sizes.insert(size.get(), count);
                }
                (known.unwrap_or(0), stream, 0, known.is_none().then_some(size.get()))
            }
            Event::Free { block, stream } => {
                ((allocated.saturating_sub(u64::from(block.0))), stream, 1, None)
            }
        };
        let other = u64::from(stream != last) << 1;
        put(&mut bytes, what << 2 | other | kind);
        if stream != last {
            put(&mut bytes, u64::from(stream.0));
            last = stream;
        }
        if let Some(size) = size {
            put(&mut bytes, size);
        }
    }
    bytes.append(&mut sections);
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    out.write_all(&bytes)?;
    out.flush()
}

/// The bytes of a file with a place in them.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn position(&self) -> Position {
        Position::Byte(self.at as u64)
    }

    pub(super) fn broken(&self, found: &str, expected: impl Into<String>) -> FormatError {
        FormatError::malformed(Format::Binary, self.position(), found, expected)
    }

    fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], FormatError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = usize::try_from(length).ok();
        match length.and_then(|length| Some((length, rest.get(..length)?))) {
            Some((length, part)) => {
                self.at += length;
                Ok(part)
            }
            None => Err(self.broken("the end of the file", what)),
        }
    }

    /// Whether nothing is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// How many bytes are left.
    fn left(&self) -> u64 {
        self.bytes.len().saturating_sub(self.at) as u64
    }

    /// Goes to the end.
    pub(super) fn skip(&mut self) {
        self.at = self.bytes.len();
    }

    /// The next `length` bytes, with their places in the file.
    pub(super) fn part(&mut self, length: u64, what: &str) -> Result<Self, FormatError> {
        let at = self.at;
        self.take(length, what)?;
        Ok(Self { bytes: self.bytes.get(..self.at).unwrap_or_default(), at })
    }

    /// A text after its length.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, FormatError> {
        let length = self.number(what)?;
        let text = self.take(length, what)?;
        core::str::from_utf8(text)
            .map_err(|_| self.broken("bytes that are not UTF-8", format!("{what} in UTF-8")))
    }

    pub(super) fn number(&mut self, what: &str) -> Result<u64, FormatError> {
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = match self.bytes.get(self.at) {
                Some(&byte) => byte,
                None => return Err(self.broken("the end of the file", what)),
            };
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            self.at += 1;
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.broken("a number of more than 64 bits", what))
    }
}

pub(super) fn read(
    input: &mut dyn BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<Trace, FormatError> {
    let bytes = super::whole(input, options)?;
    let body = checked(&bytes)?;
    let mut cursor = Cursor { bytes: body, at: 0 };
    let schema = cursor.take(SCHEMA.len() as u64, "the name of the form")?;
    let is_detailed = schema == DETAILED.as_bytes();
    let is_known = is_detailed || schema == SCHEMA.as_bytes();
    if !is_known || cursor.take(1, "the end of the first line")? != b"\n" {
        let expected = format!("\"{SCHEMA}\" or \"{DETAILED}\"");
        return Err(cursor.broken("another version of the form", expected));
    }
    let stored = cursor.text("the name")?;
    let mut intake =
        Intake::new(if stored.is_empty() { name } else { stored }, Format::Binary, options);
    intake.builder.remarks().failed_allocations = cursor.number("the failed allocations")?;
    intake.builder.remarks().live_at_start = cursor.number("the blocks live at the start")?;
    let streams = cursor.number("the number of streams")?;
    let mut handles = Vec::new();
    for _ in 0..streams {
        let at = cursor.position();
        let handle = cursor.number("a stream's handle")?;
        let format = Format::Binary;
        intake.builder.stream(handle).map_err(|breach| FormatError::InvalidEvent {
            format,
            at,
            breach,
        })?;
        handles.push(handle);
    }
    let count = cursor.number("the number of events")?;
    // An event takes a byte at least: a larger count is a damaged one, which the reader comes to.
    if count <= cursor.left() {
        intake.announced(count)?;
    }
    events(&mut cursor, &mut intake, &handles, count)?;
    if is_detailed {
        details::read(&mut cursor, &mut intake.builder)?;
    }
    if !cursor.is_at_end() {
        return Err(cursor.broken("more bytes", "the checksum after the last event"));
    }
    Ok(intake.builder.finish())
}

/// Everything before the checksum, which must be right.
fn checked(bytes: &[u8]) -> Result<&[u8], FormatError> {
    let split = bytes.len().checked_sub(CHECKSUM).filter(|&split| split > SCHEMA.len());
    let Some((body, stored)) = split.and_then(|split| bytes.split_at_checked(split)) else {
        let at = Position::Byte(bytes.len() as u64);
        let format = Format::Binary;
        return Err(FormatError::malformed(format, at, "the end of the file", "a checksum"));
    };
    let stored = stored.iter().rev().fold(0_u32, |sum, &byte| sum << 8 | u32::from(byte));
    let computed = crc32fast::hash(body);
    if stored != computed {
        return Err(FormatError::malformed(
            Format::Binary,
            Position::Byte(body.len() as u64),
            format!("the checksum {stored:#010x}"),
            format!(
                "{computed:#010x}, the checksum of the data before it: the file is damaged or truncated"
            ),
        ));
    }
    Ok(body)
}

fn events(
    cursor: &mut Cursor<'_>,
    intake: &mut Intake,
    handles: &[u64],
    count: u64,
) -> Result<(), FormatError> {
    let mut sizes: Vec<u64> = Vec::new();
    let mut allocated = 0_u64;
    let mut handle = handles.first().copied();
    for _ in 0..count {
        let at = cursor.position();
        let code = cursor.number("an event")?;
        if code & 2 != 0 {
            let index = cursor.number("a stream's index")?;
            handle = usize::try_from(index).ok().and_then(|index| handles.get(index)).copied();
        }
        let Some(stream) = handle else {
            let most = handles.len();
            return Err(cursor.broken("an index past the streams", format!("one below {most}")));
        };
        if code & 1 == 0 {
            let size = match code >> 2 {
                0 => {
                    let size = cursor.number("a size")?;
                    sizes.push(size);
                    size
                }
                back => {
                    let index = (sizes.len() as u64).checked_sub(back);
                    let index = index.and_then(|index| usize::try_from(index).ok());
                    index.and_then(|index| sizes.get(index)).copied().ok_or_else(|| {
                        cursor.broken("a size from before the first", "one of those so far")
                    })?
                }
            };
            intake.event(at, |builder| builder.allocate(allocated, Bytes::new(size), stream))?;
            allocated += 1;
        } else {
            let block = allocated.checked_sub(code >> 2).ok_or_else(|| {
                cursor.broken("a block from before the first", "an allocated one")
            })?;
            intake.event(at, |builder| builder.free(block, stream))?;
        }
    }
    Ok(())
}
