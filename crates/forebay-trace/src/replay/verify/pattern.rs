//! Chooses which bytes of a block are written, and their values.

use forebay_core::{Bytes, Random};

/// Blocks up to this size are written whole.
const WHOLE: u64 = 64 << 10;
/// Of larger ones, so many bytes are written...
const SAMPLE: u64 = 64;
/// ...of every so many: the smallest page there is.
const EVERY: u64 = 4 << 10;
/// The most rows of one copy. A simulated device notes each row of a copy, and refuses more than a
/// million.
const MAX_ROWS: u64 = 1 << 18;

/// What makes the bytes of one block differ from those of every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Salt(u64);

impl Salt {
    /// The salt of the so-manieth block written. Spread over all 64 bits: the words of a block are
    /// told apart by adding to it.
    pub(super) const fn new(serial: u64) -> Self {
        Self(Random::new(serial).next_u64())
    }

    /// The eight bytes of a block from eight times `word` on.
    const fn word(self, word: u64) -> [u8; 8] {
        Random::new(self.0.wrapping_add(word)).next_u64().to_le_bytes()
    }
}

/// Rows of a block that are copied at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatternPart {
    /// Where the first row begins, from the block's first byte.
    pub(super) offset: Bytes,
    /// The bytes of a row.
    pub(super) width: Bytes,
    /// From the start of a row to the start of the next.
    pub(super) pitch: Bytes,
    /// How many rows.
    pub(super) rows: u64,
}

impl PatternPart {
    /// The pieces of a block of `size` bytes; none for no bytes.
    pub(super) fn of_block(size: Bytes) -> impl Iterator<Item = Self> {
        let bytes = size.get();
        let row = |offset, width| Self {
            offset: Bytes::new(offset),
            width: Bytes::new(width),
            pitch: Bytes::new(width),
            rows: 1,
        };
        let whole = (1..=WHOLE).contains(&bytes).then(|| row(0, bytes));
        let pages = if bytes > WHOLE { bytes / EVERY } else { 0 };
        let sampled = (0..pages.div_ceil(MAX_ROWS)).map(move |chunk| {
            let first = chunk * MAX_ROWS;
            Self {
                offset: Bytes::new(first * EVERY),
                width: Bytes::new(SAMPLE),
                pitch: Bytes::new(EVERY),
                rows: (pages - first).min(MAX_ROWS),
            }
        });
        // Below a whole page after the last sample, so the two do not meet.
        let last = (bytes > WHOLE).then(|| row(bytes - SAMPLE, SAMPLE));
        whole.into_iter().chain(sampled).chain(last)
    }

    /// How many bytes are copied.
    pub(super) fn length(&self) -> usize {
        // A piece is 16 MiB at most, so this never saturates.
        usize::try_from(self.width.get().saturating_mul(self.rows)).unwrap_or(usize::MAX)
    }

    /// Where in the block the byte lies that is copied as number `index`.
    pub(super) fn offset_of(&self, index: usize) -> Bytes {
        let (index, width) = (index as u64, self.width.get().max(1));
        let within = (index / width).saturating_mul(self.pitch.get()).saturating_add(index % width);
        self.offset.saturating_add(Bytes::new(within))
    }

    /// Makes `bytes` what the rows are to hold, one after the other.
    pub(super) fn fill(&self, salt: Salt, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.reserve(self.length());
        for row in 0..self.rows {
            let start = self.offset.get() + row * self.pitch.get();
            let end = start + self.width.get();
            let mut at = start;
            while at < end {
                let word = salt.word(at / 8);
                // At most eight each, so the casts cut nothing.
                let from = usize::try_from(at % 8).unwrap_or(0);
                let to = usize::try_from((end - at / 8 * 8).min(8)).unwrap_or(8);
                bytes.extend_from_slice(word.get(from..to).unwrap_or_default());
                at = at / 8 * 8 + 8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The offsets in the block of all bytes that are written, in order.
    fn offsets(size: u64) -> Vec<u64> {
        let pieces = PatternPart::of_block(Bytes::new(size));
        pieces
            .flat_map(|piece| (0..piece.length()).map(move |index| piece.offset_of(index).get()))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn bytes_are_written_once_inside_the_block_ends_included(size in 1_u64..3_000_000) {
            let all = offsets(size);
            prop_assert!(all.windows(2).all(|two| two[0] < two[1]), "in order, and none twice");
            prop_assert_eq!((all.first(), all.last()), (Some(&0), Some(&(size - 1))));
            if size <= WHOLE {
                prop_assert_eq!(all.len() as u64, size);
            } else {
                prop_assert_eq!(all.len() as u64, (size / EVERY + 1) * SAMPLE);
            }
        }

        #[test]
        fn a_byte_is_the_same_however_its_piece_begins(start in 0_u64..64, width in 1_u64..64) {
            let row = |offset, width| PatternPart {
                offset: Bytes::new(offset),
                width: Bytes::new(width),
                pitch: Bytes::new(width),
                rows: 1,
            };
            let (mut all, mut part) = (Vec::new(), Vec::new());
            row(0, 128).fill(Salt::new(3), &mut all);
            row(start, width).fill(Salt::new(3), &mut part);
            let (from, to) = (usize::try_from(start).unwrap(), usize::try_from(start + width).unwrap());
            prop_assert_eq!(&all[from..to], &part[..]);
        }
    }

    #[test]
    fn no_bytes_are_no_pieces_and_large_blocks_are_several() {
        assert_eq!(PatternPart::of_block(Bytes::ZERO).count(), 0);
        let pieces: Vec<PatternPart> = PatternPart::of_block(Bytes::new((2 << 30) + 5)).collect();
        assert_eq!(
            pieces.iter().map(|piece| piece.rows).collect::<Vec<_>>(),
            [1 << 18, 1 << 18, 1]
        );
        assert_eq!(pieces[1].offset, Bytes::gib(1));
    }

    #[test]
    fn neighbouring_blocks_share_no_words() {
        let words = |serial| (0..4096).map(move |word| Salt::new(serial).word(word));
        let all: std::collections::HashSet<[u8; 8]> = (0..16).flat_map(words).collect();
        assert_eq!(all.len(), 16 * 4096);
    }
}
