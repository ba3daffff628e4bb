//! The stack machine that executes a pickle, without the instructions that call functions.

use std::collections::HashMap;

use super::{Heap, Value, ValueId};
use crate::format::{Format, FormatError, Position};

/// The highest protocol whose instructions are known.
const NEWEST: u8 = 5;

/// Reads a pickle of at most so many values; gives them and the one it stands for.
pub(in crate::format) fn load(
    bytes: &[u8],
    limit: u64,
) -> Result<(Heap<'_>, ValueId), FormatError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        heap: Heap::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        left: limit,
        limit,
    };
    let root = loop {
        if let Some(root) = machine.step()? {
            break root;
        }
    };
    Ok((machine.heap, root))
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    heap: Heap<'a>,
    stack: Vec<ValueId>,
    /// How high the stack was at each mark.
    marks: Vec<usize>,
    memo: HashMap<u64, ValueId>,
    /// How many more values may go on the stack, new ones and known ones.
    left: u64,
    limit: u64,
}

impl<'a> Machine<'a> {
    fn broken(&self, found: &str, expected: &str) -> FormatError {
        let at = Position::Byte(self.at as u64);
        FormatError::malformed(Format::Snapshot, at, found, expected)
    }

    /// The next `length` bytes.
    fn take(&mut self, length: u64) -> Result<&'a [u8], FormatError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match usize::try_from(length).ok().and_then(|length| rest.get(..length)) {
            Some(part) => {
                self.at += part.len();
                Ok(part)
            }
            None => Err(self.broken("the end of the file", &format!("{length} bytes more"))),
        }
    }

    /// The next `length` bytes as a number, low ones first; at most eight.
    fn number(&mut self, length: u64) -> Result<u64, FormatError> {
        let part = self.take(length)?;
        Ok(part.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    }

    /// As many bytes as the number before them says, which takes `length` bytes itself.
    fn counted(&mut self, length: u64) -> Result<&'a [u8], FormatError> {
        let count = self.number(length)?;
        self.take(count)
    }

    /// The bytes up to the end of the line.
    fn line(&mut self) -> Result<&'a [u8], FormatError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(length) = rest.iter().position(|&byte| byte == b'\n') else {
            return Err(self.broken("the end of the file", "a line"));
        };
        self.at += length + 1;
        Ok(rest.get(..length).unwrap_or_default())
    }

    /// A number written in decimal on a line; what Python 2 wrote for long ones ends in "L".
    fn decimal(&mut self) -> Result<i128, FormatError> {
        let line = self.line()?;
        let text = core::str::from_utf8(line).unwrap_or_default();
        let number = text.trim().trim_end_matches('L').parse();
        number.map_err(|_| self.broken("a line that is not a number", "a number of up to 128 bits"))
    }

    fn push(&mut self, value: Value<'a>, at: usize) -> Result<(), FormatError> {
        let too_large = FormatError::TooLarge { what: "values", limit: self.limit };
        let id = self.heap.add(value, at as u64).ok_or(too_large)?;
        self.push_known(id)
    }

    /// Puts a value on the stack that is there already. Counted like a new one: what it may become
    /// an item of takes memory too.
    fn push_known(&mut self, id: ValueId) -> Result<(), FormatError> {
        let too_large = FormatError::TooLarge { what: "values", limit: self.limit };
        self.left = self.left.checked_sub(1).ok_or(too_large)?;
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Result<ValueId, FormatError> {
        // What lies under a mark is not this instruction's to take.
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => self.stack.pop().ok_or_else(|| self.broken("an empty stack", "a value")),
            false => Err(self.broken("nothing since the mark", "a value")),
        }
    }

    fn top(&self) -> Result<ValueId, FormatError> {
        self.stack.last().copied().ok_or_else(|| self.broken("an empty stack", "a value"))
    }

    /// Everything since the last mark, which goes.
    fn since_mark(&mut self) -> Result<Vec<ValueId>, FormatError> {
        let mark = self.marks.pop().ok_or_else(|| self.broken("no mark", "a mark"))?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    /// The last so many values as a list.
    fn tuple(&mut self, count: usize, at: usize) -> Result<(), FormatError> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Value::List(items), at)
    }

    /// Adds values to the list or dictionary on top.
    fn extend(&mut self, new: &[ValueId], expected: &str) -> Result<(), FormatError> {
        let top = self.top()?;
        let wants_pairs = expected == DICTIONARY;
        match self.heap.values.get_mut(top.0 as usize).map(|(value, _)| value) {
            Some(Value::List(items)) if !wants_pairs => items.extend_from_slice(new),
            Some(Value::Dictionary(entries)) if wants_pairs && new.len().is_multiple_of(2) => {
                entries.extend_from_slice(new);
            }
            _ => return Err(self.broken("something else", expected)),
        }
        Ok(())
    }

    /// A little-endian number with a sign, of any length that fits.
    fn signed(&mut self, length: u64) -> Result<Value<'a>, FormatError> {
        let part = self.take(length)?;
        if part.len() > 16 {
            // Python has them; no size, address or time is one.
            return Ok(Value::Other);
        }
        let negative = part.last().is_some_and(|&byte| byte & 0x80 != 0);
        let fill = if negative { -1_i128 } else { 0 };
        Ok(whole(part.iter().rev().fold(fill, |sum, &byte| sum << 8 | i128::from(byte))))
    }

    fn remember(&mut self, key: u64) -> Result<(), FormatError> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Result<(), FormatError> {
        match self.memo.get(&key) {
            Some(&id) => self.push_known(id),
            None => Err(self.broken("a value that was not kept", "one that was")),
        }
    }

    /// Carries out one instruction; gives the value where it was the last.
    fn step(&mut self) -> Result<Option<ValueId>, FormatError> {
        let at = self.at;
        let code = match self.take(1)? {
            [code] => *code,
            _ => return Err(self.broken("the end of the file", "an instruction")),
        };
        match code {
            b'.' => return self.pop().map(Some),
            0x80 => {
                let version = self.number(1)?;
                if version > u64::from(NEWEST) {
                    let found = format!("protocol {version}");
                    return Err(self.broken(&found, "a protocol up to 5"));
                }
            }
            // The length of a frame; frames only help those who read ahead.
            0x95 => drop(self.number(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'2' => {
                let top = self.top()?;
                self.push_known(top)?;
            }
            b'N' => self.push(Value::Other, at)?,
            0x88 => self.push(Value::Integer(1), at)?,
            0x89 => self.push(Value::Integer(0), at)?,
            b'K' => self.unsigned(1, at)?,
            b'M' => self.unsigned(2, at)?,
            b'J' => {
                let value = self.signed(4)?;
                self.push(value, at)?;
            }
            0x8a | 0x8b => {
                let length = self.number(if code == 0x8a { 1 } else { 4 })?;
                let value = self.signed(length)?;
                self.push(value, at)?;
            }
            b'I' | b'L' => {
                let number = self.decimal()?;
                self.push(whole(number), at)?;
            }
            b'G' => {
                self.take(8)?;
                self.push(Value::Other, at)?;
            }
            b'F' => {
                self.line()?;
                self.push(Value::Other, at)?;
            }
            0x8c | b'U' => self.text(1, at)?,
            b'X' | b'T' => self.text(4, at)?,
            0x8d => self.text(8, at)?,
            b'V' | b'S' => {
                let text = self.line()?;
                self.push(Value::Text(text), at)?;
            }
            b'C' => self.opaque(1, at)?,
            b'B' => self.opaque(4, at)?,
            0x8e | 0x96 => self.opaque(8, at)?,
            b']' | b')' | 0x8f => self.push(Value::List(Vec::new()), at)?,
            b'}' => self.push(Value::Dictionary(Vec::new()), at)?,
            b'l' | b't' | 0x91 => {
                let items = self.since_mark()?;
                self.push(Value::List(items), at)?;
            }
            b'd' => {
                let entries = self.since_mark()?;
                self.push(Value::Dictionary(Vec::new()), at)?;
                self.extend(&entries, DICTIONARY)?;
            }
            0x85..=0x87 => self.tuple(usize::from(code - 0x84), at)?,
            b'a' => {
                let item = self.pop()?;
                self.extend(&[item], LIST)?;
            }
            b'e' | 0x90 => {
                let items = self.since_mark()?;
                self.extend(&items, LIST)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.extend(&[key, value], DICTIONARY)?;
            }
            b'u' => {
                let entries = self.since_mark()?;
                self.extend(&entries, DICTIONARY)?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            b'q' | b'r' => {
                let key = self.number(if code == b'q' { 1 } else { 4 })?;
                self.remember(key)?;
            }
            b'h' | b'j' => {
                let key = self.number(if code == b'h' { 1 } else { 4 })?;
                self.recall(key)?;
            }
            b'p' | b'g' => {
                let key = self.decimal()?;
                let key = u64::try_from(key).map_err(|_| self.broken("no index", "an index"))?;
                if code == b'p' { self.remember(key)? } else { self.recall(key)? }
            }
            b'c' | b'i' | b'o' | b'R' | b'b' | b'Q' | b'P' | 0x81 | 0x82..=0x84 | 0x92 | 0x93 => {
                self.at = at;
                let found = format!("instruction {code:#04x}, which would run code of the file");
                return Err(self.broken(&found, "plain data, as torch.cuda.memory writes it"));
            }
            _ => {
                self.at = at;
                let found = format!("byte {code:#04x}");
                return Err(self.broken(&found, "an instruction of pickle"));
            }
        }
        Ok(None)
    }

    fn unsigned(&mut self, length: u64, at: usize) -> Result<(), FormatError> {
        let number = self.number(length)?;
        self.push(Value::Integer(number), at)
    }

    fn text(&mut self, length: u64, at: usize) -> Result<(), FormatError> {
        let text = self.counted(length)?;
        self.push(Value::Text(text), at)
    }

    fn opaque(&mut self, length: u64, at: usize) -> Result<(), FormatError> {
        self.counted(length)?;
        self.push(Value::Other, at)
    }
}

/// A whole number, where a recording could mean one.
fn whole<'a>(number: i128) -> Value<'a> {
    u64::try_from(number).map_or(Value::Other, Value::Integer)
}

/// What takes single values.
const LIST: &str = "a list to add to";
/// What takes pairs.
const DICTIONARY: &str = "a dictionary to add keys and values to";
