//! No allocator at all: every request goes to the driver.

use std::collections::HashMap;

use forebay_core::{Address, Bytes};

use super::driver::Driver;
use super::{Policy, missing, refused};
use crate::{BlockIndex, ReplayError, StreamIndex};

/// Allocates every block from the driver and frees it at once: the least memory that plain allocations need, at the
/// driver's cost for each.
#[derive(Debug)]
pub(crate) struct Direct {
    driver: Driver,
    live: HashMap<BlockIndex, (Address, Bytes)>,
}

impl Direct {
    /// Creates a model with nothing allocated.
    pub(crate) fn new(driver: Driver) -> Self {
        Self { driver, live: HashMap::new() }
    }
}

// SAFETY: the driver gave the block memory of at least its size; and it is the block's until it is freed.
unsafe impl Policy for Direct {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        _: StreamIndex,
    ) -> Result<(), ReplayError> {
        let at = self.driver.allocate(size).map_err(|error| refused(error, size, &self.driver))?;
        self.live.insert(block, (at, size));
        Ok(())
    }

    fn free(&mut self, block: BlockIndex) -> Result<(), ReplayError> {
        let (at, size) = self.live.remove(&block).ok_or_else(|| missing(block))?;
        self.driver.free(at, size).map_err(ReplayError::Device)
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn address(&self, block: BlockIndex) -> Option<Address> {
        self.live.get(&block).map(|&(at, _)| at)
    }
}
