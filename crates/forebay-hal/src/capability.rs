//! Device capabilities as a bit set.

use core::fmt;

bitflags::bitflags! {
    /// What a device can do beyond plain memory, streams, copies and fills.
    ///
    /// A group's bit is set if and only if the device provides that group
    /// ([`Device::virtual_memory`](crate::Device::virtual_memory) and similar).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// Memory keeps what is written to it. A phantom device, for large replays, discards it.
        const DATA = 1;
        /// The host may read and write device addresses directly.
        const HOST_VISIBLE = 1 << 1;
        /// [`VirtualMemory`](crate::VirtualMemory).
        const VIRTUAL_MEMORY = 1 << 2;
        /// [`PinnedMemory`](crate::PinnedMemory).
        const PINNED = 1 << 3;
        /// Pinned memory has an address on the device too.
        const PINNED_MAPPED = 1 << 4;
        /// Pinned memory can be write-combined.
        const PINNED_WRITE_COMBINED = 1 << 5;
        /// Existing host memory can be pinned in place.
        const REGISTER = 1 << 6;
        /// [`ManagedMemory`](crate::ManagedMemory).
        const MANAGED = 1 << 7;
        /// [`Peers`](crate::Peers).
        const PEERS = 1 << 8;
        /// [`Sharing`](crate::Sharing): pages leave the process as file descriptors.
        const SHARE_BY_FD = 1 << 9;
        /// Streams differ in priority.
        const PRIORITIES = 1 << 10;
        /// Host functions run in stream order.
        const HOST_TASKS = 1 << 11;
        /// Events measure time.
        const TIMED_EVENTS = 1 << 12;
        /// The system granted pages larger than the processor's base page.
        const HUGE_PAGES = 1 << 13;
        /// [`ForeignStreams`](crate::ForeignStreams).
        const FOREIGN_STREAMS = 1 << 14;
        /// Freeing memory never waits for running work. CUDA's `cuMemFree` and similar calls do wait: do not make such
        /// a call while holding anything that a host function needs.
        const PROMPT_FREE = 1 << 15;
        /// Each thread has a default stream of its own,
        /// [`StreamHandle::PER_THREAD`](crate::StreamHandle::PER_THREAD). Where the device has
        /// [`ForeignStreams`](crate::ForeignStreams), it may have to be adopted first, once.
        const PER_THREAD_STREAMS = 1 << 16;
        /// [Pages of pinned host memory](crate::PageOptions::pinned) can be created.
        const PINNED_PAGES = 1 << 17;
        /// [`Decompression`](crate::Decompression).
        const DECOMPRESSION = 1 << 18;
    }
}

impl fmt::Display for Capabilities {
    /// Names in lower case with spaces, as "data, virtual memory"; "none" for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, (name, _)) in self.iter_names().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", name.to_ascii_lowercase().replace('_', " "))?;
        }
        Ok(())
    }
}
