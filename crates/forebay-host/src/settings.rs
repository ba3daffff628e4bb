//! The options of a device, checked against what the system grants.

use forebay_core::{Alignment, Bytes, PageSize};
use forebay_hal::{Call, Error, Granularity, Result, invalid};

use crate::mapping::{PageKind, system_page};
use crate::system::{System, TransparentHuge};
use crate::{HostOptions, HugePages, NumaPolicy};

/// What a device was opened with, known to be possible.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The most memory the device gives out.
    pub(crate) limit: Bytes,
    /// What memory is made of.
    pub(crate) grain: PageKind,
    /// What was wished for.
    pub(crate) huge_pages: HugePages,
    /// Whether the system gives huge pages.
    pub(crate) huge_granted: bool,
    /// Where memory lies.
    pub(crate) numa: NumaPolicy,
}

impl Settings {
    /// Checks `options` against the machine.
    pub(crate) fn resolve(options: &HostOptions, system: &System) -> Result<Self> {
        options.numa.check(&system.topology())?;
        let (grain, pool) = match options.huge_pages {
            HugePages::Never | HugePages::Transparent => (PageKind::System, None),
            HugePages::Explicit2M => (PageKind::Huge2M, Some(pool_size(system, PageKind::Huge2M)?)),
            HugePages::Explicit1G => (PageKind::Huge1G, Some(pool_size(system, PageKind::Huge1G)?)),
        };
        let huge_granted = match options.huge_pages {
            HugePages::Never => false,
            HugePages::Transparent => matches!(
                system.huge_pages().transparent,
                Ok(TransparentHuge::Always | TransparentHuge::Madvise)
            ),
            HugePages::Explicit2M | HugePages::Explicit1G => true,
        };
        let usable = match pool {
            Some(size) => Ok(size),
            None => system.memory().usable_total(),
        };
        let limit = match (options.memory_limit, usable) {
            (Some(limit), _) if limit.is_zero() => {
                return Err(invalid(Call::Open, "memory_limit", limit, "1 byte or more"));
            }
            (Some(limit), Ok(usable)) => limit.min(usable),
            (Some(limit), Err(_)) => limit,
            (None, Ok(usable)) => usable,
            (None, Err(unknown)) => {
                return Err(Error::Unsupported {
                    call: Call::Open,
                    missing: format!(
                        "how much memory the machine has is not known ({unknown}); give a memory \
                         limit to do without"
                    )
                    .into(),
                });
            }
        };
        let numa = options.numa.clone();
        Ok(Self { limit, grain, huge_pages: options.huge_pages, huge_granted, numa })
    }

    /// What memory comes in multiples of.
    pub(crate) fn unit(&self) -> Alignment {
        self.grain.alignment()
    }

    /// What sizes of pages and addresses the device deals in.
    pub(crate) fn granularity(&self) -> Granularity {
        let size = |alignment: Alignment| {
            // An alignment is a power of two, which is all a page size must be.
            PageSize::new(alignment.get()).unwrap_or(PageSize::DEVICE)
        };
        let unit = self.unit();
        Granularity { minimum: size(unit), recommended: size(unit.max(Alignment::DEVICE_PAGE)) }
    }

    /// What the system could still give now, as far as it tells.
    pub(crate) fn system_free(&self, system: &System) -> Bytes {
        let free = match self.grain {
            PageKind::System => system.memory().usable_free().ok(),
            PageKind::Huge2M | PageKind::Huge1G => {
                let page = self.unit().bytes();
                let pages = system.huge_pages().pool(page).map(|pool| pool.obtainable());
                pages.and_then(|pages| page.checked_mul(pages.ok()?))
            }
        };
        // What is not known does not limit: the device's own limit stands.
        free.unwrap_or(Bytes::MAX)
    }

    /// From which alignment on memory of `size` can be backed by what was asked for.
    pub(crate) fn alignment_for(&self, size: Bytes) -> Alignment {
        // The system makes huge pages only where 2 MiB of addresses lie on such a boundary.
        if self.huge_pages == HugePages::Transparent && size >= Alignment::DEVICE_PAGE.bytes() {
            return Alignment::DEVICE_PAGE;
        }
        self.unit().max(system_page())
    }
}

/// The size of the pool of explicit huge pages, surplus included; refused, with the cure, where
/// there is none.
fn pool_size(system: &System, grain: PageKind) -> Result<Bytes> {
    let page = grain.alignment().bytes();
    let setting =
        format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page.get() / 1024);
    let unsupported =
        |missing: String| Error::Unsupported { call: Call::Open, missing: missing.into() };
    let huge_pages = system.huge_pages();
    let Some(pool) = huge_pages.pool(page) else {
        return Err(unsupported(format!(
            "this system has no huge pages of {page}; the sizes it has are the directories in \
             /sys/kernel/mm/hugepages"
        )));
    };
    let total = pool.total.as_ref().copied().unwrap_or(0);
    let overcommit = pool.overcommit.as_ref().copied().unwrap_or(0);
    let pages = total.saturating_add(overcommit);
    if pages == 0 {
        return Err(unsupported(format!(
            "the pool of huge pages of {page} is empty; to set aside 512 of them: \
             echo 512 | sudo tee {setting} (for 2 MiB pages /proc/sys/vm/nr_hugepages is the same)"
        )));
    }
    Ok(page.checked_mul(pages).unwrap_or(Bytes::MAX))
}
