//! Options of the host device.

use forebay_core::Bytes;
use forebay_hal::setters;

use crate::NumaPolicy;

/// The pages that back the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePages {
    /// Only the processor's base pages, even if the system offers larger ones.
    Never,
    /// Huge pages where the system has them available, base pages elsewhere. A hint: a system without transparent huge
    /// pages is not an error.
    #[default]
    Transparent,
    /// Only 2 MiB huge pages from the pool that the administrator set aside.
    Explicit2M,
    /// Only 1 GiB huge pages from the pool that the administrator set aside.
    Explicit1G,
}

/// The options with which a [`HostDevice`](crate::HostDevice) is opened.
///
/// ```
/// use forebay_core::Bytes;
/// use forebay_hal::Device;
/// use forebay_host::{HostOptions, HugePages, NumaPolicy};
///
/// let device = HostOptions::new()
///     .memory_limit(Bytes::mib(256))
///     .huge_pages(HugePages::Never)
///     .numa(NumaPolicy::Default)
///     .open()?;
/// assert!(device.memory_info()?.total <= Bytes::mib(256));
/// # Ok::<(), forebay_hal::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostOptions {
    /// The most memory the device gives out; `None` for all that the machine and its container allow.
    pub memory_limit: Option<Bytes>,
    /// The pages that back memory.
    pub huge_pages: HugePages,
    /// The NUMA placement.
    pub numa: NumaPolicy,
}

impl HostOptions {
    /// All memory, huge pages where the system has them, and the default placement.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Limits the memory given out, and never to more than the machine has.
        memory_limit: Bytes;
        /// Sets the pages that back memory.
        huge_pages: HugePages;
        /// Sets the NUMA placement.
        numa: NumaPolicy;
    }
}
