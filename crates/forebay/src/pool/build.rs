//! Building a pool from its options.

use std::sync::Arc;

use forebay_hal::{Device, ToDevice};

use crate::pool::Pool;
use crate::pool::calls::{registry, upkeep};
use crate::pool::common::options::PoolOptions;
use crate::pool::shared::Shared;
use crate::{MemoryClass, Result};

impl PoolOptions {
    /// Makes the pool on `device`.
    pub fn build(self, device: &impl ToDevice) -> Result<Pool> {
        self.build_on(&device.to_device())
    }

    fn build_on(mut self, device: &Arc<dyn Device>) -> Result<Pool> {
        if !self.peers.is_empty() {
            self.class = self.class | MemoryClass::PEERS;
        }
        let settings = self.settings.clone().build()?;
        let shared = Arc::new(Shared::new(device, settings, self)?);
        registry::add(&shared);
        if shared.settings().upkeep() {
            upkeep::start();
        }
        Ok(Pool { shared })
    }
}
