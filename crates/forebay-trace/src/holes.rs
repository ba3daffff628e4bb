//! Holes in a range of addresses: taken best fit, merged with their neighbours when given back.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges, by size and by address.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    by_size: BTreeSet<(u64, u64)>,
    by_address: BTreeMap<u64, u64>,
}

impl Holes {
    /// Takes `size` bytes from the start of the smallest hole that holds them, the lowest among equals.
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        let &(found, address) = self.by_size.range((size, 0)..).next()?;
        self.remove(address, found);
        if found > size {
            self.insert(address + size, found - size);
        }
        Some(address)
    }

    /// Adds a hole, merged with its neighbours but not across multiples of `wall`. Returns its address and size.
    pub(crate) fn add(&mut self, mut address: u64, mut size: u64, wall: u64) -> (u64, u64) {
        if let Some((&before, &length)) = self.by_address.range(..address).next_back()
            && before + length == address
            && !address.is_multiple_of(wall)
        {
            self.remove(before, length);
            (address, size) = (before, length + size);
        }
        let end = address + size;
        if let Some(&length) = self.by_address.get(&end)
            && !end.is_multiple_of(wall)
        {
            self.remove(end, length);
            size += length;
        }
        self.insert(address, size);
        (address, size)
    }

    fn insert(&mut self, address: u64, size: u64) {
        self.by_size.insert((size, address));
        self.by_address.insert(address, size);
    }

    /// Removes a whole hole.
    pub(crate) fn remove(&mut self, address: u64, size: u64) {
        self.by_size.remove(&(size, address));
        self.by_address.remove(&address);
    }
}
