//! Huge pages: explicit ones that the administrator set aside, and transparent ones.

use core::fmt;
use std::path::Path;

use forebay_core::{Bytes, KIB};

use super::{Reading, System, Unknown};

/// The pools of explicit huge pages, a directory a size.
const POOLS: &str = "/sys/kernel/mm/hugepages";
/// The setting for a process's own memory.
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// The setting for shared memory, which memory files are.
const SHMEM: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// The pool of explicit huge pages of one size. Counts are pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePagePool {
    /// The size of one page.
    pub page: Bytes,
    /// Pages in the pool.
    pub total: Reading<u64>,
    /// Unused pages; some may be promised, see [`reserved`](Self::reserved).
    pub free: Reading<u64>,
    /// Free pages promised to mappings that have not touched them yet.
    pub reserved: Reading<u64>,
    /// Pages beyond the number set aside, which the system reclaims when freed.
    pub surplus: Reading<u64>,
    /// The number of surplus pages the system may create on demand.
    pub overcommit: Reading<u64>,
}

impl HugePagePool {
    /// Pages available now: free ones that are not promised, plus surplus that may still be created.
    pub fn obtainable(&self) -> Reading<u64> {
        let promised = self.reserved.as_ref().copied().unwrap_or(0);
        let idle = self.free.clone()?.saturating_sub(promised);
        let made = self.surplus.as_ref().copied().unwrap_or(0);
        let more = self.overcommit.as_ref().copied().unwrap_or(0).saturating_sub(made);
        Ok(idle.saturating_add(more))
    }
}

/// When the system gives transparent huge pages for a process's private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TransparentHuge {
    /// Wherever it can.
    Always,
    /// Where the program asks with `madvise`.
    Madvise,
    /// Nowhere.
    Never,
}

impl TransparentHuge {
    /// The name the system uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }

    /// Whether a process can get huge pages for its private memory at all.
    pub const fn grants(self) -> bool {
        !matches!(self, Self::Never)
    }
}

impl fmt::Display for TransparentHuge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// When the system gives huge pages for memory files, which back forebay's host pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ShmemHuge {
    /// Wherever it can.
    Always,
    /// Where they lie wholly inside the file.
    WithinSize,
    /// Where the program asks with `madvise`.
    Advise,
    /// Nowhere.
    Never,
    /// Nowhere, even on mounts that ask for them.
    Deny,
    /// Everywhere, for testing.
    Force,
}

impl ShmemHuge {
    /// The name the system uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::WithinSize => "within_size",
            Self::Advise => "advise",
            Self::Never => "never",
            Self::Deny => "deny",
            Self::Force => "force",
        }
    }

    /// Whether a memory file can get huge pages at all.
    pub const fn grants(self) -> bool {
        !matches!(self, Self::Never | Self::Deny)
    }
}

impl fmt::Display for ShmemHuge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The huge pages that the system grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// The pools, smallest pages first, or why there are none.
    pub pools: Reading<Vec<HugePagePool>>,
    /// The setting for a process's own memory.
    pub transparent: Reading<TransparentHuge>,
    /// The setting for memory files.
    pub shmem: Reading<ShmemHuge>,
}

impl HugePages {
    /// The pool of pages of `size`.
    pub fn pool(&self, size: Bytes) -> Option<&HugePagePool> {
        self.pools.as_ref().ok()?.iter().find(|pool| pool.page == size)
    }

    /// Whether explicit huge pages of any size are available now.
    pub fn explicit_granted(&self) -> bool {
        self.pools.as_ref().is_ok_and(|pools| {
            pools.iter().any(|pool| pool.obtainable().is_ok_and(|pages| pages > 0))
        })
    }

    /// Describes in a sentence whether explicit huge pages are granted, or why not.
    pub fn in_words(&self) -> String {
        if let Some((pool, pages)) = self.largest_obtainable() {
            let pages = if pages == 1 { "1 page".into() } else { format!("{pages} pages") };
            return format!("granted: {pages} of {} can be had from the pool", pool.page);
        }
        match &self.pools {
            Err(unknown) if unknown.is_absent() => {
                "not granted: this system has no pools of huge pages".to_owned()
            }
            Err(unknown) => format!("not known: {unknown}"),
            Ok(_) => "not granted: the pools are empty".to_owned(),
        }
    }

    fn largest_obtainable(&self) -> Option<(&HugePagePool, u64)> {
        self.pools.as_ref().ok()?.iter().rev().find_map(|pool| {
            let pages = pool.obtainable().ok()?;
            (pages > 0).then_some((pool, pages))
        })
    }
}

impl System {
    /// Reads the huge pages that the system grants.
    pub fn huge_pages(&self) -> HugePages {
        HugePages {
            pools: self.huge_page_pools(),
            transparent: self.bracketed(TRANSPARENT).and_then(|chosen| match chosen.as_str() {
                "always" => Ok(TransparentHuge::Always),
                "madvise" => Ok(TransparentHuge::Madvise),
                "never" => Ok(TransparentHuge::Never),
                other => Err(unheard_of(TRANSPARENT, other)),
            }),
            shmem: self.bracketed(SHMEM).and_then(|chosen| match chosen.as_str() {
                "always" => Ok(ShmemHuge::Always),
                "within_size" => Ok(ShmemHuge::WithinSize),
                "advise" => Ok(ShmemHuge::Advise),
                "never" => Ok(ShmemHuge::Never),
                "deny" => Ok(ShmemHuge::Deny),
                "force" => Ok(ShmemHuge::Force),
                other => Err(unheard_of(SHMEM, other)),
            }),
        }
    }

    fn huge_page_pools(&self) -> Reading<Vec<HugePagePool>> {
        let mut pools: Vec<HugePagePool> = self
            .names(POOLS)?
            .iter()
            .filter_map(|name| {
                let kilobytes =
                    name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
                let page = Bytes::new(KIB).checked_mul(kilobytes)?;
                let pages = |file| self.number(Path::new(POOLS).join(name).join(file));
                Some(HugePagePool {
                    page,
                    total: pages("nr_hugepages"),
                    free: pages("free_hugepages"),
                    reserved: pages("resv_hugepages"),
                    surplus: pages("surplus_hugepages"),
                    overcommit: pages("nr_overcommit_hugepages"),
                })
            })
            .collect();
        pools.sort_by_key(|pool| pool.page);
        Ok(pools)
    }
}

fn unheard_of(file: &str, choice: &str) -> Unknown {
    Unknown::malformed(Path::new(file), format!("an unheard-of choice \"{choice}\""))
}
