//! Writes pickles of plain data, with the instructions that PyTorch's viewer supports as well as Python.

use std::collections::HashMap;
use std::io::{self, Write};

use super::PROTO;

/// The most items that one instruction adds. The viewer passes them as arguments of a function, which has a bound.
const BATCH: usize = 1000;

/// A pickle in the making. What is written makes up one value, which [`finish`](Self::finish) ends.
pub(in crate::format) struct Writer<'a> {
    out: &'a mut dyn Write,
    /// Texts that were written, by their number in the memo.
    texts: HashMap<String, u32>,
    memo: u32,
}

impl<'a> Writer<'a> {
    pub(in crate::format) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        out.write_all(&[PROTO, 4])?;
        Ok(Self { out, texts: HashMap::new(), memo: 0 })
    }

    pub(in crate::format) fn finish(self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    pub(in crate::format) fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(small) = u8::try_from(number) {
            return self.out.write_all(&[b'K', small]);
        }
        // Signed, low bytes first: one bit more than the number has.
        let bytes = u128::from(number).to_le_bytes();
        let length = (number.ilog2() + 1) / 8 + 1;
        self.out.write_all(&[0x8a])?;
        self.out.write_all(&length.to_le_bytes()[..1])?;
        self.out.write_all(bytes.get(..length as usize).unwrap_or_default())
    }

    /// A text. The second time it is written, it takes five bytes.
    pub(in crate::format) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&number) = self.texts.get(text) {
            return self.known(number);
        }
        self.out.write_all(b"X")?;
        self.out.write_all(&u32::try_from(text.len()).unwrap_or(0).to_le_bytes())?;
        self.out.write_all(text.as_bytes())?;
        let number = self.remember()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    /// Remembers the value that was written last.
    pub(in crate::format) fn remember(&mut self) -> io::Result<u32> {
        let number = self.memo;
        self.memo = number.wrapping_add(1);
        self.out.write_all(b"r")?;
        self.out.write_all(&number.to_le_bytes())?;
        Ok(number)
    }

    /// The value of that number once more.
    pub(in crate::format) fn known(&mut self, number: u32) -> io::Result<()> {
        self.out.write_all(b"j")?;
        self.out.write_all(&number.to_le_bytes())
    }

    pub(in crate::format) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"]")?;
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            self.out.write_all(b"(")?;
            for item in items.by_ref().take(BATCH) {
                write(self, item)?;
            }
            self.out.write_all(b"e")?;
        }
        Ok(())
    }

    /// A dictionary: `write` writes keys and values by turns.
    pub(in crate::format) fn dictionary(
        &mut self,
        write: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"}(")?;
        write(self)?;
        self.out.write_all(b"u")
    }

    /// Entries of a dictionary that are numbers.
    pub(in crate::format) fn numbers(&mut self, entries: &[(&str, u64)]) -> io::Result<()> {
        for &(key, number) in entries {
            self.text(key)?;
            self.number(number)?;
        }
        Ok(())
    }

    /// Entries of a dictionary that are texts.
    pub(in crate::format) fn texts(&mut self, entries: &[(&str, &str)]) -> io::Result<()> {
        for (key, text) in entries {
            self.text(key)?;
            self.text(text)?;
        }
        Ok(())
    }
}
