//! Huge pages: explicit ones that the administrator set aside, and transparent ones.

use std::path::Path;

use forebay_core::{Bytes, KIB};
use forebay_hal::named_enum;

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

named_enum! {
    /// When the system gives transparent huge pages for a process's private memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum TransparentHuge {
        /// Wherever it can.
        Always = "always",
        /// Where the program asks with `madvise`.
        Madvise = "madvise",
        /// Nowhere.
        Never = "never",
    }
}

impl TransparentHuge {
    /// Whether a process can get huge pages for its private memory at all.
    pub const fn grants(self) -> bool {
        !matches!(self, Self::Never)
    }
}

named_enum! {
    /// When the system gives huge pages for memory files, which back forebay's host pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum ShmemHuge {
        /// Wherever it can.
        Always = "always",
        /// Where they lie wholly inside the file.
        WithinSize = "within_size",
        /// Where the program asks with `madvise`.
        Advise = "advise",
        /// Nowhere.
        Never = "never",
        /// Nowhere, even on mounts that ask for them.
        Deny = "deny",
        /// Everywhere, for testing.
        Force = "force",
    }
}

impl ShmemHuge {
    /// Whether a memory file can get huge pages at all.
    pub const fn grants(self) -> bool {
        !matches!(self, Self::Never | Self::Deny)
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
            transparent: self.choice(TRANSPARENT, TransparentHuge::ALL, TransparentHuge::name),
            shmem: self.choice(SHMEM, ShmemHuge::ALL, ShmemHuge::name),
        }
    }

    /// The choice of a setting that lists all of them, with brackets around the one in force.
    fn choice<T: Copy>(
        &self,
        file: &str,
        all: &[T],
        name: impl Fn(T) -> &'static str,
    ) -> Reading<T> {
        let chosen = self.bracketed(file)?;
        all.iter().copied().find(|&one| name(one) == chosen).ok_or_else(|| {
            Unknown::malformed(Path::new(file), format!("an unheard-of choice \"{chosen}\""))
        })
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
