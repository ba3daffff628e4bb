//! No allocator at all: every request goes to the driver.

use std::collections::HashMap;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::driver::Driver;
use super::{missing, refused};
use crate::{AddressedPlayer, BlockIndex, DriverUse, FreeOrder, Player, ReplayError, StreamIndex};

/// Allocates every block from the driver and frees it at once: the least memory that plain allocations need, at the
/// driver's cost for each.
#[derive(Debug)]
pub struct Direct {
    driver: Driver,
    live: HashMap<BlockIndex, (Address, Bytes)>,
}

impl Direct {
    /// Creates a model with nothing allocated.
    pub fn new(driver: Driver) -> Self {
        Self { driver, live: HashMap::new() }
    }
}

impl Player for Direct {
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

    fn free(&mut self, block: BlockIndex, _: StreamIndex) -> Result<(), ReplayError> {
        let (at, size) = self.live.remove(&block).ok_or_else(|| missing(block))?;
        self.driver.free(at, size).map_err(ReplayError::Device)
    }

    fn reserved(&self) -> Bytes {
        self.driver.reserved()
    }

    fn driver(&self) -> DriverUse {
        self.driver.used()
    }

    fn placed(&mut self) -> Option<&mut dyn AddressedPlayer> {
        Some(self)
    }
}

// SAFETY: the driver gave the block memory of at least its size; and it is the block's until it is freed.
unsafe impl AddressedPlayer for Direct {
    fn address(&self, block: BlockIndex) -> Option<Address> {
        self.live.get(&block).map(|&(at, _)| at)
    }

    fn stream(&mut self, _: StreamIndex) -> Result<StreamHandle, ReplayError> {
        Ok(StreamHandle::DEFAULT)
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::Idle
    }
}
