//! The plain form: `op,id,bytes,stream`.
//!
//! ```text
//!   op,id,bytes,stream
//!   a,17,3145728,0        allocate block 17, as many bytes as were asked for, on stream 0
//!   f,17,,0               free it
//! ```

use std::io::{self, BufRead, Write};

use forebay_core::Bytes;

use super::lines::{Lines, fields, number};
use super::{Format, FormatError, Intake, ReadOptions};
use crate::{Event, Trace};

/// The first line.
pub(super) const HEADER: &str = "op,id,bytes,stream";

/// What a line may be.
const EXPECTED: &str = "\"a,ID,BYTES,STREAM\" or \"f,ID,,STREAM\" with whole numbers";

pub(super) fn read(
    input: &mut dyn BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<Trace, FormatError> {
    let format = Format::Csv;
    let mut intake = Intake::new(name, format, options);
    let mut lines = Lines::new(input, format, options);
    lines.header(HEADER)?;
    while let Some((at, line)) = lines.next()? {
        if line.is_empty() {
            continue;
        }
        let malformed = || FormatError::malformed(format, at, format!("\"{line}\""), EXPECTED);
        let [op, id, bytes, stream] = fields(line).ok_or_else(malformed)?;
        let id = number(id).ok_or_else(malformed)?;
        let stream = number(stream).ok_or_else(malformed)?;
        match (op, number(bytes)) {
            ("a", Some(size)) => {
                intake.event(at, |builder| builder.allocate(id, Bytes::new(size), stream))?;
            }
            // Some recorders repeat the size; it says nothing new.
            ("f", size) if size.is_some() || bytes.is_empty() => {
                intake.event(at, |builder| builder.free(id, stream))?;
            }
            _ => return Err(malformed()),
        }
    }
    Ok(intake.builder.finish())
}

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{HEADER}")?;
    for event in trace.events() {
        match event {
            Event::Allocate { block, size, stream } => {
                writeln!(out, "a,{},{},{}", block.0, size.get(), trace.handle(stream))?;
            }
            Event::Free { block, stream } => {
                writeln!(out, "f,{},,{}", block.0, trace.handle(stream))?;
            }
        }
    }
    out.flush()
}
