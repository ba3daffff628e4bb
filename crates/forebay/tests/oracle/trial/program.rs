//! Programs: sequences of operations on a pool, each made of eight bytes.
//!
//! An operation is decoded from a record of fixed length, and any record is an operation. So one
//! decoder serves numbers drawn from a seed, inputs of a fuzzer, and lists that proptest makes
//! shorter and smaller until nothing can be left out: a record taken away changes no other.
//!
//! ```text
//!   byte   0     1          2 3        4       5     6    7
//!          what  magnitude  how much   stream  hand  way  which kind
//! ```

use forebay_core::Random;

/// The bytes of an operation.
pub(crate) type Record = [u8; 8];

/// On which stream a block is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreedOn {
    /// The one it was allocated on.
    Its,
    /// Another one, which is made to wait for its own first: the caller's duty.
    Another(u8),
}

/// A free that must be refused, or must do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// A block that was freed before.
    Twice,
    /// An address that no block ever began at.
    Foreign,
    /// An address inside a live block.
    Inside,
    /// A live block of another pool of the same device.
    OfAnotherPool,
    /// The null address: allowed, and nothing happens.
    Null,
}

/// One step of a program. Numbers that name streams, blocks, threads and ways to free count round
/// and round among those there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A block, written to at once.
    Allocate {
        /// How many bytes.
        size: u64,
        /// In whose order.
        stream: u8,
        /// Which thread asks.
        hand: u8,
    },
    /// A live block is looked at and freed.
    Free {
        /// Which.
        which: u16,
        /// Where.
        on: FreedOn,
        /// Which thread frees it.
        hand: u8,
        /// By which call.
        way: u8,
    },
    /// A free that must change nothing.
    WrongFree {
        /// What is wrong with it.
        wrong: Wrong,
        /// Of which block.
        which: u16,
        /// Which thread tries.
        hand: u8,
        /// By which call.
        way: u8,
    },
    /// What is idle goes back to the device, down to so many bytes.
    Trim {
        /// How much may stay.
        keep: u64,
        /// Which thread asks.
        hand: u8,
    },
    /// A stream is forgotten and destroyed; another takes its place, perhaps with the same handle.
    Renew {
        /// Which.
        stream: u8,
    },
    /// The host waits for a stream.
    Synchronise {
        /// Which.
        stream: u8,
    },
    /// The host waits for everything.
    SynchroniseAll,
}

impl Operation {
    /// The operation of a record, with sizes up to about twice `most`, and rarely far beyond.
    pub(crate) fn decode(record: Record, most: u64) -> Self {
        let [what, magnitude, low, high, stream, hand, way, kind] = record;
        let which = u16::from_le_bytes([low, high]);
        match what {
            0..118 => {
                let size = size(magnitude, which, kind, most);
                Self::Allocate { size, stream, hand }
            }
            118..222 => {
                let on = if kind < 192 { FreedOn::Its } else { FreedOn::Another(stream) };
                Self::Free { which, on, hand, way }
            }
            222..238 => {
                let wrong = match kind % 5 {
                    0 => Wrong::Twice,
                    1 => Wrong::Foreign,
                    2 => Wrong::Inside,
                    3 => Wrong::OfAnotherPool,
                    _ => Wrong::Null,
                };
                Self::WrongFree { wrong, which, hand, way }
            }
            238..242 => {
                let keep = if kind < 128 { 0 } else { size(magnitude, which, 0, most) };
                Self::Trim { keep, hand }
            }
            242..246 => Self::Renew { stream },
            246..254 => Self::Synchronise { stream },
            254.. => Self::SynchroniseAll,
        }
    }
}

/// A size of any magnitude up to twice `most`: as many below a kilobyte as above a megabyte.
fn size(magnitude: u8, part: u16, kind: u8, most: u64) -> u64 {
    if magnitude == u8::MAX {
        // What no device has, and what overflows when it is rounded up.
        let absurd = [u64::MAX, u64::MAX - 511, 1 << 60, most.saturating_mul(64)];
        return absurd[usize::from(kind) % absurd.len()];
    }
    let magnitudes = u64::from(most.max(2).ilog2()) + 2;
    let bound = 1_u64 << (u64::from(magnitude) % magnitudes);
    if kind >= 240 {
        // Powers of two on the dot, and their neighbours: where rounding and bounds go wrong.
        return (bound + u64::from(part % 3)).saturating_sub(1);
    }
    // A part of 2^16 of it, less one: so a record of zeros asks for nothing.
    bound.saturating_mul(u64::from(part) + 1) >> 16
}

/// A program: its operations, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// In order.
    pub(crate) operations: Vec<Operation>,
}

impl Program {
    /// The program of a seed.
    pub(crate) fn of_seed(seed: u64, steps: usize, most: u64) -> Self {
        let mut random = Random::new(seed);
        let records: Vec<Record> = (0..steps).map(|_| random.next_u64().to_le_bytes()).collect();
        Self::of_records(&records, most)
    }

    /// The program of records.
    pub(crate) fn of_records(records: &[Record], most: u64) -> Self {
        let decode = |&record| Operation::decode(record, most);
        Self { operations: records.iter().map(decode).collect() }
    }

    /// The same, with every call made by one thread.
    pub(crate) fn on_one_thread(mut self) -> Self {
        for operation in &mut self.operations {
            match operation {
                Operation::Allocate { hand, .. }
                | Operation::Free { hand, .. }
                | Operation::WrongFree { hand, .. }
                | Operation::Trim { hand, .. } => *hand = 0,
                Operation::Renew { .. }
                | Operation::Synchronise { .. }
                | Operation::SynchroniseAll => {}
            }
        }
        self
    }

    /// The program of any bytes: what is left of a last record that is not whole is not used.
    pub(crate) fn of_bytes(bytes: &[u8], most: u64) -> Self {
        let (records, _) = bytes.as_chunks::<8>();
        Self::of_records(records, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_some_length_has_everything_in_it() {
        let most = 1 << 20;
        let program = Program::of_seed(1, 20_000, most);
        let count = |is: fn(&Operation) -> bool| {
            program.operations.iter().filter(|operation| is(operation)).count()
        };
        let allocations = count(|o| matches!(o, Operation::Allocate { .. }));
        let frees = count(|o| matches!(o, Operation::Free { .. }));
        assert!(allocations > frees, "{allocations} allocations, {frees} frees: nothing piles up");
        assert!(frees * 3 > allocations * 2, "{allocations} allocations, {frees} frees");
        for (name, many) in [
            (
                "other streams",
                count(|o| matches!(o, Operation::Free { on: FreedOn::Another(_), .. })),
            ),
            ("twice", count(|o| matches!(o, Operation::WrongFree { wrong: Wrong::Twice, .. }))),
            ("foreign", count(|o| matches!(o, Operation::WrongFree { wrong: Wrong::Foreign, .. }))),
            ("inside", count(|o| matches!(o, Operation::WrongFree { wrong: Wrong::Inside, .. }))),
            (
                "pools",
                count(|o| matches!(o, Operation::WrongFree { wrong: Wrong::OfAnotherPool, .. })),
            ),
            ("null", count(|o| matches!(o, Operation::WrongFree { wrong: Wrong::Null, .. }))),
            ("trims to nothing", count(|o| matches!(o, Operation::Trim { keep: 0, .. }))),
            ("trims to something", count(|o| matches!(o, Operation::Trim { keep: 1.., .. }))),
            ("renewals", count(|o| matches!(o, Operation::Renew { .. }))),
            ("waits", count(|o| matches!(o, Operation::Synchronise { .. }))),
            ("waits for all", count(|o| matches!(o, Operation::SynchroniseAll))),
            ("empty blocks", count(|o| matches!(o, Operation::Allocate { size: 0, .. }))),
            (
                "absurd sizes",
                count(|o| matches!(o, Operation::Allocate { size: 0x1000_0000_0000.., .. })),
            ),
        ] {
            assert!(many >= 20, "{name}: {many}");
        }
    }

    #[test]
    fn the_smallest_record_asks_for_nothing() {
        let nothing = Operation::Allocate { size: 0, stream: 0, hand: 0 };
        assert_eq!(Operation::decode([0; 8], 1 << 20), nothing);
        assert_eq!(Program::of_bytes(&[0; 23], 1 << 20).operations, [nothing; 2]);
    }

    #[test]
    fn sizes_are_of_every_magnitude() {
        let program = Program::of_seed(2, 20_000, 1 << 20);
        let size = |operation: &Operation| match operation {
            Operation::Allocate { size, .. } => Some(*size),
            _ => None,
        };
        let sizes: Vec<u64> = program.operations.iter().filter_map(size).collect();
        for magnitude in 0..20 {
            let range = 1_u64 << magnitude..2 << magnitude;
            assert!(sizes.iter().any(|size| range.contains(size)), "none in {range:?}");
        }
        for exact in [511, 512, 513, 4096, (256 << 10) + 1, 1 << 20] {
            assert!(sizes.contains(&exact), "none of {exact}");
        }
    }
}
