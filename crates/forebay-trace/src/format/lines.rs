//! Lines of text, bounded in length and number.

use std::io::{BufRead, Read};

use super::{Format, FormatError, Position, ReadOptions};

/// The longest line a recording has any use for.
const MAX: u64 = 4096;

/// The lines of a file, with their numbers.
pub(super) struct Lines<'a> {
    input: &'a mut dyn BufRead,
    format: Format,
    buffer: Vec<u8>,
    number: u64,
    left: u64,
    limit: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(input: &'a mut dyn BufRead, format: Format, options: &ReadOptions) -> Self {
        let (left, limit) = (options.bytes, options.bytes);
        Self { input, format, buffer: Vec::new(), number: 0, left, limit }
    }

    /// The first line, which must be `header`; an empty file has none.
    pub(super) fn header(&mut self, header: &str) -> Result<(), FormatError> {
        let format = self.format;
        match self.next()? {
            Some((at, other)) if other != header => {
                Err(FormatError::malformed(format, at, other, format!("\"{header}\"")))
            }
            _ => Ok(()),
        }
    }

    /// The next line without its end, or `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<(Position, &str)>, FormatError> {
        self.number += 1;
        let at = Position::Line(self.number);
        self.buffer.clear();
        let mut part = Read::take(&mut *self.input, MAX + 1);
        let length = part
            .read_until(b'\n', &mut self.buffer)
            .map_err(|error| FormatError::Io { at: Some(at), error })? as u64;
        if length == 0 {
            return Ok(None);
        }
        if length > MAX {
            let expected = format!("a line of at most {MAX} bytes");
            return Err(FormatError::malformed(self.format, at, "a longer line", expected));
        }
        self.left = self
            .left
            .checked_sub(length)
            .ok_or(FormatError::TooLarge { what: "bytes", limit: self.limit })?;
        let line = core::str::from_utf8(&self.buffer).map_err(|_| {
            FormatError::malformed(self.format, at, "bytes that are not UTF-8", "UTF-8")
        })?;
        Ok(Some((at, line.trim_end_matches(['\n', '\r']))))
    }
}

/// The fields of a line, exactly so many.
pub(super) fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    let mut parts = line.split(',');
    let mut fields = [""; N];
    for field in &mut fields {
        *field = parts.next()?.trim();
    }
    parts.next().is_none().then_some(fields)
}

/// A number as logs write it: decimal, or hexadecimal after "0x".
pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    }
}
