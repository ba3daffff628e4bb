//! Reports how much of this process's memory is resident, and in which pages.

use std::path::Path;

use forebay_core::{Address, Bytes, Span};

use super::file::kilobytes;
use super::{Reading, System, Unknown};

/// The mappings of this process, with the figures of each.
const SMAPS: &str = "/proc/self/smaps";

/// The residence of a span of this process's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Residence {
    /// The size of the mappings that the figures cover. This exceeds the span if a mapping does, because the system
    /// counts by mapping.
    pub mapped: Bytes,
    /// The smallest page of the mappings: 2 MiB or 1 GiB for explicit huge pages.
    pub page: Bytes,
    /// Resident bytes; the rest becomes resident when touched.
    pub resident: Bytes,
    /// Resident bytes in huge pages, transparent or from a pool.
    pub huge: Bytes,
}

impl Residence {
    /// The figures of one mapping; `text` is its part of the file.
    fn of(mapped: Bytes, text: &str) -> Reading<Self> {
        let size = |key: &str| kilobytes(Path::new(SMAPS), text, key);
        let sum = |keys: &[&str]| {
            // What a system does not know, it has none of.
            let sizes = keys.iter().filter_map(|key| size(key).ok());
            sizes.fold(Bytes::ZERO, Bytes::saturating_add)
        };
        // Pages from a pool are not counted as resident.
        let pooled = sum(&["Shared_Hugetlb", "Private_Hugetlb"]);
        let transparent = sum(&["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"]);
        Ok(Self {
            mapped,
            page: size("KernelPageSize")?,
            resident: size("Rss")?.saturating_add(pooled),
            huge: transparent.saturating_add(pooled),
        })
    }

    fn add(self, other: Self) -> Self {
        Self {
            mapped: self.mapped.saturating_add(other.mapped),
            page: self.page.min(other.page),
            resident: self.resident.saturating_add(other.resident),
            huge: self.huge.saturating_add(other.huge),
        }
    }
}

impl System {
    /// The residence of `span`: the sum over the mappings that overlap it.
    pub fn residence(&self, span: Span) -> Reading<Residence> {
        let text = self.text(SMAPS)?;
        let mut parts: Vec<(Span, usize, usize)> = Vec::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let begin = at + line.len();
            match (header(line), parts.last_mut()) {
                (Some(mapping), _) => parts.push((mapping, begin, begin)),
                (None, Some((.., end))) => *end = begin,
                (None, None) => {}
            }
            at = begin;
        }
        let overlapping = parts.into_iter().filter(|(mapping, ..)| mapping.overlaps(span));
        let figures = overlapping.map(|(mapping, begin, end)| {
            Residence::of(mapping.size(), text.get(begin..end).unwrap_or_default())
        });
        let sum = figures.reduce(|one, two| Ok(one?.add(two?)));
        sum.unwrap_or_else(|| {
            Err(Unknown::malformed(Path::new(SMAPS), format!("has no mapping at {span}")))
        })
    }
}

/// The addresses of a mapping, where a line begins its part: "7f00-7f80 rw-p ...".
fn header(line: &str) -> Option<Span> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let address = |digits| u64::from_str_radix(digits, 16).ok().map(Address::new);
    let (start, end) = (address(start)?, address(end)?);
    Span::new(start, end.offset_from(start)?).ok()
}
