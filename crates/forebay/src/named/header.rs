//! The description of a shared buffer, written once by its creator to a sealed memory file that every party gets.
//!
//! The seal makes the header immutable for everyone. The parties also lock this file.

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::error::SharedError;
use super::request::Element;

/// The first word of every header and answer: "forebay" and a zero.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"forebay\0");
/// The version of the layout of header and answer.
pub(super) const VERSION: u64 = 1;
/// Longer type names are truncated when written.
const LONGEST_TYPE: usize = 1024;
/// The number of integers at the start of a header.
const NUMBERS: usize = 9;

/// The description of a shared buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) element: Element,
    pub(super) length: u64,
    /// The size of the page that backs it.
    pub(super) mapped: u64,
    /// The kind of the memory's device.
    pub(super) kind: String,
}

fn seals() -> SealFlags {
    SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE
}

impl Header {
    /// Writes it to a sealed file.
    pub(super) fn write(&self) -> Result<OwnedFd, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = std::fs::File::from(rustix::fs::memfd_create(c"forebay-header", flags)?);
        let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        file.write_all(&self.encode()).map_err(failed)?;
        rustix::fs::fcntl_add_seals(&file, seals())?;
        Ok(file.into())
    }

    /// Reads it from a file that another process sent.
    pub(super) fn read(name: &str, file: BorrowedFd<'_>) -> Result<Self, SharedError> {
        let foreign = |what| SharedError::Foreign { name: name.into(), what };
        if !rustix::fs::fcntl_get_seals(file).is_ok_and(|found| found.contains(seals())) {
            return Err(foreign("its header is not sealed"));
        }
        let mut bytes = [0; 8 * NUMBERS + LONGEST_TYPE + 64];
        let (mut filled, mut ended) = (0, false);
        while let (false, Some(rest)) =
            (ended, bytes.get_mut(filled..).filter(|rest| !rest.is_empty()))
        {
            match rustix::io::pread(file, rest, filled as u64) {
                Ok(0) => ended = true,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(_) => return Err(foreign("its header cannot be read")),
            }
        }
        Self::decode(name, bytes.get(..filled).unwrap_or_default())
    }

    fn encode(&self) -> Vec<u8> {
        let Element { name, size, alignment } = &self.element;
        let numbers: [u64; NUMBERS] = [
            MAGIC,
            VERSION,
            *size,
            *alignment,
            self.length,
            self.mapped,
            // Two unused words: the system says who created it, so the header need not.
            0,
            0,
            self.kind.len() as u64,
        ];
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        numbers.chain(self.kind.bytes()).chain(cut(name).bytes()).collect()
    }

    fn decode(name: &str, bytes: &[u8]) -> Result<Self, SharedError> {
        let foreign = |what| SharedError::Foreign { name: name.into(), what };
        let (chunks, _) = bytes.as_chunks::<8>();
        let mut numbers = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk));
        let mut next = || numbers.next().ok_or(foreign("its header is cut short"));
        if next()? != MAGIC {
            return Err(foreign("its header does not begin as forebay's do"));
        }
        let found = next()?;
        if found != VERSION {
            return Err(SharedError::WrongVersion { name: name.into(), expected: VERSION, found });
        }
        let (size, alignment, length, mapped) = (next()?, next()?, next()?, next()?);
        let (_, _, kind) = (next()?, next()?, next()?);
        let text = bytes.get(8 * NUMBERS..).and_then(|text| core::str::from_utf8(text).ok());
        let kind = usize::try_from(kind).unwrap_or(usize::MAX);
        let (kind, element) = text
            .and_then(|text| text.split_at_checked(kind))
            .ok_or(foreign("its header has no text"))?;
        // Both may be printed to a terminal in an error message.
        if kind.chars().chain(element.chars()).any(char::is_control) {
            return Err(foreign("its header has control characters in its text"));
        }
        // The opener relies on these before it maps anything.
        if length.checked_mul(size).is_none_or(|all| size == 0 || all > mapped) {
            return Err(foreign("its header has sizes that do not add up"));
        }
        let element = Element { name: element.to_owned(), size, alignment };
        Ok(Self { element, length, mapped, kind: kind.to_owned() })
    }

    /// Fails if the buffer is not what the caller expects.
    pub(super) fn check(
        &self,
        name: &str,
        expected: &Element,
        length: Option<u64>,
        kind: &str,
    ) -> Result<(), SharedError> {
        if self.kind != kind {
            let (expected, found) = (kind.into(), self.kind.as_str().into());
            return Err(SharedError::WrongDevice { name: name.into(), expected, found });
        }
        let same = self.element.name == cut(&expected.name)
            && (self.element.size, self.element.alignment) == (expected.size, expected.alignment);
        if !same {
            let (expected, found) = (expected.to_string().into(), self.element.to_string().into());
            return Err(SharedError::WrongType { name: name.into(), expected, found });
        }
        match length {
            Some(expected) if expected != self.length => {
                Err(SharedError::WrongLength { name: name.into(), expected, found: self.length })
            }
            _ => Ok(()),
        }
    }
}

fn cut(name: &str) -> &str {
    name.get(..name.floor_char_boundary(LONGEST_TYPE)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn header() -> Header {
        let element = Element { name: "f32".to_owned(), size: 4, alignment: 4 };
        Header { element, length: 10, mapped: 4096, kind: "host".to_owned() }
    }

    #[test]
    fn a_header_comes_back_from_its_sealed_file() {
        let file = header().write().unwrap();
        assert_eq!(Header::read("x", file.as_fd()), Ok(header()));
        assert!(rustix::io::pwrite(&file, &[0], 0).is_err(), "nobody can change it");
        let long = Element { name: "n".repeat(3000), ..header().element };
        let long = Header { element: long, ..header() };
        let read = Header::read("x", long.write().unwrap().as_fd()).unwrap();
        assert_eq!(read.check("x", &long.element, Some(10), "host"), Ok(()));
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let plain = rustix::fs::memfd_create(c"plain", MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(Header::read("x", plain.as_fd()), Err(SharedError::Foreign { .. })));
        let good = header().encode();
        for end in 0..8 * NUMBERS {
            assert!(Header::decode("x", &good[..end]).is_err(), "cut at {end}");
        }
        for (at, value) in
            [(0, 1_u8), (2 * 8 + 1, 255), (4 * 8 + 7, 255), (8 * 8, 255), (8 * NUMBERS, 0x1b)]
        {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(matches!(Header::decode("x", &bad), Err(SharedError::Foreign { .. })), "{at}");
        }
        let mut newer = good;
        newer[8] = 2;
        let refused = SharedError::WrongVersion { name: "x".into(), expected: 1, found: 2 };
        assert_eq!(Header::decode("x", &newer), Err(refused));
    }
}
