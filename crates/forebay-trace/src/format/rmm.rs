//! Logs of RMM: `Thread,Time,Action,Pointer,Size,Stream`.
//!
//! Blocks are named by their pointers, which come back once freed. An `allocate failure` is no
//! event; it is remembered as a remark. The null pointer, which an allocation of no bytes may
//! give, is nothing to free.

use std::io::BufRead;

use forebay_core::Bytes;

use super::lines::{Lines, fields, number};
use super::{Format, FormatError, Intake, ReadOptions};
use crate::Trace;

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

pub(super) fn read(
    input: &mut dyn BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<Trace, FormatError> {
    let format = Format::Rmm;
    let mut intake = Intake::new(name, format, options);
    let mut lines = Lines::new(input, format, options);
    match lines.next()? {
        Some((_, HEADER)) | None => {}
        Some((at, other)) => {
            return Err(FormatError::malformed(format, at, other, format!("\"{HEADER}\"")));
        }
    }
    while let Some((at, line)) = lines.next()? {
        // Logs of several runs in one file repeat the header.
        if line.is_empty() || line == HEADER {
            continue;
        }
        let malformed = || FormatError::malformed(format, at, format!("\"{line}\""), EXPECTED);
        let [_, _, action, at_pointer, size, stream] = fields(line).ok_or_else(malformed)?;
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
    }
    Ok(intake.builder.finish())
}
