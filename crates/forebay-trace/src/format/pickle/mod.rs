//! Python's pickles, as data: numbers, texts, lists, tuples and dictionaries.
//!
//! A pickle is a program for a small stack machine, one of whose instructions calls any Python function by name. This
//! machine lacks it: anything that would make a call is refused. The rest builds values out of the file's bytes, at
//! most one for each byte and no more than the reader allows. Values refer to each other by number and are never
//! copied: a stack that ten thousand events share is stored once, and a file that nests sharing to expand to terabytes
//! is as small in memory as on disk.

mod machine;
mod writer;

pub(super) use machine::load;
pub(super) use writer::Writer;

/// The first byte of every pickle since protocol 2.
pub(super) const PROTO: u8 = 0x80;

/// Which value of a [`Heap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueId(u32);

/// A value. Texts are where they are in the file.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    /// `None`, a float, bytes, a number below zero or above 64 bits: nothing a recording needs.
    Other,
    /// A truth value or a whole number.
    Integer(u64),
    /// A text, which may not be valid UTF-8: it is only compared.
    Text(&'a [u8]),
    /// A list, a tuple or a set.
    List(Vec<ValueId>),
    /// A dictionary: keys and values by turns.
    Dictionary(Vec<ValueId>),
}

/// All values of a pickle, each with the place of the instruction that made it.
#[derive(Debug, Default)]
pub(super) struct Heap<'a> {
    values: Vec<(Value<'a>, u64)>,
}

/// The most keys a dictionary may have that is searched: those of recordings have a dozen.
const MAX_KEYS: usize = 64;

impl<'a> Heap<'a> {
    /// Adds a value; `None` where there are more than can be numbered.
    fn add(&mut self, value: Value<'a>, at: u64) -> Option<ValueId> {
        let id = u32::try_from(self.values.len()).ok()?;
        self.values.push((value, at));
        Some(ValueId(id))
    }

    /// The value.
    pub(super) fn get(&self, id: ValueId) -> Option<&Value<'a>> {
        self.values.get(id.0 as usize).map(|(value, _)| value)
    }

    /// Where in the file it was made.
    pub(super) fn place(&self, id: ValueId) -> u64 {
        self.values.get(id.0 as usize).map_or(0, |(_, at)| *at)
    }

    /// The items of a list, tuple or set.
    pub(super) fn items(&self, id: ValueId) -> Option<&[ValueId]> {
        match self.get(id) {
            Some(Value::List(items)) => Some(items),
            _ => None,
        }
    }

    /// The whole number.
    pub(super) fn integer(&self, id: ValueId) -> Option<u64> {
        match self.get(id) {
            Some(Value::Integer(number)) => Some(*number),
            _ => None,
        }
    }

    /// The text.
    pub(super) fn text(&self, id: ValueId) -> Option<&'a [u8]> {
        match self.get(id) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// What a dictionary has under `key`; `None` too where it is no dictionary, or one with more
    /// keys than any that is searched here.
    pub(super) fn entry(&self, id: ValueId, key: &str) -> Option<ValueId> {
        let Some(Value::Dictionary(entries)) = self.get(id) else { return None };
        if entries.len() > 2 * MAX_KEYS {
            return None;
        }
        // The last of equal keys holds, as in Python.
        entries.rchunks_exact(2).find_map(|pair| match pair {
            [name, value] if self.text(*name) == Some(key.as_bytes()) => Some(*value),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
