//! Bytes that identify their position, and host memory that outlives pending copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Address, Bytes};

use super::verdict::{Failure, Verdict, ensure};
use crate::Location;

/// `length` bytes that tell their places. Neighbours, equal places of other pictures and places a power of two away all
/// differ often enough that no shift or mix-up of two bytes or more goes unseen.
pub(super) fn picture(seed: u64, length: u64) -> Vec<u8> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length.next_multiple_of(8)];
    // By words: suites spend much of their time here.
    for (bytes, index) in bytes.as_chunks_mut().0.iter_mut().zip(1_u64..) {
        let mut word = index.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        *bytes = (word ^ (word >> 32)).to_le_bytes();
    }
    bytes.truncate(length);
    bytes
}

/// Compares bytes; the failure has the first wrong place, what is there, and how many are
/// wrong.
pub(super) fn ensure_bytes(what: &str, found: &[u8], right: &[u8]) -> Verdict {
    ensure!(found.len() == right.len(), "{what}: {} bytes, not {}", found.len(), right.len());
    if found == right {
        return Ok(());
    }
    let wrong = || found.iter().zip(right).enumerate().filter(|(_, (found, right))| found != right);
    let Some((place, (first, wanted))) = wrong().next() else { return Ok(()) };
    Err(Failure::new(format!(
        "{what}: byte {place} of {} is {first:#04x}, {wanted:#04x} is right; {} wrong in all, the \
         last at {}",
        found.len(),
        wrong().count(),
        wrong().next_back().map_or(place, |(place, _)| place),
    )))
}

/// Host memory for copies. Work on a device may touch it late, and a case may look at it while
/// that work is pending, so it is atomic; the bench keeps it until the device is done.
#[derive(Clone, Debug)]
pub(crate) struct HostBytes {
    /// By words: suites spend much of their time here.
    words: Arc<[AtomicU64]>,
    length: usize,
}

impl HostBytes {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let (whole, rest) = bytes.as_chunks();
        let last = (!rest.is_empty()).then(|| {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            last
        });
        let words = whole.iter().copied().chain(last);
        Self {
            words: words.map(|word| AtomicU64::new(u64::from_ne_bytes(word))).collect(),
            length: bytes.len(),
        }
    }

    pub(super) fn size(&self) -> Bytes {
        Bytes::new(self.length as u64)
    }

    /// The place of the first byte.
    pub(super) fn location(&self) -> Location {
        Location::Host(self.address())
    }

    /// The place `offset` bytes on.
    pub(super) fn place_at(&self, offset: u64) -> Location {
        let address = self.address().checked_add(Bytes::new(offset)).unwrap_or(Address::NULL);
        Location::Host(address)
    }

    pub(super) fn address(&self) -> Address {
        // The copies write through this address: from here on the pointer is the device's too.
        let pointer = self.words.as_ptr();
        let _ = pointer.expose_provenance();
        Address::of_pointer(pointer)
    }

    /// What is there now.
    pub(super) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.words.len() * 8];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.words.iter()) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        bytes.truncate(self.length);
        bytes
    }

    /// What is there now is `right`.
    pub(super) fn ensure(&self, what: &str, right: &[u8]) -> Verdict {
        ensure_bytes(what, &self.read(), right)
    }

    /// Every byte is now `byte`.
    pub(super) fn ensure_filled(&self, what: &str, byte: u8) -> Verdict {
        self.ensure(what, &vec![byte; self.length])
    }

    /// Sets every byte.
    pub(super) fn clear(&self, byte: u8) {
        for word in self.words.iter() {
            word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_tells_shifts_and_seeds_apart() {
        let one = picture(1, 4096);
        for shift in [1_usize, 2, 3, 4, 8, 16, 64, 512, 1024, 2048] {
            let same = one.iter().zip(&one[shift..]).filter(|(a, b)| a == b).count();
            assert!(same < (4096 - shift) / 16, "shifted by {shift}, {same} bytes agree");
        }
        let same = one.iter().zip(picture(2, 4096)).filter(|(a, b)| **a == *b).count();
        assert!(same < 256, "{same} bytes of two pictures agree");
    }

    #[test]
    fn a_difference_is_told_with_its_place() {
        let right = picture(1, 100);
        let mut found = right.clone();
        found[99] ^= 1;
        let failure = ensure_bytes("tail", &found, &right).unwrap_err().to_string();
        assert!(failure.starts_with("tail: byte 99 of 100 is "), "{failure}");
        assert!(failure.ends_with("1 wrong in all, the last at 99"), "{failure}");
    }
}
