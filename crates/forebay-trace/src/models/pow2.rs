//! A pool of powers of two, as many programs implement.
//!
//! Sizes are rounded up to a power of two from 512 B to 2 GiB, each with a list of free blocks. A block never serves
//! another size, nothing is split or merged, and streams are ignored: such pools wait for the device, or assume a
//! single stream. Above 2 GiB every request goes to the driver. When memory runs out, the pool releases everything free
//! and tries the request once more.

use std::collections::{BTreeMap, HashMap};

use forebay_core::{Address, Bytes, GIB};

use super::driver::Driver;
use super::{Policy, missing, refused};
use crate::{BlockIndex, ReplayError, StreamIndex};

/// The smallest class.
const LEAST: u64 = 512;
/// The largest class.
const MAX: u64 = 2 * GIB;

/// The pool of powers of two.
#[derive(Debug)]
pub(crate) struct PowersOfTwo {
    driver: Driver,
    free: BTreeMap<Bytes, Vec<Address>>,
    live: HashMap<BlockIndex, (Address, Bytes)>,
}

impl PowersOfTwo {
    /// Creates an empty pool.
    pub(crate) fn new(driver: Driver) -> Self {
        Self { driver, free: BTreeMap::new(), live: HashMap::new() }
    }

    /// What a request is rounded to: a power of two, or itself where it is too large for any.
    fn class(size: Bytes) -> Bytes {
        if size.get() > MAX { size } else { Bytes::new(size.get().max(LEAST).next_power_of_two()) }
    }

    fn release_free(&mut self) -> Result<(), ReplayError> {
        for (size, list) in core::mem::take(&mut self.free) {
            for at in list {
                self.driver.free(at, size).map_err(ReplayError::Device)?;
            }
        }
        Ok(())
    }

    fn grow(&mut self, class: Bytes, size: Bytes) -> Result<Address, ReplayError> {
        match self.driver.allocate(class) {
            Ok(at) => Ok(at),
            Err(error) if error.may_pass() && !self.free.is_empty() => {
                self.release_free()?;
                self.driver.allocate(class).map_err(|error| refused(error, size, &self.driver))
            }
            Err(error) => Err(refused(error, size, &self.driver)),
        }
    }
}

// SAFETY: the driver gave the block memory of its class, which is no smaller than its size; and it is the block's until it is freed.
unsafe impl Policy for PowersOfTwo {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        _: StreamIndex,
    ) -> Result<(), ReplayError> {
        let class = Self::class(size);
        // The last one freed first: it is the one whose memory is warm.
        let at = match self.free.get_mut(&class).and_then(Vec::pop) {
            Some(at) => at,
            None => self.grow(class, size)?,
        };
        self.live.insert(block, (at, class));
        Ok(())
    }

    fn free(&mut self, block: BlockIndex) -> Result<(), ReplayError> {
        let (at, class) = self.live.remove(&block).ok_or_else(|| missing(block))?;
        if class.get() > MAX {
            return self.driver.free(at, class).map_err(ReplayError::Device);
        }
        self.free.entry(class).or_default().push(at);
        Ok(())
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn address(&self, block: BlockIndex) -> Option<Address> {
        self.live.get(&block).map(|&(at, _)| at)
    }
}
