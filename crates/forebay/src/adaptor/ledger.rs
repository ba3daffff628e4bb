//! The live blocks that were allocated through an adaptor.

use core::{array, fmt};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use forebay_core::{Address, counted};

use crate::Result;
use crate::sync::fork::LeakOnFork;
use crate::sync::lock;

/// Number of parts the ledger is split into by address, so that threads seldom contend for one lock.
const PARTS: usize = 64;

type Part<T> = Mutex<HashMap<Address, T>>;

/// An entry for each live block that came through an adaptor, by address. A forked child neither locks nor drops it.
pub(super) struct Ledger<T> {
    parts: LeakOnFork<[Part<T>; PARTS]>,
}

impl<T> Ledger<T> {
    pub(super) fn new() -> Self {
        Self { parts: LeakOnFork::new(array::from_fn(|_| Mutex::new(HashMap::new()))) }
    }

    /// Whether this is a forked child that inherited its parent's ledger.
    pub(super) fn is_from_parent(&self) -> bool {
        self.parts.get().is_err()
    }

    /// Fails if the ledger is inherited. Adaptors call this before anything else.
    pub(super) fn check_process(&self) -> Result<()> {
        Ok(self.parts.get().map(drop)?)
    }

    fn part(&self, address: Address) -> Result<MutexGuard<'_, HashMap<Address, T>>> {
        // Blocks begin at multiples of 512 B, most at much larger ones. Multiplying by 2^64 over the golden ratio moves
        // the bits that differ into the upper six.
        let mixed = (address.get() >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = usize::try_from(mixed >> 58).unwrap_or_default() % PARTS;
        // Entries are consistent whenever the lock is free, even after a panic.
        Ok(lock(&self.parts.get()?[index]))
    }

    /// Records a block; ignores the null address. Returns the previous entry at that address, whose block must have
    /// been freed past the adaptor.
    pub(super) fn enter(&self, address: Address, entry: T) -> Option<T> {
        if address.is_null() {
            return None;
        }
        self.part(address).ok()?.insert(address, entry)
    }

    /// Frees the block at `address` with `free`, and returns its entry if it was allocated through here.
    ///
    /// The part stays locked meanwhile: if two threads free the same block by mistake, the first gets the entry, and
    /// the second finds neither block nor entry.
    pub(super) fn free(
        &self,
        address: Address,
        free: impl FnOnce() -> Result<()>,
    ) -> Result<Option<T>> {
        let mut part = self.part(address)?;
        free()?;
        Ok(part.remove(&address))
    }

    /// Removes the entry of a block.
    pub(super) fn remove(&self, address: Address) -> Option<T> {
        self.part(address).ok()?.remove(&address)
    }

    /// A copy of every entry, in no order. None in a forked child.
    pub(super) fn entries(&self) -> Vec<T>
    where
        T: Clone,
    {
        let parts = self.parts.get().into_iter().flatten();
        parts.flat_map(|part| lock(part).values().cloned().collect::<Vec<_>>()).collect()
    }
}

impl<T> fmt::Debug for Ledger<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(parts) = self.parts.get() else {
            return f.write_str("Ledger(made before the process forked)");
        };
        let blocks: usize = parts.iter().map(|part| lock(part).len()).sum();
        write!(f, "Ledger({})", counted(blocks, "block"))
    }
}
