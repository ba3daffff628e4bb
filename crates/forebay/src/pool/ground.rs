//! One line of addresses with the device behind it: what the plan says, done by the driver.

use std::sync::Arc;

use forebay_core::line::{Line, Offset, Plan, Standing, Step, Streams};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Access, Call, Device, PageHandle, PageOptions, VirtualMemory};

use super::{DriverLog, PoolOptions, no_virtual_memory};
use crate::Result;

/// How many times the device's memory the addresses of a line span. Pages that move leave gaps, and
/// gaps are filled again, so a few times are enough; addresses cost nothing.
const ADDRESSES_PER_BYTE: u64 = 8;

/// The least a line spans: enough for a device whose memory is not known to be larger.
const LEAST_ADDRESSES: Bytes = Bytes::gib(64);

/// A page that was moved away, whose old mapping stands until nothing uses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alias {
    pub(super) at: Offset,
    pub(super) size: Bytes,
}

/// A line and the region it stands for.
#[derive(Debug)]
pub(super) struct Ground {
    device: Arc<dyn Device>,
    region: Span,
    pub(super) line: Line,
    /// Pages that are nowhere any more, which the device would not take back when asked.
    orphans: Vec<(PageHandle, Bytes)>,
    /// Bytes in blocks on this line now, and at the most.
    pub(super) live: Bytes,
    pub(super) peak: Bytes,
}

impl Ground {
    /// Reserves addresses for a line on `device`.
    pub(super) fn new(device: &Arc<dyn Device>, log: &mut DriverLog) -> Result<Self> {
        let memory = device.virtual_memory().ok_or_else(|| no_virtual_memory(device))?;
        let granule = memory.granularity().recommended;
        let total = device.memory_info()?.total;
        let size = total.checked_mul(ADDRESSES_PER_BYTE).unwrap_or(total).max(LEAST_ADDRESSES);
        let size = size.align_down(granule.alignment());
        let region = log.make(Call::Reserve, size, || memory.reserve(size, granule.alignment()))?;
        let line = Line::new(granule, size);
        let (live, peak) = (Bytes::ZERO, Bytes::ZERO);
        let (device, orphans) = (Arc::clone(device), Vec::new());
        Ok(Self { device, region, line, orphans, live, peak })
    }

    fn memory(&self) -> Result<&dyn VirtualMemory> {
        self.device.virtual_memory().ok_or_else(|| no_virtual_memory(&self.device))
    }

    /// The address of a place on the line.
    pub(super) fn address(&self, at: Offset) -> Address {
        Address::new(self.region.start().get().saturating_add(at))
    }

    fn span(&self, at: Offset, size: Bytes) -> Span {
        // Whatever is on the line lies in the region.
        Span::new(self.address(at), size).unwrap_or_default()
    }

    /// Maps `page` at `at` with access for the device; nothing is mapped where it fails.
    fn attach(&self, at: Offset, page: PageHandle, size: Bytes, log: &mut DriverLog) -> Result<()> {
        let memory = self.memory()?;
        let span = self.span(at, size);
        let own = self.device.descriptor().ordinal;
        log.make(Call::Map, size, || memory.map(span.start(), page))?;
        // SAFETY: access is granted to a mapping made just now, which nobody uses yet.
        let grant = || unsafe { memory.set_access(span, Access::ReadWrite, own) };
        if let Err(error) = log.make(Call::SetAccess, size, grant) {
            // SAFETY: as above. Where this fails too the mapping stays, with nothing on the line
            // there: the device is in a state that leaves nothing better to do.
            let _ = log.make(Call::Unmap, size, || unsafe { memory.unmap(span) });
            return Err(error.into());
        }
        Ok(())
    }

    /// Does what it takes for a hole of `size` in the order of `taker`, which has waited for all
    /// others. Gives the old mappings of pages that moved.
    ///
    /// Each step leaves the ground whole, so a failure half way loses nothing: what was done is
    /// holes.
    pub(super) fn make_room(
        &mut self,
        size: Bytes,
        taker: Streams,
        options: &PoolOptions,
        limit: Bytes,
        log: &mut DriverLog,
    ) -> (Vec<Alias>, Result<bool>) {
        let mut aliases = Vec::new();
        let live = self.live.saturating_add(size);
        let standing = Standing { live, peak: self.peak, limit };
        let Some(plan) = Plan::make(&self.line, size, taker, &options.growth, standing) else {
            return (aliases, Ok(false));
        };
        for step in plan.steps {
            let done = match step {
                Step::Create { at, size } => self.create(at, size, taker, log),
                Step::Move { from, to, size } => self.shift(from, to, size, taker, log).map(|()| {
                    aliases.push(Alias { at: from, size });
                }),
                _ => Ok(()),
            };
            if let Err(error) = done {
                return (aliases, Err(error));
            }
        }
        (aliases, Ok(true))
    }

    fn create(
        &mut self,
        at: Offset,
        size: Bytes,
        taker: Streams,
        log: &mut DriverLog,
    ) -> Result<()> {
        let memory = self.memory()?;
        let create = || memory.create_page(size, PageOptions::default());
        let page = log.make(Call::CreatePage, size, create)?;
        if let Err(error) = self.attach(at, page, size, log) {
            self.orphans.push((page, size));
            // The error that brought us here is the one to tell.
            let _ = self.release_orphans(log);
            return Err(error);
        }
        // New memory is in nobody's past, but free for all it would become one with a neighbour that
        // the taker cannot use.
        let placed = self.line.place(at, size, page.0, taker);
        debug_assert!(placed.is_ok(), "the plan put a page where one is: {placed:?}");
        Ok(())
    }

    fn shift(
        &mut self,
        from: Offset,
        to: Offset,
        size: Bytes,
        taker: Streams,
        log: &mut DriverLog,
    ) -> Result<()> {
        let found = self.line.pages().find(|&(at, ..)| at == from);
        let Some((_, page, _)) = found else { return Ok(()) };
        self.attach(to, PageHandle(page), size, log)?;
        let moved = self.line.lift(from).and_then(|_| self.line.place(to, size, page, taker));
        debug_assert!(moved.is_ok(), "the plan moved what cannot be: {moved:?}");
        Ok(())
    }

    /// Takes the old mapping of a moved page away: nothing may use it any more.
    pub(super) fn clear(&mut self, alias: Alias, log: &mut DriverLog) -> Result<()> {
        self.unmap(alias.at, alias.size, log)?;
        let cleared = self.line.clear(alias.at);
        debug_assert!(cleared.is_ok(), "an alias that is none: {cleared:?}");
        Ok(())
    }

    /// Gives idle pages back to the device until no more than `keep` is held; gives how much. All
    /// work of the device must be over.
    pub(super) fn trim(&mut self, keep: Bytes, log: &mut DriverLog) -> Result<Bytes> {
        let mut given = Bytes::ZERO;
        let mut pages: Vec<(Offset, Bytes)> = self.line.idle_pages().collect();
        // From the end: what is left stays together.
        pages.sort_unstable_by_key(|&(at, _)| core::cmp::Reverse(at));
        for (at, size) in pages {
            if self.line.backed_bytes() <= keep {
                break;
            }
            // Off the device first: where it refuses, the line still says the truth.
            self.unmap(at, size, log)?;
            let Ok((page, ..)) = self.line.lift(at) else { continue };
            let cleared = self.line.clear(at);
            debug_assert!(cleared.is_ok(), "a page that was no alias: {cleared:?}");
            self.orphans.push((PageHandle(page), size));
            self.release_orphans(log)?;
            given = given.saturating_add(size);
        }
        self.release_orphans(log)?;
        Ok(given)
    }

    /// Gives pages back that are nowhere any more.
    fn release_orphans(&mut self, log: &mut DriverLog) -> Result<()> {
        while let Some(&(page, size)) = self.orphans.last() {
            let memory = self.memory()?;
            log.make(Call::ReleasePage, size, || memory.release_page(page))?;
            self.orphans.pop();
        }
        Ok(())
    }

    fn unmap(&self, at: Offset, size: Bytes, log: &mut DriverLog) -> Result<()> {
        let memory = self.memory()?;
        // SAFETY: whoever calls this has seen the end of all work that used what is mapped there,
        // and no block lies in it.
        let unmap = || unsafe { memory.unmap(self.span(at, size)) };
        Ok(log.make(Call::Unmap, size, unmap)?)
    }
}

impl Drop for Ground {
    /// Gives everything back. Blocks that are still live lose their memory: their owner dropped the
    /// pool.
    fn drop(&mut self) {
        let Ok(memory) = self.device.virtual_memory().ok_or(()) else { return };
        let pages: Vec<(Offset, u64, Bytes)> = self.line.pages().collect();
        for (at, page, size) in pages {
            // SAFETY: the pool synchronised the device before it let go of its grounds, and whoever
            // drops a pool has no more use for its blocks. A drop has nobody to tell of errors.
            let _ = unsafe { memory.unmap(self.span(at, size)) };
            let _ = memory.release_page(PageHandle(page));
        }
        for &(page, _) in &self.orphans {
            let _ = memory.release_page(page);
        }
        // SAFETY: as above; aliases were cleared by the pool.
        let _ = unsafe { memory.release_region(self.region.start()) };
    }
}
