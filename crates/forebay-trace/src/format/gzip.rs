//! Compressed files, with a bound on their uncompressed size.

use core::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

/// Any file may unpack to this much.
const ALWAYS: u64 = 64 << 20;

/// A larger one may unpack to so many times its size: recordings come to ten or twenty times.
const RATIO: u64 = 100;

/// What a packed file holds. Reading ends with an error where that comes to far more than the file has: a few kilobytes
/// can stand for gigabytes.
pub(super) struct Unpacked<R> {
    decoder: MultiGzDecoder<BufReader<Counted<R>>>,
    /// Bytes of the file read so far.
    packed: Rc<Cell<u64>>,
    unpacked: u64,
}

impl<R: BufRead> Unpacked<R> {
    pub(super) fn new(input: R) -> Self {
        let packed = Rc::new(Cell::new(0));
        let counted = Counted { input, count: Rc::clone(&packed) };
        Self { decoder: MultiGzDecoder::new(BufReader::new(counted)), packed, unpacked: 0 }
    }
}

impl<R: BufRead> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(buffer)?;
        self.unpacked = self.unpacked.saturating_add(count as u64);
        let packed = self.packed.get();
        let most = ALWAYS.max(packed.saturating_mul(RATIO));
        if self.unpacked > most {
            let said = format!(
                "{packed} packed bytes unpack to more than {most}, {RATIO} times as many or more: no recording is \
                 expected to; if it is sound, unpack it with gunzip first"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, said));
        }
        Ok(count)
    }
}

/// An input that counts what is read from it.
struct Counted<R> {
    input: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.count.set(self.count.get().saturating_add(count as u64));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn a_file_that_unpacks_to_far_more_than_it_has_is_refused() {
        let packed = |mib: usize| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            for _ in 0..mib {
                encoder.write_all(&[b'x'; 1 << 20]).unwrap();
            }
            encoder.finish().unwrap()
        };
        let unpack = |file: Vec<u8>| {
            let read = io::copy(&mut Unpacked::new(file.as_slice()), &mut io::sink());
            read.map_err(|error| error.to_string())
        };
        assert_eq!(unpack(packed(64)), Ok(64 << 20));
        let said = unpack(packed(80)).unwrap_err();
        assert!(said.contains("unpack to more than 67108864") && said.contains("gunzip"), "{said}");
    }
}
