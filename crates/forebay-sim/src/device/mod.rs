//! The simulated device: each call of the contract checks its arguments and changes the state.
//!
//! Each group of calls has a file; all devices of a machine share the engine below them.

mod decompression;
mod foreign;
mod memory;
mod peer;
mod sharing;
mod stream;
mod transfer;
mod virtual_memory;

use core::fmt;
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal};
use forebay_hal::{
    Call, Capabilities, Descriptor, Device, DeviceKind, MemoryInfo, PointerClass, Result,
    optional_groups,
};

use crate::engine::Engine;
use crate::machine::{MemoryModel, SimOptions};

/// A device of a [`SimMachine`](crate::SimMachine).
pub struct SimDevice {
    engine: Arc<Engine>,
    ordinal: DeviceOrdinal,
    descriptor: Descriptor,
}

impl SimDevice {
    pub(crate) fn new(engine: Arc<Engine>, ordinal: DeviceOrdinal, options: &SimOptions) -> Self {
        let phantom_lacks = match options.memory {
            MemoryModel::Backed => Capabilities::empty(),
            MemoryModel::Phantom => {
                Capabilities::DATA
                    | Capabilities::HOST_VISIBLE
                    | Capabilities::MANAGED
                    | Capabilities::SHARE_BY_FD
                    | Capabilities::PINNED_PAGES
                    | Capabilities::DECOMPRESSION
            }
        };
        let every = Capabilities::all() - Capabilities::HUGE_PAGES;
        let mut capabilities = every - phantom_lacks - options.without;
        // What stands on a group goes with it.
        if !capabilities.contains(Capabilities::VIRTUAL_MEMORY) {
            capabilities -= Capabilities::SHARE_BY_FD | Capabilities::PINNED_PAGES;
        }
        if !capabilities.contains(Capabilities::PINNED) {
            capabilities -= Capabilities::PINNED_MAPPED
                | Capabilities::PINNED_WRITE_COMBINED
                | Capabilities::REGISTER
                | Capabilities::PINNED_PAGES;
        }
        let descriptor = Descriptor::new(DeviceKind::Sim, ordinal, "simulated accelerator")
            .driver(format!("forebay {}", env!("CARGO_PKG_VERSION")))
            .capabilities(capabilities)
            .alignment(Alignment::BLOCK);
        Self { engine, ordinal, descriptor }
    }

    fn can(&self, capability: Capabilities) -> bool {
        self.descriptor.capabilities.contains(capability)
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDevice({})", self.descriptor)
    }
}

// SAFETY: the groups keep their promises (see their files), are given by capability bits fixed at
// birth, `free` is `total` less `held` by definition, and addresses come from the system's own
// reservations or a counter that only rises.
unsafe impl Device for SimDevice {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let mut state = self.engine.enter(self.ordinal, Call::MemoryInfo, Bytes::ZERO)?;
        state.charge(Call::MemoryInfo, Bytes::ZERO);
        Ok(state.memory_info(self.ordinal))
    }

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        let mut state = self.engine.enter(self.ordinal, Call::Classify, Bytes::ZERO)?;
        Ok(state.space(Call::Classify, self.ordinal)?.book.classify(address))
    }

    optional_groups! {
        virtual_memory: VirtualMemory if VIRTUAL_MEMORY;
        pinned_memory: PinnedMemory if PINNED;
        managed_memory: ManagedMemory if MANAGED;
        decompression: Decompression if DECOMPRESSION;
        peers: Peers if PEERS;
        foreign_streams: ForeignStreams if FOREIGN_STREAMS;
        sharing: Sharing if SHARE_BY_FD;
    }
}
