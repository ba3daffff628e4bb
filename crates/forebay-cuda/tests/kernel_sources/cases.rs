//! What the kernel is tried on.

use std::fmt;

use forebay_core::Random;
use forebay_core::transfer::BlockStatus;
use lz4_flex::block::{compress, decompress_into};

/// One launch of the kernel: the blocks, and how much they are to be.
pub(crate) struct Launch {
    data: Vec<u8>,
    ends: Vec<u64>,
    to_size: usize,
    block_size: usize,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = &self.data[..self.data.len().min(400)];
        write!(f, "{} B in blocks of {}, ends {:?}, ", self.to_size, self.block_size, self.ends)?;
        write!(f, "{} B of input: {start:?}", self.data.len())
    }
}

impl Launch {
    /// A block of `to_size` bytes.
    fn one(data: Vec<u8>, to_size: usize) -> Self {
        Self { ends: vec![data.len() as u64], data, to_size, block_size: to_size.max(1) }
    }

    /// All blocks of `data`.
    fn compressed(data: &[u8], block_size: usize) -> Self {
        let mut launch =
            Self { data: Vec::new(), ends: Vec::new(), to_size: data.len(), block_size };
        for block in data.chunks(block_size) {
            let compressed = compress(block);
            launch.data.extend(if compressed.len() < block.len() { &compressed } else { block });
            launch.ends.push(launch.data.len() as u64);
        }
        launch
    }

    /// As the harness reads it.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let sizes = [self.data.len(), self.to_size, self.block_size, self.ends.len()];
        let numbers = sizes.iter().map(|&size| size as u64).chain(self.ends.iter().copied());
        numbers.flat_map(u64::to_le_bytes).chain(self.data.iter().copied()).collect()
    }

    /// What a block is to be, by `lz4_flex`; `None` where it is not valid.
    fn expected(&self, block: usize) -> Option<Vec<u8>> {
        let begin = if block == 0 { 0 } else { self.ends[block - 1] };
        let start = block * self.block_size;
        let mut data = vec![0; self.block_size.min(self.to_size.checked_sub(start)?)];
        let range = usize::try_from(begin).ok()?..usize::try_from(self.ends[block]).ok()?;
        let input = self.data.get(range)?;
        if data.is_empty() || input.len() > data.len() || self.block_size > 4 << 20 {
            return None;
        } else if input.len() == data.len() {
            return Some(input.to_vec());
        }
        (decompress_into(input, &mut data).ok()? == data.len()).then_some(data)
    }

    /// Holds the results against what they are to be, and gives those of the later launches.
    pub(crate) fn compare<'a>(&self, results: &'a [u8]) -> Result<&'a [u8], String> {
        let (statuses, rest) =
            results.split_at_checked(self.ends.len() * 4).ok_or("no statuses")?;
        let (to, rest) = rest.split_at_checked(self.to_size).ok_or("no output")?;
        for (block, status) in statuses.chunks(4).enumerate() {
            let status = BlockStatus::from_code(u32::from_le_bytes(status.try_into().unwrap()));
            if let BlockStatus::Unknown(_) = status {
                return Err(format!("block {block}: {status}"));
            }
            let expected = self.expected(block);
            if expected.is_some() != (status == BlockStatus::Decoded) {
                let valid = if expected.is_some() { "valid" } else { "not" };
                return Err(format!("block {block} is {valid} for lz4_flex; the kernel: {status}"));
            }
            let start = block * self.block_size;
            if expected.is_some_and(|data| to[start..start + data.len()] != data[..]) {
                return Err(format!("block {block} has other bytes"));
            }
        }
        Ok(rest)
    }
}

/// Data of each kind, as long as asked for.
fn kinds(length: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(length as u64);
    let mut below = move |limit: u64| u8::try_from(random.below(limit)).unwrap();
    let words = [&b"the "[..], b"device ", b"memory ", b"a ", b"of ", b"stream\n", b"transfer, "];
    let text = std::iter::repeat_with(|| words[usize::from(below(7))]).flatten();
    let mut all = vec![vec![0; length], text.take(length).copied().collect()];
    all.push((0..length).map(|_| below(256)).collect());
    all.push((0..length).map(|_| below(2)).collect());
    let floats = (0..=u16::MAX).cycle().flat_map(|n| (f32::from(n) * 0.25).sin().to_le_bytes());
    all.push(floats.take(length).collect());
    all.push((0..).flat_map(u32::to_le_bytes).take(length).collect());
    // Runs of a byte, and noise between them.
    let mut mixed = Vec::new();
    while mixed.len() < length {
        let (byte, run, noise) = (below(256), usize::from(below(200)), below(30));
        mixed.resize(mixed.len() + run * 3, byte);
        mixed.extend((0..noise).map(|_| below(256)));
    }
    mixed.truncate(length);
    all.push(mixed);
    all
}

pub(crate) fn short_data() -> Vec<Launch> {
    let sizes = (1..70).chain([100, 255, 256, 257, 270, 300, 511, 1000, 1023, 4096]);
    sizes.flat_map(kinds).map(|data| Launch::compressed(&data, 4096)).collect()
}

pub(crate) fn whole_blocks() -> Vec<Launch> {
    let sizes = [65_535, 65_536, 65_537, 300_000];
    let launch =
        |data: &Vec<u8>| [1 << 16, 1 << 12, 1000].map(|size| Launch::compressed(data, size));
    sizes.into_iter().flat_map(kinds).flat_map(|data| launch(&data)).collect()
}

/// Compressed data of each kind, with its length.
fn samples() -> Vec<(Vec<u8>, usize)> {
    let all = [300, 700].into_iter().flat_map(kinds);
    all.map(|data| (compress(&data), data.len()))
        .filter(|(input, size)| input.len() < *size)
        .collect()
}

pub(crate) fn truncations() -> Vec<Launch> {
    let cut = |(input, size): (Vec<u8>, usize)| {
        (0..input.len()).map(move |length| Launch::one(input[..length].to_vec(), size))
    };
    let mut all: Vec<_> = samples().into_iter().flat_map(cut).collect();
    // None of them may count as valid by chance.
    assert!(all.iter().all(|launch| launch.expected(0).is_none()));
    // Whole input for one byte more and one byte less than it is made of.
    for (input, size) in samples() {
        all.extend([size - 1, size + 1].map(|size| Launch::one(input.clone(), size)));
    }
    all
}

pub(crate) fn bit_flips() -> Vec<Launch> {
    let flip = |(input, size): (Vec<u8>, usize)| {
        (0..input.len() * 8).map(move |bit| {
            let mut input = input.clone();
            input[bit / 8] ^= 1 << (bit % 8);
            Launch::one(input, size)
        })
    };
    samples().into_iter().flat_map(flip).collect()
}

pub(crate) fn garbage() -> Vec<Launch> {
    let mut random = Random::new(16);
    let mut below = move |limit: u64| usize::try_from(random.below(limit)).unwrap();
    let mut one = || {
        let (length, size) = (below(40), 1 + below(300));
        // Small numbers are short lengths and near offsets, so that some of it goes on for long.
        let limit = [4, 32, 256][below(3)];
        let byte = |_| if below(8) == 0 { 255 } else { u8::try_from(below(limit)).unwrap() };
        Launch::one((0..length).map(byte).collect(), size)
    };
    (0..60_000).map(|_| one()).collect()
}

/// Sequences made by hand: some literals, then a match.
pub(crate) fn matches() -> Vec<Launch> {
    let mut all = Vec::new();
    let lengths = [4, 5, 15, 18, 19, 20, 33, 64, 270, 273, 274, 600];
    for offset in (1..=40_u8).chain([63, 64, 65, 127, 128, 129]) {
        for length in lengths {
            let literals: Vec<u8> = (0..offset).map(|byte| byte ^ 0x5a).collect();
            let mut input = sequence(&literals, Some((offset.into(), length)));
            input.extend(sequence(b"12345", None));
            let launch = Launch::one(input, literals.len() + length + 5);
            // As long as its data it is taken for that.
            assert!(launch.data.len() >= launch.to_size || launch.expected(0).is_some());
            all.push(launch);
            // One byte further back than there are any, and none.
            for offset in [u16::from(offset) + 1, 0, u16::MAX] {
                let mut input = sequence(&literals, Some((offset, length)));
                input.extend(sequence(b"12345", None));
                all.push(Launch::one(input, literals.len() + length + 5));
            }
        }
    }
    all
}

fn sequence(literals: &[u8], repeat: Option<(u16, usize)>) -> Vec<u8> {
    let short = |length: usize| u8::try_from(length.min(15)).unwrap();
    let extend = |bytes: &mut Vec<u8>, length: usize| {
        if let Some(rest) = length.checked_sub(15) {
            bytes.resize(bytes.len() + rest / 255, 255);
            bytes.push(u8::try_from(rest % 255).unwrap());
        }
    };
    let beyond = repeat.map_or(0, |(_, length)| length - 4);
    let mut bytes = vec![short(literals.len()) << 4 | short(beyond)];
    extend(&mut bytes, literals.len());
    bytes.extend_from_slice(literals);
    if let Some((offset, _)) = repeat {
        bytes.extend(offset.to_le_bytes());
        extend(&mut bytes, beyond);
    }
    bytes
}

pub(crate) fn tables() -> Vec<Launch> {
    let data: Vec<u8> = kinds(5000).remove(1);
    let good = || Launch::compressed(&data, 1024);
    let entry = |block: usize, end: u64| {
        let mut launch = good();
        launch.ends[block] = end;
        launch
    };
    let mut all = vec![good(), entry(0, 0), entry(2, 1), entry(4, 5000), entry(1, u64::MAX)];
    all.push(entry(3, 1 << 32));
    // Fewer bytes of output than there are blocks for, and none.
    for to_size in [4096, 2048, 100, 0] {
        all.push(Launch { to_size, ..good() });
    }
    // A size of blocks that the kernel does not take.
    all.push(Launch { block_size: (4 << 20) + 1, ..Launch::compressed(&data[..1024], 1024) });
    all
}
