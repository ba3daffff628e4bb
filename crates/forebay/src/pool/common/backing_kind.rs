//! The source of a pool's memory with its class, and whether the device can provide that.

use std::sync::{Arc, Mutex};

use forebay_core::DeviceOrdinal;
use forebay_hal::{Device, MemorySource, PageOptions, VirtualMemory};

use crate::sync::lock;
use crate::{Error, MemoryClass, Result};

/// Where the memory comes from, in a class that the device can provide.
#[derive(Clone, Debug)]
pub(in crate::pool) struct BackingKind {
    pub(in crate::pool) source: Arc<dyn MemorySource>,
    class: MemoryClass,
    /// Devices other than the pool's own that may read and write it. Clones share the list; it changes under the
    /// backing lock.
    peers: Arc<Mutex<Vec<DeviceOrdinal>>>,
    /// Whether other processes can map the pages.
    exportable: bool,
}

impl BackingKind {
    /// Checks that `device` can provide `class`. Guard pages are refused with any class but the default: each block has
    /// pages of its own then, which have no class.
    pub(in crate::pool) fn new(
        device: &Arc<dyn Device>,
        source: Arc<dyn MemorySource>,
        class: MemoryClass,
        peers: &[DeviceOrdinal],
        exportable: bool,
        guard_pages: bool,
    ) -> Result<Self> {
        let refuse =
            |missing: &'static str| Err(Error::ClassUnavailable { class, missing: missing.into() });
        if guard_pages && class != MemoryClass::STITCHED {
            return refuse(
                "guard_pages is on, which gives each block pages of its own without a class; set guard_pages \
                 to off, or use canaries",
            );
        }
        let of_pages = class.contains(MemoryClass::SHAREABLE) || class.contains(MemoryClass::PEERS);
        if class.contains(MemoryClass::PLAIN) && of_pages {
            return refuse("plain memory has no pages to share or to make visible to peers");
        }
        if of_pages && source.pages().is_none() {
            return refuse("the device maps no pages");
        }
        if class.contains(MemoryClass::SHAREABLE) && device.sharing().is_none() {
            return refuse("the device cannot share pages with other processes");
        }
        if class.contains(MemoryClass::PEERS) {
            if peers.is_empty() {
                return refuse("visible_to is empty; name at least one device");
            }
            for &peer in peers {
                Self::check_reach(device, class, peer)?;
            }
        }
        let exportable = exportable && device.sharing().is_some();
        let exportable = exportable || class.contains(MemoryClass::SHAREABLE);
        let peers = Arc::new(Mutex::new(peers.to_vec()));
        Ok(Self { source, class, peers, exportable })
    }

    pub(in crate::pool) fn check_reach(
        device: &Arc<dyn Device>,
        class: MemoryClass,
        peer: DeviceOrdinal,
    ) -> Result<()> {
        let unavailable =
            |missing: String| Error::ClassUnavailable { class, missing: missing.into() };
        let reach = device.peers().ok_or_else(|| unavailable("the device has no peers".into()))?;
        if reach.can_reach(peer)? {
            return Ok(());
        }
        let own = device.descriptor().ordinal;
        Err(unavailable(format!("devices {} and {} cannot reach each other", own.0, peer.0)))
    }

    /// The calls for pages; `None` if the pool is to use segments.
    pub(in crate::pool) fn pages(&self) -> Option<&dyn VirtualMemory> {
        self.source.pages().filter(|_| !self.class.contains(MemoryClass::PLAIN))
    }

    pub(in crate::pool) fn page_options(&self) -> PageOptions {
        if self.exportable { PageOptions::shareable() } else { self.source.page_options() }
    }

    /// Devices other than the pool's own that may read and write the memory.
    pub(in crate::pool) fn peers(&self) -> Vec<DeviceOrdinal> {
        lock(&self.peers).clone()
    }

    /// Lets another device read and write memory that is mapped from now on.
    pub(in crate::pool) fn add_peer(&self, peer: DeviceOrdinal) {
        lock(&self.peers).push(peer);
    }

    /// Whether the memory behind an address stays the same while the pool lives.
    pub(in crate::pool) fn is_stable(&self) -> bool {
        self.class.contains(MemoryClass::STABLE)
    }
}
