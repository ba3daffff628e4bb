//! What the host device is asked to be.

use forebay_core::Bytes;

use crate::NumaPolicy;

/// What the host's memory is to be made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePages {
    /// The processor's own pages alone, even where the system would give larger ones.
    Never,
    /// Huge pages where the system has them at hand, the processor's own elsewhere. A wish: a
    /// system that does not make huge pages by itself is not an error.
    #[default]
    Transparent,
    /// Huge pages of 2 MiB from the pool the administrator set aside, or nothing.
    Explicit2M,
    /// Huge pages of 1 GiB from the pool the administrator set aside, or nothing.
    Explicit1G,
}

/// How a [`HostDevice`](crate::HostDevice) is opened.
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
    /// The most memory the device gives out; `None` for all the machine and its container allow.
    pub memory_limit: Option<Bytes>,
    /// What memory is made of.
    pub huge_pages: HugePages,
    /// Which of the machine's memories it lies in.
    pub numa: NumaPolicy,
}

impl HostOptions {
    /// All the memory there is, huge pages where the system has them, no wish as to where.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, giving out no more than `limit`. Never more than the machine has, whatever is
    /// asked.
    #[must_use]
    pub fn memory_limit(mut self, limit: Bytes) -> Self {
        self.memory_limit = Some(limit);
        self
    }

    /// The same with memory made of `huge_pages`.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// The same with memory placed by `policy`.
    #[must_use]
    pub fn numa(mut self, policy: NumaPolicy) -> Self {
        self.numa = policy;
        self
    }
}
