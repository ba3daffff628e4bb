//! The plainest allocator: every block is the device's own memory, and what was freed last is given
//! out first, so that addresses come again as fast as they can. A reference allocator that adaptors are checked
//! against.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use super::*;
use crate::PoolId;

/// What is out, and what was at most.
#[derive(Default)]
pub(super) struct Truth {
    pub(super) live: HashMap<Address, (Block, Request)>,
    /// Memory of the device that is not out, and how much of it is at each address.
    spare: Vec<(Address, Bytes)>,
    room: HashMap<Address, Bytes>,
    pub(super) requested: u64,
    pub(super) peak_requested: u64,
    allocations: u64,
}

impl Truth {
    /// How many addresses there are in all.
    pub(super) fn addresses(&self) -> u64 {
        self.room.len() as u64
    }
}

pub(super) struct Direct {
    device: Arc<dyn Device>,
    truth: Mutex<Truth>,
}

impl Direct {
    /// On a device of so many bytes.
    pub(super) fn of(capacity: Bytes) -> Arc<Self> {
        let options = SimMachine::builder().memory(MemoryModel::Phantom).capacity(capacity);
        let device = options.build().unwrap().device(0).unwrap();
        Arc::new(Self { device, truth: Mutex::default() })
    }

    pub(super) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap()
    }
}

// SAFETY: for tests, which touch no memory that is not theirs.
unsafe impl Allocate for Direct {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        let mut truth = self.truth();
        let size = request.size().align_up(Alignment::BLOCK).unwrap_or(Bytes::MAX);
        let fits = |&(at, room): &(Address, Bytes)| {
            room >= size && !size.is_zero() && at.is_aligned_to(request.alignment())
        };
        let address = match truth.spare.iter().rposition(fits) {
            Some(index) => truth.spare.remove(index).0,
            None => self.device.allocate(size, request.alignment())?,
        };
        truth.allocations += 1;
        let generation = truth.allocations;
        let block = Block { address, size, pool: PoolId(0), generation };
        if !address.is_null() {
            truth.room.entry(address).or_insert(size);
            assert!(truth.live.insert(address, (block, request)).is_none());
            truth.requested += request.size().get();
            truth.peak_requested = truth.peak_requested.max(truth.requested);
        }
        Ok(block)
    }

    fn free(&self, address: Address, _: StreamHandle) -> Result<()> {
        if address.is_null() {
            return Ok(());
        }
        let mut truth = self.truth();
        let room = truth.room.get(&address).copied();
        match (truth.live.remove(&address), room) {
            (Some((_, request)), Some(room)) => {
                truth.requested -= request.size().get();
                truth.spare.push((address, room));
                Ok(())
            }
            (_, Some(size)) => Err(Error::DoubleFree { address, size }),
            (_, None) => Err(Error::NotABlock { address }),
        }
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        self.truth().live.get(&address).map(|&(block, _)| block)
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}
