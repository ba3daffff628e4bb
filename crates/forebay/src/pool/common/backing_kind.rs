//! What the memory of a pool is to be, beyond the default, and whether the device has such.

use std::sync::Arc;

use forebay_core::DeviceOrdinal;
use forebay_hal::{Device, PageOptions, VirtualMemory};

use crate::{Error, MemoryClass, Result};

/// A class of memory that the device has.
#[derive(Clone, Debug)]
pub(in crate::pool) struct BackingKind {
    class: MemoryClass,
    /// Who else reads and writes it.
    peers: Vec<DeviceOrdinal>,
}

impl BackingKind {
    /// Memory of a class on `device`; refused where there is none, and where each block is to have pages
    /// of its own, which are of no class.
    pub(in crate::pool) fn new(
        device: &Arc<dyn Device>,
        class: MemoryClass,
        peers: &[DeviceOrdinal],
        guard_pages: bool,
    ) -> Result<Self> {
        let refuse =
            |missing: &'static str| Err(Error::ClassUnavailable { class, missing: missing.into() });
        if guard_pages && class != MemoryClass::STITCHED {
            return refuse(
                "guard_pages is on, and gives each block pages of its own that are of no class; set \
                 guard_pages to off, or use canaries",
            );
        }
        let of_pages = class.contains(MemoryClass::SHAREABLE) || class.contains(MemoryClass::PEERS);
        if class.contains(MemoryClass::PLAIN) && of_pages {
            return refuse("what is plain has no pages that others could be given or shown");
        }
        if of_pages && device.virtual_memory().is_none() {
            return refuse("the device maps no pages");
        }
        if class.contains(MemoryClass::SHAREABLE) && device.sharing().is_none() {
            return refuse("pages of the device cannot leave the process");
        }
        if class.contains(MemoryClass::PEERS) {
            let Some(reach) = device.peers() else { return refuse("the device has no peers") };
            if peers.is_empty() {
                return refuse("nobody was named that it is to be visible to");
            }
            for &peer in peers {
                if !reach.can_reach(peer)? {
                    let own = device.descriptor().ordinal;
                    let missing =
                        format!("devices {} and {} do not reach each other", own.0, peer.0);
                    return Err(Error::ClassUnavailable { class, missing: missing.into() });
                }
            }
        }
        Ok(Self { class, peers: peers.to_vec() })
    }

    /// Pages of the device, where memory is to be made of them.
    pub(in crate::pool) fn pages_of<'a>(
        &self,
        device: &'a dyn Device,
    ) -> Option<&'a dyn VirtualMemory> {
        device.virtual_memory().filter(|_| !self.class.contains(MemoryClass::PLAIN))
    }

    /// How pages are made.
    pub(in crate::pool) fn page_options(&self) -> PageOptions {
        if self.class.contains(MemoryClass::SHAREABLE) {
            PageOptions::shareable()
        } else {
            PageOptions::default()
        }
    }

    /// Who reads and writes it, beside the device it is on.
    pub(in crate::pool) fn peers(&self) -> &[DeviceOrdinal] {
        &self.peers
    }

    /// Whether what is behind an address stays there as long as the pool.
    pub(in crate::pool) fn is_stable(&self) -> bool {
        self.class.contains(MemoryClass::STABLE)
    }
}
