//! The device under a line: what a plan says, done by the driver. The heap's lock is held only to
//! note what was done, never while the driver works.

use std::sync::{Arc, Mutex};

use forebay_core::line::{Growth, Line, Offset, Plan, Step, Streams};
use forebay_core::{Address, Alignment, Bytes, PageSize, Span};
use forebay_hal::{Access, Call, Device, Fill, PageHandle, Pattern, StreamHandle, VirtualMemory};

use super::heap::{Field, Heap, Place};
use super::log::CallLog;
use super::manner::Manner;
use super::map::{AddressMap, LEAF, Side};
use crate::sync::lock;
use crate::{Error, Result};

/// How many times the device's memory the addresses of a line span. Pages that move leave gaps, and
/// gaps are filled again, so a few times are enough; addresses cost nothing.
const ADDRESSES_PER_BYTE: u64 = 8;

/// The least a line spans: enough for a device whose memory is not known to be larger.
const LEAST_ADDRESSES: Bytes = Bytes::gib(64);

/// The line of a device that gives segments: longer than any memory.
const SEGMENT_LINE: Bytes = Bytes::new(1 << 46);

/// A page that was moved away, whose old mapping stands until nothing uses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alias {
    pub(super) at: Offset,
    pub(super) size: Bytes,
}

/// A page taken off the line to be given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifted {
    pub(super) at: Offset,
    pub(super) page: u64,
    pub(super) size: Bytes,
    pub(super) streams: Streams,
}

impl Lifted {
    /// Whether no work can use it any more, as far as is known without asking the device.
    pub(super) fn idle(&self) -> bool {
        self.streams == Streams::ALL
    }

    pub(super) fn size(&self) -> Bytes {
        self.size
    }

    /// In whose order it is free.
    pub(super) fn streams(&self) -> Streams {
        self.streams
    }
}

/// What one side has from the device.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) device: Arc<dyn Device>,
    pub(super) manner: Manner,
    pub(super) side: Side,
    /// The region reserved, where the device maps pages.
    pub(super) region: Option<Address>,
    /// Pages that are nowhere any more, which the device would not take back when asked. They count
    /// as going.
    pub(super) orphans: Vec<(PageHandle, Bytes)>,
    /// Mappings that nobody is to use, which the device would not take away when asked, and what page
    /// is there. Their places are held on the line.
    pub(super) stranded: Vec<(Alias, PageHandle)>,
    /// Segments that were never on the line, which the device would not take back when asked. They
    /// count as going.
    pub(super) strays: Vec<(Address, Bytes)>,
}

impl Ground {
    /// Reserves addresses for a side on `device`, where it maps pages.
    pub(super) fn new(
        device: &Arc<dyn Device>,
        manner: &Manner,
        side: Side,
        log: &CallLog,
    ) -> Result<(Self, Field)> {
        let ground = |region| Self {
            device: Arc::clone(device),
            manner: manner.clone(),
            side,
            region,
            orphans: Vec::new(),
            stranded: Vec::new(),
            strays: Vec::new(),
        };
        let Some(memory) = manner.pages_of(&**device) else {
            let place = Place::Segments(Default::default(), Default::default());
            return Ok((ground(None), Field::new(PageSize::DEVICE, SEGMENT_LINE, place)));
        };
        let granule = memory.granularity().recommended;
        let total = device.memory_info()?.total;
        let size = total.checked_mul(ADDRESSES_PER_BYTE).unwrap_or(total).max(LEAST_ADDRESSES);
        let size = size.align_down(LEAF);
        // One leaf of the address map more, so that the line can begin where one does.
        let whole = size.saturating_add(LEAF.bytes());
        let reserve = || memory.reserve(whole, granule.alignment());
        let region = log.make(Call::Reserve, whole, reserve)?;
        let start = region.start().checked_align_up(LEAF).unwrap_or(region.start());
        Ok((ground(Some(region.start())), Field::new(granule, size, Place::Region(start))))
    }

    pub(super) fn memory(&self) -> Result<&dyn VirtualMemory> {
        let unsupported = || forebay_hal::Error::Unsupported {
            call: Call::Map,
            missing: "mapping of pages".into(),
        };
        Ok(self.device.virtual_memory().ok_or_else(unsupported)?)
    }

    /// Maps `page` at `span`, the addresses of `at`, with access for the device and its peers. Where it fails
    /// nothing is mapped there, or the mapping is [stranded](Self::stranded).
    fn attach(&mut self, at: Offset, span: Span, page: PageHandle, log: &CallLog) -> Result<()> {
        let memory = self.memory()?;
        let (own, size) = (self.device.descriptor().ordinal, span.size());
        log.make(Call::Map, size, || memory.map(span.start(), page))?;
        // SAFETY: access is granted to a mapping made just now, which nobody uses yet.
        let grant = |to| unsafe { memory.set_access(span, Access::ReadWrite, to) };
        let mut all = [own].into_iter().chain(self.manner.peers().iter().copied());
        let granted = all.try_for_each(|to| log.make(Call::SetAccess, size, || grant(to)));
        if granted.is_err() {
            self.detach(at, span, page, log);
        }
        Ok(granted?)
    }

    /// Takes a mapping away that was made just now and that nobody uses; where the device refuses
    /// that too, it is tried again later.
    fn detach(&mut self, at: Offset, span: Span, page: PageHandle, log: &CallLog) {
        if self.unmap(span, log).is_err() {
            self.stranded.push((Alias { at, size: span.size() }, page));
        }
    }

    /// Whether a mapping stands at `at` that nobody is to use.
    fn is_stranded(&self, at: Offset) -> bool {
        self.stranded.iter().any(|(alias, _)| alias.at == at)
    }

    /// Fills memory that came just now, in the order of the stream it came for.
    fn fill(
        &self,
        span: Span,
        fresh: Option<(Pattern, StreamHandle)>,
        log: &CallLog,
    ) -> Result<()> {
        let Some((pattern, stream)) = fresh else { return Ok(()) };
        let fill = Fill::linear(span.start(), span.size(), pattern)?;
        // SAFETY: it is memory of this ground, which goes back to the device only after the end of
        // all work in whose order it is free was seen.
        let fill = || unsafe { self.device.fill(&fill, stream) };
        Ok(log.make(Call::Fill, span.size(), fill)?)
    }

    /// Does what it takes for a hole of `size` in the order of `taker`, which has waited for all
    /// others; `false` where there is no way. Gives the old mappings of pages that moved in
    /// `aliases`.
    ///
    /// Each step leaves everything whole, so a failure half way loses nothing: what was done is
    /// holes.
    pub(super) fn make_room(
        &mut self,
        context: Context<'_>,
        size: Bytes,
        taker: Streams,
        aliases: &mut Vec<Alias>,
        log: &CallLog,
    ) -> Result<bool> {
        let plan = {
            let mut heap = lock(context.heap);
            let held = heap.held();
            let field = heap.field(self.side);
            let limit =
                context.limit.saturating_sub(held.saturating_sub(field.line.backed_bytes()));
            if self.region.is_none() {
                let segment = Plan::segment(&field.line, size, context.growth, limit);
                drop(heap);
                return match segment {
                    Some((at, wanted)) => self.add_segment(context, at, wanted, size, taker, log),
                    None => Ok(false),
                };
            }
            Plan::make(&field.line, size, taker, context.growth, limit)
        };
        let Some(plan) = plan else { return Ok(false) };
        for step in plan.steps {
            match step {
                Step::Create { at, size } => self.create(context, at, size, taker, log)?,
                Step::Move { from, to, size } => {
                    // Where someone has taken of it meanwhile, what was done so far is there, and
                    // the next plan sees how things stand.
                    if !self.shift(context, from, to, size, taker, log)? {
                        break;
                    }
                    aliases.push(Alias { at: from, size });
                }
                // A step that this pool does not know is not done.
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn create(
        &mut self,
        context: Context<'_>,
        at: Offset,
        size: Bytes,
        taker: Streams,
        log: &CallLog,
    ) -> Result<()> {
        let span = {
            let mut heap = lock(context.heap);
            let field = heap.field(self.side);
            if field.line.hold(at, size).is_err() {
                return Ok(());
            }
            field.span(at, size)
        };
        let made = self.make_page(context, at, span, log);
        let stranded = self.is_stranded(at);
        let mut heap = lock(context.heap);
        let field = heap.field(self.side);
        if !stranded {
            let cleared = field.line.clear(at);
            debug_assert!(cleared.is_ok(), "what was held is gone: {cleared:?}");
        }
        // New memory is in nobody's past, but free for all it would become one with a neighbour that
        // the taker cannot use.
        let placed = field.line.place(at, size, made?.0, taker);
        debug_assert!(placed.is_ok(), "the plan put a page where one is: {placed:?}");
        heap.note_held();
        Ok(())
    }

    /// A new page, mapped at `span`.
    fn make_page(
        &mut self,
        context: Context<'_>,
        at: Offset,
        span: Span,
        log: &CallLog,
    ) -> Result<PageHandle> {
        if !context.map.make(span, self.side) {
            return Err(Error::AddressRange { span });
        }
        let (memory, size) = (self.memory()?, span.size());
        let create = || memory.create_page(size, self.manner.page_options());
        let page = log.make(Call::CreatePage, size, create)?;
        let mut made = self.attach(at, span, page, log);
        if made.is_ok() {
            made = self.fill(span, context.fresh, log);
            if made.is_err() {
                // Nothing was enqueued.
                self.detach(at, span, page, log);
            }
        }
        if let Err(error) = made {
            self.orphan(context.heap, page, size);
            // The error that brought us here is the one to tell. Where the mapping stands still, it is
            // asked again another time.
            if !self.is_stranded(at) {
                let _ = self.tidy(context.heap, log);
            }
            return Err(error);
        }
        Ok(page)
    }

    /// Moves a free page; `false` where it is free no longer.
    fn shift(
        &mut self,
        context: Context<'_>,
        from: Offset,
        to: Offset,
        size: Bytes,
        taker: Streams,
        log: &CallLog,
    ) -> Result<bool> {
        let (page, streams, span) = {
            let mut heap = lock(context.heap);
            let field = heap.field(self.side);
            let Ok((page, _, streams)) = field.line.lift(from) else { return Ok(false) };
            if !streams.contains(taker) || field.line.hold(to, size).is_err() {
                put_back(&mut field.line, Lifted { at: from, page, size, streams });
                return Ok(false);
            }
            (page, streams, field.span(to, size))
        };
        let attached = if context.map.make(span, self.side) {
            self.attach(to, span, PageHandle(page), log)
        } else {
            Err(Error::AddressRange { span })
        };
        let stranded = self.is_stranded(to);
        let mut heap = lock(context.heap);
        let line = &mut heap.field(self.side).line;
        if !stranded {
            let cleared = line.clear(to);
            debug_assert!(cleared.is_ok(), "what was held is gone: {cleared:?}");
        }
        if let Err(error) = attached {
            put_back(line, Lifted { at: from, page, size, streams });
            return Err(error);
        }
        let placed = line.place(to, size, page, taker);
        debug_assert!(placed.is_ok(), "the plan moved what cannot be: {placed:?}");
        Ok(true)
    }

    /// A segment of `wanted` bytes, or of what is needed where the device has not that much.
    fn add_segment(
        &mut self,
        context: Context<'_>,
        at: Offset,
        wanted: Bytes,
        size: Bytes,
        taker: Streams,
        log: &CallLog,
    ) -> Result<bool> {
        let least = size.checked_align_up(Alignment::DEVICE_PAGE).unwrap_or(wanted).min(wanted);
        let allocate = |bytes: Bytes| {
            log.make(Call::Allocate, bytes, || self.device.allocate(bytes, Alignment::DEVICE_PAGE))
        };
        let (start, bytes) = match allocate(wanted) {
            Ok(start) => (start, wanted),
            Err(forebay_hal::Error::OutOfMemory { .. }) if least < wanted => {
                (allocate(least)?, least)
            }
            Err(error) => return Err(error.into()),
        };
        let span = Span::new(start, bytes).unwrap_or_default();
        let made = if context.map.make_segment(span, self.side) {
            self.fill(span, context.fresh, log)
        } else {
            Err(Error::AddressRange { span })
        };
        if let Err(error) = made {
            self.drop_segment(context.heap, start, bytes, log);
            return Err(error);
        }
        let mut heap = lock(context.heap);
        let field = heap.field(self.side);
        if field.line.place(at, bytes, start.get(), taker).is_err() {
            drop(heap);
            debug_assert!(false, "the plan put a segment where one is");
            self.drop_segment(context.heap, start, bytes, log);
            return Ok(false);
        }
        if let Place::Segments(by_place, by_address) = &mut field.place {
            by_place.insert(at, (start, bytes));
            by_address.insert(start, (at, bytes));
        }
        heap.note_held();
        Ok(true)
    }
}

/// Tries once more what failed: for the end of a pool, after which nobody can.
pub(super) fn twice<T, E>(
    mut call: impl FnMut() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    call().or_else(|_| call())
}

/// What making room needs beside the ground.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) heap: &'a Mutex<Heap>,
    pub(super) map: &'a AddressMap,
    pub(super) growth: &'a Growth,
    /// The most both sides may hold.
    pub(super) limit: Bytes,
    /// What new memory is filled with, and in whose order: that of the stream it comes for.
    pub(super) fresh: Option<(Pattern, StreamHandle)>,
}

/// Puts a lifted page back where it was: its mapping still stands.
pub(super) fn put_back(line: &mut Line, page: Lifted) {
    let cleared = line.clear(page.at);
    let placed = line.place(page.at, page.size, page.page, page.streams);
    debug_assert!(cleared.is_ok() && placed.is_ok(), "{cleared:?}, {placed:?}");
}
