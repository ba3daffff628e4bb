//! Copies to and from memory that other processes and threads may write at any moment.
//!
//! Every access is a relaxed atomic load or store of one aligned machine word, so there is no data race, even with
//! other copiers; all accesses have the same size, as the memory model requires. If a range ends inside a word, reads
//! load the whole word, and writes update their part by compare-exchange, so that bytes beside the range never revert
//! to an old value. Aligned elements of up to a word are never torn.

use core::sync::atomic::{AtomicUsize, Ordering};

/// The size of a word in bytes.
const WORD: usize = size_of::<usize>();

/// For `length` bytes from `offset` on: the number of bytes before the first word boundary.
fn head_of(offset: usize, length: usize) -> usize {
    (offset.next_multiple_of(WORD) - offset).min(length)
}

/// Copies the bytes from `offset` on to `to`.
///
/// # Safety
///
/// * `base` is aligned to a word, and every word that has one of these bytes is mapped memory, which this process changes
///   by atomic words alone meanwhile.
pub(super) unsafe fn load(base: *const AtomicUsize, offset: usize, to: &mut [u8]) {
    // SAFETY: the word has a byte of the range, and the caller promises that it is mapped and aligned.
    let word = |index: usize| unsafe { &*base.add(index) }.load(Ordering::Relaxed).to_ne_bytes();
    let (head, rest) = to.split_at_mut(head_of(offset, to.len()));
    if !head.is_empty() {
        let from = word(offset / WORD);
        head.iter_mut().zip(from.iter().skip(offset % WORD)).for_each(|(to, from)| *to = *from);
    }
    let mut index = offset.div_ceil(WORD);
    let (whole, tail) = rest.as_chunks_mut::<WORD>();
    for chunk in whole {
        *chunk = word(index);
        index += 1;
    }
    if !tail.is_empty() {
        tail.iter_mut().zip(word(index)).for_each(|(to, from)| *to = from);
    }
}

/// Copies `from` to the bytes from `offset` on.
///
/// # Safety
///
/// * As for [`load`].
pub(super) unsafe fn store(base: *const AtomicUsize, offset: usize, from: &[u8]) {
    // SAFETY: as in `load`.
    let word = |index: usize| unsafe { &*base.add(index) };
    let part = |index: usize, skip: usize, from: &[u8]| {
        let changed = |old: usize| {
            let mut bytes = old.to_ne_bytes();
            bytes.iter_mut().skip(skip).zip(from).for_each(|(to, from)| *to = *from);
            Some(usize::from_ne_bytes(bytes))
        };
        // Cannot fail: `changed` always returns a value.
        let _ = word(index).fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    };
    let (head, rest) = from.split_at(head_of(offset, from.len()));
    if !head.is_empty() {
        part(offset / WORD, offset % WORD, head);
    }
    let mut index = offset.div_ceil(WORD);
    let (whole, tail) = rest.as_chunks::<WORD>();
    for chunk in whole {
        word(index).store(usize::from_ne_bytes(*chunk), Ordering::Relaxed);
        index += 1;
    }
    if !tail.is_empty() {
        part(index, 0, tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_copied_and_nothing_beside_it() {
        for offset in 0..20 {
            for length in 0..30 {
                let words: Vec<AtomicUsize> =
                    (0..8).map(|_| AtomicUsize::new(usize::MAX)).collect();
                let from: Vec<u8> = (1..=length).collect();
                let mut all = [0; 8 * WORD];
                let mut back = vec![0; from.len()];
                // SAFETY: all ranges are within the words.
                unsafe {
                    store(words.as_ptr(), offset, &from);
                    load(words.as_ptr(), offset, &mut back);
                    load(words.as_ptr(), 0, &mut all);
                }
                assert_eq!(back, from, "{offset} {length}");
                let mut expected = [0xff; 8 * WORD];
                expected[offset..offset + from.len()].copy_from_slice(&from);
                assert_eq!(all, expected, "{offset} {length}");
            }
        }
    }
}
