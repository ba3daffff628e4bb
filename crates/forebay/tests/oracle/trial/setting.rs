//! How a trial is set up: the device, the pool, and how strict the question of room is.

use std::sync::Arc;

use forebay::{Pool, PoolOptions, Result};
use forebay_core::address_space::Growth;
use forebay_core::{Bytes, PageSize};
use forebay_hal::Device;
use forebay_host::HostOptions;
use forebay_sim::{HandleReuse, MemoryModel, SimMachine};

use super::Stage;

/// When an allocation may fail for want of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Only where the granules that live blocks lie in leave too few for it. Right where every page
    /// is one granule: a page that no live block touches can go elsewhere.
    Granules,
    /// Only where what a trim leaves behind leaves too little for it. A page larger than a granule
    /// stays whole while any block touches it, so the granules no block touches cannot all be had;
    /// what a trim cannot give back is what live blocks keep.
    Pages,
}

/// A device and a pool on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Decides the order of work, where there is a choice.
    pub(crate) seed: u64,
    /// The smallest page.
    pub(crate) granule: PageSize,
    /// The largest page.
    pub(crate) largest_page: Bytes,
    /// How much memory the device has.
    pub(crate) capacity: Bytes,
    /// The most the pool may take; all there is where it is not said.
    pub(crate) limit: Option<Bytes>,
    /// Whether memory keeps what is written.
    pub(crate) memory: MemoryModel,
    /// The largest size that programs ask for, as a rule.
    pub(crate) most: u64,
    /// How many blocks may be live.
    pub(crate) max_live: usize,
    /// How many streams besides the default one.
    pub(crate) streams: u8,
    /// When an allocation may fail.
    pub(crate) room: Room,
}

impl Setting {
    /// Four megabytes of backed memory in pages of one granule.
    pub(crate) fn tight(seed: u64) -> Self {
        Self {
            seed,
            granule: PageSize::HOST,
            largest_page: PageSize::HOST.bytes(),
            capacity: Bytes::mib(4),
            limit: None,
            memory: MemoryModel::Backed,
            most: 1 << 20,
            max_live: 40,
            streams: 3,
            room: Room::Granules,
        }
    }

    /// Eight megabytes of backed memory in pages of up to 64 KiB.
    pub(crate) fn mixed(seed: u64) -> Self {
        Self {
            largest_page: Bytes::new(64 << 10),
            capacity: Bytes::mib(8),
            room: Room::Pages,
            ..Self::tight(seed)
        }
    }

    /// Two gigabytes of phantom memory, in pages as they are on an accelerator.
    pub(crate) fn large(seed: u64) -> Self {
        Self {
            granule: PageSize::DEVICE,
            largest_page: Growth::default().largest_page,
            capacity: Bytes::gib(2),
            memory: MemoryModel::Phantom,
            most: 512 << 20,
            max_live: 200,
            room: Room::Pages,
            ..Self::tight(seed)
        }
    }

    /// The same with a limit of the pool's own, below what the device has.
    pub(crate) fn limited_to(self, limit: Bytes) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// What the pool may take at the most, when others hold `others` of the device.
    pub(crate) fn ceiling(&self, others: Bytes) -> Bytes {
        let there = self.capacity.saturating_sub(others);
        self.limit.map_or(there, |limit| limit.min(there))
    }

    /// A simulated device, with the checker looking on and stream handles coming back at once.
    pub(crate) fn sim(&self) -> Stage {
        let machine = SimMachine::builder()
            .seed(self.seed)
            .granularity(self.granule)
            .capacity(self.capacity)
            .memory(self.memory)
            .handles(HandleReuse::AtOnce)
            .build()
            .expect("figures that a machine can have");
        let device = machine.device(0).expect("every machine has one");
        Stage::Sim(machine, device, self.memory == MemoryModel::Backed)
    }

    /// The host, with no more memory than the setting says.
    pub(crate) fn host(&self) -> Stage {
        let options = HostOptions::new().memory_limit(self.capacity);
        Stage::Host(options.open().expect("the host is always there"))
    }

    /// A pool of this setting on `device`.
    pub(crate) fn pool(&self, device: &Arc<dyn Device>) -> Result<Pool> {
        let mut growth = Growth::default();
        growth.largest_page = self.largest_page;
        let options = PoolOptions::new().growth(growth);
        let options = match self.limit {
            Some(limit) => options.max_bytes(limit),
            None => options,
        };
        options.build(device)
    }
}
