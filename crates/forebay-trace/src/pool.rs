//! forebay's own pool as a player.

use core::time::Duration;
use std::sync::Arc;

use forebay::{Pool, PoolOptions};
use forebay_core::{Address, Bytes};
use forebay_hal::{Call, Device, DeviceKind, Error, Priority, Stream, StreamHandle};
use forebay_sim::CostModel;

use crate::{AddressedPlayer, BlockIndex, DriverUse, FreeOrder, Player, ReplayError, StreamIndex};

/// forebay's pool: each stream of the recording is a stream of the device.
#[derive(Debug)]
pub struct PoolPlayer {
    pool: Pool,
    device: Arc<dyn Device>,
    /// By index, so that finding one takes no time beside the pool's.
    streams: Vec<Option<Stream>>,
    live: Vec<Option<Address>>,
}

impl PoolPlayer {
    /// Creates an empty pool, configured from the environment.
    pub fn new(device: Arc<dyn Device>) -> Result<Self, forebay::Error> {
        Self::with(device, PoolOptions::from_environment()?)
    }

    /// Creates an empty pool, configured by `options`.
    pub fn with(device: Arc<dyn Device>, options: PoolOptions) -> Result<Self, forebay::Error> {
        let pool = options.build(&device)?;
        Ok(Self { pool, device, streams: Vec::new(), live: Vec::new() })
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn stream(&mut self, index: StreamIndex) -> Result<&Stream, Error> {
        let index = usize::from(index.0);
        if index >= self.streams.len() {
            self.streams.resize_with(index + 1, || None);
        }
        let gone = || Error::Lost { call: Call::StreamId, reason: "a stream vanished".into() };
        let place = self.streams.get_mut(index).ok_or_else(gone)?;
        if place.is_none() {
            *place = Some(Stream::new(&self.device, Priority::Normal)?);
        }
        place.as_ref().ok_or_else(gone)
    }
}

impl PoolPlayer {
    /// Where the address of a block is noted while it is live.
    fn place(&mut self, block: BlockIndex) -> &mut Option<Address> {
        let index = usize::try_from(block.0).unwrap_or(usize::MAX);
        if index >= self.live.len() {
            self.live.resize(index + 1, None);
        }
        &mut self.live[index]
    }
}

fn failed(error: forebay::Error) -> ReplayError {
    match error {
        forebay::Error::OutOfMemory(shortage) => ReplayError::Shortage {
            requested: shortage.requested,
            limit: shortage.limit,
            held: shortage.held,
            live: shortage.live,
            largest_free: shortage.largest_free,
            device_free: shortage.device_free,
        },
        forebay::Error::Device(error) => ReplayError::Device(error),
        other => ReplayError::Device(Error::Transient {
            call: Call::Allocate,
            reason: other.to_string().into(),
        }),
    }
}

impl Player for PoolPlayer {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        stream: StreamIndex,
    ) -> Result<(), ReplayError> {
        let stream = self.stream(stream).map_err(ReplayError::Device)?.handle();
        let got = self.pool.allocate(size, stream).map_err(failed)?;
        *self.place(block) = Some(got.address());
        Ok(())
    }

    fn free(&mut self, block: BlockIndex, stream: StreamIndex) -> Result<(), ReplayError> {
        let what = "is to be freed and is not live here";
        let missing = ReplayError::Inconsistent { block, what };
        let address = self.place(block).take().ok_or(missing)?;
        let stream = self.stream(stream).map_err(ReplayError::Device)?.handle();
        self.pool.free(address, stream).map_err(failed)
    }

    fn reserved(&self) -> Bytes {
        self.pool.held()
    }

    fn driver(&self) -> DriverUse {
        let log = self.pool.statistics().driver;
        let price = |(call, size, count): (Call, Bytes, u64)| {
            let times = u32::try_from(count).unwrap_or(u32::MAX);
            CostModel::H200.call(call, size).saturating_mul(times)
        };
        let time = match self.device.descriptor().kind {
            DeviceKind::Sim => {
                log.entries().map(price).fold(Duration::ZERO, Duration::saturating_add)
            }
            _ => log.time(),
        };
        DriverUse {
            calls: log.entries().map(|(.., count)| count).sum(),
            time,
            maps: log.of(Call::Map),
            creates: log.of(Call::CreatePage),
        }
    }

    fn placed(&mut self) -> Option<&mut dyn AddressedPlayer> {
        Some(self)
    }
}

// SAFETY: the pool gives each block memory of its own, which is its from the moment of allocation
// in the order of the stream it was allocated on, to the free in the order of the stream of that.
unsafe impl AddressedPlayer for PoolPlayer {
    fn address(&self, block: BlockIndex) -> Option<Address> {
        self.live.get(usize::try_from(block.0).ok()?).copied().flatten()
    }

    fn stream(&mut self, stream: StreamIndex) -> Result<StreamHandle, ReplayError> {
        Self::stream(self, stream).map(Stream::handle).map_err(ReplayError::Device)
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::Stream
    }
}
